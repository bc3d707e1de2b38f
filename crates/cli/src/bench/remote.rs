//! Clients of a stager at another node, and the plainest server beside it: what `experiments/run j4`
//! and `j5` measure (Miranda et al. 2019, Figures 5 to 7). They start these in network name spaces.
//!
//! A client says `ready`, waits for a line, works, and tells when it began and ended.

use super::stager::{Told, monotonic, write_times};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BenchEchoArgs, BenchRemoteArgs, RemoteWork};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tidepool_stage::remote::{RemoteEnd, RemoteOptions, RootRequest};
use tidepool_stage::{At, End, EndError, EndResult, FileRef};
use tidepool_transport::remote::HEADER_LEN;
use tidepool_transport::{Secret, tune_tcp};
use tidepool_types::Errno;

/// Bytes that a caller moves at a time, as in the paper.
const BUFFER: u64 = 16 << 20;
/// Bytes of a plain message: those of the stager's smallest.
const PLAIN: usize = HEADER_LEN;
/// Threads of a client.
const IN_FLIGHT_MAX: usize = 16;
/// Requests of each thread before the start.
const WARM_UP: u64 = 20;

fn failed(what: &'static str) -> impl Fn() -> String {
    move || what.to_string()
}

/// Sends back what comes, for ever: what the network and two processes cost.
pub fn echo(args: &BenchEchoArgs) -> Result<ExitCode> {
    let listener = TcpListener::bind(args.listen).context(Kind::Other, || args.listen.to_string())?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept().context(Kind::Other, failed("accepting"))?;
        // It ends with its connection, whatever the reason.
        std::thread::spawn(move || send_back(stream));
    }
}

fn send_back(mut stream: TcpStream) -> io::Result<()> {
    tune_tcp(&stream)?;
    let mut message = [0; PLAIN];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

/// What is measured, connected and ready.
enum Target {
    Plain(Vec<TcpStream>),
    Stager(RemoteEnd),
    /// With the memory of each request that may be under way.
    File {
        end: RemoteEnd,
        file: FileRef,
        buffers: Vec<Vec<u8>>,
    },
}

pub fn client(args: &BenchRemoteArgs) -> Result<ExitCode> {
    let in_flight = args.in_flight.clamp(1, IN_FLIGHT_MAX);
    let target = open(args, in_flight)?;
    println!("ready");
    let mut line = String::new();
    io::stdin().read_line(&mut line).context(Kind::Other, failed("waiting for the start"))?;
    let base = monotonic();
    let began = Instant::now();
    let times = match target {
        Target::Plain(streams) => in_threads(streams, |mut stream| {
            repeat(args.count / in_flight as u64, || Ok(exchange(&mut stream)?))
        }),
        Target::Stager(end) => in_threads(vec![&end; in_flight], |end| {
            repeat(args.count / in_flight as u64, || ask(end, args.work))
        }),
        Target::File { end, file, buffers } => {
            let next = AtomicU64::new(0);
            in_threads(buffers, |buffer| move_ranges(&end, &file, args, (&next, buffer)))
        }
    };
    let ended = base + began.elapsed().as_nanos() as u64;
    let times = times.map_err(|error| Failure::new(Kind::Other, error.to_string()))?;
    write_times(&args.times, &times)?;
    println!("{}", serde_json::to_string(&Told { began: base, ended }).expect("numbers always serialize"));
    Ok(ExitCode::SUCCESS)
}

type Broken = Box<dyn std::error::Error + Send + Sync>;
type Times = std::result::Result<Vec<u64>, Broken>;

/// Each of these in a thread of its own; nanoseconds of all requests.
fn in_threads<T: Send>(each: Vec<T>, work: impl Fn(T) -> Times + Sync) -> Times {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = each.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        let all = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        Ok(all.collect::<std::result::Result<Vec<_>, _>>()?.concat())
    })
}

fn repeat(count: u64, mut request: impl FnMut() -> std::result::Result<(), Broken>) -> Times {
    let mut timed = |_| {
        let start = Instant::now();
        request().map(|()| start.elapsed().as_nanos() as u64)
    };
    (0..count).map(&mut timed).collect()
}

fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&[0; PLAIN])?;
    stream.read_exact(&mut [0; PLAIN])
}

