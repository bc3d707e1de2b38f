//! The device models of `tidepool-devices` behind servers: times are those that the devices tell themselves.

mod common;

use common::{application, class, disk_model, even, fast_network, flash_model, idle_server};
use flate2::read::GzDecoder;
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;
use tidepool_devices::disk::fit::{Evidence, fit};
use tidepool_devices::disk::{Disk, DiskModel, Seek};
use tidepool_devices::ssd::{Ssd, SsdModel};
use tidepool_devices::trace::measured;
use tidepool_devices::{Direction, Request as Sectors};
use tidepool_sim::{Options, Stream, Time};
use tidepool_sim_models::device::{DeviceSpec, DiskSpec, FlashSpec};
use tidepool_sim_models::workload::{After, Ior, Listed, Order, Pace, Program, Request};
use tidepool_sim_models::{Class, Op, Pfs, Policy, QueueSpec, Results, Span, run};

const SEED: u64 = 3;
/// Of the one server's device.
const DEVICE: u64 = 1;

/// One rank asks for one thing after the other; it takes a tick to the server, one to the device, and both back.
fn one_after_the_other(device: DeviceSpec, wanted: &[(Op, u64, u64)]) -> Results {
    let request = |&(op, offset, length): &(Op, u64, u64)| {
        let (after, pace) = (After::All, Pace::Think(Span::NONE));
        Request { op, file: 0, offset, length, after, pace }
    };
    let listed = Listed { ranks: vec![wanted.iter().map(request).collect()] };
    let (classes, server) = (vec![class("s", 1, device)], idle_server(1));
    let applications = vec![application(Program::Listed(listed.into()))];
    let mut pfs = Pfs::new(fast_network(1), server, classes, even(1 << 20, 1), applications).unwrap();
    pfs.keep_requests = true;
    run(pfs, SEED, &Options::default()).unwrap().1
}

/// Requests of whole sectors, some of which go on where the last one ended.
fn requests(count: u64, span: u64, seed: u64) -> Vec<(Op, u64, u64)> {
    let (mut random, mut next) = (Stream::new(seed, 5), 0);
    let one = |_| {
        let length = 512 * (1 + random.below(16));
        let goes_on = random.chance(0.3) && next <= span;
        let offset = if goes_on { next } else { random.below(span / 512) * 512 };
        next = offset + length;
        (if random.chance(0.5) { Op::Read } else { Op::Write }, offset, length)
    };
    (0..count).map(one).collect()
}

fn sectors(&(op, offset, length): &(Op, u64, u64)) -> Sectors {
    let direction = if op == Op::Read { Direction::Read } else { Direction::Write };
    Sectors { direction, sector: offset / 512, sectors: (length / 512) as u32 }
}

#[test]
fn a_disk_takes_as_long_as_its_model_says() {
    let (model, wanted) = (Arc::new(disk_model()), requests(500, 1 << 30, 1));
    let (open, flush) = (Span::NONE, Span::NONE);
    let device = DeviceSpec::Disk(DiskSpec { model: model.clone(), size: 1 << 31, open, flush });
    let results = one_after_the_other(device, &wanted);
    let (mut disk, mut random, mut now) = (Disk::default(), Stream::new(SEED, DEVICE), Time(1));
    for (request, seen) in wanted.iter().zip(&results.all) {
        now = now.plus(Time(2));
        now = now.plus(disk.service(&model, &sectors(request), now, &mut random)).plus(Time(2));
        assert_eq!(seen.end, now.0, "{request:?}");
    }
}

#[test]
fn flash_takes_as_long_as_its_model_says() {
    for buffer_pages in [0, 4] {
        let model = SsdModel { buffer_pages, ..flash_model() };
        let mut ssd = Ssd::new(model).unwrap();
        ssd.fill(ssd.sectors());
        assert_eq!(ssd.counts().programmed_pages, 0);
        let wanted = requests(500, ssd.sectors() * 512 - 16 * 512, 2);
        let device = DeviceSpec::Flash(FlashSpec { model, filled: 100, flush: Span::NONE });
        let results = one_after_the_other(device, &wanted);
        let mut now = Time(1);
        for (request, seen) in wanted.iter().zip(&results.all) {
            now = ssd.submit(&sectors(request), now.plus(Time(2))).unwrap().plus(Time(2));
            assert_eq!(seen.end, now.0, "{request:?}");
        }
        let counts = results.servers[0].flash.unwrap();
        assert_eq!(counts, ssd.counts());
        assert!(counts.erased_blocks > 10 && counts.write_amplification() > 1.1, "{counts:?}");
    }
}

/// Behind the last address comes the first one: every byte is written somewhere.
#[test]
fn files_longer_than_a_device_go_on_at_its_beginning() {
    let model = flash_model();
    let bytes = model.logical_pages() * model.page_bytes;
    let device = DeviceSpec::Flash(FlashSpec { model, filled: 0, flush: Span::NONE });
    let results = one_after_the_other(device, &[(Op::Write, bytes - 2_048, 5 * 2_048)]);
    assert_eq!(results.servers[0].flash.unwrap().host_pages, 5);
}

