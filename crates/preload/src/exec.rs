//! Running programs: those stored in the pool, and the environment that children inherit.

use crate::inside::{Inside, Work, inside};
use crate::raw::{self, err, sys};
use crate::{at, config, cred, cwd, description, fdtable, keep, limit, mmap, pool, sharing};
use at::{Target, at};
use libc::{c_char, c_int};
use std::cell::RefCell;
use tidepool_client::{Client, FsError, Walk};
use tidepool_types::{Attr, Errno, FileKind, Ino};

/// Scripts that name scripts as their interpreter, at most; as in the kernel.
const INTERPRETERS_MAX: usize = 5;
/// Bytes of a `#!` line that count, as in the kernel.
const LINE_MAX: usize = 256;

type Strings = *const *const c_char;

/// # Safety
/// The arguments of `execve`.
pub unsafe fn execve(path: *const c_char, argv: Strings, envp: Strings) -> isize {
    // SAFETY: the caller's promise.
    unsafe { execveat(libc::AT_FDCWD, path, argv, envp, 0) }
}

/// # Safety
/// The arguments of `execveat`.
pub unsafe fn execveat(
    dirfd: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { start(dirfd, path, argv, envp, flags) };
    if !inside() && config::mount().is_some() {
        keep::exec_failed();
    }
    result
}

