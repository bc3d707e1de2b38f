//! A node as extractors see it: files below a root, and programs. Nothing of it is trusted.

use crate::record::Missing;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Most bytes of a file that are read.
pub const FILE_MAX: u64 = 4 << 20;
/// Most bytes of a program's output: the fabric of a machine with 10,000 nodes takes 30 MB.
pub const OUTPUT_MAX: u64 = 128 << 20;
/// Most entries of a directory.
const ENTRIES_MAX: usize = 100_000;
/// How long a program may take; `ibnetdiscover` asks each switch of a machine.
const PROGRAM_MAX: Duration = Duration::from_secs(60);
/// How long the rest of a program's output may take after its end, at least.
const OUTPUT_PATIENCE_MIN: Duration = Duration::from_secs(1);
/// How often it is looked whether a program has ended.
const LOOK_AROUND: Duration = Duration::from_millis(2);

/// Where a node's files and programs are.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
    programs: Vec<PathBuf>,
    /// Files that lie elsewhere.
    files: BTreeMap<String, PathBuf>,
    patience: Duration,
    /// Set when nobody wants to know any more.
    cancelled: Arc<AtomicBool>,
}

impl Default for System {
    /// This node.
    fn default() -> System {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // `ibnetdiscover` and `lsmod` are in places that users' paths often lack.
        let programs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
        System::at("/", programs)
    }
}

impl System {
    /// A node whose files lie below `root`, and whose programs in `programs`.
    pub fn at(root: impl Into<PathBuf>, programs: Vec<PathBuf>) -> System {
        System {
            root: root.into(),
            programs,
            files: BTreeMap::new(),
            patience: PROGRAM_MAX,
            cancelled: Arc::default(),
        }
    }

    /// How long a program may take.
    pub fn with_patience(self, patience: Duration) -> System {
        System { patience, ..self }
    }

    /// What is looked for at `place` is the file `path`.
    pub fn with_file(mut self, place: &str, path: PathBuf) -> System {
        self.files.insert(place.to_string(), path);
        self
    }

    /// Ends programs that are asked once `cancelled` is set.
    pub fn with_cancel(self, cancelled: Arc<AtomicBool>) -> System {
        System { cancelled, ..self }
    }

    /// Whether it is the node that this program runs on.
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    pub fn path(&self, path: &str) -> PathBuf {
        let elsewhere = self.files.get(path).cloned();
        elsewhere.unwrap_or_else(|| self.root.join(path.trim_start_matches('/')))
    }

    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file, bytes that are no text replaced.
    pub fn text(&self, path: &str) -> Result<String, Missing> {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(self.path(path))?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| Missing::new(path, error))?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(Missing::new(path, format!("it is longer than {FILE_MAX} bytes")));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file's text without spaces around it.
    pub fn word(&self, path: &str) -> Result<String, Missing> {
        self.text(path).map(|text| text.trim().to_string())
    }

    pub fn number<T: FromStr>(&self, path: &str) -> Result<T, Missing> {
        let word = self.word(path)?;
        word.parse().map_err(|_| Missing::new(path, format!("'{}' is no number", clip(&word))))
    }

