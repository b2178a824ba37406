//! Single steps of section 4, where a history would be too much.

use std::time::Duration;

use crate::lane::Slot;

use super::*;

const BEAT: Duration = Duration::from_secs(2);

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn routes() -> Routes {
    Routes::new([Route::from("amqp/created")].into())
}

fn new() -> Protocol {
    Protocol::new("me", routes(), Timing::new(BEAT), at(0))
}

fn sent(outputs: &[Output]) -> Option<(u64, Request)> {
    outputs.iter().find_map(|output| match output {
        Output::Send { number, request } => Some((*number, request.clone())),
        Output::StandDown { .. } | Output::Cut { .. } | Output::Assigned(_) => None,
    })
}

fn reply(protocol: &mut Protocol, millis: u64, number: u64, outcome: Outcome) -> Vec<Output> {
    protocol.step(at(millis), Input::Reply { number, outcome })
}

fn other(seen: bool) -> Document {
    let epoch = Epoch {
        number: 1,
        nonce: "other.2".into(),
    };
    let seen = seen.then(|| epoch.clone());
    Document {
        protocol: PROTOCOL,
        epoch,
        members: vec![Member {
            id: "other.1".into(),
            beat: 9,
            seen,
            routes: routes(),
        }],
    }
}

/// The document as a join of ours makes it, and whether the other has acknowledged that.
fn joined(request: &Request, acknowledged: bool) -> Document {
    let Request::Join { id, routes, nonce } = request else {
        panic!("not a join: {request:?}")
    };
    let mut document = other(true);
    document.epoch = document.epoch.after(nonce.clone());
    let seen = Some(document.epoch.clone());
    document.members.push(Member {
        id: id.clone(),
        beat: 0,
        seen: seen.clone(),
        routes: routes.clone(),
    });
    if acknowledged {
        document.members[0].seen = seen;
    }
    document
}

fn beaten(document: &Document) -> Document {
    let mut document = document.clone();
    document.members[1].beat += 1;
    document
}

/// An owner of the odd lanes whose join was sent at 20 ms.
fn owner() -> (Protocol, Document) {
    let mut protocol = new();
    let (number, _) = sent(&protocol.step(at(10), Input::Tick)).expect("a look");
    let (number, join) = sent(&reply(
        &mut protocol,
        20,
        number,
        Outcome::Shown(other(true)),
    ))
    .expect("a join");
    let document = joined(&join, true);
    reply(
        &mut protocol,
        30,
        number,
        Outcome::Written(document.clone()),
    );
    assert!(
        protocol.assignment().owns("amqp/created", 1, at(30))
            && !protocol.assignment().owns("amqp/created", 2, at(30))
    );
    (protocol, document)
}

#[test]
fn an_unknown_protocol_stands_by_and_is_looked_at_once_a_beat() {
    let mut protocol = new();
    let (number, request) = sent(&protocol.step(at(10), Input::Tick)).expect("a look");
    assert_eq!(request, Request::Look);
    let outputs = reply(&mut protocol, 20, number, Outcome::Foreign(2));
    assert_eq!(
        outputs,
        vec![Output::Assigned(Assignment::None(Reason::Foreign(2)))]
    );
    assert_eq!(protocol.next(), at(2020));
    assert_eq!(sent(&protocol.step(at(2019), Input::Tick)), None);
    assert_eq!(
        sent(&protocol.step(at(2020), Input::Tick)).map(|(_, request)| request),
        Some(Request::Look)
    );
}

#[test]
fn ownership_ends_by_the_clock_alone() {
    let (protocol, _) = owner();
    assert!(protocol.assignment().owns("amqp/created", 1, at(4019)));
    assert!(
        !protocol.assignment().owns("amqp/created", 1, at(4020)),
        "two beats after the join was sent, and nobody said so"
    );
}

#[test]
fn a_late_reply_is_no_reply() {
    let (mut protocol, document) = owner();
    let (number, _) = sent(&protocol.step(at(2020), Input::Tick)).expect("a beat");
    reply(
        &mut protocol,
        3520,
        number,
        Outcome::Written(beaten(&document)),
    );
    assert!(
        !protocol.assignment().owns("amqp/created", 1, at(4020)),
        "it was not acknowledged within three quarters of a beat"
    );
}

