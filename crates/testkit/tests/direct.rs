//! F16: data go from a daemon's files into the reader's buffer without a copy in between, and are
//! right all the same while others write, cut, remove and damage them.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_client::Client;
use tidepool_testkit::{Cluster, Options, Rng, cred};
use tidepool_types::{Ino, SetAttr};
use tidepool_wire::message::{Reply, Request};

/// Reads after which a client has certainly asked for the files.
const WARM: usize = 8;

fn open(client: &Client, name: &[u8]) -> Ino {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, name, flags, 0o644, &cred()).unwrap().inside().unwrap().ino
}

fn counter(client: &Client, name: &str) -> u64 {
    let Reply::Report { status } = client.request(0, &Request::Status {}).unwrap() else {
        panic!("no status")
    };
    status.counters.iter().find(|(n, _)| n == name).unwrap().1
}

/// Reads until the reads no longer need the daemon.
fn warm(client: &Client, ino: Ino) {
    for _ in 0..WARM {
        client.read(ino, 0, &mut [0; 64]).unwrap();
    }
}

#[test]
fn f16_reads_copy_nothing() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let ino = open(&client, b"f");
    let data: Vec<u8> = (0..4u32 << 20).map(|i| (i * 7 / 5) as u8).collect();
    client.write(ino, 0, &data).unwrap();
    warm(&client, ino);
    let (copied, requests) = (counter(&client, "bytes_copied"), counter(&client, "requests"));
    assert!(copied > 0, "the first writes are copied once, into the lane");
    assert!(client.bytes_written_direct() > data.len() as u64 / 2);
    let mut got = vec![0; data.len()];
    let uncopied = client.bytes_uncopied();
    for (offset, len) in [(0, data.len()), (1, 4096), (4095, 9000), (1_000_000, 1_048_577)] {
        assert_eq!(client.read(ino, offset, &mut got[..len]).unwrap(), len);
        assert_eq!(got[..len], data[offset as usize..][..len]);
    }
    assert!(client.bytes_uncopied() - uncopied >= data.len() as u64);
    assert_eq!(counter(&client, "bytes_copied"), copied);
    assert_eq!(counter(&client, "requests"), requests + 2, "the daemon saw nothing of it");
}

/// One client changes a file in every way, another reads it directly: always the last content.
#[test]
fn direct_reads_see_every_change_at_once() {
    let mut rng = Rng::from_env("direct_reads_see_every_change_at_once");
    for daemons in [1, 3] {
        let cluster = Cluster::with(Options { daemons, ..Options::default() });
        let (writer, reader) = (cluster.client(), cluster.client());
        let ino = open(&writer, b"f");
        reader.reopen(ino).unwrap();
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..600 {
            let at = rng.below(1_200_000) as usize;
            match rng.below(10) {
                0 => {
                    let set = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                    writer.set_attr(ino, &set, &cred()).unwrap();
                    model.resize(at, 0);
                }
                1..5 => {
                    let len = rng.below(20_000) as usize + 1;
                    let data = rng.bytes(len);
                    writer.write(ino, at as u64, &data).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&data);
                }
                5 => {
                    let len = rng.below(50_000) as usize + 1;
                    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    writer.allocate(ino, mode, at as u64, len as u64).unwrap();
                    let end = (at + len).min(model.len());
                    model[at.min(end)..end].fill(0);
                }
                _ => {}
            }
            let from = rng.below(1_200_000) as usize;
            let mut got = vec![1; rng.below(300_000) as usize + 1];
            let count = reader.read(ino, from as u64, &mut got).unwrap();
            let wanted = &model[from.min(model.len())..(from + got.len()).min(model.len())];
            assert!(got[..count] == *wanted, "{daemons} daemons: {} bytes at {from}", got.len());
        }
        assert!(reader.bytes_uncopied() > 0);
    }
}

/// Blocks under writing are never handed out half old and half new without the daemon having looked.
#[test]
fn direct_reads_beside_a_writer_are_whole_blocks() {
    let cluster = Cluster::start(1);
    let (writer, reader) = (cluster.client(), cluster.client());
    let ino = open(&writer, b"f");
    writer.write(ino, 0, &[1; 4096]).unwrap();
    warm(&reader, ino);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..3000u32 {
                writer.write(ino, 0, &[round as u8; 4096]).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let mut got = [0; 4096];
            assert_eq!(reader.read(ino, 0, &mut got).unwrap(), 4096);
            assert!(got.iter().all(|b| *b == got[0]), "a torn block");
        }
    });
    assert!(reader.bytes_uncopied() > 0);
}

#[test]
fn damage_is_never_handed_out() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let ino = open(&client, b"f");
    client.write(ino, 0, &[5; 100_000]).unwrap();
    warm(&client, ino);
    let name = format!("{:016x}", ino.0);
    let mut dirs = vec![cluster.store(0)];
    let path = loop {
        let dir = dirs.pop().expect("the object has a file");
        let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        let (below, files): (Vec<_>, Vec<_>) = entries.partition(|p| p.is_dir());
        dirs.extend(below);
        if let Some(found) = files.into_iter().find(|p| p.file_name().is_some_and(|n| n == name.as_str())) {
            break found;
        }
    };
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[4], 50_000).unwrap();
    let error = client.read(ino, 0, &mut [0; 100_000]).unwrap_err();
    assert_eq!(error.errno().0, libc::EIO);
    assert!(error.to_string().contains("node0"), "{error}");
    assert_eq!(client.read(ino, 0, &mut [0; 40_000]).unwrap(), 40_000, "the rest is sound");
}

/// A client may believe that it has an object open which the daemon has forgotten.
#[test]
fn a_removed_object_is_not_read_from_what_is_left_of_it() {
    let cluster = Cluster::start(1);
    let (client, other) = (cluster.client(), cluster.client());
    let ino = open(&client, b"f");
    client.write(ino, 0, &[5; 10_000]).unwrap();
    client.release(ino);
    for _ in 0..WARM {
        client.read(ino, 0, &mut [0; 64]).unwrap();
    }
    other.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    let read = client.read(ino, 0, &mut [0; 64]);
    assert!(!matches!(read, Ok(64)), "{read:?}");
}
