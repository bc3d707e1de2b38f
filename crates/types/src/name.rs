//! Names that people give to pools.

/// Longest pool name: the sockets' paths must fit `sun_path` (108 bytes).
pub const POOL_NAME_MAX: usize = 40;

/// A pool's name is also that of files, so it cannot lead anywhere else.
pub fn check_pool_name(name: &str) -> Result<(), String> {
    let ok = !name.is_empty()
        && name.len() <= POOL_NAME_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !name.starts_with(['.', '-']);
    if ok {
        return Ok(());
    }
    Err(format!("'{name}' is no pool name: use up to {POOL_NAME_MAX} letters, digits, '-', '_' and '.'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_in_one_directory() {
        let longest = "n".repeat(POOL_NAME_MAX);
        for name in ["a", "run-1a2b", "A_1.x", &longest] {
            assert_eq!(check_pool_name(name), Ok(()));
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "\u{e9}", &format!("{longest}n")] {
            assert!(check_pool_name(name).is_err(), "{name}");
        }
    }
}
