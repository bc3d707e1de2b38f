//! A client of a pool that is killed by tests: writes, and tells on standard output what it begins, and what has been
//! acknowledged by fsync. Arguments: pool file, number of this writer, first generation, seed.

#![forbid(unsafe_code)]

use std::path::Path;
use tidepool_client::{Client, FsError, PoolFile};
use tidepool_testkit::{Rng, cred, pattern};
use tidepool_types::{Errno, Ino};

/// Bytes of a file that is written over in place, by regions.
const REGIONS: u64 = 128;
const REGION: usize = 48 << 10;
/// Words of a file that is replaced.
const WORDS_MAX: u64 = 150_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, pool, writer, first, seed] = args.as_slice() else { panic!("four arguments") };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let client = Client::new(PoolFile::read(Path::new(pool)).expect("a pool file"));
    let mut rng = Rng::new(number(seed));
    for generation in number(first).. {
        let done = match rng.below(2) {
            0 => replace(&client, &format!("w{writer}-{}", generation % 4), generation, rng.below(WORDS_MAX)),
            _ => write_over(&client, &format!("base{writer}"), generation, rng.below(REGIONS)),
        };
        if let Err(error) = done {
            println!("failed {error}");
            return;
        }
    }
}

/// A new file takes the name of an old one.
fn replace(client: &Client, name: &str, generation: u64, words: u64) -> Result<(), FsError> {
    println!("begin file {name} {generation} {words}");
    let temporary = format!("{name}.new");
    // What a writer that was killed has left may have data behind its end, which come back when the file grows.
    match client.unlink(Ino::ROOT, temporary.as_bytes(), &cred()) {
        Err(error) if error.errno() != Errno::ENOENT => return Err(error),
        _ => {}
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let ino = client.open(Ino::ROOT, temporary.as_bytes(), flags, 0o644, &cred())?.inside()?.ino;
    let data = pattern(generation, 0, words as usize);
    write(client, ino, 0, &data)?;
    client.fsync(ino)?;
    client.rename(Ino::ROOT, temporary.as_bytes(), Ino::ROOT, name.as_bytes(), 0, &cred())?;
    client.fsync(ino)?;
    client.release(ino);
    println!("done file {name} {generation} {words}");
    Ok(())
}

/// A part of a file is written where it lies.
fn write_over(client: &Client, name: &str, generation: u64, region: u64) -> Result<(), FsError> {
    println!("begin region {name} {generation} {region}");
    let ino = client.open(Ino::ROOT, name.as_bytes(), libc::O_RDWR, 0, &cred())?.inside()?.ino;
    let at = region * REGION as u64;
    write(client, ino, at, &pattern(generation, at / 8, REGION / 8))?;
    client.fsync(ino)?;
    client.release(ino);
    println!("done region {name} {generation} {region}");
    Ok(())
}

fn write(client: &Client, ino: Ino, offset: u64, data: &[u8]) -> Result<(), FsError> {
    let mut done = 0;
    while done < data.len() {
        done += client.write(ino, offset + done as u64, &data[done..])?;
    }
    Ok(())
}
