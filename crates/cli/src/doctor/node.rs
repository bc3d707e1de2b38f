//! The node itself: kernel, programs, ways into a pool, limits.

use super::{Line, facts};
use crate::exec::PRELOAD_LIBRARY;
use crate::instance::{self, Reach};
use crate::launch::tool_path;
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidepool_fuse::{Device, FuseSupport};
use tidepool_types::format_size;

/// Oldest kernel that pools are used on.
const KERNEL_MIN: (u32, u32) = (4, 18);
/// Available memory below which daemons and programs get into each other's way.
const MEMORY_MIN: u64 = 1 << 30;
/// Longest path of a Unix socket, without its final NUL.
const SOCKET_PATH_MAX: usize = 107;
/// What comes below the runtime directory for a pool with a made-up name, and at most.
const SOCKET_TAIL: usize = "/pool-12345678/d65535.sock".len();
const SOCKET_TAIL_MAX: usize = SOCKET_TAIL - "pool-12345678".len() + 40;
/// Open files that a daemon needs at least, and should have.
const FILES_MIN: u64 = 256;
const FILES_WANTED: u64 = 4_096;

pub fn examine() -> Vec<Line> {
    let preload = preload();
    let probe = tidepool_fuse::probe();
    let fuse = fuse(&probe);
    let door = door(&preload, &fuse);
    vec![
        kernel(&facts::kernel()),
        Line::ok("cores", facts::cores().to_string()),
        memory(),
        daemon(),
        preload,
        fuse,
        door,
        user_namespaces(&probe),
        runtime_directory(),
        open_files(),
        file_size(),
        io_limits(),
        slurm(),
        tool("ssh", "pools over --hosts"),
        tool("python3", "the Python interface"),
        tool("mpirun", "running MPI programs"),
    ]
}

fn kernel(release: &str) -> Line {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL_MIN {
        return Line::ok("kernel", release);
    }
    let (major, minor) = KERNEL_MIN;
    Line::warning("kernel", release, format!("use a node with Linux {major}.{minor} or later"))
}

fn memory() -> Line {
    let (total, available) = facts::memory();
    let text = format!("{}, {} available", format_size(total), format_size(available));
    if available >= MEMORY_MIN {
        return Line::ok("memory", text);
    }
    Line::warning("memory", text, "end other programs, or ask for a node with more memory")
}

pub fn daemon() -> Line {
    let path = match tool_path("tidepoold") {
        Ok(path) => path,
        Err(failure) => {
            return Line::problem("daemon", failure.to_string(), "install tidepoold beside tidepool");
        }
    };
    match Command::new(&path).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            same_version(&path, String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(output) => Line::problem(
            "daemon",
            format!("{} does not run: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim()),
            "install the tidepoold of this release",
        ),
        Err(error) => Line::problem(
            "daemon",
            format!("{} does not run: {error}", path.display()),
            "make it executable; is its file system mounted with noexec?",
        ),
    }
}

fn same_version(path: &Path, said: &str) -> Line {
    let wanted = format!("tidepoold {}", env!("CARGO_PKG_VERSION"));
    if said == wanted {
        return Line::ok("daemon", format!("{} ({said})", path.display()));
    }
    let text = format!("{} is '{said}', this is release {}", path.display(), env!("CARGO_PKG_VERSION"));
    Line::problem("daemon", text, "install tidepool and tidepoold of one release")
}

/// The preload library, tried on the smallest program there is.
fn preload() -> Line {
    const ADVICE: &str = "install it beside tidepool; until then programs need FUSE";
    let library = match tool_path(PRELOAD_LIBRARY) {
        Ok(path) => path,
        Err(failure) => return Line::warning("preload", failure.to_string(), ADVICE),
    };
    let tried = Command::new("/bin/true").env("LD_PRELOAD", &library).stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            Line::ok("preload", format!("{} works with /bin/true", library.display()))
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            let text = format!("{}: /bin/true ended with {}: {said}", library.display(), output.status);
            Line::warning("preload", text, "install the library built for this system's C library")
        }
        Err(error) => Line::warning("preload", format!("/bin/true: {error}"), ADVICE),
    }
}

fn fuse(probe: &FuseSupport) -> Line {
    if probe.usable() {
        let how = if probe.privileged { "by itself" } else { "by fusermount3" };
        return Line::ok("fuse", format!("this process can mount {how}"));
    }
    let why = match &probe.device {
        Device::Missing => "/dev/fuse is missing".to_string(),
        Device::Denied(why) => format!("/dev/fuse cannot be opened: {why}"),
        Device::Usable => match &probe.fusermount3 {
            None => "fusermount3 is not installed".to_string(),
            Some(path) => format!("{} lacks the set-user-ID bit of root", path.display()),
        },
    };
    let advice =
        probe.advice().unwrap_or("have an administrator install fuse3; until then use --client preload");
    Line::warning("fuse", why, advice)
}

/// Programs need one way into a pool.
fn door(preload: &Line, fuse: &Line) -> Line {
    let ways: Vec<&str> =
        [fuse, preload].into_iter().filter(|l| l.level == super::Level::Ok).map(|l| l.topic).collect();
    if ways.is_empty() {
        return Line::problem(
            "ways in",
            "neither FUSE nor the preload library works",
            "repair one of them, as said above",
        );
    }
    Line::ok("ways in", format!("{}; --client auto takes {}", ways.join(" and "), ways[0]))
}

