//! The nodes of a job, as different batch systems tell them (INVENTORY A5).

/// Most nodes that a list may stand for.
pub const NODES_MAX: usize = 100_000;
/// Most brackets within one name.
const BRACKETS_MAX: usize = 8;

/// Expands a list as Slurm and Flux write it: `n[01-03,7],gpu[1-2]x[0-1]`.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for word in split(list)? {
        expand_one(word, 0, &mut names)?;
    }
    Ok(names)
}

/// Divides at commas outside brackets.
fn split(list: &str) -> Result<Vec<&str>, String> {
    let (mut words, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return Err(format!("'{list}': a bracket within brackets")),
            b']' if !inside => return Err(format!("'{list}': a bracket is closed that was not opened")),
            b'[' => inside = true,
            b']' => inside = false,
            b',' if !inside => {
                words.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("'{list}': a bracket is not closed"));
    }
    words.push(&list[start..]);
    Ok(words.into_iter().map(str::trim).filter(|word| !word.is_empty()).collect())
}

fn expand_one(word: &str, depth: usize, names: &mut Vec<String>) -> Result<(), String> {
    let push = |names: &mut Vec<String>, name: String| {
        if names.len() >= NODES_MAX {
            return Err(format!("more than {NODES_MAX} nodes"));
        }
        names.push(name);
        Ok(())
    };
    let Some((before, rest)) = word.split_once('[') else { return push(names, word.to_string()) };
    let (inside, after) = rest.split_once(']').ok_or_else(|| format!("'{word}': a bracket is not closed"))?;
    if depth >= BRACKETS_MAX {
        return Err(format!("'{word}': more than {BRACKETS_MAX} brackets"));
    }
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
            digits
                .then(|| text.parse::<usize>().ok())
                .flatten()
                .ok_or(format!("'{range}' is no range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to || to - from >= NODES_MAX {
            return Err(format!("'{range}' is no range of at most {NODES_MAX} numbers"));
        }
        for n in from..=to {
            expand_one(&format!("{before}{n:0width$}{after}", width = first.len()), depth + 1, names)?;
        }
    }
    Ok(())
}

/// Each name once, in the order of its first appearance: files with a line for each slot repeat names.
fn once(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// Names of a file with one name a line, as $PBS_NODEFILE, $LSB_DJOB_HOSTFILE or a host file of MPI: `#` starts a
/// comment, what follows a blank (`slots=4`) or a colon (`:8`) is not for us.
pub fn of_file(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        line.split([' ', '\t', ':']).next().unwrap_or_default().to_string()
    };
    once(text.lines().map(name).filter(|name| !name.is_empty()))
}

/// `$LSB_MCPU_HOSTS`: names, each followed by its number of slots.
pub fn of_lsf_counts(text: &str) -> Result<Vec<String>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks(2);
    if words.is_empty() || words.len() % 2 == 1 || pairs.clone().any(|pair| pair[1].parse::<u32>().is_err()) {
        return Err(format!("LSB_MCPU_HOSTS='{text}' is no list of hosts with numbers"));
    }
    Ok(once(pairs.map(|pair| pair[0].to_string())))
}

/// Names separated by blanks: `$LSB_HOSTS`, with one for each slot.
pub fn of_words(text: &str) -> Vec<String> {
    once(text.split_whitespace().map(String::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a5_lists_are_expanded_as_scontrol_does() {
        for (list, names) in [
            ("node1", "node1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-11],x", "n08 n09 n10 n11 x"),
            ("r[1-2]n[0,2]", "r1n0 r1n2 r2n0 r2n2"),
            ("a[1-2]-ib,b", "a1-ib a2-ib b"),
            ("", ""),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["n[1-", "n]1", "n[a-b]", "n[3-1]", "n[1-999999999]", "n[[1]]", "n[]", "n[1,,2]", "n[-1]"]
        {
            assert!(expand(bad).is_err(), "{bad}");
        }
        assert!(expand(&"n[0-9]".repeat(9)).is_err());
    }

    #[test]
    fn a5_files_and_words_of_other_systems() {
        assert_eq!(of_file("n1\nn1\n n2 slots=4 # x\n\n#n9\nn3:8\n"), ["n1", "n2", "n3"]);
        assert_eq!(of_words("a a b a c"), ["a", "b", "c"]);
        assert_eq!(of_lsf_counts("a 16 b 16").unwrap(), ["a", "b"]);
        for bad in ["a", "a b", "a 1 b", ""] {
            assert!(of_lsf_counts(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_refused(text in "[a-z0-9\\[\\],-]{0,60}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(names.len() <= NODES_MAX);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])), "{names:?}");
            }
        }
    }
}
