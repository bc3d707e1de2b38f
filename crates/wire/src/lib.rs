//! Message and disk codecs.
//!
//! `docs/formats/01-protocol.md` specifies the messages, `docs/formats/02-metadata-log.md`
//! the records on disk, `docs/formats/11-stager.md` what a stager says. Everything is little-endian and encoded field by field. Decoding
//! never panics and never allocates more than the input's length times a small constant.

#![forbid(unsafe_code)]

mod codec;
pub mod fabric;
pub mod frame;
pub mod message;
pub mod record;
pub mod stager;
mod table;
pub mod tail;

pub use codec::{DecodeError, Field, Reader};
