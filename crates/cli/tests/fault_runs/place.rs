//! Where runs take place: in memory, on a disk of its own, on one that is soon full.

use crate::common::Sandbox;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Of the file system in a file.
const DISK_BYTES: u64 = 48 << 20;

/// A directory in memory, where a sync costs nothing.
pub fn memory() -> Sandbox {
    Sandbox { dir: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory") }
}

/// A file system that goes with this.
pub struct Mounted(PathBuf);

impl Mounted {
    /// None without the right to mount.
    pub fn new(words: &[&str], at: &Path) -> Option<Mounted> {
        // Two at a time may find the same free loop device; those of other programs may be in the way as well.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        fs::create_dir_all(at).expect("a directory can be made");
        (0..5).find_map(|_| {
            let done = Command::new("mount").args(words).arg(at).stderr(Stdio::null()).status().ok()?;
            done.success().then(|| Mounted(at.into()))
        })
    }

    /// An empty tmpfs of so many bytes.
    pub fn small(at: &Path, bytes: u64) -> Option<Mounted> {
        Mounted::new(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"], at)
    }

    /// A file with a file system in it; `options` of mount(8) beside `loop`.
    pub fn image(image: &Path, at: &Path, options: &str) -> Option<Mounted> {
        Mounted::new(&["-o", &format!("loop{options}"), image.to_str()?], at)
    }

    pub fn resize(&self, bytes: u64) {
        let size = format!("remount,size={bytes}");
        let done = Command::new("mount").args(["-o", &size]).arg(&self.0).status().expect("mount(8) runs");
        assert!(done.success(), "{} gets more room", self.0.display());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for how in [&[][..], &["-l"]] {
            let done = Command::new("umount").args(how).arg(&self.0).stderr(Stdio::null()).status();
            if done.is_ok_and(|status| status.success()) {
                return;
            }
        }
    }
}

/// Makes a file with an empty ext4 in it.
pub fn make_image(image: &Path) -> bool {
    let file = fs::File::create(image).expect("a file can be made");
    file.set_len(DISK_BYTES).expect("it has holes");
    let mut mkfs = Command::new("mkfs.ext4");
    // A short journal and no zeroes: the file is copied often.
    mkfs.args(["-q", "-E", "lazy_itable_init=0,nodiscard", "-O", "^resize_inode", "-J", "size=4"]).arg(image);
    mkfs.status().is_ok_and(|status| status.success())
}

/// One worker's place.
pub struct Place {
    /// Goes before the directory that it is in.
    disk: Option<Mounted>,
    pub sandbox: Sandbox,
}

impl Place {
    pub fn new() -> Place {
        let sandbox = memory();
        let (image, at) = (sandbox.path("image"), sandbox.path("disk"));
        let disk = if make_image(&image) { Mounted::image(&image, &at, "") } else { None };
        if disk.is_none() {
            println!("SKIPPED: no file system can be mounted here; all takes place in memory");
        }
        Place { disk, sandbox }
    }

    /// An empty directory, on the disk if that is wished and there is one.
    pub fn empty(&self, name: &str, on_disk: bool) -> PathBuf {
        let above =
            if on_disk && self.disk.is_some() { self.sandbox.path("disk") } else { self.sandbox.path("") };
        let dir = above.join(name);
        clear(&dir);
        fs::create_dir(&dir).expect("a directory can be made");
        dir
    }
}

pub fn clear(dir: &Path) {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", dir.display()),
        _ => {}
    }
}
