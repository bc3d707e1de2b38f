//! A simulation as bytes, and back: `docs/formats/26-simulation.md`.

use crate::error::Error;
use crate::event::{Event, Key, ProcessId, Time};
use crate::model::{Model, Process, Rules};
use crate::random::Stream;
use crate::simulation::Simulation;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use tidepool_blocks::crc;

pub const MAGIC: &[u8; 8] = b"TPSIMUL\0";
pub const VERSION: u32 = 1;
/// Most bytes of the text that says which model a checkpoint is of.
pub const ABOUT_MAX: usize = 1 << 16;
/// Most events of a simulation, and most messages of a process: what no machine comes to, and can still be counted on from.
const COUNT_MAX: u64 = 1 << 62;
/// Bytes of the checksum at the end.
const CRC_LEN: usize = 4;
const SHORT: &str = "it ends too early";

/// Why bytes are no checkpoint that can be gone on with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// Not a checkpoint at all, or of another version.
    Unknown,
    /// It ends too early, or a bit has changed.
    Damaged(&'static str),
    /// Of another model: what it says of its own.
    OtherModel(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Unknown => write!(f, "it is no checkpoint of a simulation, version {VERSION}"),
            LoadError::Damaged(what) => write!(f, "the checkpoint is damaged: {what}"),
            LoadError::OtherModel(theirs) => write!(f, "it is a checkpoint of another model: {theirs}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// What is left to be read.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], LoadError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(LoadError::Damaged(SHORT))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u32(&mut self) -> Result<u32, LoadError> {
        u32::load(self)
    }

    pub fn u64(&mut self) -> Result<u64, LoadError> {
        u64::load(self)
    }
}

/// States and messages that can be kept. Little-endian; `load` reads exactly what `save` wrote, and takes no memory for
/// more than is there.
pub trait Saved: Sized {
    fn save(&self, out: &mut Vec<u8>);
    fn load(from: &mut Reader<'_>) -> Result<Self, LoadError>;
}

macro_rules! saved_numbers {
    ($($number:ty),*) => {$(
        impl Saved for $number {
            fn save(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn load(from: &mut Reader<'_>) -> Result<Self, LoadError> {
                let bytes = from.take(size_of::<$number>())?;
                Ok(<$number>::from_le_bytes(bytes.try_into().expect("take gives what it is asked for")))
            }
        }
    )*};
}

saved_numbers!(u8, u16, u32, u64, u128, f64);

impl<T: Saved + Copy + Default, const N: usize> Saved for [T; N] {
    fn save(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.save(out));
    }

    fn load(from: &mut Reader<'_>) -> Result<[T; N], LoadError> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::load(from)?;
        }
        Ok(items)
    }
}

impl<T: Saved> Saved for Vec<T> {
    /// Their number as a u64, and the items.
    fn save(&self, out: &mut Vec<u8>) {
        (self.len() as u64).save(out);
        self.iter().for_each(|item| item.save(out));
    }

    fn load(from: &mut Reader<'_>) -> Result<Vec<T>, LoadError> {
        // Not collected with a capacity: the number may be wrong.
        let mut items = Vec::new();
        for _ in 0..from.u64()? {
            items.push(T::load(from)?);
        }
        Ok(items)
    }
}

impl Saved for bool {
    /// A byte, 0 or 1.
    fn save(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn load(from: &mut Reader<'_>) -> Result<bool, LoadError> {
        match u8::load(from)? {
            mark @ 0..=1 => Ok(mark == 1),
            _ => Err(LoadError::Damaged("a mark is neither 0 nor 1")),
        }
    }
}

impl<T: Saved> Saved for Option<T> {
    /// 0, or 1 and what is there.
    fn save(&self, out: &mut Vec<u8>) {
        self.is_some().save(out);
        self.iter().for_each(|item| item.save(out));
    }

    fn load(from: &mut Reader<'_>) -> Result<Option<T>, LoadError> {
        bool::load(from)?.then(|| T::load(from)).transpose()
    }
}

impl Saved for String {
    /// Bytes of UTF-8, as a Vec.
    fn save(&self, out: &mut Vec<u8>) {
        (self.len() as u64).save(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn load(from: &mut Reader<'_>) -> Result<String, LoadError> {
        let bytes =
            usize::try_from(from.u64()?).map_or(Err(LoadError::Damaged(SHORT)), |len| from.take(len))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| LoadError::Damaged("a text is not UTF-8"))
    }
}

/// Of models that write nothing.
impl Saved for Infallible {
    fn save(&self, _: &mut Vec<u8>) {
        match *self {}
    }

    fn load(_: &mut Reader<'_>) -> Result<Infallible, LoadError> {
        Err(LoadError::Damaged("a record of a model that has none"))
    }
}

impl<T: Saved> Saved for VecDeque<T> {
    /// As a Vec.
    fn save(&self, out: &mut Vec<u8>) {
        (self.len() as u64).save(out);
        self.iter().for_each(|item| item.save(out));
    }

    fn load(from: &mut Reader<'_>) -> Result<VecDeque<T>, LoadError> {
        Ok(Vec::load(from)?.into())
    }
}

impl<T: Saved> Saved for Box<T> {
    /// As what is in it.
    fn save(&self, out: &mut Vec<u8>) {
        T::save(self, out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Box<T>, LoadError> {
        T::load(from).map(Box::new)
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
        self.1.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<(A, B), LoadError> {
        Ok((A::load(from)?, B::load(from)?))
    }
}

impl<A: Saved, B: Saved, C: Saved> Saved for (A, B, C) {
    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
        self.1.save(out);
        self.2.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<(A, B, C), LoadError> {
        Ok((A::load(from)?, B::load(from)?, C::load(from)?))
    }
}

impl<K: Saved + Ord, V: Saved> Saved for BTreeMap<K, V> {
    /// Their number as a u64, and each key with what is there, by rising keys.
    fn save(&self, out: &mut Vec<u8>) {
        (self.len() as u64).save(out);
        for (key, value) in self {
            key.save(out);
            value.save(out);
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<BTreeMap<K, V>, LoadError> {
        let mut map = BTreeMap::new();
        for _ in 0..from.u64()? {
            let (key, value) = Saved::load(from)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(LoadError::Damaged("the keys of a table do not rise"));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl Saved for Time {
    /// Its ticks.
    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Time, LoadError> {
        from.u64().map(Time)
    }
}

/// CRC32C of `bytes` behind others that have the checksum `before` (0: of none), as in format 2.
pub fn checksum(before: u32, bytes: &[u8]) -> u32 {
    crc::append(before, bytes)
}

/// Makes a struct, or an enum with a number for each variant, [`Saved`](crate::checkpoint::Saved): its fields one after the
/// other. A field or variant that is not named does not compile.
///
/// ```
/// struct Place { file: u32, offset: u64 }
/// tidepool_sim::saved!(struct Place { file, offset });
/// enum Ask { Nothing, Read(Place, u64) }
/// tidepool_sim::saved!(enum Ask { 0 => Nothing, 1 => Read(place, length) });
/// ```
#[macro_export]
macro_rules! saved {
    (struct $name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::checkpoint::Saved for $name {
            fn save(&self, out: &mut Vec<u8>) {
                let $name { $($field),* } = self;
                $($crate::checkpoint::Saved::save($field, out);)*
            }

            fn load(
                from: &mut $crate::checkpoint::Reader<'_>,
            ) -> ::std::result::Result<$name, $crate::checkpoint::LoadError> {
                // In the order of writing.
                Ok($name { $($field: $crate::checkpoint::Saved::load(from)?),* })
            }
        }
    };
    (enum $name:ident { $($number:literal => $variant:ident $(($($field:ident),+))?),* $(,)? }) => {
        impl $crate::checkpoint::Saved for $name {
            fn save(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant $(($($field),+))? => {
                        out.push($number);
                        $($($crate::checkpoint::Saved::save($field, out);)+)?
                    })*
                }
            }

            fn load(
                from: &mut $crate::checkpoint::Reader<'_>,
            ) -> ::std::result::Result<$name, $crate::checkpoint::LoadError> {
                match <u8 as $crate::checkpoint::Saved>::load(from)? {
                    $($number => {
                        $($(let $field = $crate::checkpoint::Saved::load(from)?;)+)?
                        Ok($name::$variant $(($($field),+))?)
                    })*
                    _ => Err($crate::checkpoint::LoadError::Damaged(concat!("no ", stringify!($name)))),
                }
            }
        }
    };
}

/// How something of a model's is written and read.
pub(crate) type Save<T> = fn(&T, &mut Vec<u8>);
pub(crate) type Load<T> = fn(&mut Reader<'_>) -> Result<T, LoadError>;

/// All of a process but its state.
pub(crate) fn save_course<S>(process: &Process<S>, out: &mut Vec<u8>) {
    let (position, step) = process.random.parts();
    [position, step, process.sequence, process.trace].save(out);
}

pub(crate) fn load_course<S>(process: &mut Process<S>, from: &mut Reader<'_>) -> Result<(), LoadError> {
    let [position, step, sequence, trace] = <[u64; 4]>::load(from)?;
    process.random = Stream::from_parts(position, step);
    (process.sequence, process.trace) = (sequence, trace);
    Ok(())
}

pub(crate) fn save_event<M>(event: &Event<M>, message: Save<M>, out: &mut Vec<u8>) {
    event.key.time.0.save(out);
    event.key.source.0.save(out);
    event.to.0.save(out);
    event.key.sequence.save(out);
    message(&event.message, out);
}

pub(crate) fn load_event<M>(from: &mut Reader<'_>, message: Load<M>) -> Result<Event<M>, LoadError> {
    let (time, source, to) = (Time(from.u64()?), ProcessId(from.u32()?), ProcessId(from.u32()?));
    let key = Key { time, source, sequence: from.u64()? };
    Ok(Event { key, to, message: message(from)? })
}

impl<M: Model<State: Saved, Message: Saved>> Simulation<M> {
    /// All there is, as bytes. `about` says which model it is, with all that decides what it does; equal simulations
    /// have equal bytes.
    pub fn save(&self, about: &str) -> Result<Vec<u8>, Error> {
        if self.is_broken() {
            return Err(Error::Broken);
        }
        if about.len() > ABOUT_MAX {
            return Err(Error::Invalid(format!("a model is told of in at most {ABOUT_MAX} bytes")));
        }
        let mut out = MAGIC.to_vec();
        VERSION.save(&mut out);
        (about.len() as u32).save(&mut out);
        for number in [self.now.0, self.events, self.processes.len() as u64, self.pending.len() as u64] {
            number.save(&mut out);
        }
        out.extend_from_slice(about.as_bytes());
        for process in &self.processes {
            save_course(process, &mut out);
            process.state.save(&mut out);
        }
        let mut pending: Vec<&Event<M::Message>> = self.pending.iter().collect();
        pending.sort_unstable_by_key(|event| event.key);
        for event in pending {
            save_event(event, M::Message::save, &mut out);
        }
        crc::append(0, &out).save(&mut out);
        Ok(out)
    }

    /// Goes on where a simulation was saved. The model must be the same, as `about` says.
    pub fn load(model: M, about: &str, bytes: &[u8]) -> Result<Simulation<M>, LoadError> {
        let head = MAGIC.len() + size_of::<u32>();
        let known = bytes.len() >= head + CRC_LEN
            && bytes.starts_with(MAGIC)
            && bytes[MAGIC.len()..head] == VERSION.to_le_bytes();
        if !known {
            return Err(LoadError::Unknown);
        }
        let (content, sum) = bytes.split_at(bytes.len() - CRC_LEN);
        if crc::append(0, content).to_le_bytes() != sum {
            return Err(LoadError::Damaged("its checksum is wrong"));
        }
        let mut from = Reader(&content[head..]);
        let about_len = from.u32()? as usize;
        let [now, events, processes, pending] = <[u64; 4]>::load(&mut from)?;
        let theirs = from.take(about_len)?;
        if theirs != about.as_bytes() {
            return Err(LoadError::OtherModel(String::from_utf8_lossy(theirs).into_owned()));
        }
        let rules = Rules { processes: model.processes(), lookahead: model.lookahead() };
        if processes != u64::from(rules.processes) || now > Time::MAX.0 || events > COUNT_MAX {
            return Err(LoadError::Damaged(
                "it has another number of processes, a time after the last one, or too many events",
            ));
        }
        let loaded = Loaded { rules, now: Time(now), events, pending };
        let simulation = loaded.read(model, &mut from)?;
        match from.0 {
            [] => Ok(simulation),
            _ => Err(LoadError::Damaged("something follows its last message")),
        }
    }
}

/// What a checkpoint's head says.
struct Loaded {
    rules: Rules,
    now: Time,
    events: u64,
    pending: u64,
}

impl Loaded {
    fn read<M: Model<State: Saved, Message: Saved>>(
        self,
        model: M,
        from: &mut Reader<'_>,
    ) -> Result<Simulation<M>, LoadError> {
        let mut processes = Vec::new();
        for _ in 0..self.rules.processes {
            let [position, step, sequence, trace] = <[u64; 4]>::load(from)?;
            let random = Stream::from_parts(position, step);
            // A stream with an even step would come round early, or never move.
            if step.is_multiple_of(2) || sequence > COUNT_MAX {
                return Err(LoadError::Damaged("a process has a random stream or a count that there is not"));
            }
            processes.push(Process { random, sequence, trace, state: M::State::load(from)? });
        }
        let (mut pending, mut last) = (Vec::new(), None);
        for _ in 0..self.pending {
            let event = load_event(from, M::Message::load)?;
            let Key { time, source, .. } = event.key;
            let fits = time >= self.now && time <= Time::MAX && last.is_none_or(|last| last < event.key);
            if !fits || source.0.max(event.to.0) >= self.rules.processes {
                return Err(LoadError::Damaged("a message is out of order, or for nobody"));
            }
            last = Some(event.key);
            pending.push(event);
        }
        Ok(Simulation::from_parts(model, self.rules, self.now, self.events, processes, pending))
    }
}
