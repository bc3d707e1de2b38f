//! What applications ask for: the requests of every rank, in their order (S1 §III-D).
//!
//! Programs are functions of rank and number, so that a million ranks need no memory for what they will do.

use crate::message::Op;
use crate::span::Span;
use std::sync::Arc;
use tidepool_sim::Time;

/// Which earlier requests of its rank have to be done before a request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// All.
    All,
    /// So many that fewer than this are under way; at least 1.
    Fewer(u32),
    /// None.
    Nothing,
}

/// When a request is sent that may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// After a pause.
    Think(Span),
    /// Not before.
    At(Time),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub op: Op,
    pub file: u32,
    pub offset: u64,
    /// At least 1 for reads and writes, 0 for all others.
    pub length: u64,
    pub after: After,
    pub pace: Pace,
}

/// In which order a rank goes through its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Sequential,
    /// Every transfer once, in an order of this seed.
    Random(u64),
}

/// Whether ranks have a file each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    Shared,
    PerProcess,
}

/// As IOR does: in each segment every rank has a block, which it reads or writes in transfers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ior {
    pub ranks: u32,
    /// [`Op::Read`] or [`Op::Write`].
    pub op: Op,
    pub segments: u64,
    pub block: u64,
    /// Divides the block.
    pub transfer: u64,
    pub order: Order,
    pub sharing: Sharing,
    /// Open and close the file.
    pub open: bool,
    /// Fsync before closing.
    pub fsync: bool,
    /// Transfers under way at once.
    pub depth: u32,
    /// All ranks wait for each other before each segment.
    pub barrier: bool,
    pub think: Span,
    /// Number of the (first) file.
    pub file: u32,
}

/// As mdtest does: files are opened, written if they have bytes, and closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    pub ranks: u32,
    /// Of each rank.
    pub files: u32,
    pub bytes: u64,
    pub think: Span,
    /// Number of the first file.
    pub file: u32,
}

/// As mdtest does: files are made, all looked at, all taken away; before each of these and at the end all ranks wait for
/// each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mdtest {
    pub ranks: u32,
    /// Of each rank.
    pub files: u32,
    /// Written to each.
    pub bytes: u64,
    /// Whether ranks have a directory each.
    pub directories: Sharing,
    /// Number of the first file; directories have numbers behind those of the files.
    pub file: u32,
}

/// Requests that do not wait for each other: each so long after the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrivals {
    pub ranks: u32,
    /// Of each rank.
    pub requests: u32,
    pub between: Span,
    pub op: Op,
    pub length: u64,
    /// Requests begin at a random multiple of `length` below this.
    pub span: u64,
    pub seed: u64,
    pub file: u32,
}

/// Requests as a trace has them, by rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub ranks: Vec<Vec<Request>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Program {
    Ior(Ior),
    Files(Files),
    Arrivals(Arrivals),
    Mdtest(Mdtest),
    Listed(Arc<Listed>),
}

impl Program {
    pub fn ranks(&self) -> u32 {
        match self {
            Program::Ior(all) => all.ranks,
            Program::Files(all) => all.ranks,
            Program::Arrivals(all) => all.ranks,
            Program::Mdtest(all) => all.ranks,
            Program::Listed(all) => all.ranks.len() as u32,
        }
    }

    /// Request `number` of a rank; none behind the last one.
    #[inline]
    pub fn request(&self, rank: u32, number: u32) -> Option<Request> {
        match self {
            Program::Ior(all) => all.request(rank, u64::from(number)),
            Program::Files(all) => all.request(rank, number),
            Program::Arrivals(all) => all.request(rank, number),
            Program::Mdtest(all) => all.request(rank, number),
            Program::Listed(all) => all.ranks.get(rank as usize)?.get(number as usize).copied(),
        }
    }

