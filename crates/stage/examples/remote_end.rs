//! Serves a directory to other nodes, copies to and from such a server, and measures it: for
//! measurements without the staging daemon, which does the same with the same library calls.
//!
//! ```text
//! remote_end serve ADDRESS DIRECTORY
//! remote_end copy SOURCE TARGET [workers=N] [streams=N] [verify=false]     tcp:HOST:PORT/SUBDIRECTORY is remote
//! remote_end ping HOST:PORT COUNT [inflight=N]
//! remote_end push|pull HOST:PORT BYTES [inflight=N]    ranges of 16 MiB of memory to or from a file
//! ```
//! The secret is in the variable `TIDEPOOL_REMOTE_SECRET`, 64 hexadecimal digits. Results are
//! printed as `name=value` on one line.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_stage::remote::{EndServer, OpenedRoot, RemoteEnd, RemoteOptions, RootRequest, Roots};
use tidepool_stage::{
    Control, DirRef, End, EndError, EndResult, FileRef, LocalEnd, StageOptions, What, stage,
};
use tidepool_transport::Secret;
use tidepool_transport::remote::Peer;
use tidepool_types::Errno;

/// Bytes that `push` and `pull` move in one request of their caller.
const RANGE: u64 = 16 << 20;

struct Dirs(PathBuf);

impl Roots for Dirs {
    fn open(&self, _peer: &Peer, want: &RootRequest) -> EndResult<OpenedRoot> {
        let path = std::str::from_utf8(&want.path);
        let path = self.0.join(path.map_err(|_| EndError::new("open dataspace", Errno::EINVAL))?);
        let end = if want.write { LocalEnd::create(&path)? } else { LocalEnd::open(&path)? };
        Ok(OpenedRoot::of(end, want.write))
    }
}

type Failure = Box<dyn std::error::Error>;

/// `name=value` among the arguments.
fn option<T: std::str::FromStr>(args: &[String], name: &str, default: T) -> T {
    let find = |arg: &String| arg.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    args.iter().find_map(find).unwrap_or(default)
}

fn secret() -> Result<Secret, Failure> {
    let hex = std::env::var("TIDEPOOL_REMOTE_SECRET")?;
    Secret::from_hex(&hex).ok_or_else(|| "TIDEPOOL_REMOTE_SECRET: 64 hexadecimal digits".into())
}

fn remote(address: &str, path: &str, write: bool, args: &[String]) -> Result<RemoteEnd, Failure> {
    let root = RootRequest { dataspace: "dir".into(), path: path.into(), write, ..RootRequest::default() };
    let mut options = RemoteOptions::new(address, secret()?, root);
    options.streams = option(args, "streams", options.streams);
    Ok(RemoteEnd::open(options)?)
}

fn end(spec: &str, write: bool, args: &[String]) -> Result<Box<dyn End>, Failure> {
    match spec.strip_prefix("tcp:") {
        Some(rest) => {
            let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
            Ok(Box::new(remote(address, path, write, args)?))
        }
        None if write => Ok(Box::new(LocalEnd::create(spec.as_ref())?)),
        None => Ok(Box::new(LocalEnd::open(spec.as_ref())?)),
    }
}

fn serve(address: &str, dir: &str) -> Result<(), Failure> {
    let server = EndServer::start(TcpListener::bind(address)?, secret()?, Arc::new(Dirs(dir.into())))?;
    println!("{}", server.address());
    loop {
        std::thread::park();
    }
}

fn copy(source: &str, target: &str, args: &[String]) -> Result<(), Failure> {
    let (source, target) = (end(source, false, args)?, end(target, true, args)?);
    let options = StageOptions {
        workers: option(args, "workers", 0),
        verify: option(args, "verify", true),
        ..StageOptions::default()
    };
    let start = Instant::now();
    let report = stage(&*source, &*target, &What::Tree, &options, &Control::default());
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "seconds={seconds:.3} files={} bytes={} complete={}",
        report.files, report.bytes_copied, report.complete
    );
    match report.errors.first() {
        Some(error) => Err(error.to_string().into()),
        None => Ok(()),
    }
}

/// Round trips of one thread each; all their times.
fn ping_times(end: &RemoteEnd, count: usize) -> EndResult<Vec<Duration>> {
    let ping = |_| {
        let start = Instant::now();
        end.ping().map(|()| start.elapsed())
    };
    (0..count).map(ping).collect()
}

fn ping(address: &str, count: usize, args: &[String]) -> Result<(), Failure> {
    let end = remote(address, "", false, args)?;
    let inflight = option(args, "inflight", 1);
    let start = Instant::now();
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..inflight).map(|_| scope.spawn(|| ping_times(&end, count / inflight))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<EndResult<Vec<_>>>()
    })?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let mut times = times.concat();
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_secs_f64() * 1e6;
    println!("per_s={rate:.0} p50_us={:.1} p90_us={:.1} p99_us={:.1}", at(50), at(90), at(99));
    Ok(())
}

/// One range of a file of the other side, from or to memory.
fn move_range(end: &RemoteEnd, file: &FileRef, push: bool, offset: u64, buf: &mut [u8]) -> EndResult<()> {
    if push {
        return end.write_range(file, offset, buf);
    }
    match end.read_range(file, offset, buf)? {
        count if count == buf.len() => Ok(()),
        _ => Err(EndError::new("read", Errno::EIO)),
    }
}

fn bandwidth(push: bool, address: &str, bytes: u64, args: &[String]) -> Result<(), Failure> {
    let end = remote(address, "", true, args)?;
    let root: DirRef = end.root();
    let name: &[u8] = b"bandwidth";
    let file = match end.open_write(&root, name) {
        Err(error) if error.errno == Errno::ENOENT => end.create(&root, name)?,
        other => other?,
    };
    end.truncate(&file, bytes)?;
    let (next, inflight) = (AtomicU64::new(0), option(args, "inflight", 1));
    let start = Instant::now();
    let work = || -> EndResult<()> {
        let mut buf = vec![7; RANGE as usize];
        loop {
            let offset = next.fetch_add(RANGE, Ordering::Relaxed);
            if offset >= bytes {
                return Ok(());
            }
            let len = RANGE.min(bytes - offset) as usize;
            move_range(&end, &file, push, offset, &mut buf[..len])?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..inflight).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    println!("seconds={seconds:.3} mbit_s={:.1}", bytes as f64 * 8e-6 / seconds);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let plain: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.contains('=')).collect();
    match plain[..] {
        ["serve", address, dir] => serve(address, dir),
        ["copy", source, target] => copy(source, target, &args),
        ["ping", address, count] => ping(address, count.parse()?, &args),
        ["push", address, bytes] => bandwidth(true, address, bytes.parse()?, &args),
        ["pull", address, bytes] => bandwidth(false, address, bytes.parse()?, &args),
        _ => Err("usage: remote_end serve|copy|ping|push|pull ...; see the source".into()),
    }
}
