//! Journals of tasks' copies: files of the stager's own, which workers get as descriptors. Where they lie no user may write.

use rustc_hash::FxHashMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".journal";

/// Which tasks have journals, and whose they are.
pub struct Journals {
    dir: PathBuf,
    /// Bytes of all journals of one user.
    user_max: u64,
    owners: FxHashMap<u32, u32>,
}

impl Journals {
    /// Removes those of tasks that `owner` knows nothing of: they are forgotten, or finished just before the stager died.
    pub fn open(dir: PathBuf, user_max: u64, owner: impl Fn(u32) -> Option<u32>) -> io::Result<Journals> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        // Earlier releases let users through, to directories of theirs.
        std::fs::set_permissions(&dir, Permissions::from_mode(0o700))?;
        let mut owners = FxHashMap::default();
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<u32>().ok());
            match id.map(|id| (id, owner(id))) {
                Some((id, Some(uid))) => drop(owners.insert(id, uid)),
                Some((_, None)) => std::fs::remove_file(entry.path())?,
                None => eprintln!(
                    "tidepool-staged: {} is not of this release; nothing uses it any more: look at it, and remove it",
                    entry.path().display()
                ),
            }
        }
        Ok(Journals { dir, user_max, owners })
    }

    fn path(&self, id: u32) -> PathBuf {
        self.dir.join(format!("{id}{SUFFIX}"))
    }

    /// Part of the names of a task's temporary files: the same after a restart, and another one at
    /// every stager that works in the same directories (FNV-1a).
    pub fn token(&self, node: &str, id: u32) -> [u8; 8] {
        let dir: &Path = &self.dir;
        let names = [node.as_bytes(), dir.as_os_str().as_encoded_bytes(), &id.to_le_bytes()].concat();
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        names.iter().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes()
    }

    /// The journal of a task of this user, new or as it was left. None when the user's take as much as they may: his copies go
    /// on, and would have more to do again after a kill.
    pub fn file(&mut self, id: u32, uid: u32) -> io::Result<Option<File>> {
        if !self.owners.contains_key(&id) && self.bytes_of(uid) >= self.user_max {
            return Ok(None);
        }
        let mut how = OpenOptions::new();
        how.read(true).append(true).create(true).mode(0o600);
        let file = how.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(self.path(id))?;
        self.owners.insert(id, uid);
        Ok(Some(file))
    }

    fn bytes_of(&self, uid: u32) -> u64 {
        let own = self.owners.iter().filter(|(_, owner)| **owner == uid);
        own.filter_map(|(id, _)| std::fs::symlink_metadata(self.path(*id)).ok()).map(|meta| meta.len()).sum()
    }

    /// There is nothing to be resumed any more.
    pub fn remove(&mut self, id: u32) {
        if self.owners.remove(&id).is_some()
            && let Err(error) = std::fs::remove_file(self.path(id))
        {
            // Swept at the next start.
            eprintln!("tidepool-staged: {}: {error}", self.path(id).display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn one_users_journals_take_no_more_than_they_may() {
        let dir = tempfile::tempdir().unwrap();
        let mut journals = Journals::open(dir.path().join("tasks"), 100, |_| None).unwrap();
        journals.file(1, 7).unwrap().unwrap().write_all(&[0; 60]).unwrap();
        journals.file(2, 7).unwrap().unwrap().write_all(&[0; 60]).unwrap();
        assert!(journals.file(3, 7).unwrap().is_none(), "120 of 100");
        assert!(journals.file(2, 7).unwrap().is_some(), "it has one");
        assert!(journals.file(4, 8).unwrap().is_some(), "another user's");
        journals.remove(1);
        assert!(journals.file(3, 7).unwrap().is_some());
    }

    #[test]
    fn only_those_of_known_tasks_outlive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = dir.path().join("tasks");
        let mut journals = Journals::open(tasks.clone(), 100, |_| None).unwrap();
        [1, 2].iter().for_each(|id| drop(journals.file(*id, 7).unwrap().unwrap()));
        std::fs::create_dir(tasks.join("3")).unwrap();
        let journals = Journals::open(tasks.clone(), 100, |id| (id == 2).then_some(7)).unwrap();
        assert_eq!(journals.owners.len(), 1);
        let left = |name: &str| tasks.join(name).exists();
        assert_eq!([left("1.journal"), left("2.journal"), left("3")], [false, true, true]);
        assert_eq!(std::fs::metadata(&tasks).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