/// An fsync waits for what a buffer has taken.
#[test]
fn an_fsync_ends_when_the_buffer_is_empty() {
    let write_then_sync = |device| {
        let results = one_after_the_other(device, &[(Op::Write, 0, 8_192), (Op::Fsync, 0, 0)]);
        [0, 1].map(|at| results.all[at].end - results.all[at].begin)
    };
    let model = SsdModel { buffer_pages: 8, ..flash_model() };
    let device = DeviceSpec::Flash(FlashSpec { model, filled: 0, flush: Span::NONE });
    // The write is in the buffer after its command; two pages each of two dies go one after the other.
    let [write, sync] = write_then_sync(device);
    assert_eq!((write, sync), (4 + 5_000, 10_000 + 200_000 + 10_000 + 200_000 - 4 + 4));
    let (model, size) = (Arc::new(disk_model()), 1 << 30);
    let spec = DiskSpec { model, size, open: Span::NONE, flush: Span::NONE };
    let [write, sync] = write_then_sync(DeviceSpec::Disk(spec));
    // A write of 16 sectors is buffered; the arm takes 4 ms in the mean and 20 us for each of them.
    assert!(write < 250_000 && (4_000_000..4_400_000).contains(&sync), "{write} {sync}");
}

/// Less spare flash, more moves (decision 32: measured there against theory).
#[test]
fn spare_flash_saves_moves() {
    let amplification = |over_provisioning| {
        let model = SsdModel { blocks_per_die: 32, over_provisioning, ..flash_model() };
        let bytes = model.logical_pages() * model.page_bytes;
        let mut random = Stream::new(7, 7);
        let write = |_| (Op::Write, random.below(bytes / 2_048) * 2_048, 2_048);
        let wanted: Vec<_> = (0..4 * model.logical_pages()).map(write).collect();
        let device = DeviceSpec::Flash(FlashSpec { model, filled: 100, flush: Span::NONE });
        one_after_the_other(device, &wanted).servers[0].flash.unwrap().write_amplification()
    };
    let [little, much] = [0.1, 0.4].map(amplification);
    println!("write amplification: {little:.2} with 10 % spare, {much:.2} with 40 %");
    assert!(little > 1.5 * much && much >= 1.0);
}

/// Random reads of a large file on one measured disk, so many at once.
fn at_once(depth: u32, queue: Option<QueueSpec>) -> Results {
    let (open, flush) = (Span::NONE, Span::NONE);
    let model =
        DiskModel { seek: Seek::Formula { root_us: 4.0, linear_us: 0.0, bend_sectors: 1e9 }, ..disk_model() };
    let device = DeviceSpec::Disk(DiskSpec { model: Arc::new(model), size: 1 << 33, open, flush });
    let ior = Ior {
        op: Op::Read,
        block: 1 << 32,
        transfer: 1 << 22,
        order: Order::Random(3),
        depth,
        ..common::writes(1, 1)
    };
    let class = Class { queue, ..class("s", 1, device) };
    let applications = vec![application(Program::Ior(ior))];
    let layout = even(1 << 22, 1);
    let mut pfs = Pfs::new(fast_network(1), idle_server(1), vec![class], layout, applications).unwrap();
    pfs.keep_requests = true;
    run(pfs, SEED, &Options::default()).unwrap().1
}

fn queue(policy: Policy) -> Option<QueueSpec> {
    Some(QueueSpec { policy, depth: 1, merge: 0 })
}

#[test]
fn schedulers_save_seeks_when_many_wait() {
    let busy = |depth, policy| at_once(depth, queue(policy)).servers[0].device_busy as f64 / 1_024.0 / 1e6;
    let all = [Policy::Fifo, Policy::Deadline(Time(1 << 40)), Policy::Elevator, Policy::Nearest];
    let [fifo, deadline, elevator, nearest] = all.map(|policy| busy(32, policy));
    println!(
        "ms of the disk: fifo {fifo:.2}, elevator {elevator:.2}, deadline {deadline:.2}, sstf {nearest:.2}"
    );
    // A read of 8192 sectors takes 82 ms, rotation and overhead 4; seeks are what can be saved.
    let seek = |all: f64| all - 86.0;
    assert!(
        seek(elevator) < 0.5 * seek(fifo) && seek(nearest) < 0.5 * seek(fifo),
        "{fifo} {elevator} {nearest}"
    );
    assert_eq!(deadline, elevator);
    // Alone there is nothing to choose.
    assert_eq!(busy(1, Policy::Elevator), busy(1, Policy::Fifo));
    // And who comes far behind the arm waits longer for it.
    let longest = |policy| at_once(32, queue(policy)).all.iter().map(|r| r.end - r.begin).max().unwrap();
    assert!(longest(Policy::Nearest) > longest(Policy::Deadline(Time(2_000_000_000))));
}