fn user_namespaces(probe: &FuseSupport) -> Line {
    Line::ok(
        "user name spaces",
        if probe.user_namespace { "work" } else { "do not work; only containers need them" },
    )
}

fn runtime_directory() -> Line {
    const ADVICE: &str = "set TIDEPOOL_RUNTIME to a directory of your own with a short path on a local disk";
    let dir = match instance::base_dir(Reach::Everywhere) {
        Ok(dir) => dir,
        Err(failure) => return Line::problem("runtime directory", failure.to_string(), ADVICE),
    };
    let text = format!("{}", dir.display());
    match dir.as_os_str().len() {
        n if n + SOCKET_TAIL > SOCKET_PATH_MAX => {
            Line::problem("runtime directory", format!("{text}: socket paths below it are too long"), ADVICE)
        }
        n if n + SOCKET_TAIL_MAX > SOCKET_PATH_MAX => {
            let advice =
                format!("give pools names of at most {} letters", SOCKET_PATH_MAX - n - SOCKET_TAIL + 13);
            Line::warning("runtime directory", format!("{text}: its path is long"), advice)
        }
        _ => Line::ok("runtime directory", text),
    }
}

fn open_files() -> Line {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    let advice = match limit.maximum {
        Some(most) if most < FILES_WANTED => {
            "have an administrator raise the limit of open files".to_string()
        }
        _ => format!("ulimit -n {FILES_WANTED}"),
    };
    match current {
        n if n < FILES_MIN => Line::problem("open files", format!("limit {n}"), advice),
        n if n < FILES_WANTED && limit.maximum.is_some_and(|m| m < FILES_WANTED) => {
            Line::warning("open files", format!("limit {n}; many clients need more"), advice)
        }
        u64::MAX => Line::ok("open files", "no limit"),
        n => Line::ok("open files", format!("limit {n}")),
    }
}

fn file_size() -> Line {
    match getrlimit(Resource::Fsize).current {
        None => Line::ok("file size", "no limit"),
        Some(bytes) => {
            let text = format!("files are limited to {}", format_size(bytes));
            Line::warning("file size", text, "ulimit -f unlimited")
        }
    }
}

/// Limits that the control group of this process sets to its disks.
fn io_limits() -> Line {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(group) = text.lines().find_map(|l| l.strip_prefix("0::/")) else {
        return Line::ok("io limits", "none known");
    };
    let limits = groups_upwards(group).find_map(|dir| {
        let text = std::fs::read_to_string(dir.join("io.max")).ok()?;
        let line = text.lines().next()?.to_string();
        Some((dir, line))
    });
    match limits {
        None => Line::ok("io limits", "none"),
        Some((dir, line)) => Line::warning(
            "io limits",
            format!("{}: {line}", dir.join("io.max").display()),
            "use a store on another disk, or ask for other limits",
        ),
    }
}

fn groups_upwards(group: &str) -> impl Iterator<Item = PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(group);
    let all: Vec<PathBuf> =
        own.ancestors().take_while(|p| p.starts_with(root)).map(Path::to_path_buf).collect();
    all.into_iter()
}

fn slurm() -> Line {
    let job = std::env::var("SLURM_JOB_ID").ok();
    let missing: Vec<&str> =
        ["srun", "scontrol"].into_iter().filter(|name| facts::find_program(name).is_none()).collect();
    match (job, missing.is_empty()) {
        (Some(job), true) => {
            let nodes = std::env::var("SLURM_JOB_NUM_NODES").unwrap_or_else(|_| "?".into());
            Line::ok("slurm", format!("inside job {job} on {nodes} node(s); pools use srun"))
        }
        (Some(job), false) => Line::warning(
            "slurm",
            format!("inside job {job}, but {} is not in PATH", missing.join(" and ")),
            "load the Slurm module, or use --local",
        ),
        (None, true) => Line::ok("slurm", "here; not inside an allocation"),
        (None, false) => Line::ok("slurm", "not here"),
    }
}

/// A program that only some uses need.
fn tool(name: &'static str, needed_for: &str) -> Line {
    match facts::find_program(name) {
        Some(path) => Line::ok(name, path.display().to_string()),
        None => Line::ok(name, format!("not here; needed only for {needed_for}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn old_kernels_are_told() {
        assert_eq!(kernel("6.18.44-x").level, Level::Ok);
        assert_eq!(kernel("4.18.0-553.el8").level, Level::Ok);
        assert_eq!(kernel("3.10.0").level, Level::Warning);
    }

    #[test]
    fn a_daemon_of_another_release_is_a_problem() {
        assert_eq!(same_version(Path::new("/x"), "tidepoold 0.0.1").level, Level::Problem);
    }

    #[test]
    fn one_way_in_is_enough() {
        let (good, bad) = (Line::ok("fuse", ""), Line::warning("preload", "", ""));
        assert_eq!(door(&bad, &good).level, Level::Ok);
        assert_eq!(door(&bad, &bad).level, Level::Problem);
    }
}
