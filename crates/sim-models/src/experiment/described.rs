//! Applications as `tidepool workload` has them (`docs/formats/23-workloads.md`), as the requests of their processes.

use super::trace::REQUESTS_MAX;
use crate::message::Op;
use crate::span::Span;
use crate::workload::{After, Listed, Pace, Request};
use std::collections::BTreeMap;
use std::time::Duration;
use tidepool_sim::Time;
use tidepool_workload::{Access, Application, Directory, Name, Operation, Stage, read_file};

/// An application, when it starts, and how many files and directories it has.
pub struct Described {
    pub name: String,
    pub start: Time,
    pub listed: Listed,
    pub files: u32,
}

/// All applications of a file, their files numbered one after the other from `file` on; or all that is wrong.
pub fn read(text: &str, file: u32) -> Result<Vec<Described>, Vec<String>> {
    let applications =
        read_file(text).map_err(|wrong| wrong.iter().map(|wrong| wrong.to_string()).collect::<Vec<_>>())?;
    let (mut all, mut wrong, mut next, mut room) = (Vec::new(), Vec::new(), file, REQUESTS_MAX);
    for application in &applications {
        match list(application, next, &mut room) {
            Ok(described) => {
                next = next.saturating_add(described.files);
                all.push(described);
            }
            Err(why) => wrong.push(format!("application '{}': {why}", application.name)),
        }
    }
    if wrong.is_empty() { Ok(all) } else { Err(wrong) }
}

fn ticks(time: Duration) -> Time {
    Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(Time::MAX.0))
}

/// Numbers of files and directories, as they come up.
struct Numbers {
    first: u32,
    files: BTreeMap<Name, u32>,
    directories: BTreeMap<(u32, u64), u32>,
}

impl Numbers {
    fn next(&self) -> u32 {
        self.first.saturating_add((self.files.len() + self.directories.len()) as u32)
    }

    fn of(&mut self, file: Name) -> u32 {
        let next = self.next();
        *self.files.entry(file).or_insert(next)
    }

    fn of_directory(&mut self, directory: Directory) -> u32 {
        let key = match directory {
            Directory::Process(process) => (process, 0),
            // Steps are counted from 1.
            Directory::Step { process, step } => (process, step),
        };
        let next = self.next();
        *self.directories.entry(key).or_insert(next)
    }
}

fn list(application: &Application, first: u32, room: &mut usize) -> Result<Described, String> {
    if application.needs_measuring() {
        return Err(
            "'io-ratio' needs 'alone-seconds' here: nobody measures how long the I/O of a step takes".into(),
        );
    }
    let compute = ticks(application.compute(None));
    let mut numbers = Numbers { first, files: BTreeMap::new(), directories: BTreeMap::new() };
    let mut ranks = vec![Vec::new(); application.processes as usize];
    // What is there before the application starts takes no time.
    for phase in application.phases_in_turn().filter(|phase| phase.stage != Stage::Prepare) {
        for (rank, requests) in (0..).zip(&mut ranks) {
            let before = requests.len();
            let think = if phase.computes { compute } else { Time::ZERO };
            requests.push(Request { pace: Pace::Think(Span::Fixed(think)), ..small(Op::Barrier, first) });
            for operation in application.operations(&phase, rank) {
                add(&operation, rank, &mut numbers, requests);
                if requests.len() - before > *room {
                    return Err(format!("more than {REQUESTS_MAX} requests of all processes"));
                }
            }
            let more = requests.len() - before;
            *room = room
                .checked_sub(more)
                .ok_or_else(|| format!("more than {REQUESTS_MAX} requests of all processes"))?;
        }
    }
    let files = numbers.next() - first;
    let (name, start) = (application.name.clone(), ticks(application.start));
    Ok(Described { name, start, listed: Listed { ranks }, files: files.max(1) })
}

fn small(op: Op, file: u32) -> Request {
    Request { op, file, offset: 0, length: 0, after: After::All, pace: Pace::Think(Span::NONE) }
}

