//! A bucket as bytes, for the file that processes share: `docs/formats/25-shaped-tiers.md`.

use crate::bucket::{Bucket, QUEUE_NS_MAX, SHARERS_MAX, Sharer};
use crate::shape::{BURST_BYTES_MAX, NAME_MAX, Shape, fnv};
use tidepool_iosched::curve::PROCESSES_MAX;

const MAGIC: &[u8; 8] = b"TIDESHAP";
const VERSION: u32 = 1;
pub const HEAD: usize = 112;
const SHARER: usize = 28;
pub const BYTES_MAX: usize = HEAD + SHARERS_MAX * SHARER;
/// A system that was shut down and started again took longer.
const REBOOT_S: u64 = 10;

/// What the file says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Of the system whose monotonic clock it is.
    pub boot: [u8; 16],
    /// Seconds since 1970 when it was written.
    pub written_s: u64,
    pub digest: u64,
    pub name: String,
    pub bucket: Bucket,
}

impl State {
    pub fn encode(&self) -> Vec<u8> {
        let Bucket { free_ns, credit, sharers } = &self.bucket;
        let mut name = [0; NAME_MAX];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let mut bytes = Vec::with_capacity(HEAD + sharers.len() * SHARER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((sharers.len() as u32).to_le_bytes());
        // The checksum, when the rest is there.
        bytes.extend([0; 8]);
        bytes.extend(self.boot);
        for number in [self.written_s, self.digest, *free_ns, *credit] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([0; 8]);
        bytes.extend(name);
        for sharer in sharers {
            bytes.extend(sharer.who.to_le_bytes());
            bytes.extend(sharer.processes.to_le_bytes());
            bytes.extend(sharer.asked_ns.to_le_bytes());
            bytes.extend(sharer.served_ns.to_le_bytes());
        }
        let sum = fnv(&bytes[24..]);
        bytes[16..24].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What follows the sharers is left over from a longer list.
    pub fn decode(bytes: &[u8]) -> Result<State, &'static str> {
        let head = bytes.get(..HEAD).ok_or("it is too short")?;
        if !head.starts_with(MAGIC) {
            return Err("it is no such file");
        }
        if u32_at(head, 8) != VERSION {
            return Err("its version is not known");
        }
        let count = u32_at(head, 12) as usize;
        if count > SHARERS_MAX {
            return Err("it names too many sharers");
        }
        let bytes = bytes.get(..HEAD + count * SHARER).ok_or("it is too short")?;
        if fnv(&bytes[24..]) != u64_at(head, 16) {
            return Err("its checksum is wrong");
        }
        let name = head[80..HEAD].split(|byte| *byte == 0).next().unwrap_or_default();
        let sharer = |bytes: &[u8]| Sharer {
            who: u64_at(bytes, 0),
            processes: u32_at(bytes, 8),
            asked_ns: u64_at(bytes, 12),
            served_ns: u64_at(bytes, 20),
        };
        let bucket = Bucket {
            free_ns: u64_at(head, 56),
            credit: u64_at(head, 64),
            sharers: bytes[HEAD..].chunks_exact(SHARER).map(sharer).collect(),
        };
        let state = State {
            boot: head[24..40].try_into().expect("16 bytes"),
            written_s: u64_at(head, 40),
            digest: u64_at(head, 48),
            name: std::str::from_utf8(name).map_err(|_| "its name is no text")?.to_string(),
            bucket,
        };
        state.is_sound().then_some(state).ok_or("its numbers contradict each other")
    }

    fn is_sound(&self) -> bool {
        let Bucket { credit, sharers, .. } = &self.bucket;
        let in_order = sharers.windows(2).all(|pair| pair[0].who < pair[1].who);
        let possible = sharers.iter().all(|all| (1..=PROCESSES_MAX).contains(&all.processes));
        *credit <= BURST_BYTES_MAX && in_order && possible
    }

    /// What is left of it for a system that was started later, if it can be.
    pub fn of_now(self, boot: &[u8; 16], now_ns: u64, now_s: u64, shape: &Shape) -> Result<State, Stale> {
        if self.boot != *boot {
            let recent = self.written_s.saturating_add(REBOOT_S) > now_s;
            return if recent { Err(Stale::OtherMachine) } else { Ok(State::fresh(*boot, shape)) };
        }
        if self.bucket.free_ns.saturating_sub(now_ns) > QUEUE_NS_MAX {
            return Err(Stale::TooFar);
        }
        if self.digest == shape.digest() && self.name == shape.name() {
            return Ok(self);
        }
        match self.bucket.processes(now_ns) {
            0 => Ok(State::fresh(*boot, shape)),
            _ => Err(Stale::OtherShape(self.name)),
        }
    }

    pub fn fresh(boot: [u8; 16], shape: &Shape) -> State {
        let (digest, name) = (shape.digest(), shape.name().to_string());
        State { boot, written_s: 0, digest, name, bucket: Bucket::full(shape) }
    }
}

/// Why what is there cannot be gone on with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stale {
    OtherMachine,
    OtherShape(String),
    TooFar,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_iosched::{Curve, Curves, Pattern};

