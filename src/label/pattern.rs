//! Patterns of labels: `tea_pots.created`, `tea_pots.*`, `*.deleted`.

/// Whether a name fits, each `*` standing for any characters or none.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    // Splitting always yields a first part.
    let head = parts.next().unwrap_or_default();
    let Some(tail) = parts.next_back() else {
        return pattern == name;
    };
    let rest = name
        .strip_prefix(head)
        .and_then(|rest| rest.strip_suffix(tail));
    let Some(mut rest) = rest else { return false };
    // The first place is as good as any: it leaves most for those that follow.
    parts.all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name) in [
            ("tea_pots.created", "tea_pots.created"),
            ("tea_pots.*", "tea_pots.created"),
            ("tea_pots.*", "tea_pots."),
            ("*.created", "tea_pots.created"),
            ("*", "tea_pots.created"),
            ("**", ""),
            ("t*s.*ed", "tea_pots.created"),
            ("*ü*", "tea.grün"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn and_everything_else_for_itself() {
        for (pattern, name) in [
            ("tea_pots.created", "tea_pots.creates"),
            ("tea_pots.*", "tea_cups.created"),
            ("*.created", "tea_pots.created_at"),
            ("created", "tea_pots.created"),
            ("tea.pots.*", "tea_pots.created"),
            ("t*t", "t"),
            ("a*b*b", "ab"),
            ("*ab*bc", "abc"),
            ("", "tea_pots.created"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_left_out_of_a_name_a_star_stands_for(
            kept in prop::collection::vec("[a-c.]{0,3}", 1..4),
            left_out in "[a-c.]{0,3}",
        ) {
            prop_assert!(fits(&kept.join("*"), &kept.join(&left_out)));
        }
    }
}
