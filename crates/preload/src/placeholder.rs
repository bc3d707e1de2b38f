//! Placeholder descriptors: sealed memfds that stand for open pool objects which several processes may
//! share. (What only this process has open needs none: `standin.rs`.)
//!
//! The kernel keeps what descriptors share (offset, status flags, duplicates, inheritance); the memfd's
//! content says which object it is. The seals keep a stray write from destroying the record and tell
//! placeholders from nearly all other descriptors in one call. A stray read would take the record for the
//! file's content, so placeholders of files are open for writing only: it fails, and we read the record
//! through /proc. (Those of directories are open for reading, as their stand-in is, and read by nobody.)
//!
//! Record, little-endian: magic 8, version 4, open flags 4, pool instance 16, ino 8, description id 16,
//! path length 4, path (absolute, as opened). `docs/guide/preload.md` describes it for debuggers.

use crate::limit;
use crate::raw::{self, sys};
use tidepool_types::{Ino, InstanceId};

const MAGIC: &[u8; 8] = b"TIDEPLFD";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 60;
pub const PATH_MAX: usize = 4096;
pub const SEALS: i32 = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// Names one open file description over all processes that share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DescriptionId(pub [u8; 16]);

/// What a placeholder says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub instance: InstanceId,
    pub ino: Ino,
    /// Access mode and `O_PATH`, `O_DIRECTORY`; the changing flags are the kernel's.
    pub flags: i32,
    pub description: DescriptionId,
}

/// Makes a placeholder; the descriptor or a negative error.
pub fn create(record: &Record, path: &[u8], cloexec: bool) -> isize {
    let mut bytes = [0u8; HEADER_BYTES + PATH_MAX];
    let len = encode(record, path, &mut bytes);
    let flags = libc::MFD_ALLOW_SEALING | if cloexec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the name is a C string; the buffer is valid for `len`.
    unsafe {
        let fd = sys!(libc::SYS_memfd_create, c"tidepool".as_ptr(), flags);
        if fd < 0 {
            return fd;
        }
        let wrote = limit::without_signal(|| sys!(libc::SYS_pwrite64, fd, bytes.as_ptr(), len, 0));
        let sealed = raw::fcntl(fd as i32, libc::F_ADD_SEALS, SEALS as usize);
        if wrote != len as isize || sealed != 0 {
            raw::close(fd as i32);
            return raw::err(if wrote < 0 { -wrote as i32 } else { libc::ENOMEM });
        }
        let mode = if record.flags & libc::O_DIRECTORY != 0 { libc::O_RDONLY } else { libc::O_WRONLY };
        open_again(fd as i32, mode, cloexec)
    }
}

/// Makes a placeholder that takes over a description with this offset and these status flags. It is closed
/// on exec, whatever the numbers are that it is for.
pub fn create_at(record: &Record, path: &[u8], offset: i64, status: i32) -> isize {
    let fd = crate::standin::with_spares(|| create(record, path, true));
    if fd >= 0 {
        raw::lseek(fd as i32, offset, libc::SEEK_SET);
        if status != 0 {
            raw::fcntl(fd as i32, libc::F_SETFL, status as usize);
        }
    }
    fd
}

/// Opens the memfd through its name in /proc and puts the result in its place.
///
/// The kernel moves the offset of a file under a lock only when the file was opened by
/// name: on a bare memfd, concurrent relative seeks lose steps (seen on Linux 6.18), and
/// with them ranges that threads and processes reserve for their writes.
fn open_again(memfd: i32, mode: i32, cloexec: bool) -> isize {
    let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
    let again = open_by_name(memfd, mode | cloexec);
    if again < 0 {
        raw::close(memfd);
        return again;
    }
    // The program expects the lowest free number, which the memfd has.
    // SAFETY: no pointers.
    let placed = unsafe { sys!(libc::SYS_dup3, again, memfd, cloexec) };
    raw::close(again as i32);
    if placed < 0 {
        raw::close(memfd);
    }
    placed
}

/// Opens what `fd` has open once more, by its name in /proc.
pub fn open_by_name(fd: i32, flags: i32) -> isize {
    let mut name = [0u8; 40];
    let mut digits = [0u8; 20];
    let prefix = b"/proc/self/fd/";
    let number = raw::decimal(fd as u64, &mut digits);
    name[..prefix.len()].copy_from_slice(prefix);
    name[prefix.len()..prefix.len() + number.len()].copy_from_slice(number);
    // SAFETY: the name ends in zeros.
    unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, 0) }
}

/// The record of `fd`, if it is a placeholder (of any pool).
pub fn recognise(fd: i32) -> Option<Record> {
    if raw::fcntl(fd, libc::F_GET_SEALS, 0) != SEALS as isize {
        return None;
    }
    let mut bytes = [0u8; HEADER_BYTES];
    if read_record(fd, &mut bytes) != HEADER_BYTES as isize {
        return None;
    }
    decode(&bytes)
}

