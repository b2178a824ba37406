use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures::future::join_all;

use super::*;
use crate::{Unreachable, clock::Term, sinks::samples};

/// A destination that does what `act` says of a batch of numbers, and notes what it was given.
struct Odd<A> {
    act: A,
    given: Arc<Mutex<Vec<Vec<usize>>>>,
    at_once: usize,
}

impl<A, F> Sink for Odd<A>
where
    A: Fn(Vec<usize>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Vec<Verdict>, BoxError>> + Send,
{
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        let numbers: Vec<usize> = batch
            .iter()
            .map(|message| message.row().parse().unwrap())
            .collect();
        self.given.lock().unwrap().push(numbers.clone());
        (self.act)(numbers).await
    }

    fn at_once(&self, batch: &[Message]) -> usize {
        assert!(self.at_once > 0, "a defect");
        self.at_once.min(batch.len() + 1)
    }
}

struct Stage {
    batched: Batched,
    given: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Stage {
    fn of<A, F>(act: A) -> Self
    where
        A: Fn(Vec<usize>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Vec<Verdict>, BoxError>> + Send + 'static,
    {
        Self::with(act, None, usize::MAX)
    }

    fn with<A, F>(act: A, safety: Option<Safety>, at_once: usize) -> Self
    where
        A: Fn(Vec<usize>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Vec<Verdict>, BoxError>> + Send + 'static,
    {
        let terms = Terms {
            safety,
            ..Terms::default()
        };
        Self::on(terms, act, at_once)
    }

    fn on<A, F>(terms: Terms, act: A, at_once: usize) -> Self
    where
        A: Fn(Vec<usize>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Vec<Verdict>, BoxError>> + Send + 'static,
    {
        let given: Arc<Mutex<Vec<Vec<usize>>>> = Arc::default();
        let sink = Odd {
            act,
            given: given.clone(),
            at_once,
        };
        let (batched, run) = Batched::new("odd", Box::new(sink), terms, &Settings::default());
        tokio::spawn(run);
        Self { batched, given }
    }

    /// The same of messages that are not new.
    async fn swept(&self, numbers: std::ops::Range<usize>) -> Vec<Answer> {
        let swept = old(numbers).into_iter();
        join_all(swept.map(|message| self.batched.deliver(message))).await
    }

    /// What is answered for so many messages that come at once, in their order.
    async fn deliver(&self, count: usize) -> Vec<Answer> {
        join_all((0..count).map(|number| self.batched.deliver(message(number)))).await
    }

    fn calls(&self) -> Vec<Vec<usize>> {
        self.given.lock().unwrap().clone()
    }
}

pub(super) fn message(number: usize) -> Message {
    samples::message(&number.to_string(), "")
}

fn accepted(batch: &[usize]) -> Result<Vec<Verdict>, BoxError> {
    Ok(vec![Verdict::Accepted; batch.len()])
}

fn paces(answers: &[Answer]) -> Vec<Option<Pace>> {
    let pace = |answer: &Answer| match answer {
        Answer::Taken => None,
        Answer::Owed { pace, .. } => Some(*pace),
        Answer::Failed { .. } => Some(Pace::NextCycle),
        Answer::Rejected { .. } => Some(Pace::Growing),
    };
    answers.iter().map(pace).collect()
}

#[tokio::test(start_paused = true)]
async fn what_comes_at_once_goes_in_batches_of_a_hundred_in_order() {
    let stage = Stage::of(async |batch: Vec<usize>| accepted(&batch));
    let answers = stage.deliver(250).await;
    assert_eq!(answers, vec![Answer::Taken; 250]);
    let calls = stage.calls();
    assert_eq!(
        calls.iter().map(Vec::len).collect::<Vec<_>>(),
        [100, 100, 50]
    );
    assert_eq!(calls.concat(), (0..250).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn the_one_that_fails_is_found_and_what_comes_after_it_is_kept_from_nothing_but_this_pass() {
    let stage = Stage::of(async |batch: Vec<usize>| match batch.contains(&37) {
        true => Err("no 37".into()),
        false => accepted(&batch),
    });
    let paces_of = paces(&stage.deliver(100).await);
    for (number, pace) in paces_of.into_iter().enumerate() {
        let expected = match number {
            0..37 => None,
            37 => Some(Pace::NextCycle),
            _ => Some(Pace::AtOnce),
        };
        assert_eq!(pace, expected, "{number}");
    }
    assert!(stage.calls().len() <= 14, "{:?}", stage.calls());
    let mut given = HashSet::new();
    let parts = stage.calls();
    let passed = parts.iter().filter(|part| !part.contains(&37));
    assert!(
        passed.flatten().all(|number| given.insert(*number)),
        "one was given twice: {parts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_fails_rests_ever_longer_until_it_accepts_something() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = is_well.clone();
    let stage = Stage::of(move |batch: Vec<usize>| {
        let is_well = well.load(Relaxed);
        async move {
            match is_well {
                true => accepted(&batch),
                false => Err("closed".into()),
            }
        }
    });
    for rest in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
        let began = tokio::time::Instant::now();
        assert_eq!(paces(&stage.deliver(1).await), [Some(Pace::NextCycle)]);
        assert!(!stage.batched.is_up());
        assert_eq!(paces(&stage.deliver(1).await), [Some(Pace::AtOnce)]);
        stage.batched.up().await;
        assert_eq!(began.elapsed().as_millis(), rest);
    }
    is_well.store(true, Relaxed);
    assert_eq!(stage.deliver(1).await, [Answer::Taken]);
    is_well.store(false, Relaxed);
    let began = tokio::time::Instant::now();
    stage.deliver(1).await;
    stage.batched.up().await;
    assert_eq!(began.elapsed().as_millis(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_asks_for_a_rest_has_it() {
    let stage = Stage::of(async |batch: Vec<usize>| {
        let retry = Verdict::Retry {
            reason: "busy".into(),
            after: Some(Duration::from_secs(60)),
        };
        Ok(vec![retry; batch.len()])
    });
    let began = tokio::time::Instant::now();
    let answers = stage.deliver(3).await;
    assert_eq!(paces(&answers), [Some(Pace::NextCycle); 3]);
    stage.batched.up().await;
    assert_eq!(began.elapsed(), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_rejected_stays_owed_and_the_others_go_on() {
    let stage = Stage::of(async |batch: Vec<usize>| {
        let verdict = |number| match number % 2 {
            0 => Verdict::Accepted,
            _ => Verdict::Rejected("odd".into()),
        };
        Ok(batch.into_iter().map(verdict).collect())
    });
    let answers = stage.deliver(4).await;
    assert_eq!(
        paces(&answers),
        [None, Some(Pace::Growing), None, Some(Pace::Growing)]
    );
    assert!(stage.batched.is_up());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_rejected_as_a_whole_is_halved() {
    let stage = Stage::of(async |batch: Vec<usize>| match batch.contains(&5) {
        true => Ok(vec![Verdict::Rejected("bad request".into()); batch.len()]),
        false => accepted(&batch),
    });
    let answers = stage.deliver(100).await;
    let owed: Vec<usize> = (0..100)
        .filter(|&number| answers[number] != Answer::Taken)
        .collect();
    assert_eq!(owed, [5]);
    assert_eq!(paces(&answers)[5], Some(Pace::Growing));
}

#[tokio::test(start_paused = true)]
async fn a_panic_too_many_answers_and_none_at_all_are_failures() {
    let panics = Stage::of(async |_| panic!("a defect"));
    assert!(
        matches!(&panics.deliver(1).await[..], [Answer::Failed { reason }] if reason.contains("panic"))
    );
    let miscounts = Stage::of(async |_| Ok(Vec::new()));
    let answers = miscounts.deliver(1).await;
    assert!(
        matches!(&answers[..], [Answer::Failed { reason }] if reason.contains("0 answers for 1"))
    );
    let hangs = Stage::of(async |_| std::future::pending().await);
    let began = tokio::time::Instant::now();
    let answers = hangs.deliver(1).await;
    assert!(
        matches!(&answers[..], [Answer::Failed { reason }] if reason.contains("no answer within 30s"))
    );
    assert_eq!(began.elapsed(), Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_is_ended_and_what_waits_behind_it_does_not_leave() {
    let stage = Stage::of(async |_| std::future::pending().await);
    let (began, cut) = (tokio::time::Instant::now(), async {
        // Until the first batch is under way.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.batched.cut();
    });
    let (answers, ()) = futures::join!(stage.deliver(150), cut);
    assert_eq!(paces(&answers), [Some(Pace::AtOnce); 150]);
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert_eq!(stage.calls().len(), 1);
    assert!(stage.batched.is_up(), "it is not the sink that failed");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_delivered_whose_term_is_over() {
    let stage = Stage::of(async |batch: Vec<usize>| accepted(&batch));
    let late = Message {
        term: Term::Until(crate::clock::Moment::default()),
        ..message(0)
    };
    let answer = stage.batched.deliver(late).await;
    assert_eq!(paces(&[answer]), [Some(Pace::AtOnce)]);
    assert!(stage.calls().is_empty());
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a defect");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_panics_when_it_is_ended_takes_nothing_more() {
    let stage = Stage::of(async |_| {
        let _bomb = Bomb;
        std::future::pending().await
    });
    // The first is tried, and the second finds nobody to try it.
    for _ in 0..2 {
        assert_eq!(paces(&stage.deliver(1).await), [Some(Pace::AtOnce)]);
    }
    assert!(!stage.batched.is_up());
}

#[tokio::test(start_paused = true)]
async fn a_sink_is_given_as_many_at_once_as_it_takes_and_at_least_one() {
    for (at_once, expected) in [(3, vec![3, 3, 1]), (0, vec![7]), (usize::MAX, vec![7])] {
        let stage = Stage::with(async |batch: Vec<usize>| accepted(&batch), None, at_once);
        assert_eq!(stage.deliver(7).await, vec![Answer::Taken; 7]);
        let calls = stage.calls();
        assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), expected);
        assert_eq!(calls.concat(), (0..7).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_waits_for_room_and_what_is_new_goes_past_it() {
    // Five messages a batch, two batches a minute.
    let safety = Safety::new(50, 2, 1000, 1).unwrap();
    let stage = Stage::with(
        async |batch: Vec<usize>| accepted(&batch),
        Some(safety),
        usize::MAX,
    );
    let began = Instant::now();
    let answers = paces(&stage.swept(0..12).await);
    assert_eq!(answers[..10], [None; 10]);
    assert_eq!(answers[10..], [Some(Pace::AtOnce); 2]);
    assert!(stage.batched.is_up() && !stage.batched.takes_backlog());
    assert_eq!(stage.deliver(3).await, vec![Answer::Taken; 3]);
    assert_eq!(paces(&stage.swept(10..12).await), [Some(Pace::AtOnce); 2]);
    let mut open = stage.batched.open();
    open.wait_for(|open| *open == Open::All).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(60));
    assert_eq!(stage.swept(10..12).await, vec![Answer::Taken; 2]);
    let given: Vec<usize> = stage.calls().iter().map(Vec::len).collect();
    assert_eq!(given, [5, 5, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn what_is_new_goes_before_a_backlog_that_comes_with_it() {
    let stage = Stage::with(
        async |batch: Vec<usize>| accepted(&batch),
        Some(Safety::default()),
        usize::MAX,
    );
    let sent = (0..6).map(|number| {
        let sent = Message {
            is_live: number % 2 == 1,
            ..message(number)
        };
        stage.batched.deliver(sent)
    });
    assert_eq!(join_all(sent).await, vec![Answer::Taken; 6]);
    assert_eq!(stage.calls(), [vec![1, 3, 5], vec![0, 2, 4]]);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_a_canary_goes_first_and_an_operator_may_have_to_let_the_others_follow() {
    for is_confirmed in [false, true] {
        let is_there = Arc::new(AtomicBool::new(false));
        let there = is_there.clone();
        let act = move |batch: Vec<usize>| {
            let is_there = there.load(Relaxed);
            async move {
                match is_there {
                    true => accepted(&batch),
                    false => Err(Unreachable::new("nobody").into()),
                }
            }
        };
        let safety = match is_confirmed {
            true => Safety::default().confirmed(),
            false => Safety::default(),
        };
        let stage = Stage::with(act, Some(safety), usize::MAX);
        stage.swept(0..10).await;
        is_there.store(true, Relaxed);
        stage.batched.up().await;
        let answers = stage.swept(0..10).await;
        let taken = answers.iter().filter(|answer| **answer == Answer::Taken);
        let taken = taken.count();
        let given: Vec<usize> = stage.calls().iter().map(Vec::len).collect();
        if !is_confirmed {
            assert_eq!((taken, given), (10, vec![10, 1, 9]));
            continue;
        }
        assert_eq!((taken, given), (1, vec![10, 1]));
        let asked = stage.batched.asked().unwrap();
        assert!(asked.reason.contains("operator"), "{}", asked.reason);
        stage.batched.paused(true);
        stage.batched.paused(false);
        stage.batched.up().await;
        assert_eq!(stage.swept(1..10).await, vec![Answer::Taken; 9]);
    }
}

fn old(numbers: std::ops::Range<usize>) -> Vec<Message> {
    let old = |number| Message {
        is_live: false,
        body: vec![0; 10],
        ..message(number)
    };
    numbers.map(old).collect()
}

#[tokio::test(start_paused = true)]
async fn what_goes_beside_the_queue_takes_of_the_same_room() {
    let safety = Safety::new(50, 2, 1000, 1).unwrap();
    let stage = Stage::with(
        async |batch: Vec<usize>| accepted(&batch),
        Some(safety),
        usize::MAX,
    );
    let (began, minute) = (Instant::now(), Duration::from_secs(60));
    let beside = &stage.batched;
    assert_eq!(stage.swept(0..1).await, [Answer::Taken]);
    assert_eq!(beside.fitting(&old(1..9)), 5);
    assert!(beside.deliver_all(&old(1..6), 0).await.is_ok());
    for _ in 0..2 {
        let later = beside.deliver_all(&old(6..9), 0).await;
        assert!(
            matches!(later, Err(Fault::Later(then)) if then == began + minute),
            "{later:?}"
        );
    }
    assert_eq!(paces(&stage.swept(6..7).await), [Some(Pace::AtOnce)]);
    assert!(
        beside.deliver_all(&[message(9)], 0).await.is_ok(),
        "it is new"
    );
    tokio::time::sleep(minute).await;
    assert!(beside.deliver_all(&old(6..9), 0).await.is_ok());
    let large = vec![Message {
        body: vec![0; 51],
        ..old(0..1).remove(0)
    }];
    let never = beside.deliver_all(&large, 0).await;
    assert!(matches!(never, Err(Fault::Never(_))), "{never:?}");
}

#[tokio::test(start_paused = true)]
async fn beside_the_queue_a_canary_goes_alone_and_what_waited_for_its_turn_does_not_follow_it_unasked()
 {
    let stage = Stage::with(
        async |batch: Vec<usize>| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            accepted(&batch)
        },
        Some(Safety::default().confirmed()),
        usize::MAX,
    );
    let beside = &stage.batched;
    beside.is_down();
    assert_eq!(beside.fitting(&old(0..5)), 1);
    let (canary, other) = (old(0..1), old(1..2));
    let (canary, other) = tokio::join!(
        beside.deliver_all(&canary, 0),
        beside.deliver_all(&other, 0),
    );
    assert!(
        canary.is_ok() && matches!(other, Err(Fault::Later(_))),
        "{other:?}"
    );
    let asked = beside.asked().unwrap();
    assert!(asked.reason.contains("operator"), "{}", asked.reason);
    beside.paused(true);
    beside.paused(false);
    beside.runs().await;
    assert_eq!(beside.deliver_all(&old(1..5), 0).await.unwrap().len(), 4);
    assert_eq!(
        stage.calls().iter().map(Vec::len).collect::<Vec<_>>(),
        [1, 4]
    );
}

fn closed() -> Verdict {
    Verdict::Retry {
        reason: "closed".into(),
        after: None,
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_all_of_a_batch_is_said_of_the_destination() {
    let stage = Stage::of(async |batch: Vec<usize>| Ok(vec![closed(); batch.len()]));
    let answers = stage.deliver(100).await;
    assert_eq!(stage.calls().len(), 1, "it is not asked again in parts");
    let is_counted = |answer: &Answer| !matches!(answer, Answer::Owed { .. });
    assert!(!answers.iter().any(is_counted), "{answers:?}");
    assert!(!stage.batched.is_up());
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_says_is_said_of_each_message() {
    let terms = Terms {
        kind: Kind::Consumer,
        ..Terms::default()
    };
    let act = async |batch: Vec<usize>| Ok(vec![closed(); batch.len()]);
    let stage = Stage::on(terms, act, usize::MAX);
    let answers = stage.deliver(100).await;
    assert_eq!(stage.calls().len(), 1, "no handler is asked twice");
    let is_counted = |answer: &Answer| matches!(answer, Answer::Failed { .. });
    assert!(answers.iter().all(is_counted), "{answers:?}");
}