fn add(operation: &Operation, rank: u32, numbers: &mut Numbers, requests: &mut Vec<Request>) {
    let mut moves = |op, file, offset, length| {
        if length > 0 {
            requests.push(Request { offset, length, ..small(op, numbers.of(file)) });
        }
    };
    match *operation {
        Operation::Write { file, offset, len, .. } => moves(Op::Write, file, offset, len),
        Operation::Read { file, offset, len, .. } => moves(Op::Read, file, offset, len),
        Operation::Open { file, access } => {
            let makes = access == Access::Create || access == Access::CreateShared && rank == 0;
            let op = if makes { Op::Create } else { Op::Open };
            requests.push(small(op, numbers.of(file)));
        }
        Operation::MakeDirectory { directory } => {
            requests.push(small(Op::Create, numbers.of_directory(directory)));
        }
        Operation::Sync { file } => requests.push(small(Op::Fsync, numbers.of(file))),
        Operation::Close { file } => requests.push(small(Op::Close, numbers.of(file))),
        // Two entries change.
        Operation::Rename { from, to } => {
            requests.push(small(Op::Create, numbers.of(to)));
            requests.push(small(Op::Unlink, numbers.of(from)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
[[application]]
kind = \"phases\"
name = \"one\"
processes = 2
steps = 2
transfer = 4
bytes = 10
fsync = true
compute-seconds = 3
start-seconds = 1.5
layout = \"shared\"
[[application]]
kind = \"wrf\"
processes = 1
steps = 4
every = 4
input-bytes = 5
checkpoint-bytes = 7
output-bytes = 3
";

    #[test]
    fn phases_are_computed_waited_for_and_done() {
        let all = read(TEXT, 10).unwrap();
        assert_eq!((all[0].name.as_str(), all[0].start, all[0].files), ("one", Time(1_500_000_000), 2));
        let told = |request: &Request| match request.pace {
            Pace::Think(Span::Fixed(think)) => {
                format!("{} {} {}+{} {}", request.op, request.file, request.offset, request.length, think)
            }
            _ => unreachable!("nothing is drawn"),
        };
        let ranks = &all[0].listed.ranks;
        let seen: Vec<String> = ranks[1].iter().map(told).collect();
        let step = |file: u32| {
            let none = Time::ZERO;
            vec![
                format!("barrier 10 0+0 {}", Time(3_000_000_000)),
                // The first process makes it.
                format!("open {file} 0+0 {none}"),
                format!("write {file} 10+4 {none}"),
                format!("write {file} 14+4 {none}"),
                format!("write {file} 18+2 {none}"),
                format!("fsync {file} 0+0 {none}"),
                format!("close {file} 0+0 {none}"),
            ]
        };
        assert_eq!(seen, [step(10), step(11)].concat());
        assert_eq!((ranks[0][1].op, ranks[0][2].offset), (Op::Create, 0));
        // Files are numbered on; the input is there before the application starts.
        let wrf: Vec<(Op, u32, u64)> =
            all[1].listed.ranks[0].iter().map(|r| (r.op, r.file, r.length)).collect();
        let barrier = (Op::Barrier, 12, 0);
        let io = |open, op, file, length| [(open, file, 0), (op, file, length), (Op::Close, file, 0)];
        let first = [vec![barrier], io(Op::Open, Op::Read, 12, 5).to_vec(), vec![barrier; 4]].concat();
        let step = io(Op::Create, Op::Write, 13, 7);
        assert_eq!(wrf[..11], [first, step.to_vec()].concat());
        // Another barrier, and the output.
        assert_eq!((wrf.len(), wrf[13]), (15, (Op::Write, 14, 3)));
    }

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        let wrong = |text: &str| read(text, 0).err().unwrap().join("; ");
        assert!(wrong("[[application]]\nkind = \"phases\"").contains("needs 'alone-seconds'"));
        assert!(wrong("[[application]]\nkind = \"phaser\"").contains("phases"));
        let many = "[[application]]\nkind = \"nastja\"\nprocesses = 1000000";
        assert!(wrong(many).contains("more than 10000000 requests"), "{}", wrong(many));
        assert!(wrong("").contains("application"), "{}", wrong(""));
    }
}