    /// Names in a directory, sorted; those with numbers at their ends by these.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Missing> {
        let listed = std::fs::read_dir(self.path(path)).map_err(|error| Missing::new(path, error))?;
        let mut names: Vec<String> = listed
            .take(ENTRIES_MAX)
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort_by_cached_key(|name| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            (stem.to_string(), name[stem.len()..].parse::<u64>().ok(), name.clone())
        });
        Ok(names)
    }

    /// Where a symbolic link leads, as it is written there.
    pub fn link(&self, path: &str) -> Option<PathBuf> {
        std::fs::read_link(self.path(path)).ok()
    }

    /// The last name of what a symbolic link leads to.
    pub fn linked_name(&self, path: &str) -> Option<String> {
        Some(self.link(path)?.file_name()?.to_string_lossy().into_owned())
    }

    /// Where a program lies.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let there = self.programs.iter().map(|dir| dir.join(name));
        there
            .into_iter()
            .find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file())
    }

    /// What a program prints. It gets no input, a plain environment, and no shell in between.
    pub fn output(&self, name: &str, args: &[&str]) -> Result<String, Missing> {
        let program =
            self.program(name).ok_or_else(|| Missing::new(name, "this program is not installed"))?;
        self.output_of(&program, args).map_err(|why| Missing::new(name, why))
    }

    /// The same of a program with a path.
    pub fn output_of(&self, program: &Path, args: &[&str]) -> Result<String, String> {
        self.output_up_to(program, args, OUTPUT_MAX)
    }

    /// The same of one that may print so many bytes.
    pub fn output_up_to(&self, program: &Path, args: &[&str], most: u64) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(args).env_clear().env("LC_ALL", "C").env("PATH", self.search_path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: what it has started ends with it.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let until = Instant::now() + self.patience;
        let out = reader(child.stdout.take(), most);
        let err = reader(child.stderr.take(), FILE_MAX);
        let ended = self.wait(&mut child, until);
        end_group(&child);
        let status = ended?;
        let out = self.heard(&out, until)?;
        if !status.success() {
            let said = self.heard(&err, until)?;
            let said = String::from_utf8_lossy(&said);
            let said = said.lines().next().unwrap_or_default();
            return Err(format!("it ended with {status}: {}", clip(said)));
        }
        if out.len() as u64 > most {
            return Err(format!("it printed more than {most} bytes"));
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// What a program has printed. Something that it has started may keep its output open, even out of its group.
    fn heard(&self, reader: &Receiver<Vec<u8>>, until: Instant) -> Result<Vec<u8>, String> {
        let left = until.saturating_duration_since(Instant::now()).max(OUTPUT_PATIENCE_MIN);
        reader.recv_timeout(left).map_err(|_| "it has ended, but its output is still open".to_string())
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    fn search_path(&self) -> std::ffi::OsString {
        let own = self.programs.iter().map(|path| path.as_os_str().as_bytes());
        let all: Vec<&[u8]> = own.chain([&b"/usr/bin"[..], b"/bin"]).collect();
        std::ffi::OsStr::from_bytes(&all.join(&b':')).to_os_string()
    }

    fn wait(&self, child: &mut Child, until: Instant) -> Result<std::process::ExitStatus, String> {
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < until && !self.is_cancelled() => std::thread::sleep(LOOK_AROUND),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    if self.is_cancelled() {
                        return Err("stopped".into());
                    }
                    return Err(format!("it had not ended after {:?}", self.patience));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Ends what a program has left running, which would keep its output open.
fn end_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // It is empty as a rule.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Takes what comes, up to one byte more than `most`: who prints more is told apart from who does not.
fn reader(pipe: Option<impl Read + Send + 'static>, most: u64) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What has come before an error is all there is.
            let _ = (&mut pipe).take(most + 1).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        // Nobody waits any more when it took too long.
        let _ = send.send(bytes);
    });
    receive
}

/// The start of a text that somebody else has written, for messages.
pub(crate) fn clip(text: &str) -> String {
    shown(text, 80)
}

pub(crate) fn shown(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_testkit::put_program;

    fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match path.parent().unwrap().ends_with("bin") {
                true => put_program(&path, text),
                false => std::fs::write(&path, text).unwrap(),
            }
        }
        let system = System::at(dir.path(), vec![dir.path().join("bin")]);
        (dir, system)
    }

    #[test]
    fn files_are_read_and_what_is_wrong_is_said() {
        let (_dir, system) = node(&[("sys/a", " 42\n"), ("sys/b", "no\u{7}ne")]);
        assert_eq!(system.number::<u32>("/sys/a"), Ok(42));
        assert_eq!(system.number::<u32>("/sys/b"), Err(Missing::new("/sys/b", "'no?ne' is no number")));
        let missing = system.text("/sys/c").unwrap_err();
        assert_eq!(missing.what, "/sys/c");
        assert!(missing.why.contains("No such file"), "{missing:?}");
    }

    #[test]
    fn a_file_without_an_end_is_not_read_to_it() {
        let (dir, system) = node(&[("x", "")]);
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("endless")).unwrap();
        assert!(system.text("/endless").unwrap_err().why.contains("longer than"));
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let (_dir, system) = node(&[("d/cpu10", ""), ("d/cpu9", ""), ("d/a", ""), ("d/cpu", "")]);
        assert_eq!(system.names("/d").unwrap(), ["a", "cpu", "cpu9", "cpu10"]);
    }

    #[test]
    fn programs_run_without_a_shell_and_what_they_leave_ends() {
        let (_dir, system) = node(&[
            ("bin/echoes", "#!/bin/sh\necho \"$1\"\n"),
            ("bin/fails", "#!/bin/sh\necho why >&2\nexit 3\n"),
            ("bin/leaves", "#!/bin/sh\nsleep 1000 &\necho done\n"),
            ("bin/hangs", "#!/bin/sh\nsleep 1000\n"),
            ("bin/escapes", "#!/bin/sh\nsetsid sleep 20 &\nsleep 0.3\necho done\n"),
        ]);
        assert_eq!(system.output("echoes", &["$HOME; true"]), Ok("$HOME; true\n".into()));
        assert!(system.output("fails", &[]).unwrap_err().why.ends_with("exit status: 3: why"));
        assert_eq!(system.output("none", &[]).unwrap_err().why, "this program is not installed");
        assert_eq!(system.output("leaves", &[]), Ok("done\n".into()));
        let hasty = system.with_patience(Duration::from_millis(50));
        assert!(hasty.output("hangs", &[]).unwrap_err().why.contains("had not ended"));
        let brisk = hasty.with_patience(Duration::from_secs(2));
        let escaped = brisk.output("escapes", &[]).unwrap_err();
        assert!(escaped.why.contains("output is still open"), "{escaped:?}");
    }
}