/// # Safety
/// As for `execveat`.
unsafe fn start(dirfd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> isize {
    // SAFETY: the caller's arguments.
    let plain = |dirfd: i32, path: *const c_char, argv: Strings, envp: Strings| unsafe {
        if dirfd == libc::AT_FDCWD && flags == 0 {
            sys!(libc::SYS_execve, path, argv, envp)
        } else {
            sys!(libc::SYS_execveat, dirfd, path, argv, envp, flags)
        }
    };
    if inside() || config::mount().is_none() || !raw::is_memory(path as usize, 1) {
        return plain(dirfd, path, argv, envp);
    }
    if !pool::in_shared_child() {
        mmap::flush_all();
        pool::flush_record(true);
    }
    let shared = sharing::before_exec();
    if raw::is_err(shared) {
        return shared;
    }
    // SAFETY: the caller's promise.
    let mut run = unsafe { Run::new(argv, envp) };
    // SAFETY: a C string, as checked for null.
    let empty = unsafe { *path == 0 };
    if empty && flags & libc::AT_EMPTY_PATH != 0 {
        return match fdtable::ours(dirfd) {
            None => plain(dirfd, path, run.argv(), run.envp()),
            Some(entry) => {
                let name = description::path(dirfd);
                run.load(&|client| load(client, Loading::Object(entry.ino), &name))
            }
        };
    }
    // SAFETY: as above.
    let name = unsafe { raw::bytes(path) }.to_vec();
    let program = RefCell::new(None);
    let kernel_run = RefCell::new(&mut run);
    let kernel = |dirfd: i32, path: *const c_char| {
        let mut run = kernel_run.borrow_mut();
        plain(dirfd, path, run.argv(), run.envp())
    };
    let result = at(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0, &kernel, &|client, target| {
        let (what, full) = match &target {
            Target::Path { dirfd, base, path } => {
                (Loading::Path(*base, path), at::full_path(client, *dirfd, *base, path))
            }
            Target::Object { entry, .. } => (Loading::Object(entry.ino), name.clone()),
        };
        Ok(load(client, what, &full)?.map(|mut loaded| {
            // A script is told the name it was called by.
            if let Program::Script { path, .. } = &mut loaded
                && dirfd == libc::AT_FDCWD
            {
                path.clone_from(&name);
            }
            *program.borrow_mut() = Some(loaded);
            0
        }))
    });
    match program.into_inner() {
        Some(program) => run.start(program),
        None => result,
    }
}

enum Loading<'a> {
    Path(Ino, &'a [u8]),
    Object(Ino),
}

/// A program of the pool, ready to run.
enum Program {
    /// A memfd with its text; the path it came from.
    Image { fd: i32, path: Vec<u8> },
    /// A script: the interpreter, its one argument, the script's path.
    Script { interpreter: Vec<u8>, argument: Option<Vec<u8>>, path: Vec<u8> },
}

fn load(client: &Client, what: Loading, path: &[u8]) -> Result<Walk<Program>, FsError> {
    let cred = cred::effective();
    let attr = match what {
        Loading::Object(ino) => client.get_attr(ino)?,
        Loading::Path(base, path) => match client.stat(base, path, true, &cred)? {
            Walk::Escape(path) => return Ok(Walk::Escape(path)),
            Walk::Found(attr) => attr,
        },
    };
    if attr.kind() != FileKind::Regular {
        return Err(Errno::EACCES.into());
    }
    client.may(&attr, &cred, libc::X_OK)?;
    let mut head = [0u8; LINE_MAX];
    let got = client.read(attr.ino, 0, &mut head)?;
    if head[..got].starts_with(b"#!") {
        let (interpreter, argument) = interpreter_line(&head[2..got]).ok_or(Errno::ENOEXEC)?;
        return Ok(Walk::Found(Program::Script { interpreter, argument, path: path.to_vec() }));
    }
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(b"program");
    let fd = copy_out(client, &attr, name, true)?;
    Ok(Walk::Found(Program::Image { fd, path: path.to_vec() }))
}

fn interpreter_line(line: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let line = &line[..line.iter().position(|&b| b == b'\n').unwrap_or(line.len())];
    let line = line.trim_ascii();
    let end = line.iter().position(|&b| b == b' ' || b == b'\t').unwrap_or(line.len());
    let argument = line[end..].trim_ascii();
    (end > 0).then(|| (line[..end].to_vec(), (!argument.is_empty()).then(|| argument.to_vec())))
}

/// Copies a file into a memfd, for the kernel to run or map.
pub fn copy_out(client: &Client, attr: &Attr, name: &[u8], cloexec: bool) -> Result<i32, FsError> {
    let mut label = name[..name.len().min(200)].to_vec();
    label.push(0);
    let flags = if cloexec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the label ends with NUL.
    let fd = unsafe { sys!(libc::SYS_memfd_create, label.as_ptr(), flags) };
    if fd < 0 {
        return Err(Errno(-fd as i32).into());
    }
    let copied = copy_into(client, attr, fd as i32);
    copied.map(|()| fd as i32).inspect_err(|_| {
        raw::close(fd as i32);
    })
}

fn copy_into(client: &Client, attr: &Attr, fd: i32) -> Result<(), FsError> {
    const PIECE: usize = 1 << 20;
    let mut buf = vec![0; PIECE.min(attr.size as usize + 1)];
    let mut at = 0;
    loop {
        let n = client.read(attr.ino, at, &mut buf)?;
        if n == 0 {
            return Ok(());
        }
        let wrote = limit::without_signal(|| raw::pwrite_all(fd, &buf[..n], at as i64));
        if wrote < 0 {
            return Err(FsError::new(
                Errno(-wrote as i32),
                "no copy in memory of a program or library (ulimit -f, or no memory)",
            ));
        }
        at += n as u64;
    }
}

/// Arguments and environment of the program to start.
struct Run {
    argv: Vec<Vec<u8>>,
    envp: Option<Vec<Vec<u8>>>,
    given: (Strings, Strings),
    pointers: (Vec<*const c_char>, Vec<*const c_char>),
    script: bool,
}

impl Run {
    /// # Safety
    /// Arrays of C strings that end with null (or are null).
    unsafe fn new(argv: Strings, envp: Strings) -> Run {
        Run {
            argv: Vec::new(),
            // SAFETY: the caller's promise.
            envp: unsafe { environment(envp, None) },
            given: (argv, envp),
            pointers: (Vec::new(), Vec::new()),
            script: false,
        }
    }

    fn argv(&mut self) -> Strings {
        if !self.script {
            return self.given.0;
        }
        self.pointers.0 = pointers(&self.argv);
        self.pointers.0.as_ptr()
    }

    fn envp(&mut self) -> Strings {
        match &self.envp {
            None => self.given.1,
            Some(strings) => {
                self.pointers.1 = pointers(strings);
                self.pointers.1.as_ptr()
            }
        }
    }

    fn load(&mut self, find: &dyn Fn(&Client) -> Result<Walk<Program>, FsError>) -> isize {
        let mut program = None;
        let result = pool::run(|client| match find(client) {
            Ok(Walk::Found(found)) => {
                program = Some(found);
                Ok(0)
            }
            Ok(Walk::Escape(_)) => Err(Errno::EXDEV),
            Err(error) => Err(pool::report(&error)),
        });
        match program {
            Some(program) => self.start(program),
            None => result,
        }
    }

    /// Runs the program; returns only on failure.
    fn start(&mut self, program: Program) -> isize {
        let mut program = program;
        for _ in 0..INTERPRETERS_MAX {
            match program {
                Program::Image { fd, path } => return self.start_image(fd, &path),
                Program::Script { interpreter, argument, path } => {
                    self.become_script(&interpreter, argument, path);
                    match self.find_interpreter(&interpreter) {
                        Ok(next) => program = next,
                        Err(result) => return result,
                    }
                }
            }
        }
        err(libc::ELOOP)
    }

    fn become_script(&mut self, interpreter: &[u8], argument: Option<Vec<u8>>, path: Vec<u8>) {
        let rest = if self.script {
            self.argv.drain(1..).collect()
        } else {
            // SAFETY: the caller's array, checked by `Run::new`'s contract.
            let given = unsafe { strings(self.given.0) };
            given.into_iter().skip(1).map(|text| [&text[..], b"\0"].concat()).collect::<Vec<_>>()
        };
        let new = [vec![interpreter.to_vec()], argument.into_iter().collect(), vec![path]].concat();
        self.argv = new.into_iter().map(|text| [&text[..], b"\0"].concat()).chain(rest).collect();
        self.script = true;
    }

    /// An interpreter of the pool, or the kernel's verdict on one outside.
    fn find_interpreter(&mut self, interpreter: &[u8]) -> Result<Program, isize> {
        let mut name = interpreter.to_vec();
        name.push(0);
        let found = RefCell::new(None);
        let run = RefCell::new(self);
        let kernel = |_: i32, path: *const c_char| {
            let mut run = run.borrow_mut();
            let (argv, envp) = (run.argv(), run.envp());
            // SAFETY: arrays of C strings that end with null.
            unsafe { sys!(libc::SYS_execve, path, argv, envp) }
        };
        let result = at(libc::AT_FDCWD, name.as_ptr().cast(), true, &kernel, &|client, target| {
            let what = match &target {
                Target::Path { base, path, .. } => Loading::Path(*base, path),
                Target::Object { entry, .. } => Loading::Object(entry.ino),
            };
            Ok(load(client, what, interpreter)?.map(|program| {
                *found.borrow_mut() = Some(program);
                0
            }))
        });
        found.into_inner().ok_or(result)
    }

    fn start_image(&mut self, fd: i32, path: &[u8]) -> isize {
        // SAFETY: the caller's array.
        self.envp = unsafe { environment(self.given.1, Some(path)) };
        let (argv, envp) = (self.argv(), self.envp());
        // SAFETY: arrays of C strings that end with null.
        let result = unsafe { sys!(libc::SYS_execveat, fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) };
        raw::close(fd);
        result
    }
}

fn pointers(strings: &[Vec<u8>]) -> Vec<*const c_char> {
    assert!(strings.iter().all(|text| text.last() == Some(&0)), "C strings end with NUL");
    strings.iter().map(|text| text.as_ptr().cast()).chain([std::ptr::null()]).collect()
}

/// # Safety
/// An array of C strings that ends with null, or null.
unsafe fn strings(array: Strings) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    if array.is_null() {
        return all;
    }
    let mut at = array;
    // SAFETY: the caller's promise.
    unsafe {
        while !(*at).is_null() {
            all.push(raw::bytes(*at).to_vec());
            at = at.add(1);
        }
    }
    all
}

