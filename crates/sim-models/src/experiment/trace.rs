//! Requests from a trace: text, a request a line, as IOSIG's order and time stamps (S1 §III-B): `docs/formats/28-experiments.md`.

use super::fields::{Problem, quoted, unknown};
use crate::message::Op;
use crate::span::Span;
use crate::striping::STRIPE_MAX;
use crate::workload::{After, Listed, Pace, Request};
use std::collections::BTreeMap;
use tidepool_io_traces::{Format, Options};
use tidepool_sim::Time;

/// Most requests of a trace.
pub const REQUESTS_MAX: usize = 10_000_000;
/// Most ranks of a trace.
pub const RANKS_MAX: u32 = 1_000_000;
/// Problems that are told; a file of another kind has one on every line.
const TOLD_MAX: usize = 10;
/// The end of all files.
pub const OFFSET_MAX: u64 = 1 << 60;
/// The last time stamp, in seconds.
const SECONDS_MAX: u64 = 1_000_000;

/// Whether time stamps are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamps {
    /// No request is sent before its time.
    Recorded,
    /// Requests are sent one after the other.
    Ignored,
}

/// Reads a trace whose files have the numbers from `file` on; how many files it has.
pub fn read(text: &str, stamps: Stamps, file: u32) -> Result<(Listed, u32), Vec<Problem>> {
    let (mut ranks, mut files, mut problems) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut count = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        count += 1;
        let added = match count > REQUESTS_MAX {
            true => Err(format!("more than {REQUESTS_MAX} requests")),
            false => add(line, stamps, file, &mut ranks, &mut files),
        };
        if let Err(what) = added {
            problems.push(Problem { line: Some(number), what });
        }
        if problems.len() == TOLD_MAX || count > REQUESTS_MAX {
            break;
        }
    }
    if count == 0 {
        problems.push(Problem { line: None, what: "it has no request".into() });
    }
    let ranks = ranks.into_iter().map(|(_, requests)| requests).collect();
    if problems.is_empty() { Ok((Listed { ranks }, files.len() as u32)) } else { Err(problems) }
}

/// Reads what another tool has written.
pub fn of_format(
    format: Format,
    text: &str,
    stamps: Stamps,
    file: u32,
) -> Result<(Listed, u32), Vec<Problem>> {
    let trace = tidepool_io_traces::read(format, text.as_bytes(), &Options::default()).map_err(|error| {
        let line = error.line.and_then(|line| usize::try_from(line).ok());
        vec![Problem { line, what: error.what }]
    })?;
    let mut ranks = vec![Vec::new(); trace.ranks as usize];
    for r in &trace.requests {
        let op = Op::ALL.into_iter().find(|op| op.name() == r.op.name());
        let op = op.ok_or_else(|| vec![Problem { line: None, what: format!("a request to {}", r.op) }])?;
        let pace = pace(stamps, r.at);
        let (file, offset, length) = (file + r.file, r.offset, r.length);
        ranks[r.rank as usize].push(Request { op, file, offset, length, after: After::All, pace });
    }
    Ok((Listed { ranks }, trace.files.len() as u32))
}

fn pace(stamps: Stamps, at: u64) -> Pace {
    match stamps {
        Stamps::Recorded => Pace::At(Time(at)),
        Stamps::Ignored => Pace::Think(Span::NONE),
    }
}

/// A rank's last time stamp, and its requests.
type Rank = (u64, Vec<Request>);

fn add<'a>(
    line: &'a str,
    stamps: Stamps,
    file: u32,
    ranks: &mut Vec<Rank>,
    files: &mut BTreeMap<&'a str, u32>,
) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [rank, time, op, name, offset, length] = words[..] else {
        return Err(format!("{} words; a request is: rank time op file offset length", words.len()));
    };
    let rank: u32 = rank
        .parse()
        .ok()
        .filter(|rank| *rank < RANKS_MAX)
        .ok_or_else(|| format!("rank '{}'; it can be 0 to {}", quoted(rank), RANKS_MAX - 1))?;
    let time = seconds(time)?;
    let op = *Op::ALL
        .iter()
        .find(|known| known.name() == op && **known != Op::Barrier)
        .ok_or_else(|| unknown("operation", op, &Op::ALL.map(Op::name)))?;
    let number = |what: &str, text: &str, most: u64| {
        let number = text.parse::<u64>().ok().filter(|number| *number <= most);
        number.ok_or_else(|| format!("{what} '{}'; it can be 0 to {most}", quoted(text)))
    };
    let (offset, length) = (number("offset", offset, OFFSET_MAX)?, number("length", length, STRIPE_MAX)?);
    match (op.moves_data(), offset, length) {
        (true, _, 0) => return Err(format!("a {op} of no bytes")),
        (false, 0, 0) | (true, ..) => {}
        _ => return Err(format!("a {op} has offset 0 and length 0")),
    }
    if ranks.len() <= rank as usize {
        ranks.resize_with(rank as usize + 1, || (0, Vec::new()));
    }
    let next = files.len() as u32;
    let number = file + *files.entry(name).or_insert(next);
    let (last, requests) = &mut ranks[rank as usize];
    if time < *last {
        return Err(format!("rank {rank} goes back in time"));
    }
    *last = time;
    let pace = pace(stamps, time);
    requests.push(Request { op, file: number, offset, length, after: After::All, pace });
    Ok(())
}

