//! Which sockets `NORNS_CONFIG_FILE` names: of norns.conf only the keys `global_socket` and
//! `control_socket` concern clients.

use std::path::PathBuf;

/// Names a configuration file of NORNS.
pub const CONFIG_VARIABLE: &str = "NORNS_CONFIG_FILE";

/// The value of a key, in block style or flow style. Lines that are comments do not count.
pub fn value(text: &str, key: &str) -> Option<PathBuf> {
    text.lines().find_map(|line| value_in(line.split_once('#').map_or(line, |(before, _)| before), key))
}

fn value_in(line: &str, key: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(key)?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    // Not the end of a longer key.
    if before.ends_with(is_word) {
        return None;
    }
    let value = after.trim_start_matches(['"', '\'']).trim_start().strip_prefix(':')?;
    let value = value.split([',', ']', '}']).next().unwrap_or_default().trim();
    let value = value.trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn both_styles_are_read() {
        let flow = "global_settings: [\n  use_syslog: true,\n  # global_socket: /old,\n  global_socket: \"/run/g\", # here\n  control_socket: '/run/c'\n]\n";
        assert_eq!(value(flow, "global_socket").as_deref(), Some(Path::new("/run/g")));
        assert_eq!(value(flow, "control_socket").as_deref(), Some(Path::new("/run/c")));
        let block = "global_settings:\n  my_global_socket: /no\n  global_socket: /run/g s\n";
        assert_eq!(value(block, "global_socket").as_deref(), Some(Path::new("/run/g s")));
        assert_eq!(value(block, "control_socket"), None);
        assert_eq!(
            value("{global_socket:/a, control_socket:/b}", "control_socket").as_deref(),
            Some(Path::new("/b"))
        );
        assert_eq!(value("global_socket:\n", "global_socket"), None);
        assert_eq!(value("global_socket", "global_socket"), None);
    }
}