    /// Numbers of the files that may be used: from, and how many.
    pub fn files(&self) -> (u32, u64) {
        match self {
            Program::Ior(all) => {
                (all.file, if all.sharing == Sharing::Shared { 1 } else { u64::from(all.ranks) })
            }
            Program::Files(all) => (all.file, u64::from(all.files) * u64::from(all.ranks)),
            Program::Arrivals(all) => (all.file, 1),
            Program::Mdtest(all) => (all.file, u64::from(all.ranks) * (u64::from(all.files) + 1)),
            Program::Listed(_) => (0, 0),
        }
    }

    /// Requests of all ranks.
    pub fn requests(&self) -> u64 {
        match self {
            Program::Listed(all) => all.ranks.iter().map(|rank| rank.len() as u64).sum(),
            _ => self.longest().saturating_mul(self.ranks().into()),
        }
    }

    /// The first file, and how many each rank has of its own; none where they share files, or where that is not known.
    pub fn own_files(&self) -> Option<(u32, u32)> {
        match self {
            Program::Ior(all) => (all.sharing == Sharing::PerProcess).then_some((all.file, 1)),
            Program::Files(all) => Some((all.file, all.files)),
            Program::Mdtest(all) => Some((all.file, all.files)),
            Program::Arrivals(_) | Program::Listed(_) => None,
        }
    }

    /// Number of the directory in which a rank makes files, where that has a server of its own.
    pub fn directory(&self, rank: u32) -> Option<u32> {
        let Program::Mdtest(all) = self else { return None };
        let own = if all.directories == Sharing::PerProcess { rank } else { 0 };
        Some(all.file + all.ranks * all.files + own)
    }

    /// Requests of every rank: the most that a rank has.
    pub fn longest(&self) -> u64 {
        match self {
            Program::Ior(all) => {
                all.segments.saturating_mul(all.block / all.transfer)
                    + 2 * u64::from(all.open)
                    + u64::from(all.fsync)
                    + u64::from(all.barrier) * all.segments
            }
            Program::Files(all) => u64::from(all.files) * if all.bytes > 0 { 3 } else { 2 },
            Program::Arrivals(all) => u64::from(all.requests),
            Program::Mdtest(all) => u64::from(all.files) * all.steps() + 4,
            Program::Listed(all) => all.ranks.iter().map(Vec::len).max().unwrap_or(0) as u64,
        }
    }
}

impl Ior {
    fn transfers(&self) -> u64 {
        self.segments * (self.block / self.transfer)
    }

    fn request(&self, rank: u32, number: u64) -> Option<Request> {
        let file = match self.sharing {
            Sharing::Shared => self.file,
            Sharing::PerProcess => self.file + rank,
        };
        let small =
            |op| Request { op, file, offset: 0, length: 0, after: After::All, pace: Pace::Think(Span::NONE) };
        let (transfers, opens) = (self.transfers(), u64::from(self.open));
        if number < opens {
            return Some(small(Op::Open));
        }
        let in_block = self.block / self.transfer;
        let barriers = u64::from(self.barrier);
        let at = number - opens;
        if at < transfers + barriers * self.segments {
            let (segment, within) = (at / (in_block + barriers), at % (in_block + barriers));
            if within < barriers {
                return Some(small(Op::Barrier));
            }
            let transfer = segment * in_block + within - barriers;
            // Opening comes first, or what all wait for.
            let is_first = within == barriers && (self.barrier || segment == 0);
            return Some(Request {
                op: self.op,
                file,
                offset: self.offset(rank, transfer),
                length: self.transfer,
                after: if is_first { After::All } else { After::Fewer(self.depth) },
                pace: Pace::Think(self.think),
            });
        }
        match (at - transfers - barriers * self.segments, self.fsync, self.open) {
            (0, true, _) => Some(small(Op::Fsync)),
            (0, false, true) | (1, true, true) => Some(small(Op::Close)),
            _ => None,
        }
    }

