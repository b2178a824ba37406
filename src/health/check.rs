//! One thing that is looked at, and what a list of them says.

use serde_json::{Map, Value, json};

/// What is looked at, and how it is.
pub(super) struct Check {
    name: &'static str,
    says: String,
    is_good: bool,
}

impl Check {
    pub(super) fn good(name: &'static str, says: impl Into<String>) -> Self {
        Self {
            name,
            says: says.into(),
            is_good: true,
        }
    }

    pub(super) fn bad(name: &'static str, says: impl Into<String>) -> Self {
        Self {
            is_good: false,
            ..Self::good(name, says)
        }
    }
}

pub(super) fn are_good(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.is_good)
}

/// A line each.
pub(super) fn text(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let sign = if check.is_good { "ok" } else { "NOT OK" };
        format!("{}: {sign}: {}\n", check.name, check.says)
    };
    checks.iter().map(line).collect()
}

/// A field each.
pub(super) fn json(checks: &[Check]) -> String {
    let field = |check: &Check| {
        let value = json!({ "ok": check.is_good, "says": check.says });
        (check.name.to_owned(), value)
    };
    let fields: Map<String, Value> = checks.iter().map(field).collect();
    let whole = json!({ "ok": are_good(checks), "checks": fields });
    format!("{whole}\n")
}
