//! A file for each registered job, named by its number: hooks of batch systems look there before they start anything.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use tidepool_types::Errno;
use tidepool_wire::stager::{Code, Refusal};

/// The directory of these files; without one nothing is done.
#[derive(Default)]
pub struct Marks(Option<PathBuf>);

impl Marks {
    /// Puts the directory in order: a file for each of these jobs, and no other that is named by a number.
    pub fn open(dir: Option<&Path>, jobs: &[u32]) -> io::Result<Marks> {
        let Some(dir) = dir else { return Ok(Marks(None)) };
        fs::create_dir_all(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let job =
                name.to_str().and_then(|name| name.parse::<u32>().ok().filter(|job| job.to_string() == name));
            if job.is_some_and(|job| !jobs.contains(&job)) {
                fs::remove_file(entry.path())?;
            }
        }
        for job in jobs {
            // What a hook has written into it stays.
            OpenOptions::new().create(true).append(true).open(dir.join(job.to_string()))?;
        }
        Ok(Marks(Some(dir.into())))
    }

    pub fn put(&self, job: u32) -> Result<(), Refusal> {
        let Some(dir) = &self.0 else { return Ok(()) };
        let path = dir.join(job.to_string());
        File::create(&path).map(drop).map_err(|error| Refusal {
            code: Code::SYSTEM_ERROR,
            errno: error.raw_os_error().unwrap_or(Errno::EIO.0),
            detail: format!("jobs-dir: {}: {error}", path.display()),
        })
    }

    /// A file that stays costs a hook a look at the stager, no more.
    pub fn take(&self, job: u32) {
        let Some(dir) = &self.0 else { return };
        match fs::remove_file(dir.join(job.to_string())) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                eprintln!("tidepool-staged: {}/{job}: {error}", dir.display());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_of_registered_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs");
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let marks = Marks::open(Some(&path), &[7]).unwrap();
        marks.put(8).unwrap();
        // As no job is written: not ours.
        ["note", "09"].iter().for_each(|name| fs::write(path.join(name), "").unwrap());
        assert_eq!(names(), ["09", "7", "8", "note"]);
        marks.take(8);
        marks.take(9);
        fs::write(path.join("7"), "over").unwrap();
        Marks::open(Some(&path), &[3, 7]).unwrap();
        assert_eq!(names(), ["09", "3", "7", "note"]);
        assert_eq!(fs::read_to_string(path.join("7")).unwrap(), "over");
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(marks.put(1).unwrap_err().errno, Errno::ENOENT.0);
        Marks::open(None, &[1]).unwrap().put(1).unwrap();
    }
}
