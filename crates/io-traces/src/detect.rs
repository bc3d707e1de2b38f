//! Which format a text is in, by its first lines.

use crate::strace::Reader;
use crate::{Format, Op};
use std::path::Path;

/// Whether it is a list of requests already, as `docs/formats/28-experiments.md` has them.
pub fn is_requests(beginning: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&beginning[..beginning.len().min(DETECT_BYTES)]);
    let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let first = lines.find(|line| !line.trim().is_empty()).unwrap_or_default();
    let words: Vec<&str> = first.split_ascii_whitespace().collect();
    words.len() == 6 && Op::ALL.iter().any(|op| op.name() == words[2])
}

/// Bytes of a file's beginning that are enough to tell.
pub const DETECT_BYTES: usize = 16 << 10;
/// Lines that are looked at.
const LINES: usize = 40;

/// None when it looks like none of them.
pub fn detect(beginning: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(&beginning[..beginning.len().min(DETECT_BYTES)]);
    let mut strace = Reader::new(Path::new("/"));
    for line in text.lines().filter(|line| !line.trim().is_empty()).take(LINES) {
        if let Some(format) = of_line(line.trim()) {
            return Some(format);
        }
        // Names in brackets and results: nothing else looks so.
        if strace.line(line).is_some() {
            return Some(Format::Strace);
        }
    }
    None
}

fn of_line(line: &str) -> Option<Format> {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_op = |word: &str| {
        let word = word.to_ascii_lowercase();
        word.starts_with("mpi_file_") || Op::ALL.iter().any(|op| op.name() == word)
    };
    let words: Vec<&str> = line.split_ascii_whitespace().take(12).collect();
    let fields: Vec<&str> = line.split(',').take(8).collect();
    match (&words[..], &fields[..]) {
        (["tidepool-io", ..], _) => Some(Format::Tidepool),
        (["#", "DXT,", ..] | ["#", "darshan", "log", ..] | ["X_POSIX" | "X_MPIIO", ..], _) => {
            Some(Format::DarshanDxt)
        }
        (_, [time, _, disk, kind, ..]) if fields.len() == 7 => {
            let is_kind = ["read", "write"].contains(&kind.to_ascii_lowercase().as_str());
            let is_head = time.eq_ignore_ascii_case("timestamp");
            (is_head || (number(time) && number(disk) && is_kind)).then_some(Format::Msr)
        }
        ([device, cpu, sequence, time, pid, ..], _) if words.len() >= 7 && device.contains(',') => {
            let parts: Vec<&str> = device.split(',').collect();
            let fits = parts.len() == 2 && parts.iter().all(|part| number(part));
            (fits && [cpu, sequence, pid].iter().all(|word| number(word)) && time.contains('.'))
                .then_some(Format::Blkparse)
        }
        ([at, device, sector, sectors, "0" | "1"], _) => {
            [at, device, sector, sectors].iter().all(|word| number(word)).then_some(Format::Mqsim)
        }
        ([rank, order, _, op, ..], _) if words.len() >= 7 && number(rank) && number(order) => {
            is_op(op).then_some(Format::Iosig)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_lines() {
        for (text, format) in [
            ("tidepool-io 1 p h 1 - b 0 0\n", Some(Format::Tidepool)),
            ("# darshan log version: 3.41\n", Some(Format::DarshanDxt)),
            ("# Darshan log\n\n# DXT, file_id: 1, file_name: /x\n", Some(Format::DarshanDxt)),
            ("128166372003061629,hm,1,Read,1416192,32768,1331\n", Some(Format::Msr)),
            ("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n", Some(Format::Msr)),
            (
                "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n",
                Some(Format::Blkparse),
            ),
            ("0 0 1024 8 1\n", Some(Format::Mqsim)),
            ("# comment\n0 1 0.5 write f 0 10\n", Some(Format::Iosig)),
            ("0 1 0.5 MPI_File_write_at f 0 10\n", Some(Format::Iosig)),
            ("12 1700000000.5 execve(\"/bin/x\", [\"x\"], 0x1 /* 2 vars */) = 0\n", Some(Format::Strace)),
            ("openat(AT_FDCWD, \"x\", O_RDONLY) = 3\n", Some(Format::Strace)),
            ("0 0.5 write f 0 10\n", None),
            ("hello\n", None),
            ("\u{0}\u{1}\u{2}", None),
            ("", None),
        ] {
            assert_eq!(detect(text.as_bytes()), format, "{text}");
            assert_eq!(is_requests(text.as_bytes()), text.starts_with("0 0.5 write"), "{text}");
        }
    }
}
