//! The primitive encodings that messages and records are made of.

use std::fmt;
use tidepool_types::{Attr, Errno, FileKind, Ino, Layout, SessionId, SetAttr, TimeSpec, TxnId};

/// Why bytes are no valid encoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The input ends inside the named thing.
    Short(&'static str),
    /// A field holds a value the specification does not allow.
    Invalid(&'static str),
    /// Bytes follow where the message should end.
    Trailing(usize),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short(what) => write!(f, "message ends inside {what}"),
            DecodeError::Invalid(what) => write!(f, "invalid {what}"),
            DecodeError::Trailing(count) => write!(f, "{count} bytes after the end of the message"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A cursor over received bytes.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.rest.split_at_checked(count).ok_or(DecodeError::Short(what))?;
        self.rest = tail;
        Ok(head)
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Demands that nothing is left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }
}

/// A value with one encoding.
pub trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

macro_rules! int_fields {
    ($($int:ty),*) => { $(
        impl Field for $int {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<$int, DecodeError> {
                let bytes = from.take(size_of::<$int>(), stringify!($int))?;
                Ok(<$int>::from_le_bytes(bytes.try_into().expect("taken with this length")))
            }
        }
    )* };
}
int_fields!(u8, u16, u32, u64, i32, i64);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut Reader<'_>) -> Result<bool, DecodeError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("bool")),
        }
    }
}

/// Length in 4 bytes, then the bytes.
impl<const N: usize> Field for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
        Ok(from.take(N, "bytes")?.try_into().expect("taken with this length"))
    }
}

impl Field for Box<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Box<[u8]>, DecodeError> {
        let len = u32::get(from)? as usize;
        Ok(from.take(len, "bytes")?.into())
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<String, DecodeError> {
        let len = u32::get(from)? as usize;
        let bytes = from.take(len, "text")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Invalid("UTF-8 text"))
    }
}

/// Absent: 0; present: 1 and the value.
impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        if bool::get(from)? { Ok(Some(T::get(from)?)) } else { Ok(None) }
    }
}

/// Count in 4 bytes, then the items.
impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        let count = u32::get(from)? as usize;
        // No capacity from the wire: a lying count runs out of bytes before memory. Items
        // always take at least one byte, which this check relies on.
        if count > from.remaining() {
            return Err(DecodeError::Short("list"));
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

fn put_len(len: usize, out: &mut Vec<u8>) {
    u32::try_from(len).expect("lengths are bounded far below 4 GiB by the frame limits").put(out);
}

/// Implements [`Field`] for a struct as its fields in the order given.
#[macro_export]
macro_rules! field_struct {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::Field::put(&self.$field, out);)*
            }
            fn get(from: &mut $crate::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                Ok(Self { $($field: $crate::Field::get(from)?),* })
            }
        }
    };
}

impl Field for Ino {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Ino, DecodeError> {
        match u64::get(from)? {
            0 => Err(DecodeError::Invalid("object id 0")),
            id => Ok(Ino(id)),
        }
    }
}

macro_rules! id_fields {
    ($($id:ident),*) => { $(
        impl Field for $id {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }
            fn get(from: &mut Reader<'_>) -> Result<$id, DecodeError> {
                Ok($id(from.take(16, stringify!($id))?.try_into().expect("taken with this length")))
            }
        }
    )* };
}
id_fields!(TxnId, SessionId);

impl Field for tidepool_types::InstanceId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.take(16, "InstanceId")?.try_into().expect("taken with this length")))
    }
}

impl Field for Errno {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Errno, DecodeError> {
        match i32::get(from)? {
            number if (1..4096).contains(&number) => Ok(Errno(number)),
            _ => Err(DecodeError::Invalid("errno")),
        }
    }
}

impl Field for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<FileKind, DecodeError> {
        FileKind::from_dtype(u8::get(from)?).map_err(|_| DecodeError::Invalid("file kind"))
    }
}

impl Field for TimeSpec {
    fn put(&self, out: &mut Vec<u8>) {
        self.sec.put(out);
        self.nsec.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<TimeSpec, DecodeError> {
        let time = TimeSpec { sec: i64::get(from)?, nsec: u32::get(from)? };
        if time.nsec < 1_000_000_000 { Ok(time) } else { Err(DecodeError::Invalid("nanoseconds")) }
    }
}

impl Field for Attr {
    fn put(&self, out: &mut Vec<u8>) {
        self.ino.put(out);
        self.mode.put(out);
        self.nlink.put(out);
        self.uid.put(out);
        self.gid.put(out);
        self.size.put(out);
        self.blocks.put(out);
        self.rdev.put(out);
        self.atime.put(out);
        self.mtime.put(out);
        self.ctime.put(out);
        self.layout.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Attr, DecodeError> {
        let attr = Attr {
            ino: Field::get(from)?,
            mode: Field::get(from)?,
            nlink: Field::get(from)?,
            uid: Field::get(from)?,
            gid: Field::get(from)?,
            size: Field::get(from)?,
            blocks: Field::get(from)?,
            rdev: Field::get(from)?,
            atime: Field::get(from)?,
            mtime: Field::get(from)?,
            ctime: Field::get(from)?,
            layout: Field::get(from)?,
        };
        let kind = FileKind::from_mode(attr.mode).map_err(|_| DecodeError::Invalid("file mode"))?;
        match (kind, attr.layout) {
            (FileKind::Regular, None) => Err(DecodeError::Invalid("file without a layout")),
            _ => Ok(attr),
        }
    }
}

/// As one word; 0 for none.
impl Field for Option<Layout> {
    fn put(&self, out: &mut Vec<u8>) {
        self.map_or(0, Layout::to_word).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Layout::from_record(u32::get(from)?).map_err(|_| DecodeError::Invalid("layout"))
    }
}

field_struct!(SetAttr { mode, uid, gid, size, atime, mtime });
