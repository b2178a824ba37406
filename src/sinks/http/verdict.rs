//! What an answer means. The first that fits: a disposition in its body, then its status.
//!
//! Reasons are our own words and a number. What a destination writes may be anything, of anyone, and is kept nowhere.

use std::time::{Duration, SystemTime};

use super::{connection::Answer, disposition};
use crate::sinks::Verdict;

/// What becomes of the messages of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Of each, in their order.
    Each(Vec<Verdict>),
    /// Of the destination: it holds for whatever else it would be sent now.
    All(Verdict),
    /// Of the request; nobody knows whether one message is to blame.
    Failed(String),
}

impl Reply {
    pub(super) fn of(answer: &Answer, ids: &[String], now: SystemTime) -> Self {
        let body = answer.body.as_deref().unwrap_or_default();
        disposition::read(body, ids).unwrap_or_else(|| Self::by_status(answer, ids.len(), now))
    }

    fn by_status(answer: &Answer, count: usize, now: SystemTime) -> Self {
        let status = answer.status;
        let after = || {
            answer
                .retry_after
                .as_deref()
                .and_then(|text| wait(text, now))
        };
        let reason = format!("the destination answered {status}{}", remedy(status));
        match status {
            200..=299 => Self::Each(vec![Verdict::Accepted; count]),
            410 => Self::All(Verdict::Paused {
                reason,
                circuit: None,
                after: after(),
            }),
            // No message is to blame, whatever it says of the time.
            429 | 503 => Self::All(Verdict::Retry {
                reason,
                after: after().or(Some(Duration::ZERO)),
            }),
            // A redirect as well: whoever is told of another place may decide whether to go there, we do not.
            ..=399 | 401 | 403 | 404 | 407 | 408 | 425 => Self::All(Verdict::Retry {
                reason,
                after: Some(Duration::ZERO),
            }),
            400..=499 => Self::Each(vec![Verdict::Rejected(reason); count]),
            500.. => Self::Failed(reason),
        }
    }
}

/// What an operator may do about it.
fn remedy(status: u16) -> &'static str {
    match status {
        300..=399 => {
            ", which is not followed; set the URL to where it leads, if that is to be trusted"
        }
        401 | 403 => "; check that both sides have the same secret, and their clocks the time",
        404 => "; check the URL",
        407 => "; a proxy stands before it, let requests pass",
        410 => "; it is no longer there, check the URL and resume the sink",
        _ => "",
    }
}

/// How long `Retry-After` says to wait: a positive whole number of seconds, or a date to come.
fn wait(text: &str, now: SystemTime) -> Option<Duration> {
    let wait = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Duration::from_secs(text.parse().ok()?),
        false => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .ok()?,
    };
    (!wait.is_zero()).then_some(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    fn reply(status: u16, retry_after: Option<&str>, body: &str) -> Reply {
        let answer = Answer {
            status,
            retry_after: retry_after.map(str::to_owned),
            body: Some(body.into()),
        };
        Reply::of(&answer, &["a.x".into(), "b.x".into()], now())
    }

    fn word(reply: &Reply) -> &'static str {
        match reply {
            Reply::Failed(_) => "failed",
            Reply::All(Verdict::Retry { .. }) => "retry",
            Reply::All(Verdict::Paused { .. }) => "paused",
            Reply::All(_) => "wrong",
            Reply::Each(each) => match each[..] {
                [Verdict::Accepted, Verdict::Accepted] => "accepted",
                [Verdict::Rejected(_), Verdict::Rejected(_)] => "rejected",
                _ => "wrong",
            },
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        for status in 100..=999 {
            let expected = match status {
                200..=299 => "accepted",
                410 => "paused",
                429 | 503 | 401 | 403 | 404 | 407 | 408 | 425 => "retry",
                100..=199 | 300..=399 => "retry",
                400..=499 => "rejected",
                _ => "failed",
            };
            assert_eq!(word(&reply(status, None, "hunter2")), expected, "{status}");
        }
    }

    #[test]
    fn a_disposition_goes_before_the_status() {
        for status in [200, 302, 409, 410, 500, 503] {
            let reply = reply(status, Some("7"), r#"{"disposition":"accepted"}"#);
            assert_eq!(word(&reply), "accepted", "{status}");
        }
        let ignored = reply(409, None, r#"{"disposition":"maybe"}"#);
        assert_eq!(word(&ignored), "rejected");
    }

    #[test]
    fn how_long_to_wait_is_a_number_of_seconds_or_a_date() {
        for (text, seconds) in [
            ("30", Some(30)),
            ("007", Some(7)),
            ("0", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1 ", None),
            ("", None),
            ("soon", None),
            ("99999999999999999999", None),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:50:37 1994", Some(60)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:48:37 GMT", None),
        ] {
            let wait = wait(text, now()).map(|wait| wait.as_secs());
            assert_eq!(wait, seconds, "{text}");
        }
    }

    #[test]
    fn waits_are_read_where_they_have_a_meaning() {
        let after = |reply| match reply {
            Reply::All(Verdict::Retry { after, .. } | Verdict::Paused { after, .. }) => after,
            _ => None,
        };
        let seconds = Some(Duration::from_secs(30));
        let unsaid = Some(Duration::ZERO);
        for (status, expected) in [
            (429, seconds),
            (503, seconds),
            (410, seconds),
            (404, unsaid),
        ] {
            assert_eq!(after(reply(status, Some("30"), "")), expected, "{status}");
        }
        for (status, expected) in [(429, unsaid), (503, unsaid), (410, None), (401, unsaid)] {
            assert_eq!(after(reply(status, Some("soon"), "")), expected, "{status}");
        }
    }

    #[test]
    fn what_the_destination_writes_is_in_no_reason() {
        for status in 100..=999 {
            let said = format!("{:?}", reply(status, Some("hunter2"), "hunter2"));
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
