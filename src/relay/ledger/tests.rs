//! What the ledger forgets and what it does not.

use super::*;
use crate::row::Event;

const AT_ONCE: Sent = Sent::Again {
    after: Duration::ZERO,
};

fn row() -> Row {
    Row {
        id: RowId::new(),
        lane: 0,
        pending: 0,
        event: Event::created(bson::Document::new()),
        outstanding: None,
    }
}

fn claims(ledger: &Arc<Ledger>, row: &Row) -> bool {
    ledger.claim(row, Instant::now()).is_some()
}

fn send(ledger: &Arc<Ledger>, row: &Row, sent: Sent) {
    let claim = ledger.claim(row, Instant::now()).unwrap();
    claim.settle(sent, RouteSet::default());
}

#[test]
fn a_row_being_written_is_nobody_elses() {
    let (ledger, row) = (Ledger::new(10), row());
    let hold = ledger.hold(&row).unwrap();
    assert!(!claims(&ledger, &row));
    drop(hold);
    assert_eq!(ledger.left(), Left::default());
    assert!(claims(&ledger, &row));
}

#[test]
fn a_row_is_sent_once_until_it_is_marked() {
    let (ledger, row) = (Ledger::new(10), row());
    send(&ledger, &row, Sent::Whole);
    assert!(!claims(&ledger, &row));
    ledger.marked([&row.id]);
    assert_eq!(ledger.left(), Left::default());
}

#[test]
fn a_mark_during_a_read_does_not_let_that_read_send_the_row_again() {
    let (ledger, known, found) = (Ledger::new(10), row(), row());
    send(&ledger, &known, Sent::Whole);
    let reading = ledger.read();
    send(&ledger, &found, Sent::Whole);
    ledger.marked([&known.id, &found.id]);
    assert!(!claims(&ledger, &known), "the read may still bring it");
    assert!(
        claims(&ledger, &found),
        "the read has passed it, so it need not be remembered"
    );
    drop(reading);
    assert!(claims(&ledger, &known));
}

#[test]
fn what_could_not_be_sent_is_due_when_it_says() {
    let (ledger, soon, late) = (Ledger::new(10), row(), row());
    send(&ledger, &soon, AT_ONCE);
    send(
        &ledger,
        &late,
        Sent::Again {
            after: Duration::from_secs(60),
        },
    );
    let due = ledger.due(Instant::now(), 10, &HashSet::new(), false);
    assert_eq!(
        due.iter().map(|due| &due.id).collect::<Vec<_>>(),
        [&soon.id]
    );
    assert!(!claims(&ledger, &late));
    let mut refused = ledger.claim(&soon, Instant::now()).unwrap();
    assert_eq!(refused.refusals, 0);
    refused.refusals += 1;
    refused.settle(AT_ONCE, RouteSet::default());
    assert_eq!(ledger.claim(&soon, Instant::now()).unwrap().refusals, 1);
}

#[test]
fn what_the_destination_had_something_against_goes_behind_all_others() {
    let (ledger, refused, earlier, held) = (Ledger::new(10), row(), row(), row());
    let wait = |millis| Sent::Again {
        after: Duration::from_millis(millis),
    };
    send(&ledger, &refused, wait(2));
    send(&ledger, &earlier, wait(1));
    send(&ledger, &held, AT_ONCE);
    let now = Instant::now() + Duration::from_secs(1);
    let due = |is_behind| {
        let due = ledger.due(now, 10, &HashSet::new(), is_behind);
        due.into_iter().map(|due| due.id).collect::<Vec<_>>()
    };
    assert_eq!(due(false), std::slice::from_ref(&held.id));
    assert_eq!(due(true), [earlier.id, refused.id.clone()]);
    assert!(ledger.is_free(&held.id, now, false));
    assert!(
        !ledger.is_free(&refused.id, now, false),
        "not among the others"
    );
    assert!(ledger.is_free(&refused.id, now, true));
}

