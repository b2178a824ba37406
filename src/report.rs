//! Says something the first time, and counts it after that.

use std::collections::HashMap;

/// How many subjects are remembered. Past it, all are forgotten and may be said once more.
const MOST: usize = 1000;

/// What has been reported already.
#[derive(Default)]
pub(crate) struct Reports {
    seen: HashMap<String, u64>,
}

impl Reports {
    /// Calls `say` if `subject` is new, or for each time it has come up ten times as often as when it
    /// was last said, with how often that was.
    pub(crate) fn first(&mut self, subject: &str, say: impl FnOnce(u64)) {
        if self.seen.len() >= MOST && !self.seen.contains_key(subject) {
            self.seen.clear();
        }
        let times = self.seen.entry(subject.to_owned()).or_default();
        *times += 1;
        if is_power_of_ten(*times) {
            say(*times);
        }
    }
}

fn is_power_of_ten(mut number: u64) -> bool {
    while number > 1 && number.is_multiple_of(10) {
        number /= 10;
    }
    number == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_said_at_first_and_then_ever_more_seldom() {
        let mut reports = Reports::default();
        let mut said = Vec::new();
        for _ in 0..1000 {
            reports.first("x", |times| said.push(times));
        }
        assert_eq!(said, [1, 10, 100, 1000]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut reports = Reports::default();
        for subject in 0..5000 {
            reports.first(&subject.to_string(), |_| {});
        }
        assert!(reports.seen.len() <= MOST);
    }
}