/// As `tidepool sim calibrate disk` fits it to half of what was measured on a real disk.
fn measured(disk: &str) -> DiskModel {
    let path = format!("{}/../devices/tests/data/{disk}.trace.gz", env!("CARGO_MANIFEST_DIR"));
    let lines = BufReader::new(GzDecoder::new(File::open(path).unwrap()));
    let trace = measured::read(lines).unwrap();
    fit(&trace[..trace.len() / 2], &Evidence::default()).unwrap().model
}

/// Reads of 4 KiB anywhere, by 32 who have one each on its way: ms of the disk for each, and of who waited longest.
fn small_reads(model: &Arc<DiskModel>, policy: Policy) -> (f64, u64) {
    let (size, mut random) = (8 << 30, Stream::new(5, 5));
    let mut read = |_| {
        let offset = random.below(size >> 12) << 12;
        let (after, pace) = (After::All, Pace::Think(Span::NONE));
        Request { op: Op::Read, file: 0, offset, length: 4_096, after, pace }
    };
    let ranks: Vec<Vec<Request>> = (0..32).map(|_| (0..24).map(&mut read).collect()).collect();
    let device =
        DeviceSpec::Disk(DiskSpec { model: model.clone(), size, open: Span::NONE, flush: Span::NONE });
    let class = Class { queue: queue(policy), ..class("s", 1, device) };
    let applications = vec![application(Program::Listed(Listed { ranks }.into()))];
    let mut pfs =
        Pfs::new(fast_network(1), idle_server(1), vec![class], even(1 << 20, 1), applications).unwrap();
    pfs.keep_requests = true;
    let results = run(pfs, SEED, &Options::default()).unwrap().1;
    assert_eq!(results.requests, 32 * 24);
    let longest = results.all.iter().map(|one| one.end - one.begin).max().unwrap();
    (results.servers[0].device_busy as f64 / f64::from(32 * 24) / 1e6, longest)
}

#[test]
fn schedulers_save_seeks_of_measured_disks() {
    for disk in ["atlas10k", "cheetah9LP", "ibm18es"] {
        let model = Arc::new(measured(disk));
        let of = |policy| small_reads(&model, policy);
        let (fifo, _) = of(Policy::Fifo);
        let ((nearest, starved), (elevator, _)) = (of(Policy::Nearest), of(Policy::Elevator));
        let (deadline, waited) = of(Policy::Deadline(Time(400_000_000)));
        println!(
            "{disk}: ms for each read: fifo {fifo:.2}, deadline {deadline:.2}, elevator {elevator:.2}, sstf {nearest:.2}; longest {starved} {waited}"
        );
        assert!(nearest < 0.8 * fifo && elevator < 0.8 * fifo, "{disk}: {fifo} {elevator} {nearest}");
        // Who has waited long enough goes first: that costs seeks, and nobody waits as long.
        assert!(
            elevator <= deadline && deadline < fifo && waited < starved,
            "{disk}: {deadline} {waited} {starved}"
        );
        // Overhead and rotation stay: a scheduler that knows no angles cannot save them.
        assert!(nearest > 0.4 * model.rotation_us / 1e3, "{disk}: {nearest}");
    }
}

/// A queue that changes nothing changes nothing: devices that serve one at a time do the same with and without.
#[test]
fn first_come_first_served_is_what_was_without_a_queue() {
    for depth in [1, 7] {
        let (with, without) = (at_once(depth, queue(Policy::Fifo)), at_once(depth, None));
        assert_eq!(with.all, without.all);
        assert_eq!(with.servers, without.servers);
    }
}

/// Sequential writes by several ranks at once, of which neighbours go together.
#[test]
fn neighbours_are_one_request_of_the_disk() {
    let served = |merge| {
        let (open, flush) = (Span::NONE, Span::NONE);
        let device = DeviceSpec::Disk(DiskSpec { model: Arc::new(disk_model()), size: 1 << 33, open, flush });
        let queue = Some(QueueSpec { policy: Policy::Elevator, depth: 1, merge });
        let class = Class { queue, ..class("s", 1, device) };
        let ior = Ior { depth: 16, op: Op::Read, ..common::writes(1, 64) };
        let applications = vec![application(Program::Ior(ior))];
        let layout = even(1 << 16, 1);
        let pfs = Pfs::new(fast_network(1), idle_server(1), vec![class], layout, applications).unwrap();
        let results = run(pfs, SEED, &Options::default()).unwrap().1;
        assert_eq!((results.requests, results.bytes_read), (64, 64 << 16));
        (results.servers[0].merged, results.end.0)
    };
    let ((none, alone), (most, together)) = (served(0), served(1 << 20));
    assert!(none == 0 && most > 45 && together < alone, "{none} {most} {alone} {together}");
}