#[test]
fn beyond_the_bound_a_failed_row_is_forgotten_and_a_sent_one_waits() {
    let (ledger, first, second) = (Ledger::new(1), row(), row());
    send(&ledger, &first, AT_ONCE);
    send(&ledger, &second, AT_ONCE);
    assert_eq!(ledger.left().unsent, 1);
    assert!(ledger.has_room());
    send(&ledger, &second, Sent::Whole);
    assert!(!ledger.has_room());
}

#[test]
fn routes_that_are_done_stay_done_until_the_row_is_forgotten() {
    let (ledger, row) = (Ledger::new(10), row());
    let mut done = RouteSet::default();
    done.insert(3);
    ledger
        .claim(&row, Instant::now())
        .unwrap()
        .settle(AT_ONCE, done);
    assert!(ledger.claim(&row, Instant::now()).unwrap().done.contains(3));
}

#[tokio::test]
async fn swept_rows_are_open_until_they_are_marked_and_own_ones_never() {
    let (ledger, own, swept) = (Ledger::new(10), row(), row());
    ledger
        .hold(&own)
        .unwrap()
        .settle(Sent::Whole, RouteSet::default());
    assert_eq!(ledger.swept(), Swept::default());
    let claim = ledger.claim(&swept, Instant::now()).unwrap();
    assert_eq!(ledger.swept().in_flight, 1);
    claim.settle(Sent::Whole, RouteSet::default());
    assert_eq!((ledger.swept().in_flight, ledger.swept().unmarked), (0, 1));
    let mut settled = Box::pin(ledger.until_swept(|swept| swept == Swept::default()));
    assert!(futures::poll!(&mut settled).is_pending());
    ledger.marked([&swept.id]);
    assert!(futures::poll!(&mut settled).is_ready());
}

#[test]
fn what_was_left_to_others_is_not_tried_again() {
    let (ledger, row) = (Ledger::new(10), row());
    send(&ledger, &row, AT_ONCE);
    let now = Instant::now();
    assert!(ledger.is_free(&row.id, now, false));
    drop(ledger.forget_unsent());
    assert!(ledger.reclaim(&row.id, true, now).is_none());
    assert!(
        ledger.is_free(&row.id, now, false),
        "a sweep may bring it again"
    );
    send(&ledger, &row, AT_ONCE);
    let claim = ledger.reclaim(&row.id, false, Instant::now()).unwrap();
    assert_eq!(ledger.swept(), Swept::default(), "by its writer's right");
    assert!(!ledger.is_free(&row.id, now, false));
    claim.settle(AT_ONCE, RouteSet::default());
}

#[test]
fn who_writes_under_the_id_of_another_takes_nothing_from_him() {
    let (ledger, row) = (Ledger::new(10), row());
    let first = ledger.hold(&row).unwrap();
    assert!(ledger.hold(&row).is_none(), "he is writing it");
    first.settle(Sent::Whole, RouteSet::default());
    assert!(ledger.hold(&row).is_none(), "he has sent it");
    assert!(ledger.is_at(&row.id));
    drop(ledger.hold(&self::row()));
    assert!(ledger.is_at(&row.id));
}

#[test]
fn a_row_is_open_until_it_is_marked_or_known_unsent() {
    let (ledger, row) = (Ledger::new(10), row());
    assert!(!ledger.is_at(&row.id));
    let claim = ledger.hold(&row).unwrap();
    assert!(ledger.is_at(&row.id), "being written");
    claim.sending(false);
    assert!(ledger.is_at(&row.id), "being sent");
    claim.settle(AT_ONCE, RouteSet::default());
    assert!(!ledger.is_at(&row.id), "known unsent");
    send(&ledger, &row, Sent::Whole);
    assert!(ledger.is_at(&row.id), "not marked");
    ledger.marked([&row.id]);
    assert!(!ledger.is_at(&row.id));
}

#[test]
fn marks_of_some_routes_are_waited_for() {
    let ledger = Ledger::new(10);
    ledger.partly();
    assert_eq!(ledger.swept().partial, 1);
    ledger.partly_marked(1);
    assert_eq!(ledger.swept(), Swept::default());
}