#[test]
fn the_deadline_counts_from_the_send() {
    let (mut protocol, document) = owner();
    let (number, _) = sent(&protocol.step(at(2020), Input::Tick)).expect("a beat");
    reply(
        &mut protocol,
        3000,
        number,
        Outcome::Written(beaten(&document)),
    );
    assert!(
        protocol.assignment().owns("amqp/created", 1, at(6019))
            && !protocol.assignment().owns("amqp/created", 1, at(6020))
    );
}

#[test]
fn a_new_epoch_is_acknowledged_once_drained_and_not_before() {
    let (mut protocol, document) = owner();
    let (number, _) = sent(&protocol.step(at(2020), Input::Tick)).expect("a beat");
    let mut document = beaten(&document);
    document.epoch = document.epoch.after("third.1".into());
    let outputs = reply(
        &mut protocol,
        2030,
        number,
        Outcome::Written(document.clone()),
    );
    assert!(outputs.contains(&Output::StandDown { order: 1 }) && sent(&outputs).is_none());
    assert!(!protocol.assignment().owns("amqp/created", 1, at(2030)));
    let outputs = protocol.step(at(2040), Input::Drained { order: 1 });
    let ack = Request::Ack {
        id: document.members[1].id.clone(),
        epoch: document.epoch,
    };
    assert_eq!(sent(&outputs).map(|(_, request)| request), Some(ack));
}

#[test]
fn what_is_in_flight_is_cut_after_two_and_a_half_beats() {
    let (mut protocol, _) = owner();
    protocol.step(at(2020), Input::Tick);
    assert!(
        !protocol
            .step(at(5019), Input::Tick)
            .contains(&Output::Cut { order: 1 })
    );
    assert!(
        protocol
            .step(at(5020), Input::Tick)
            .contains(&Output::Cut { order: 1 })
    );
}

#[test]
fn leaving_is_the_last_write() {
    let (mut protocol, _) = owner();
    let outputs = protocol.step(at(100), Input::Leave);
    assert!(outputs.contains(&Output::StandDown { order: 1 }) && sent(&outputs).is_none());
    let (number, request) =
        sent(&protocol.step(at(200), Input::Drained { order: 1 })).expect("a leave");
    assert!(matches!(request, Request::Leave { .. }));
    reply(&mut protocol, 210, number, Outcome::Written(other(true)));
    assert!(protocol.gone() && protocol.step(at(9000), Input::Tick).is_empty());
}

#[test]
fn a_creator_that_waits_leaves_without_a_word() {
    let mut protocol = new();
    let (number, _) = sent(&protocol.step(at(10), Input::Tick)).expect("a look");
    let (number, request) =
        sent(&reply(&mut protocol, 20, number, Outcome::Missing)).expect("a creation");
    let Request::Create { id, routes, nonce } = request else {
        panic!("{request:?}")
    };
    let epoch = Epoch { number: 1, nonce };
    let members = vec![Member {
        id,
        beat: 0,
        seen: None,
        routes,
    }];
    reply(
        &mut protocol,
        30,
        number,
        Outcome::Written(Document {
            protocol: PROTOCOL,
            epoch,
            members,
        }),
    );
    assert_eq!(*protocol.assignment(), Assignment::None(Reason::Waiting));
    assert_eq!(sent(&protocol.step(at(40), Input::Leave)), None);
    assert!(protocol.gone());
}

#[test]
fn only_those_who_serve_a_route_count_and_only_the_first_128() {
    let mut document = other(true);
    let plain: Routes = Routes::default();
    document.members = (0..140)
        .map(|i| Member {
            id: format!("{i}").into(),
            beat: 0,
            seen: None,
            routes: if i == 0 { plain.clone() } else { routes() },
        })
        .collect();
    let route = Route::from("amqp/created");
    assert_eq!(document.slot("0", &route), None);
    assert_eq!(document.slot("1", &route), Slot::new(0, 128));
    assert_eq!(document.slot("128", &route), Slot::new(127, 128));
    assert_eq!(document.slot("129", &route), None);
}