    fn offset(&self, rank: u32, number: u64) -> u64 {
        let number = match self.order {
            Order::Sequential => number,
            Order::Random(seed) => permuted(number, self.transfers(), seed ^ (u64::from(rank) << 32)),
        };
        let in_block = self.block / self.transfer;
        let (segment, within) = (number / in_block, number % in_block * self.transfer);
        match self.sharing {
            Sharing::Shared => (segment * u64::from(self.ranks) + u64::from(rank)) * self.block + within,
            Sharing::PerProcess => segment * self.block + within,
        }
    }
}

impl Files {
    fn request(&self, rank: u32, number: u32) -> Option<Request> {
        let steps: &[Op] =
            if self.bytes > 0 { &[Op::Open, Op::Write, Op::Close] } else { &[Op::Open, Op::Close] };
        let (file, step) = (number / steps.len() as u32, number as usize % steps.len());
        let op = steps[step];
        let think = if op == Op::Open { self.think } else { Span::NONE };
        (file < self.files).then(|| Request {
            op,
            file: self.file + rank * self.files + file,
            offset: 0,
            length: if op == Op::Write { self.bytes } else { 0 },
            after: After::All,
            pace: Pace::Think(think),
        })
    }
}

impl Mdtest {
    /// Requests for each file.
    fn steps(&self) -> u64 {
        4 + u64::from(self.bytes > 0)
    }

    fn request(&self, rank: u32, number: u32) -> Option<Request> {
        let makes: &[Op] =
            if self.bytes > 0 { &[Op::Create, Op::Write, Op::Close] } else { &[Op::Create, Op::Close] };
        let small = |op, file| Request {
            op,
            file,
            offset: 0,
            length: if op == Op::Write { self.bytes } else { 0 },
            after: After::All,
            pace: Pace::Think(Span::NONE),
        };
        let mut number = u64::from(number);
        for steps in [makes, &[Op::Stat], &[Op::Unlink]] {
            let Some(at) = number.checked_sub(1) else { return Some(small(Op::Barrier, self.file)) };
            let (file, step) = (at / steps.len() as u64, at as usize % steps.len());
            if file < u64::from(self.files) {
                return Some(small(steps[step], self.file + rank * self.files + file as u32));
            }
            number = at - u64::from(self.files) * steps.len() as u64;
        }
        (number == 0).then(|| small(Op::Barrier, self.file))
    }
}