#[test]
fn an_own_row_sent_by_the_right_to_its_lane_is_a_swept_one() {
    let (ledger, row) = (Ledger::new(10), row());
    let claim = ledger.hold(&row).unwrap();
    claim.sending(true);
    assert_eq!(ledger.swept().in_flight, 1);
    claim.settle(Sent::Whole, RouteSet::default());
    assert_eq!((ledger.swept().in_flight, ledger.swept().unmarked), (0, 1));
}

#[test]
fn what_is_unsent_can_be_handed_to_others() {
    let (ledger, unsent, sent) = (Ledger::new(10), row(), row());
    send(&ledger, &unsent, AT_ONCE);
    send(&ledger, &sent, Sent::Whole);
    assert_eq!(ledger.forget_unsent(), std::slice::from_ref(&unsent.id));
    assert_eq!(ledger.left().unsent, 0);
    assert!(claims(&ledger, &unsent) && !claims(&ledger, &sent));
}

#[tokio::test]
async fn room_is_there_again_once_something_is_marked() {
    let (ledger, row) = (Ledger::new(1), row());
    send(&ledger, &row, Sent::Whole);
    let mut waiting = Box::pin(ledger.room());
    assert!(futures::poll!(&mut waiting).is_pending());
    ledger.marked([&row.id]);
    assert!(futures::poll!(&mut waiting).is_ready());
}

/// With a tail, as in a sidecar.
mod tailed {
    use super::*;

    fn tail(ledger: &Arc<Ledger>, row: &Row) -> bool {
        let Some(claim) = ledger.claim_tailed(row) else {
            return false;
        };
        claim.settle(Sent::Whole, RouteSet::default());
        true
    }

    fn is_known(ledger: &Arc<Ledger>, row: &Row) -> bool {
        ledger.state().known.contains_key(&row.id)
    }

    #[test]
    fn what_was_pumped_is_kept_until_the_tail_has_passed_it() {
        let (ledger, before, after) = (Ledger::new(10), row(), row());
        ledger.tail_opens();
        send(&ledger, &before, Sent::Whole);
        ledger.marked([&before.id]);
        assert!(ledger.fence());
        send(&ledger, &after, Sent::Whole);
        ledger.marked([&after.id]);
        assert!(!tail(&ledger, &before) && !tail(&ledger, &after));
        ledger.passed();
        assert!(!is_known(&ledger, &before) && is_known(&ledger, &after));
        assert!(ledger.fence());
        ledger.tail_ends();
        assert!(!is_known(&ledger, &after));
    }

    #[test]
    fn what_the_tail_brought_it_will_not_bring_again() {
        let (ledger, brought, met) = (Ledger::new(10), row(), row());
        ledger.tail_opens();
        assert!(tail(&ledger, &brought));
        send(&ledger, &met, Sent::Whole);
        assert!(!tail(&ledger, &met));
        ledger.marked([&brought.id, &met.id]);
        assert!(!is_known(&ledger, &brought) && !is_known(&ledger, &met));
        assert!(!ledger.fence());
    }

    #[test]
    fn a_read_may_still_bring_what_the_tail_has_brought_since_it_began() {
        let (ledger, old) = (Ledger::new(10), row());
        let new = Row {
            pending: now() + 3_600_000,
            ..row()
        };
        ledger.tail_opens();
        let reading = ledger.read();
        assert!(tail(&ledger, &old) && tail(&ledger, &new));
        ledger.marked([&old.id, &new.id]);
        assert!(!claims(&ledger, &old), "it was due when the read began");
        assert!(!is_known(&ledger, &new), "it was not");
        drop(reading);
        assert!(!is_known(&ledger, &old));
    }

    #[tokio::test]
    async fn nothing_more_is_swept_while_too_much_is_kept_for_the_tail() {
        let ledger = Ledger::new(2);
        ledger.tail_opens();
        for _ in 0..2 {
            ledger.room().await;
            let row = row();
            send(&ledger, &row, Sent::Whole);
            ledger.marked([&row.id]);
        }
        let room = ledger.room();
        let mut room = std::pin::pin!(room);
        assert!(futures::poll!(&mut room).is_pending());
        assert!(ledger.has_room(), "for what the tail brings");
        ledger.fence();
        ledger.passed();
        room.await;
    }
}