/// The environment with what a child needs to see the pool, or `None` when `envp` has it all.
///
/// # Safety
/// `envp` is an array of C strings that ends with null, or null.
unsafe fn environment(envp: Strings, exe: Option<&[u8]>) -> Option<Vec<Vec<u8>>> {
    let _inside = Inside::enter(Work::Looks);
    let wanted = wanted(exe);
    // SAFETY: the caller's promise.
    let mut all = unsafe { strings(envp) };
    let mut changed = false;
    for (name, value) in wanted {
        let found =
            all.iter().position(|text| text.strip_prefix(name).is_some_and(|t| t.first() == Some(&b'=')));
        let now = found.map(|at| all[at][name.len() + 1..].to_vec());
        if now.is_none() && value.is_none() {
            continue;
        }
        let value = value.map(|value| merge(name, now.as_deref(), value));
        if now == value {
            continue;
        }
        changed = true;
        if let Some(at) = found {
            all.remove(at);
        }
        all.extend(value.map(|value| [name, b"=", &value].concat()));
    }
    for text in &mut all {
        text.push(0);
    }
    changed.then_some(all)
}

/// A program may add libraries of its own before ours; it keeps them.
fn merge(name: &[u8], now: Option<&[u8]>, ours: Vec<u8>) -> Vec<u8> {
    match now {
        Some(now) if name == b"LD_PRELOAD" => {
            let has = |lib: &[u8]| now.split(|&b| b == b':' || b == b' ').any(|have| have == lib);
            let missing: Vec<_> = ours
                .split(|&b| b == b':' || b == b' ')
                .filter(|lib| is_this_library(lib) && !has(lib))
                .collect();
            missing.into_iter().fold(now.to_vec(), |all, lib| {
                if all.is_empty() { lib.to_vec() } else { [&all[..], b":", lib].concat() }
            })
        }
        // The program's own choice of another pool stands.
        Some(now) if name == b"TIDEPOOL_DIR" || name == b"TIDEPOOL_POOL" => now.to_vec(),
        _ => ours,
    }
}

