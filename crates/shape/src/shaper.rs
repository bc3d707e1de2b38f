//! A shaped tier of several processes of one machine: its bucket lies in a small file that is locked for each request. Who
//! asks sleeps; nothing here does, but for a lock that is held for microseconds.

use crate::bucket::Refused;
use crate::shape::Shape;
use crate::state::{BYTES_MAX, Stale, State};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidepool_iosched::Pattern;

/// Below the tier's directory; of mode 1777, as several users may share a tier.
const DIR: &str = "tidepool-shape";
const FILE: &str = "state";
/// Times that somebody else may remove the file between its being opened and locked.
const TRIES: u32 = 100;

/// Why a shaped tier cannot be used.
#[derive(Debug)]
pub enum ShapeError {
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    Damaged {
        path: PathBuf,
        why: &'static str,
    },
    /// Others use the tier with another shape.
    InUse {
        dir: PathBuf,
        wanted: String,
        there: String,
    },
    /// Clocks of machines cannot be compared.
    OtherMachine {
        dir: PathBuf,
    },
    Refused {
        dir: PathBuf,
        why: Refused,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::Io { what, path, source } => {
                write!(f, "shaped tier: {what} {}: {source}", path.display())
            }
            ShapeError::Damaged { path, why } => write!(
                f,
                "shaped tier: {}: {why}; end what uses this tier and remove the file: it holds nothing but the queue",
                path.display()
            ),
            ShapeError::InUse { dir, wanted, there } if wanted == there => write!(
                f,
                "shaped tier {}: others use it with a different shape of the same name '{there}'; use the same one, or wait \
                 until they have ended",
                dir.display()
            ),
            ShapeError::InUse { dir, wanted, there } => write!(
                f,
                "shaped tier {}: others use it with the shape '{there}', not '{wanted}'; use the same one, or wait until they \
                 have ended",
                dir.display()
            ),
            ShapeError::OtherMachine { dir } => write!(
                f,
                "shaped tier {}: another machine uses it, too; shapes are for the processes of one machine",
                dir.display()
            ),
            ShapeError::Refused { dir, why } => write!(f, "shaped tier {}: {why}", dir.display()),
        }
    }
}

