//! Names of switches and hosts: their order, and which of them mean the same host.

use std::cmp::Ordering;
use std::net::IpAddr;

/// Orders names as people do: numbers in them by their values, `leaf2` before `leaf10`.
pub fn by_name(one: &str, other: &str) -> Ordering {
    parts(one).cmp(parts(other)).then_with(|| one.cmp(other))
}

/// A part of a name: a number without its leading zeros, which by length and then by digits is in the order of values,
/// or text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Number(usize, &'a str),
    Text(&'a str),
}

fn parts(name: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let is_number = rest.as_bytes().first()?.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        let digits = part.trim_start_matches('0');
        Some(if is_number { Part::Number(digits.len(), digits) } else { Part::Text(part) })
    })
}

/// A host's name up to its first dot; an address has none that means anything.
pub fn short(host: &str) -> &str {
    match host.parse::<IpAddr>() {
        Ok(_) => host,
        Err(_) => host.split_once('.').map_or(host, |(short, _)| short),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_in_names_count() {
        let mut names =
            ["leaf10", "leaf2", "core1", "leaf02", "leaf2a", "leaf", "9", "", "r2n1", "r1n10", "r1n9"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(
            names,
            ["", "9", "core1", "leaf", "leaf02", "leaf2", "leaf2a", "leaf10", "r1n9", "r1n10", "r2n1"]
        );
    }

    #[test]
    fn addresses_have_no_short_names() {
        let shorts = ["n1.cluster.org", "n1", "10.0.0.1", "::1", ".x"].map(short);
        assert_eq!(shorts, ["n1", "n1", "10.0.0.1", "::1", ""]);
    }

    proptest! {
        #[test]
        fn it_is_an_order(mut names in prop::collection::vec("[a0-2]{0,4}", 3)) {
            names.sort_by(|a, b| by_name(a, b));
            prop_assert!(by_name(&names[0], &names[1]).is_le() && by_name(&names[0], &names[2]).is_le());
            for name in &names {
                prop_assert_eq!(by_name(&names[0], name) == Ordering::Equal, &names[0] == name);
            }
        }
    }
}