    fn shape(name: &str) -> Shape {
        Shape::new(name, 1000, Curves::same(Curve::flat(1000).unwrap())).unwrap()
    }

    fn state() -> State {
        let sharers = vec![
            Sharer { who: 5, processes: 2, asked_ns: 6, served_ns: 7 },
            Sharer { who: 9, processes: 1, asked_ns: 8, served_ns: 0x0102 },
        ];
        let bucket = Bucket { free_ns: 3, credit: 4, sharers };
        State { boot: [0xab; 16], written_s: 1, digest: 2, name: "pfs".into(), bucket }
    }

    #[test]
    fn a_state_is_these_bytes() {
        let number = |n: u8| [vec![n], vec![0; 7]].concat();
        let expected = [
            b"TIDESHAP".to_vec(),
            vec![1, 0, 0, 0, 2, 0, 0, 0],
            vec![0x63, 0xef, 0x90, 0xb0, 0xeb, 0xce, 0x90, 0x59],
            vec![0xab; 16],
            [number(1), number(2), number(3), number(4)].concat(),
            vec![0; 8],
            [b"pfs".to_vec(), vec![0; 29]].concat(),
            [number(5), vec![2, 0, 0, 0], number(6), number(7)].concat(),
            [number(9), vec![1, 0, 0, 0], number(8), vec![2, 1, 0, 0, 0, 0, 0, 0]].concat(),
        ]
        .concat();
        assert_eq!(state().encode(), expected);
        assert_eq!(State::decode(&expected), Ok(state()));
        let longer = [expected, vec![1; 100]].concat();
        assert_eq!(State::decode(&longer), Ok(state()), "what is left of a longer list");
    }

    #[test]
    fn damage_is_seen_wherever_it_is() {
        let good = state().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(State::decode(&bad).is_err(), "byte {at}");
            assert!(State::decode(&good[..at]).is_err(), "{at} bytes");
        }
        let mut twice = state();
        twice.bucket.sharers[1].who = 5;
        assert_eq!(State::decode(&twice.encode()), Err("its numbers contradict each other"));
    }

    #[test]
    fn it_is_taken_over_when_that_does_no_harm() {
        let (own, other) = (shape("own"), shape("other"));
        let mut state = State { written_s: 1_000, ..State::fresh([1; 16], &own) };
        state.bucket.admit(&own, 5, (1, 1), 10, Pattern::Random).unwrap();
        let of = |boot: [u8; 16], now_ns, now_s, shape| state.clone().of_now(&boot, now_ns, now_s, shape);
        assert_eq!(of([1; 16], 5, 1_000, &own), Ok(state.clone()));
        assert_eq!(of([1; 16], 5, 1_000, &other), Err(Stale::OtherShape("own".into())));
        let later = of([1; 16], 10_000_000_000, 1_010, &other).unwrap();
        assert_eq!(later, State::fresh([1; 16], &other));
        assert_eq!(of([2; 16], 5, 1_009, &own), Err(Stale::OtherMachine));
        assert_eq!(of([2; 16], 5, 1_010, &own), Ok(State::fresh([2; 16], &own)), "started again since");
        let mut far = state.clone();
        far.bucket.free_ns = 6 + QUEUE_NS_MAX;
        assert_eq!(far.of_now(&[1; 16], 5, 1_000, &own), Err(Stale::TooFar));
    }
}