fn ask(end: &RemoteEnd, work: RemoteWork) -> std::result::Result<(), Broken> {
    match work {
        RemoteWork::Look => end.stat(At::Name(&end.root(), b"file")).map(|_| ())?,
        _ => end.ping()?,
    }
    Ok(())
}

fn open(args: &BenchRemoteArgs, in_flight: usize) -> Result<Target> {
    if args.work == RemoteWork::Plain {
        return Ok(Target::Plain(dial(args, in_flight).context(Kind::Other, || args.address.clone())?));
    }
    let end = connect(args, in_flight)?;
    let push = match args.work {
        RemoteWork::Push => true,
        RemoteWork::Pull => false,
        _ => {
            warm(args, &end, in_flight)?;
            return Ok(Target::Stager(end));
        }
    };
    let file = prepare(&end, args, push).context(Kind::Other, failed("making the file to move"))?;
    warm(args, &end, in_flight)?;
    Ok(Target::File { end, file, buffers: vec![vec![7; BUFFER as usize]; in_flight] })
}

fn dial(args: &BenchRemoteArgs, in_flight: usize) -> io::Result<Vec<TcpStream>> {
    let connect = |_| {
        let mut stream = TcpStream::connect(&args.address)?;
        tune_tcp(&stream)?;
        exchange(&mut stream)?;
        Ok(stream)
    };
    (0..in_flight).map(connect).collect()
}

fn connect(args: &BenchRemoteArgs, in_flight: usize) -> Result<RemoteEnd> {
    let path = args.secret.as_ref().ok_or_else(|| Failure::new(Kind::Usage, "--secret is missing"))?;
    let text = std::fs::read_to_string(path).context(Kind::Other, || path.display().to_string())?;
    let secret = Secret::from_hex(text.trim())
        .ok_or_else(|| Failure::new(Kind::Usage, format!("{}: no secret", path.display())))?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let dataspace = args.dataspace.clone();
    let root = RootRequest { dataspace, write: true, uid, gid, ..RootRequest::default() };
    let mut options = RemoteOptions::new(&args.address, secret, root);
    options.streams = in_flight;
    RemoteEnd::open(options).context(Kind::Other, || args.address.clone())
}

/// Asks for so long from all threads that all connections exist before the start.
fn warm(args: &BenchRemoteArgs, end: &RemoteEnd, in_flight: usize) -> Result<()> {
    let all = in_threads(vec![end; in_flight], |end| repeat(WARM_UP, || ask(end, args.work)));
    all.map(drop).map_err(|error| Failure::new(Kind::Other, error.to_string()))
}

/// The file of this client, filled where it is read from.
fn prepare(end: &RemoteEnd, args: &BenchRemoteArgs, push: bool) -> EndResult<FileRef> {
    let (root, name) = (end.root(), format!("bandwidth{}", args.rank));
    let file = match end.open_write(&root, name.as_bytes()) {
        Err(error) if error.errno == Errno::ENOENT => end.create(&root, name.as_bytes())?,
        other => other?,
    };
    if end.stat(At::File(&file))?.size < args.count {
        let mut buf = vec![7; BUFFER as usize];
        for offset in (0..args.count).step_by(BUFFER as usize) {
            let len = BUFFER.min(args.count - offset) as usize;
            move_range(end, &file, true, offset, &mut buf[..len])?;
        }
    }
    match push {
        true => Ok(file),
        false => end.open_read(&root, name.as_bytes()),
    }
}

/// Takes ranges of the file until none is left.
fn move_ranges(
    end: &RemoteEnd,
    file: &FileRef,
    args: &BenchRemoteArgs,
    (next, mut buf): (&AtomicU64, Vec<u8>),
) -> Times {
    let push = args.work == RemoteWork::Push;
    let mut times = Vec::new();
    loop {
        let offset = next.fetch_add(BUFFER, Ordering::Relaxed);
        if offset >= args.count {
            return Ok(times);
        }
        let len = BUFFER.min(args.count - offset) as usize;
        let start = Instant::now();
        move_range(end, file, push, offset, &mut buf[..len])?;
        times.push(start.elapsed().as_nanos() as u64);
    }
}

fn move_range(end: &RemoteEnd, file: &FileRef, push: bool, offset: u64, buf: &mut [u8]) -> EndResult<()> {
    if push {
        return end.write_range(file, offset, buf);
    }
    match end.read_range(file, offset, buf)? {
        count if count == buf.len() => Ok(()),
        _ => Err(EndError::new("read", Errno::EIO)),
    }
}
