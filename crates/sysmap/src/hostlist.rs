//! Lists of hosts as Slurm writes them: `login,node[01-03,08],r[1-2]n[1-4]`.

/// Most hosts that a list may name.
pub const HOSTS_MAX: usize = 1 << 16;

/// Why something is no list of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadList {
    /// A bracket without its other half, or something within that is no range of numbers.
    Brackets(String),
    TooLong,
}

impl std::fmt::Display for BadList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadList::Brackets(word) => {
                write!(
                    f,
                    "'{}' is no host and no list of hosts such as node[01-16]",
                    crate::system::clip(word)
                )
            }
            BadList::TooLong => write!(f, "it names more than {HOSTS_MAX} hosts"),
        }
    }
}

impl std::error::Error for BadList {}

/// All hosts of a list, in its order.
pub fn expand(list: &str) -> Result<Vec<String>, BadList> {
    let mut hosts = Vec::new();
    for word in words(list)? {
        let room = HOSTS_MAX - hosts.len();
        hosts.extend(hosts_of(word, room)?);
    }
    Ok(hosts)
}

/// Parts between commas that are not in brackets.
fn words(list: &str) -> Result<Vec<&str>, BadList> {
    let (mut words, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' | ']' if (c == '[') == inside => return Err(BadList::Brackets(list.into())),
            '[' | ']' => inside = c == '[',
            ',' if !inside => {
                words.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(BadList::Brackets(list.into()));
    }
    words.push(&list[start..]);
    Ok(words.into_iter().map(str::trim).filter(|word| !word.is_empty()).collect())
}

/// The hosts of one word; brackets are balanced.
fn hosts_of(word: &str, room: usize) -> Result<Vec<String>, BadList> {
    let mut hosts = vec![String::new()];
    let mut rest = word;
    while let Some((plain, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or_else(|| BadList::Brackets(word.into()))?;
        let numbers = numbers(ranges, word, room)?;
        if hosts.len().saturating_mul(numbers.len()) > room {
            return Err(BadList::TooLong);
        }
        let with = |host: &String| numbers.iter().map(|n| format!("{host}{plain}{n}")).collect::<Vec<_>>();
        hosts = hosts.iter().flat_map(with).collect();
        rest = after;
    }
    if hosts.len() > room {
        return Err(BadList::TooLong);
    }
    hosts.iter_mut().for_each(|host| host.push_str(rest));
    Ok(hosts)
}

/// The numbers of ranges, as they are written: with zeros before them.
fn numbers(ranges: &str, word: &str, room: usize) -> Result<Vec<String>, BadList> {
    let bad = || BadList::Brackets(word.into());
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return Err(bad());
        }
        let (from, to) = (first.parse::<u64>().map_err(|_| bad())?, last.parse::<u64>().map_err(|_| bad())?);
        if to < from {
            return Err(bad());
        }
        if to - from >= (room - all.len().min(room)) as u64 {
            return Err(BadList::TooLong);
        }
        let width = first.len();
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

/// A list of hosts, in their order, as short as numbers at the ends of names make it: `login,node[01-03]`.
pub fn compress(hosts: &[impl AsRef<str>]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut rest = hosts;
    while let Some(first) = rest.first() {
        let (stem, digits) = ending(first.as_ref());
        let count = 1 + rest[1..]
            .iter()
            .zip(1..)
            .take_while(|(host, n)| is_next(host.as_ref(), stem, digits, *n))
            .count();
        match count {
            1 => words.push(first.as_ref().into()),
            _ => words.push(format!("{stem}[{digits}-{}]", ending(rest[count - 1].as_ref()).1)),
        }
        rest = &rest[count..];
    }
    words.join(",")
}

/// A name and the number at its end.
fn ending(host: &str) -> (&str, &str) {
    host.split_at(host.trim_end_matches(|c: char| c.is_ascii_digit()).len())
}

/// Whether a host is the one `n` after that of `stem` and `digits`.
fn is_next(host: &str, stem: &str, digits: &str, n: u64) -> bool {
    let Some(number) = digits.parse::<u64>().ok().and_then(|number| number.checked_add(n)) else {
        return false;
    };
    let width = digits.len();
    ending(host) == (stem, &format!("{number:0width$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(list: &str) -> Vec<String> {
        expand(list).unwrap()
    }

    #[test]
    fn lists_of_slurm_are_expanded() {
        assert_eq!(hosts("a"), ["a"]);
        assert_eq!(hosts("login,node[08-10,3]"), ["login", "node08", "node09", "node10", "node3"]);
        assert_eq!(hosts("r[1-2]n[1-2]-ib"), ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]);
        assert_eq!(hosts(" a , ,b"), ["a", "b"]);
        assert_eq!(hosts(""), [""; 0]);
    }

    #[test]
    fn what_is_no_list_is_said() {
        for list in ["n[", "n]", "n[1", "n[[1]]", "n[a]", "n[1-]", "n[2-1]", "n[]", "n[1,]"] {
            assert!(matches!(expand(list), Err(BadList::Brackets(_))), "{list}");
        }
        for list in ["n[0-65536]", "n[0-255]m[0-256]", "n[0-18446744073709551615]", "a,n[1-65536]"] {
            assert_eq!(expand(list), Err(BadList::TooLong), "{list}");
        }
        assert_eq!(hosts("n[0-65535]").len(), HOSTS_MAX);
    }

    #[test]
    fn lists_are_written_short() {
        for (list, short) in [
            ("", ""),
            ("a", "a"),
            ("n08,n09,n10,n12,login", "n[08-10],n12,login"),
            ("n9,n10,n11", "n[9-11]"),
            ("n9,n010,n1,n1", "n9,n010,n1,n1"),
            ("r1n1,r1n2,r2n1,17,18", "r1n[1-2],r2n1,[17-18]"),
            ("n18446744073709551615,n18446744073709551616", "n18446744073709551615,n18446744073709551616"),
        ] {
            assert_eq!(compress(&hosts(list)), short);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(names in prop::collection::vec("[ab]?0?[0-9]{1,2}x?", 0..30)) {
            prop_assert_eq!(hosts(&compress(&names)), names);
        }

        #[test]
        fn any_text_ends_in_hosts_or_an_error(list in "[a-c0-9,\\[\\]-]{0,40}") {
            if let Ok(hosts) = expand(&list) {
                prop_assert!(hosts.len() <= HOSTS_MAX);
                prop_assert!(hosts.iter().all(|host| !host.contains(['[', ']', ','])), "{hosts:?}");
            }
        }
    }
}