impl std::error::Error for ShapeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ShapeError::Io { source, .. } => Some(source),
            ShapeError::Refused { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// A tier that is slowed down to a shape.
#[derive(Debug)]
pub struct Shaper {
    dir: PathBuf,
    shape: Shape,
    boot: [u8; 16],
}

impl Shaper {
    /// For a tier that lies in a directory.
    pub fn open(dir: &Path, shape: &Shape) -> Result<Shaper, ShapeError> {
        let shaper = Shaper { dir: dir.to_path_buf(), shape: shape.clone(), boot: boot()? };
        // Whether it can be used with this shape.
        shaper.with(|_, _| Ok(()))?;
        Ok(shaper)
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How long the caller has to wait before these bytes count as moved. No bytes only tell that somebody is at work.
    pub fn admit(
        &self,
        who: u64,
        processes: u32,
        bytes: u64,
        pattern: Pattern,
    ) -> Result<Duration, ShapeError> {
        self.with(|state, now_ns| {
            let until = state.bucket.admit(&self.shape, now_ns, (who, processes), bytes, pattern);
            Ok(Duration::from_nanos(until?.saturating_sub(now_ns)))
        })
    }

    /// Whoever has nothing more to do is not counted any more.
    pub fn leave(&self, who: u64) -> Result<(), ShapeError> {
        self.with(|state, _| {
            state.bucket.leave(who);
            Ok(())
        })
    }

    /// Removes the file unless somebody is at work; it is made again when it is needed.
    pub fn forget(&self) -> Result<(), ShapeError> {
        let Some(file) = self.locked()? else { return Ok(()) };
        let state = self.read(&file)?;
        if state.bucket.processes(monotonic_ns()) > 0 {
            return Ok(());
        }
        // Not for whoever is neither its owner nor the directory's; then it stays, and does no harm.
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir(self.dir.join(DIR));
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.join(DIR).join(FILE)
    }

    fn io<T>(&self, what: &'static str, tried: io::Result<T>) -> Result<T, ShapeError> {
        tried.map_err(|source| ShapeError::Io { what, path: self.path(), source })
    }

    /// Changes the state while nobody else does. It is not written after an error.
    fn with<T>(&self, change: impl FnOnce(&mut State, u64) -> Result<T, Refused>) -> Result<T, ShapeError> {
        let file = self.file()?;
        let now_ns = monotonic_ns();
        let dir = || self.dir.clone();
        let state = self.read(&file)?;
        let mut state =
            state.of_now(&self.boot, now_ns, since_1970_s(), &self.shape).map_err(|stale| match stale {
                Stale::OtherMachine => ShapeError::OtherMachine { dir: dir() },
                Stale::TooFar => ShapeError::Damaged { path: self.path(), why: "its queue is too long" },
                Stale::OtherShape(there) => {
                    ShapeError::InUse { dir: dir(), wanted: self.shape.name().into(), there }
                }
            })?;
        let changed = change(&mut state, now_ns).map_err(|why| ShapeError::Refused { dir: dir(), why })?;
        state.written_s = since_1970_s();
        self.io("writing", file.write_all_at(&state.encode(), 0))?;
        Ok(changed)
    }

    fn read(&self, file: &File) -> Result<State, ShapeError> {
        let mut bytes = Vec::new();
        let mut from = file;
        let read =
            from.seek(SeekFrom::Start(0)).and_then(|_| from.take(BYTES_MAX as u64).read_to_end(&mut bytes));
        self.io("reading", read)?;
        State::decode(&bytes).map_err(|why| ShapeError::Damaged { path: self.path(), why })
    }

    /// Opened and locked; made if it is not there.
    fn file(&self) -> Result<File, ShapeError> {
        for _ in 0..TRIES {
            match self.locked()? {
                Some(file) => return Ok(file),
                None => self.make()?,
            }
        }
        let gone = io::Error::other("somebody removes it again and again");
        self.io("opening", Err(gone))
    }

    /// None when there is none.
    fn locked(&self) -> Result<Option<File>, ShapeError> {
        let path = self.path();
        // Never made by opening it: in a directory for all, systems keep others from opening so what is not theirs.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(&path, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => File::from(self.io("opening", other.map_err(io::Error::from))?),
        };
        if !self.io("looking at", file.metadata())?.is_file() {
            return Err(ShapeError::Damaged { path, why: "it is no file" });
        }
        let lock = || flock(&file, FlockOperation::LockExclusive);
        self.io("locking", rustix::io::retry_on_intr(lock).map_err(io::Error::from))?;
        // It may have been removed before it was locked.
        let links = self.io("looking at", file.metadata())?.nlink();
        Ok((links > 0).then_some(file))
    }

    /// Makes the file for all users. It appears whole, or somebody else's does.
    fn make(&self) -> Result<(), ShapeError> {
        let dir = self.dir.join(DIR);
        let made = match fs::create_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)),
        };
        made.map_err(|source| ShapeError::Io { what: "making", path: dir.clone(), source })?;
        let own = dir.join(format!("new-{}-{}", std::process::id(), monotonic_ns()));
        let put = || -> io::Result<()> {
            let file = File::create_new(&own)?;
            fchmod(&file, Mode::from_raw_mode(0o666))?;
            file.write_all_at(&State::fresh(self.boot, &self.shape).encode(), 0)?;
            fs::hard_link(&own, self.path())
        };
        let put = put();
        let _ = fs::remove_file(&own);
        match put {
            // By another process; or the directory was removed by one that ended, and is made again.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Ok(()),
            other => self.io("making", other),
        }
    }
}

