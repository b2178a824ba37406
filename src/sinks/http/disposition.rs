//! What a destination says in so many words of what it was sent.

use std::{collections::HashMap, num::NonZeroU64, time::Duration};

use serde::Deserialize;

use super::verdict::Reply;
use crate::sinks::Verdict;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    dispositions: Vec<One>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    id: Option<String>,
    disposition: Word,
    retry_after: Option<NonZeroU64>,
    circuit: Option<String>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Word {
    Accepted,
    Duplicate,
    Rejected,
    Retry,
    Paused,
}

/// None for whatever is not exactly a disposition of all that was sent, or one of each message by its id.
pub(super) fn read(body: &[u8], ids: &[String]) -> Option<Reply> {
    if let Ok(one) = serde_json::from_slice::<One>(body) {
        let verdict = one.id.is_none().then(|| one.verdict())??;
        return Some(match verdict {
            Verdict::Retry { .. } | Verdict::Paused { .. } => Reply::All(verdict),
            verdict => Reply::Each(vec![verdict; ids.len()]),
        });
    }
    let Many { dispositions } = serde_json::from_slice(body).ok()?;
    let count = dispositions.len();
    let mut verdicts = HashMap::new();
    for one in dispositions {
        let verdict = one.verdict()?;
        verdicts.insert(one.id?, verdict);
    }
    let each: Option<Vec<Verdict>> = ids.iter().map(|id| verdicts.remove(id)).collect();
    // Neither too few, nor one twice, nor one that was not sent.
    (count == ids.len()).then_some(Reply::Each(each?))
}

impl One {
    fn verdict(&self) -> Option<Verdict> {
        let after = self.retry_after;
        let may_wait = matches!(self.disposition, Word::Retry | Word::Paused);
        let may_break = self.disposition == Word::Paused;
        if after.is_some() && !may_wait || self.circuit.is_some() && !may_break {
            return None;
        }
        let after = after.map(|seconds| Duration::from_secs(seconds.get()));
        let reason = |word: &str| format!("the destination answered that it is {word}");
        Some(match self.disposition {
            Word::Accepted => Verdict::Accepted,
            Word::Duplicate => Verdict::Duplicate,
            Word::Rejected => Verdict::Rejected(reason("rejected")),
            Word::Retry => Verdict::Retry {
                reason: reason("to be sent again"),
                after,
            },
            Word::Paused => Verdict::Paused {
                reason: reason("to be paused"),
                circuit: self.circuit.clone().filter(|circuit| is_circuit(circuit)),
                after,
            },
        })
    }
}

fn is_circuit(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    (1..=128).contains(&text.len()) && text.chars().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Option<Reply> {
        read(body.as_bytes(), &["a.x".into(), "b.x".into()])
    }

    #[test]
    fn one_word_is_for_all_of_it() {
        for (word, verdict) in [
            ("accepted", Verdict::Accepted),
            ("duplicate", Verdict::Duplicate),
        ] {
            let reply = of(&format!(r#"{{"disposition":"{word}"}}"#));
            assert_eq!(reply, Some(Reply::Each(vec![verdict; 2])));
        }
        let Some(Reply::Each(rejected)) = of(r#"{"disposition":"rejected"}"#) else {
            panic!()
        };
        assert!(matches!(
            rejected[..],
            [Verdict::Rejected(_), Verdict::Rejected(_)]
        ));
        let Some(Reply::All(retry)) = of(r#"{"disposition":"retry","retry_after":30}"#) else {
            panic!()
        };
        assert!(
            matches!(retry, Verdict::Retry { after: Some(after), .. } if after.as_secs() == 30)
        );
    }

    #[test]
    fn a_circuit_that_cannot_be_one_is_left_out() {
        let long = "x".repeat(129);
        for (circuit, is_taken) in [
            ("db-1_A", true),
            ("", false),
            ("a b", false),
            (&*long, false),
        ] {
            let body = format!(r#"{{"disposition":"paused","circuit":"{circuit}"}}"#);
            let Some(Reply::All(Verdict::Paused {
                circuit: taken,
                after,
                ..
            })) = of(&body)
            else {
                panic!("{body}")
            };
            assert_eq!(taken.as_deref(), is_taken.then_some(circuit));
            assert_eq!(after, None);
        }
    }

    #[test]
    fn each_message_has_its_own_in_any_order() {
        let body = r#"{"dispositions":[{"id":"b.x","disposition":"duplicate"},{"id":"a.x","disposition":"accepted"}]}"#;
        let each = vec![Verdict::Accepted, Verdict::Duplicate];
        assert_eq!(of(body), Some(Reply::Each(each)));
    }

    #[test]
    fn whatever_else_there_is_says_nothing() {
        for body in [
            "",
            "ok",
            "null",
            "[]",
            "{}",
            r#"{"disposition":"ACCEPTED"}"#,
            r#"{"disposition":"accepted","more":1}"#,
            r#"{"disposition":"accepted"} and more"#,
            r#"{"disposition":"accepted","id":"a.x"}"#,
            r#"{"disposition":"accepted","retry_after":1}"#,
            r#"{"disposition":"retry","retry_after":0}"#,
            r#"{"disposition":"retry","retry_after":-1}"#,
            r#"{"disposition":"retry","retry_after":1.5}"#,
            r#"{"disposition":"retry","retry_after":"1"}"#,
            r#"{"disposition":"retry","circuit":"a"}"#,
            r#"{"dispositions":[]}"#,
            r#"{"dispositions":[{"id":"a.x","disposition":"accepted"}]}"#,
            r#"{"dispositions":[{"disposition":"accepted"},{"disposition":"accepted"}]}"#,
            r#"{"dispositions":[{"id":"a.x","disposition":"accepted"},{"id":"a.x","disposition":"accepted"}]}"#,
            r#"{"dispositions":[{"id":"a.x","disposition":"accepted"},{"id":"c.x","disposition":"accepted"}]}"#,
            r#"{"dispositions":[{"id":"a.x","disposition":"accepted"},{"id":"b.x","disposition":"accepted"},{"id":"b.x","disposition":"retry"}]}"#,
        ] {
            assert_eq!(of(body), None, "{body}");
        }
    }
}