/// Reads through a descriptor of its own, for which there is room as long as spare numbers are held.
fn read_record(fd: i32, bytes: &mut [u8]) -> isize {
    let open = || open_by_name(fd, libc::O_RDONLY | libc::O_CLOEXEC);
    let own = crate::standin::with_spares(open);
    if own < 0 {
        return own;
    }
    let got = raw::pread(own as i32, bytes, 0);
    raw::close(own as i32);
    crate::standin::refill();
    got
}

/// The path that `fd` was opened by; empty if it is no placeholder.
pub fn path_of(fd: i32) -> Vec<u8> {
    let mut bytes = vec![0u8; HEADER_BYTES + PATH_MAX];
    let n = read_record(fd, &mut bytes);
    if n < HEADER_BYTES as isize || &bytes[..8] != MAGIC {
        return Vec::new();
    }
    let len = u32_at(&bytes, 56) as usize;
    bytes.truncate(n as usize);
    bytes.drain(..HEADER_BYTES);
    bytes.truncate(len);
    bytes
}

fn encode(record: &Record, path: &[u8], out: &mut [u8; HEADER_BYTES + PATH_MAX]) -> usize {
    let path = &path[..path.len().min(PATH_MAX)];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&record.flags.to_le_bytes());
    out[16..32].copy_from_slice(&record.instance.0);
    out[32..40].copy_from_slice(&record.ino.0.to_le_bytes());
    out[40..56].copy_from_slice(&record.description.0);
    out[56..60].copy_from_slice(&(path.len() as u32).to_le_bytes());
    out[60..60 + path.len()].copy_from_slice(path);
    HEADER_BYTES + path.len()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Record> {
    if &bytes[..8] != MAGIC || u32_at(bytes, 8) != VERSION {
        return None;
    }
    let mut instance = [0; 16];
    instance.copy_from_slice(&bytes[16..32]);
    let mut ino = [0; 8];
    ino.copy_from_slice(&bytes[32..40]);
    let mut description = [0; 16];
    description.copy_from_slice(&bytes[40..56]);
    Some(Record {
        instance: InstanceId(instance),
        ino: Ino(u64::from_le_bytes(ino)),
        flags: u32_at(bytes, 12) as i32,
        description: DescriptionId(description),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record { instance: InstanceId([7; 16]), ino: Ino(9), flags: 2, description: DescriptionId([3; 16]) }
    }

    #[test]
    fn bytes_are_pinned() {
        let mut out = [0; HEADER_BYTES + PATH_MAX];
        assert_eq!(encode(&record(), b"/m/f", &mut out), 64);
        let mut expect = b"TIDEPLFD\x01\0\0\0\x02\0\0\0".to_vec();
        expect.extend([7; 16]);
        expect.extend(b"\x09\0\0\0\0\0\0\0");
        expect.extend([3; 16]);
        expect.extend(b"\x04\0\0\0/m/f");
        assert_eq!(&out[..64], &expect[..]);
    }

    #[test]
    fn placeholder_survives_dup_and_shares_its_offset() {
        let fd = create(&record(), b"/m/f", true) as i32;
        assert!(fd >= 0);
        // SAFETY: plain descriptor calls.
        let twin = unsafe { libc::dup(fd) };
        assert_eq!(recognise(twin), Some(record()));
        assert_eq!(path_of(twin), b"/m/f");
        assert_eq!(raw::lseek(fd, 1 << 50, libc::SEEK_SET), 1 << 50);
        assert_eq!(raw::lseek(twin, 5, libc::SEEK_CUR), (1 << 50) + 5);
        raw::close(fd);
        raw::close(twin);
    }

    /// Steps that threads take at the same time all count.
    #[test]
    fn shared_offsets_lose_no_step() {
        const THREADS: isize = 4;
        const STEPS: isize = 100_000;
        let fd = create(&record(), b"/m/f", true) as i32;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..STEPS).for_each(|_| assert!(raw::lseek(fd, 1, libc::SEEK_CUR) > 0)));
            }
        });
        assert_eq!(raw::lseek(fd, 0, libc::SEEK_CUR), THREADS * STEPS);
        raw::close(fd);
    }

    /// What gets past us fails, and does not take the record for content.
    #[test]
    fn nothing_is_read_from_or_written_to_a_placeholder() {
        let fd = create(&record(), b"/m/f", true) as i32;
        assert_eq!(raw::pread(fd, &mut [0; 8], 0), raw::err(libc::EBADF));
        assert_ne!(raw::pwrite_all(fd, b"x", 0), 0);
        // SAFETY: a new mapping.
        let map = unsafe { sys!(libc::SYS_mmap, 0, 60, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        assert_eq!(map, raw::err(libc::EACCES));
        assert_eq!(recognise(fd), Some(record()));
        raw::close(fd);
    }

    #[test]
    fn others_are_not_recognised() {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"other".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert_eq!(recognise(fd), None);
        assert_eq!(recognise(-1), None);
        raw::close(fd);
    }
}