/// The name of the shape that a tier's users slow it down to; none where nobody does, or nobody can tell.
pub fn in_use(dir: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let read = || {
        let file = File::from(open(dir.join(DIR).join(FILE), flags, Mode::empty()).ok()?);
        file.metadata().ok().filter(fs::Metadata::is_file)?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
        Some(State::decode(&bytes).map(|state| state.name))
    };
    // Without the lock, which is for those who use the tier, it may be read while it is written.
    (0..TRIES).map_while(|_| read()).find_map(Result::ok)
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

fn since_1970_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Which start of the system this is: its monotonic clock says nothing to another one.
fn boot() -> Result<[u8; 16], ShapeError> {
    let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(&path);
    let digits = text.map(|text| text.chars().filter(char::is_ascii_hexdigit).collect::<String>());
    let number = digits.and_then(|digits| {
        u128::from_str_radix(&digits, 16).map_err(|_| io::Error::other("it is no such number"))
    });
    number.map(u128::to_be_bytes).map_err(|source| ShapeError::Io { what: "reading", path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tidepool_iosched::{Curve, Curves};

    fn shape(name: &str, rate: u64) -> Shape {
        Shape::new(name, 0, Curves::same(Curve::flat(rate).unwrap())).unwrap()
    }

    #[test]
    fn processes_share_one_queue() {
        let dir = tempfile::tempdir().unwrap();
        let shape = shape("slow", 1_000_000);
        let (one, other) =
            (Shaper::open(dir.path(), &shape).unwrap(), Shaper::open(dir.path(), &shape).unwrap());
        let began = Instant::now();
        let first = one.admit(1, 1, 100_000_000, Pattern::Random).unwrap();
        let second = other.admit(2, 1, 100_000_000, Pattern::Random).unwrap();
        let passed = began.elapsed();
        assert_eq!(first, Duration::from_secs(100), "nobody was before it");
        assert!(
            second + passed >= Duration::from_secs(200) && second <= Duration::from_secs(200),
            "{second:?}"
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&dir.path().join(DIR)), 0o1777);
        assert_eq!(mode(&one.path()), 0o666);
        assert_eq!(in_use(dir.path()), Some("slow".into()));
        one.forget().unwrap();
        assert!(one.path().exists(), "somebody is being served");
        one.leave(1).unwrap();
        one.leave(2).unwrap();
        one.forget().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(in_use(dir.path()), None);
        other.admit(2, 1, 1, Pattern::Random).unwrap();
        assert!(other.path().exists(), "made again");
    }

    #[test]
    fn another_shape_has_to_wait() {
        let dir = tempfile::tempdir().unwrap();
        let one = Shaper::open(dir.path(), &shape("one", 1_000_000)).unwrap();
        let other = Shaper::open(dir.path(), &shape("other", 1_000_000)).unwrap();
        one.admit(1, 1, 100_000_000, Pattern::Strided).unwrap();
        let error = other.admit(2, 1, 1, Pattern::Strided).unwrap_err().to_string();
        assert!(error.contains("with the shape 'one', not 'other'"), "{error}");
        let error = Shaper::open(dir.path(), &shape("one", 5)).unwrap_err().to_string();
        assert!(error.contains("different shape of the same name 'one'"), "{error}");
        one.leave(1).unwrap();
        other.admit(2, 1, 1, Pattern::Strided).unwrap();
    }

    #[test]
    fn a_damaged_file_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let shaper = Shaper::open(dir.path(), &shape("x", 1)).unwrap();
        fs::write(shaper.path(), b"TIDESHAP and nothing").unwrap();
        let error = shaper.admit(1, 1, 1, Pattern::Random).unwrap_err().to_string();
        assert!(error.contains("too short") && error.contains("remove the file"), "{error}");
        fs::remove_file(shaper.path()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", shaper.path()).unwrap();
        assert!(matches!(shaper.admit(1, 1, 1, Pattern::Random), Err(ShapeError::Io { .. })));
        fs::remove_file(shaper.path()).unwrap();
        shaper.admit(1, 1, 1, Pattern::Random).unwrap();
    }

    #[test]
    fn what_is_refused_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let shaper = Shaper::open(dir.path(), &shape("x", 1)).unwrap();
        let error = shaper.admit(1, 1, 1 << 40, Pattern::Random).unwrap_err().to_string();
        assert!(error.contains(&dir.path().display().to_string()) && error.contains("queue"), "{error}");
    }

    /// Threads open the file on their own, as processes do: no byte is lost or counted twice, while one removes it again
    /// and again.
    #[test]
    fn many_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let shape = shape("x", 1_000_000);
        let shaper = Shaper::open(dir.path(), &shape).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for who in 0..4 {
                let shape = &shape;
                let dir = dir.path();
                scope.spawn(move || {
                    let own = Shaper::open(dir, shape).unwrap();
                    for _ in 0..250 {
                        own.admit(who, 1, 100_000, Pattern::Random).unwrap();
                        own.forget().unwrap();
                    }
                });
            }
        });
        let wait = shaper.admit(9, 1, 100_000, Pattern::Random).unwrap();
        let all = Duration::from_millis(100_100);
        assert!(wait + began.elapsed() >= all && wait <= all, "{wait:?}");
    }
}
