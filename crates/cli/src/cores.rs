//! Core files beside a pool.
//!
//! Where `core_pattern` is a relative name, the kernel writes the core of a program that has its working directory in a pool
//! without a mount into the real directory at the pool's path: it knows no other. Only root's can land there, since the
//! directory is closed. They are no reason to keep a pool's directory, and may be all that tells why a run failed.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names tried for one core before giving up.
const NAMES_MAX: u32 = 10_000;

/// Moves the cores directly in `mount` to `cores`, on the same file system, as those of `pool`; where they are now.
pub fn move_away(mount: &Path, cores: &Path, pool: &str) -> Result<Vec<PathBuf>> {
    let mut moved = Vec::new();
    for entry in fs::read_dir(mount)? {
        let entry = entry?;
        if !is_core(&entry.path())? {
            continue;
        }
        match DirBuilder::new().mode(0o700).create(cores) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let to = free_name(cores, &format!("{pool}.{}", entry.file_name().to_string_lossy()))?;
        fs::rename(entry.path(), &to)?;
        moved.push(to);
    }
    Ok(moved)
}

/// A regular file with a core's head, or one that a full disk left empty.
fn is_core(path: &Path) -> Result<bool> {
    const MAGIC: &[u8] = b"\x7fELF";
    const TYPE_AT: usize = 16;
    const ET_CORE: u16 = 4;
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_file() {
        return Ok(false);
    }
    if meta.len() == 0 {
        return Ok(path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"core")));
    }
    let mut head = [0; TYPE_AT + 2];
    match File::open(path)?.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
        Ok(()) => {
            let kind = u16::from_le_bytes([head[TYPE_AT], head[TYPE_AT + 1]]);
            Ok(head.starts_with(MAGIC) && kind == ET_CORE)
        }
    }
}

/// `name`, or `name.1` and so on where others have it. The directory is the user's own, and one process at a time removes a pool.
fn free_name(dir: &Path, name: &str) -> Result<PathBuf> {
    let numbered = |n: u32| dir.join(if n == 0 { name.to_string() } else { format!("{name}.{n}") });
    let free = (0..NAMES_MAX).map(numbered).find(|path| fs::symlink_metadata(path).is_err());
    free.ok_or_else(|| std::io::Error::other(format!("{} is full of core files; remove some", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(kind: u8) -> Vec<u8> {
        let mut bytes = b"\x7fELF".to_vec();
        bytes.resize(16, 0);
        bytes.extend([kind, 0, 62, 0]);
        bytes
    }

    #[test]
    fn cores_go_and_all_else_stays() {
        let root = std::env::temp_dir().join(format!("tidepool-cores-{}", std::process::id()));
        let (mount, cores) = (root.join("mnt"), root.join(".cores"));
        fs::create_dir_all(&mount).unwrap();
        fs::write(mount.join("core"), core(4)).unwrap();
        fs::write(mount.join("named.by.a.site"), core(4)).unwrap();
        fs::write(mount.join("core.77"), b"").unwrap();
        // A program, a text, a short file, a link to a core, a directory: somebody's.
        fs::write(mount.join("core.program"), core(2)).unwrap();
        fs::write(mount.join("core.txt"), b"the core of the matter, at some length").unwrap();
        fs::write(mount.join("core.short"), b"\x7fELF").unwrap();
        fs::write(mount.join("empty"), b"").unwrap();
        std::os::unix::fs::symlink("core", mount.join("core.link")).unwrap();
        fs::create_dir(mount.join("core.d")).unwrap();
        fs::create_dir(&cores).unwrap();
        fs::write(cores.join("p.core"), b"of an earlier run").unwrap();

        let mut moved = move_away(&mount, &cores, "p").unwrap();
        moved.sort();
        assert_eq!(moved, ["p.core.1", "p.core.77", "p.named.by.a.site"].map(|name| cores.join(name)));
        assert_eq!(fs::read(&moved[0]).unwrap(), core(4));
        assert_eq!(fs::read(cores.join("p.core")).unwrap(), b"of an earlier run");
        let mut left: Vec<_> = fs::read_dir(&mount).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["core.d", "core.link", "core.program", "core.short", "core.txt", "empty"]);
        fs::remove_dir_all(&root).unwrap();
    }
}