fn is_this_library(path: &[u8]) -> bool {
    path.rsplit(|&b| b == b'/').next().is_some_and(|name| name.starts_with(b"libtidepool_preload"))
}

/// Variables a child shall have; `None`: shall not have.
fn wanted(exe: Option<&[u8]>) -> Vec<(&'static [u8], Option<Vec<u8>>)> {
    let mut all: Vec<(&'static [u8], Option<Vec<u8>>)> = vec![
        (b"TIDEPOOL_CWD", cwd::for_exec()),
        (b"TIDEPOOL_EXE", exe.map(<[u8]>::to_vec)),
        (b"TIDEPOOL_KEEP", keep::for_exec()),
    ];
    if config::inherit() {
        let text = |value: &[u8]| Some(value.to_vec()).filter(|value| !value.is_empty());
        for (name, value) in [
            (&b"LD_PRELOAD"[..], text(config::preload())),
            (b"TIDEPOOL_DIR", config::mount().map(<[u8]>::to_vec)),
            (b"TIDEPOOL_POOL", text(config::pool_file())),
        ] {
            if value.is_some() {
                all.push((name, value));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_lines_parse_as_in_the_kernel() {
        let parse = |line: &str| interpreter_line(line.as_bytes());
        assert_eq!(parse("/bin/sh\nrest"), Some((b"/bin/sh".to_vec(), None)));
        assert_eq!(
            parse(" /usr/bin/env  python3 -u \n"),
            Some((b"/usr/bin/env".to_vec(), Some(b"python3 -u".to_vec())))
        );
        assert_eq!(parse("\n"), None);
    }

    #[test]
    fn preload_lists_are_merged() {
        let ours = b"/x/libtidepool_preload.so".to_vec();
        assert_eq!(
            merge(b"LD_PRELOAD", Some(b"/y/other.so"), ours.clone()),
            b"/y/other.so:/x/libtidepool_preload.so"
        );
        assert_eq!(merge(b"LD_PRELOAD", Some(b"/x/libtidepool_preload.so"), ours.clone()), ours);
        assert_eq!(merge(b"TIDEPOOL_DIR", Some(b"/other"), b"/m".to_vec()), b"/other");
    }
}