impl Arrivals {
    fn request(&self, rank: u32, number: u32) -> Option<Request> {
        let places = (self.span / self.length).max(1);
        let drawn = mix(self.seed ^ (u64::from(rank) << 32) ^ u64::from(number));
        (number < self.requests).then(|| Request {
            op: self.op,
            file: self.file,
            offset: drawn % places * self.length,
            length: self.length,
            after: After::Nothing,
            pace: Pace::Think(self.between),
        })
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where `number` goes in a random order of the numbers below `count`: a Feistel network over the next even power of two,
/// again until the result is below `count`. Needs no memory, whatever the count.
pub fn permuted(number: u64, count: u64, seed: u64) -> u64 {
    let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << bits) - 1;
    let mut at = number;
    loop {
        let (mut left, mut right) = (at >> bits, at & mask);
        for round in 0..4u64 {
            (left, right) = (right, left ^ (mix(seed.wrapping_add(round << 56) ^ right) & mask));
        }
        at = (left << bits) | right;
        if at < count {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn random_orders_have_every_number_once() {
        for count in [1, 2, 3, 7, 64, 1000, 4097] {
            let order: Vec<u64> = (0..count).map(|n| permuted(n, count, 9)).collect();
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len() as u64, count);
            assert!(order.iter().all(|n| *n < count));
            let steps = order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
            assert!(count < 64 || (steps as u64) < count / 8, "{count}: {steps} steps of one");
        }
    }

    fn ior(order: Order, sharing: Sharing) -> Ior {
        Ior {
            ranks: 3,
            op: Op::Write,
            segments: 2,
            block: 8,
            transfer: 4,
            order,
            sharing,
            open: true,
            fsync: true,
            depth: 2,
            barrier: false,
            think: Span::NONE,
            file: 10,
        }
    }

    fn all(program: &Ior, rank: u32) -> Vec<(Op, u32, u64, u64)> {
        let each = (0..).map_while(|number| program.request(rank, number));
        each.map(|r| (r.op, r.file, r.offset, r.length)).collect()
    }

    #[test]
    fn segments_blocks_and_transfers_are_iors() {
        let expected = |file, offsets: [u64; 4]| {
            let mut all = vec![(Op::Open, file, 0, 0)];
            all.extend(offsets.map(|offset| (Op::Write, file, offset, 4)));
            all.extend([(Op::Fsync, file, 0, 0), (Op::Close, file, 0, 0)]);
            all
        };
        assert_eq!(all(&ior(Order::Sequential, Sharing::Shared), 1), expected(10, [8, 12, 32, 36]));
        assert_eq!(all(&ior(Order::Sequential, Sharing::PerProcess), 2), expected(12, [0, 4, 8, 12]));
    }

    #[test]
    fn random_ranks_cover_the_file_too() {
        let program = ior(Order::Random(1), Sharing::Shared);
        let offsets = (0..3).flat_map(|rank| all(&program, rank)).filter(|r| r.0 == Op::Write).map(|r| r.2);
        assert_eq!(offsets.collect::<BTreeSet<_>>(), (0..12).map(|n| n * 4).collect());
    }

    #[test]
    fn files_are_made_looked_at_and_taken_away_in_phases() {
        let directories = Sharing::PerProcess;
        let program = Program::Mdtest(Mdtest { ranks: 3, files: 2, bytes: 5, directories, file: 10 });
        let seen: Vec<_> =
            (0..).map_while(|n| program.request(1, n)).map(|r| (r.op, r.file, r.length)).collect();
        let barrier = (Op::Barrier, 10, 0);
        let made = |file| [(Op::Create, file, 0), (Op::Write, file, 5), (Op::Close, file, 0)];
        let expected = [
            vec![barrier],
            made(12).to_vec(),
            made(13).to_vec(),
            vec![barrier, (Op::Stat, 12, 0), (Op::Stat, 13, 0)],
            vec![barrier, (Op::Unlink, 12, 0), (Op::Unlink, 13, 0), barrier],
        ];
        assert_eq!(seen, expected.concat());
        assert_eq!(program.longest(), seen.len() as u64);
        assert_eq!(
            (program.directory(0), program.directory(2), program.files()),
            (Some(16), Some(18), (10, 9))
        );
    }

    #[test]
    fn all_wait_before_each_segment() {
        let program = Ior { barrier: true, ..ior(Order::Sequential, Sharing::Shared) };
        let seen: Vec<_> =
            (0..).map_while(|n| program.request(1, n)).map(|r| (r.op, r.offset, r.after)).collect();
        let write = |offset, after| (Op::Write, offset, after);
        let small = |op| (op, 0, After::All);
        let segment =
            |offset| [small(Op::Barrier), write(offset, After::All), write(offset + 4, After::Fewer(2))];
        let end = [small(Op::Fsync), small(Op::Close)];
        assert_eq!(seen, [&[small(Op::Open)], &segment(8)[..], &segment(32), &end].concat());
        assert_eq!(Program::Ior(program).longest(), seen.len() as u64);
    }

    #[test]
    fn files_are_opened_written_and_closed() {
        let program = Files { ranks: 2, files: 2, bytes: 5, think: Span::NONE, file: 0 };
        let seen: Vec<_> = (0..).map_while(|n| program.request(1, n)).map(|r| (r.op, r.file)).collect();
        let of = |file| [(Op::Open, file), (Op::Write, file), (Op::Close, file)];
        assert_eq!(seen, [of(2), of(3)].concat());
    }
}