/// Seconds with up to nine decimals, as nanoseconds.
fn seconds(text: &str) -> Result<u64, String> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = whole
        .parse::<u64>()
        .ok()
        .filter(|seconds| *seconds <= SECONDS_MAX && digits(text.split('.').next().unwrap_or("")));
    match whole {
        Some(whole) if part.len() <= 9 && digits(part) => {
            Ok(whole * 1_000_000_000 + format!("{part:0<9}").parse::<u64>().unwrap_or(0))
        }
        _ => Err(format!(
            "time '{}'; write seconds from 0 to {SECONDS_MAX}, with up to nine decimals",
            quoted(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
# rank time op file offset length
0 0 open a 0 0
1 0.5 open b 0 0     # another file
0 0.000000001 write a 4096 100

0 2.25 close a 0 0
";

    #[test]
    fn requests_are_listed_by_rank() {
        let (listed, files) = read(GOOD, Stamps::Recorded, 5).unwrap();
        let told: Vec<Vec<_>> = listed
            .ranks
            .iter()
            .map(|rank| rank.iter().map(|r| (r.op, r.file, r.offset, r.length, r.pace)).collect())
            .collect();
        let at = |ns| Pace::At(Time(ns));
        assert_eq!(files, 2);
        assert_eq!(
            told,
            [
                vec![
                    (Op::Open, 5, 0, 0, at(0)),
                    (Op::Write, 5, 4096, 100, at(1)),
                    (Op::Close, 5, 0, 0, at(2_250_000_000))
                ],
                vec![(Op::Open, 6, 0, 0, at(500_000_000))],
            ]
        );
    }

    #[test]
    fn hostile_lines_are_named() {
        for (text, line, why) in [
            ("", None, "no request"),
            ("0 0 open a 0", Some(1), "5 words"),
            ("\n0 0 open a 0 0 0", Some(2), "7 words"),
            ("-1 0 open a 0 0", Some(1), "rank '-1'"),
            ("4294967296 0 open a 0 0", Some(1), "0 to 999999"),
            ("0 -1 open a 0 0", Some(1), "time '-1'"),
            ("0 +1 open a 0 0", Some(1), "time '+1'"),
            ("0 1e300 open a 0 0", Some(1), "time '1e300'"),
            ("0 0.0000000001 open a 0 0", Some(1), "nine decimals"),
            ("0 0 opne a 0 0", Some(1), "did you mean 'open'"),
            ("0 0 read a 0 0", Some(1), "no bytes"),
            ("0 0 close a 5 0", Some(1), "offset 0"),
            ("0 0 read a 99999999999999999999999 1", Some(1), "offset '9999"),
            ("0 0 read a 0 4294967296", Some(1), "0 to 1073741824"),
            ("0 5 open a 0 0\n0 4 close a 0 0", Some(2), "back in time"),
            ("\u{0}\u{1}\u{fffd}", Some(1), "1 words"),
        ] {
            let problems = read(text, Stamps::Recorded, 0).unwrap_err();
            assert_eq!(problems[0].line, line, "{text}");
            assert!(problems[0].to_string().contains(why), "{text}: {}", problems[0]);
        }
        let long = "x ".repeat(100_000);
        assert!(read(&long, Stamps::Ignored, 0).unwrap_err()[0].to_string().len() < 200);
        let many = "nonsense\n".repeat(1_000);
        assert_eq!(read(&many, Stamps::Ignored, 0).unwrap_err().len(), TOLD_MAX);
    }
}
