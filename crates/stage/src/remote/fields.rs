//! Encodings of what messages are made of.

use super::message::{
    Clothes, GotHead, NamingHead, Nothing, OpenHow, Place, PutHead, RootInfo, RootRequest, Spot, Told,
};
use crate::end::{EndError, Item, Meta, PackLimits, Rights, SetMeta, Written};
use tidepool_types::Errno;
use tidepool_wire::{DecodeError, Field, Reader, field_struct};

/// Operations that errors tell of; a client knows no other words.
const OPERATIONS: &[&str] = &[
    "answer",
    "check the request",
    "copy",
    "create",
    "find data",
    "find hole",
    "fsync",
    "fsync directory",
    "hard link",
    "list",
    "list attributes",
    "make directory",
    "make link",
    "make node",
    "open",
    "open dataspace",
    "open directory",
    "read",
    "read attribute",
    "read link",
    "remove",
    "rename",
    "replace",
    "set attribute",
    "set attributes",
    "set mode",
    "set owner",
    "set size",
    "set times",
    "stat",
    "sync",
    "sync pool",
    "use a directory of another end",
    "use a file of another end",
    "write",
];
/// What an operation is called that is not among them.
const OTHER_OPERATION: &str = "work at the other node";

field_struct!(RootRequest { dataspace, path, write, uid, gid, groups, job });
field_struct!(Meta { dev, ino, kind, mode, nlink, uid, gid, size, stored, rdev, atime, mtime, ctime });
field_struct!(Item { name, kind, size });
field_struct!(SetMeta { owner, mode, times });
field_struct!(Rights { root, uid, gid });
field_struct!(Clothes { set, xattrs });
field_struct!(PutHead { dir, name, len, crc, clothes });
field_struct!(GotHead { meta, content });
field_struct!(NamingHead { dir, from, to, key });
field_struct!(Written { intact, key, refused });
field_struct!(RootInfo { session, boot, describe, identity, rights, reads_touch_atime, meta });

impl Field for PackLimits {
    fn put(&self, out: &mut Vec<u8>) {
        (self.files as u64).put(out);
        self.file_bytes.put(out);
        self.bytes.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<PackLimits, DecodeError> {
        let files = usize::try_from(u64::get(from)?).map_err(|_| DecodeError::Invalid("count of files"))?;
        Ok(PackLimits { files, file_bytes: Field::get(from)?, bytes: Field::get(from)? })
    }
}

impl Field for EndError {
    fn put(&self, out: &mut Vec<u8>) {
        self.errno.put(out);
        self.operation.to_string().put(out);
        self.detail.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<EndError, DecodeError> {
        let errno = Errno::get(from)?;
        let told = String::get(from)?;
        let operation = OPERATIONS.iter().find(|known| **known == told).copied().unwrap_or(OTHER_OPERATION);
        Ok(EndError { errno, operation, detail: Field::get(from)? })
    }
}

/// Done: 1 and the value; failed: 0 and the error.
impl<T: Field> Field for Told<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.is_ok().put(out);
        match &self.0 {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Told<T>, DecodeError> {
        Ok(Told(if bool::get(from)? { Ok(T::get(from)?) } else { Err(EndError::get(from)?) }))
    }
}

/// Done, with nothing to tell of it.
impl Field for Nothing {
    fn put(&self, _out: &mut Vec<u8>) {}
    fn get(_from: &mut Reader<'_>) -> Result<Nothing, DecodeError> {
        Ok(Nothing)
    }
}

impl Field for Place {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Place::Start => 0u8.put(out),
            Place::Cookie(cookie) => {
                1u8.put(out);
                cookie.put(out);
            }
            Place::Kept(number) => {
                2u8.put(out);
                number.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Place, DecodeError> {
        match u8::get(from)? {
            0 => Ok(Place::Start),
            1 => Ok(Place::Cookie(Field::get(from)?)),
            2 => Ok(Place::Kept(Field::get(from)?)),
            _ => Err(DecodeError::Invalid("place in a listing")),
        }
    }
}

impl Field for Spot {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Spot::File(file) => {
                0u8.put(out);
                file.put(out);
            }
            Spot::Dir(dir) => {
                1u8.put(out);
                dir.put(out);
            }
            Spot::Name(dir, name) => {
                2u8.put(out);
                dir.put(out);
                name.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Spot, DecodeError> {
        match u8::get(from)? {
            0 => Ok(Spot::File(Field::get(from)?)),
            1 => Ok(Spot::Dir(Field::get(from)?)),
            2 => Ok(Spot::Name(Field::get(from)?, Field::get(from)?)),
            _ => Err(DecodeError::Invalid("spot")),
        }
    }
}

impl Field for OpenHow {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<OpenHow, DecodeError> {
        match u8::get(from)? {
            0 => Ok(OpenHow::Read),
            1 => Ok(OpenHow::Write),
            2 => Ok(OpenHow::Create),
            _ => Err(DecodeError::Invalid("way to open")),
        }
    }
}
