use std::time::Duration;

use super::*;
use crate::sinks::batched::tests::message;

const MINUTE: Duration = Duration::from_secs(60);

fn safety(batch_bytes: u64, requests: u64, canary: u64) -> Safety {
    Safety::new(batch_bytes, requests, 1000, canary).unwrap()
}

/// New, or of a backlog, of so many bytes.
fn sized(is_live: bool, bytes: usize) -> Message {
    Message {
        is_live,
        body: vec![0; bytes],
        ..message(0)
    }
}

fn old(count: usize) -> Vec<Message> {
    vec![sized(false, 1); count]
}

#[test]
fn what_is_new_is_not_limited_and_goes_by_itself() {
    let (mut pacing, now) = (Pacing::new(Some(safety(10, 1, 1))), Instant::now());
    let new = vec![sized(true, 100); 50];
    for _ in 0..5 {
        assert_eq!(pacing.together(&new), 50);
        assert_eq!(pacing.leave(now, &new), Leave::Now);
    }
    let mixed = [&new[..3], &old(2)].concat();
    assert_eq!(pacing.together(&mixed), 3);
    assert_eq!(pacing.together(&mixed[3..]), 2);
    assert_eq!(Pacing::new(None).together(&mixed), 5);
    assert_eq!(Pacing::new(None).leave(now, &mixed), Leave::Now);
}

#[test]
fn a_batch_has_no_more_bytes_than_it_may_and_one_that_is_too_large_never_leaves() {
    let (mut pacing, now) = (Pacing::new(Some(safety(10, 9, 1))), Instant::now());
    let messages = [4, 6, 1, 11].map(|bytes| sized(false, bytes));
    assert_eq!(pacing.together(&messages), 2);
    assert_eq!(pacing.together(&messages[2..]), 1);
    assert_eq!(pacing.together(&messages[3..]), 1);
    let Leave::Never(reason) = pacing.leave(now, &messages[3..]) else {
        panic!("it leaves")
    };
    assert!(
        reason.contains("11 bytes") && reason.contains("batch_bytes"),
        "{reason}"
    );
    assert_eq!(pacing.leave(now, &messages[..2]), Leave::Now);
}

#[test]
fn a_backlog_waits_for_room() {
    let (mut pacing, now) = (Pacing::new(Some(safety(10, 1, 1))), Instant::now());
    assert_eq!(pacing.leave(now, &old(1)), Leave::Now);
    assert_eq!(pacing.until(), None);
    let later = Leave::Later(now + MINUTE);
    assert_eq!(pacing.leave(now, &old(1)), later);
    assert_eq!(pacing.until(), Some(now + MINUTE));
    pacing.wake(now + MINUTE / 2);
    assert_eq!(pacing.leave(now + MINUTE / 2, &old(1)), later);
    pacing.wake(now + MINUTE);
    assert_eq!(pacing.until(), None);
    assert_eq!(pacing.leave(now + MINUTE, &old(1)), Leave::Now);
}

#[test]
fn what_was_sent_to_nobody_takes_no_room() {
    let (mut pacing, now) = (Pacing::new(Some(safety(10, 1, 1))), Instant::now());
    for _ in 0..5 {
        assert_eq!(pacing.leave(now, &old(1)), Leave::Now);
        pacing.is_away(&old(1));
    }
    assert_eq!(pacing.leave(now, &old(1)), Leave::Now);
    pacing.is_away(&[sized(true, 1)]);
    let later = Leave::Later(now + MINUTE);
    assert_eq!(pacing.leave(now, &old(1)), later);
}

#[test]
fn after_an_outage_one_goes_alone_and_opens_the_backlog() {
    let mut pacing = Pacing::new(Some(Safety::default()));
    pacing.is_away(&[sized(true, 1)]);
    assert_eq!(pacing.together(&old(5)), 1);
    assert_eq!(pacing.taken(&sized(true, 1)), None);
    assert_eq!(pacing.together(&old(5)), 1, "what is new opens nothing");
    assert_eq!(pacing.taken(&old(1)[0]), None);
    assert_eq!(pacing.together(&old(5)), 5);
}

#[test]
fn what_was_put_together_before_an_outage_is_put_together_again() {
    let (mut pacing, now) = (Pacing::new(Some(Safety::default())), Instant::now());
    pacing.is_down();
    assert_eq!(pacing.leave(now, &old(2)), Leave::Later(now));
    assert_eq!(pacing.until(), None);
    assert_eq!(pacing.leave(now, &old(1)), Leave::Now);
}

#[test]
fn two_messages_that_fail_in_a_row_are_an_outage_and_one_that_fails_again_is_none() {
    let mut pacing = Pacing::new(Some(Safety::default()));
    let again = Message {
        attempt: 2,
        ..old(1).remove(0)
    };
    pacing.failed(&old(1)[0]);
    pacing.failed(&again);
    pacing.taken(&sized(true, 1));
    pacing.failed(&old(1)[0]);
    assert_eq!(pacing.together(&old(5)), 5);
    pacing.failed(&old(1)[0]);
    assert_eq!(pacing.together(&old(5)), 1);
}

#[test]
fn where_an_operator_decides_the_sink_is_paused_before_or_after_the_canary_until_it_is_resumed() {
    let now = Instant::now();
    let mut after = Pacing::new(Some(Safety::default().confirmed()));
    assert_eq!(after.taken(&old(1)[0]), None, "there was no outage");
    after.is_away(&[sized(true, 1)]);
    assert_eq!(after.leave(now, &old(1)), Leave::Now);
    assert!(after.taken(&old(1)[0]).is_some());
    let mut before = Pacing::new(Some(safety(10, 9, 0)));
    before.is_away(&[sized(true, 1)]);
    assert_eq!(before.leave(now, &[sized(true, 1)]), Leave::Now);
    assert!(matches!(before.leave(now, &old(1)), Leave::Confirmed(_)));
    for mut pacing in [after, before] {
        pacing.is_paused();
        pacing.is_away(&[sized(true, 1)]);
        pacing.is_resumed();
        assert_eq!(pacing.together(&old(5)), 5);
        assert_eq!(pacing.leave(now, &old(5)), Leave::Now);
    }
}
