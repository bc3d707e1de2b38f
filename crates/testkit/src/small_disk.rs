//! Storage that is soon full.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A small tmpfs, unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None, and a word about it, without the rights to.
    pub fn mount(at: &Path, bytes: u64) -> Option<SmallDisk> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: tests of a full disk need root to mount a small tmpfs");
            return None;
        }
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).status().unwrap();
        assert!(done.success(), "mounting a tmpfs");
        Some(SmallDisk(at.into()))
    }
}

impl SmallDisk {
    /// Leaves no room.
    pub fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        let piece = [1; 4096];
        while let Ok(1..) = std::io::Write::write(&mut filler, &piece) {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
