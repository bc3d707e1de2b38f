//! Ids, units, attributes and errors shared by every crate.
//!
//! Nothing here does I/O.

#![forbid(unsafe_code)]

pub mod acl;
mod aging;
mod attr;
mod encryption;
mod errno;
mod ids;
mod layout;
mod name;
mod size;
mod tell;

pub use aging::{Aging, CATCH_UP};
pub use attr::{ATTR_WORDS, Attr, FileKind, SetAttr, TimeSpec};
pub use encryption::{Encryption, UnknownEncryption};
pub use errno::Errno;
pub use ids::{DaemonIndex, Ino, InodeNumbers, InstanceId, SessionId, TxnId};
pub use layout::{ChunkSize, GROUP_MAX, Layout, LayoutError, Placement};
pub use name::{POOL_NAME_MAX, check_pool_name};
pub use size::{SizeError, format_size, parse_bandwidth, parse_phase_bytes, parse_size};

/// Default bytes of a chunk (S2 §2.2.3: 512 KiB).
pub const CHUNK_SIZE_DEFAULT: u32 = 512 * 1024;
/// Smallest chunk a file may have: one checksum block.
pub const CHUNK_SIZE_MIN: u32 = BLOCK_SIZE;
/// Largest chunk a file may have. One request never carries more than a chunk.
pub const CHUNK_SIZE_MAX: u32 = 16 * 1024 * 1024;
/// Bytes under one checksum. One page, because a killed daemon leaves every page of an
/// interrupted write either wholly old or wholly new, never torn.
pub const BLOCK_SIZE: u32 = 4096;
/// Longest name of one directory entry, in bytes (POSIX NAME_MAX).
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Largest file, in bytes. Keeps every offset sum within `i64`, which `off_t` is.
pub const FILE_SIZE_MAX: u64 = 1 << 60;
/// Most daemons in one pool: the width of [`Ino`]'s home field.
pub const DAEMONS_MAX: usize = 1 << 16;
/// Most bytes that a hint can say of an I/O phase: 1 EiB. Keeps every sum of what processes say within `u64`.
pub const PHASE_BYTES_MAX: u64 = 1 << 60;
/// Most extended attribute bytes (names and values) of one object.
pub const XATTR_BYTES_MAX: usize = 64 * 1024;

/// Bytes as text on one line: control characters and invalid UTF-8 are escaped.
pub fn show_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::show_bytes;

    #[test]
    fn odd_names_are_shown_on_one_line() {
        assert_eq!(show_bytes(b"a\nb\xff\xc3\xa9"), "a\\nb\\xffé");
    }
}
