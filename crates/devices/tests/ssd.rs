//! The flash device against a slow oracle that keeps the content of every page, against analytic write amplification, and
//! against what its parts can do at most.

use flate2::read::GzDecoder;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidepool_devices::ssd::{FlashOp, Ssd, SsdError, SsdModel};
use tidepool_devices::trace::mqsim;
use tidepool_devices::{Direction, Request};
use tidepool_sim::{Stream, Time};

const SECTORS: u64 = 8;

fn model() -> SsdModel {
    SsdModel {
        channels: 4,
        packages_per_channel: 1,
        dies_per_package: 2,
        blocks_per_die: 16,
        pages_per_block: 16,
        page_bytes: 4_096,
        over_provisioning: 0.2,
        read_ns: 50_000,
        program_ns: 500_000,
        erase_ns: 3_000_000,
        transfer_ns: 10_000,
        command_ns: 5_000,
        buffer_pages: 0,
    }
}

fn page(direction: Direction, page: u64) -> Request {
    Request { direction, sector: page * SECTORS, sectors: SECTORS as u32 }
}

/// Flash as it is: a page is programmed once after its block was erased, in order within the block; it keeps which
/// version of which logical page it holds.
#[derive(Default)]
struct Flash {
    pages: BTreeMap<u64, (u64, u64)>,
    next: BTreeMap<u64, u64>,
    programmed: u64,
    /// The version that each logical page was last written with.
    latest: BTreeMap<u64, u64>,
    versions: u64,
    read: Vec<(u64, u64)>,
    /// What each slot of the write buffer holds.
    held: BTreeMap<u64, (u64, u64)>,
    /// What was put there last, to be programmed next.
    coming: Option<(u64, u64)>,
    taken: u64,
}

impl Flash {
    fn program(&mut self, at: u64, content: (u64, u64), model: &SsdModel) {
        let (block, within) = (at / model.pages_per_block, at % model.pages_per_block);
        let next = self.next.entry(block).or_default();
        assert_eq!(*next, within, "pages of block {block} are programmed in order, each once");
        *next += 1;
        self.programmed += 1;
        assert!(self.pages.insert(at, content).is_none());
    }

    fn write(&mut self, logical: u64) -> (u64, u64) {
        self.versions += 1;
        self.latest.insert(logical, self.versions);
        (logical, self.versions)
    }

    fn apply(&mut self, op: FlashOp, model: &SsdModel) {
        match op {
            FlashOp::Read { logical, page } => {
                let content = self.pages.get(&page).copied();
                let (of, version) = content.expect("what is read was programmed and not erased");
                assert_eq!(of, logical);
                self.read.push((logical, version));
            }
            FlashOp::Program { logical, page } => {
                let content = self.coming.take().unwrap_or_else(|| self.write(logical));
                assert_eq!(content.0, logical);
                self.program(page, content, model);
            }
            FlashOp::Hold { logical, slot } => {
                assert!(slot < model.buffer_pages);
                let content = self.write(logical);
                self.held.insert(slot, content);
                assert!(self.coming.replace(content).is_none());
            }
            FlashOp::Take { logical, slot } => {
                let (of, version) = self.held[&slot];
                assert_eq!(of, logical, "the slot was not used for another page");
                self.read.push((logical, version));
                self.taken += 1;
            }
            FlashOp::Move { logical, from, to } => {
                let content = self.pages[&from];
                assert_eq!(content, (logical, self.latest[&logical]), "only the latest version is moved");
                self.program(to, content, model);
            }
            FlashOp::Erase { block } => {
                let pages = block * model.pages_per_block..(block + 1) * model.pages_per_block;
                self.pages.retain(|at, _| !pages.contains(at));
                self.next.insert(block, 0);
            }
        }
    }
}

fn requests() -> impl Strategy<Value = Vec<(bool, u64, u32)>> {
    let sectors = Ssd::new(model()).unwrap().sectors();
    // A quarter of the device is used more than the rest.
    let place = prop_oneof![0..sectors / 4, 0..sectors - 40];
    prop::collection::vec((any::<bool>(), place, 1..40u32), 1..1_500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever is written, moved and erased: a read gets the latest version, the flash is used as flash can be, and the
    /// counts are those of the flash.
    #[test]
    fn reads_get_what_was_written_last(requests in requests(), buffer_pages in prop_oneof![Just(0u64), 1..200u64]) {
        let model = SsdModel { buffer_pages, ..model() };
        let (mut ssd, mut flash, mut now) = (Ssd::new(model).unwrap(), Flash::default(), 0);
        let mut host = 0;
        for (is_read, sector, sectors) in requests {
            let direction = if is_read { Direction::Read } else { Direction::Write };
            let request = Request { direction, sector, sectors };
            let done = ssd.submit_watched(&request, Time(now), |op| flash.apply(op, &model)).unwrap();
            prop_assert!(done >= Time(now));
            let touched = sector / SECTORS..(sector + u64::from(sectors)).div_ceil(SECTORS);
            if is_read {
                let expected: Vec<(u64, u64)> = touched
                    .filter_map(|page| flash.latest.get(&page).map(|version| (page, *version)))
                    .collect();
                prop_assert_eq!(std::mem::take(&mut flash.read), expected);
            } else {
                host += touched.count() as u64;
                flash.read.clear();
            }
            now += 1_000;
        }
        // Conservation: what was written is what is on the flash, by the write amplification.
        let counts = ssd.counts();
        prop_assert_eq!((counts.host_pages, counts.programmed_pages), (host, flash.programmed));
        prop_assert!(counts.programmed_pages >= host);
        prop_assert!(buffer_pages > 0 || flash.taken == 0);
    }

    /// Requests taken back in reverse order leave what was there before them, to the last bit.
    #[test]
    fn requests_are_taken_back(requests in requests(), back in 1..20usize) {
        let mut ssd = Ssd::new(SsdModel { buffer_pages: 5, ..model() }).unwrap();
        let mut past = Vec::new();
        for (at, (is_read, sector, sectors)) in requests.iter().enumerate() {
            let direction = if *is_read { Direction::Read } else { Direction::Write };
            let request = Request { direction, sector: *sector, sectors: *sectors };
            let now = Time(at as u64 * 100_000);
            if at + back < requests.len() {
                ssd.submit(&request, now).unwrap();
                continue;
            }
            let before = ssd.clone();
            let (done, undo) = ssd.submit_undoable(&request, now).unwrap();
            let mut other = before.clone();
            prop_assert_eq!(other.submit(&request, now).unwrap(), done);
            prop_assert_eq!(&other, &ssd);
            past.push((before, undo));
        }
        for (before, undo) in past.into_iter().rev() {
            ssd.take_back(undo);
            prop_assert_eq!(&ssd, &before);
        }
    }
}

/// Programmed for written pages, once the device is full and random writes have gone on for a while.
fn random_write_amplification(model: SsdModel, seed: u64) -> f64 {
    let (mut ssd, mut random) = (Ssd::new(model).unwrap(), Stream::new(seed, 0));
    let pages = model.logical_pages();
    let write = |ssd: &mut Ssd, at| ssd.submit(&page(Direction::Write, at), Time(0)).map(|_| ()).unwrap();
    (0..pages).for_each(|at| write(&mut ssd, at));
    (0..4 * pages).for_each(|_| write(&mut ssd, random.below(pages)));
    let before = ssd.counts();
    (0..4 * pages).for_each(|_| write(&mut ssd, random.below(pages)));
    let after = ssd.counts();
    (after.programmed_pages - before.programmed_pages) as f64 / (after.host_pages - before.host_pages) as f64
}

/// Lambert's W, the branch of small arguments between -1/e and 0.
fn lambert(x: f64) -> f64 {
    let mut w = 0.0;
    for _ in 0..200 {
        let e = f64::exp(w);
        w -= (w * e - x) / (e * (w + 1.0));
    }
    w
}

/// Uniform random writes with greedy collection: Desnoyers, Analytic Models of SSD Write Performance (ACM Transactions on
/// Storage 10(2), 2014). `ratio` is pages of flash for each offered one; the model leaves out the blocks that are never
/// full, so these are left out of the flash here.
fn greedy(ratio: f64, pages_per_block: f64) -> f64 {
    let more = 1.0 + 1.0 / (2.0 * pages_per_block);
    let least = 0.5 - pages_per_block / ratio * lambert(-more * ratio * f64::exp(-more * ratio));
    pages_per_block / (pages_per_block - (least - 1.0))
}

#[test]
fn random_writes_are_amplified_as_analysis_says() {
    for (over_provisioning, pages_per_block, seed) in [(0.15, 64, 1), (0.25, 64, 2), (0.4, 32, 3)] {
        let big = SsdModel {
            channels: 1,
            dies_per_package: 1,
            blocks_per_die: 256,
            pages_per_block,
            over_provisioning,
            ..model()
        };
        // One block is erased and one is being filled.
        let used = (big.pages() - 2 * pages_per_block) as f64;
        let expected = greedy(used / big.logical_pages() as f64, pages_per_block as f64);
        let seen = random_write_amplification(big, seed);
        assert!((seen / expected - 1.0).abs() < 0.05, "{over_provisioning}: {seen} instead of {expected}");
    }
}

#[test]
fn sequential_writes_are_not_amplified() {
    let mut ssd = Ssd::new(model()).unwrap();
    for round in 0..5 {
        for at in 0..model().logical_pages() {
            ssd.submit(&page(Direction::Write, at), Time(round)).unwrap();
        }
    }
    assert_eq!(ssd.counts().write_amplification(), 1.0);
    assert!(ssd.counts().erased_blocks > 0);
}

/// Reads per second with so many requests on their way at a time, each at a random page.
fn reads_per_second(model: SsdModel, depth: usize) -> f64 {
    let (mut ssd, mut random) = (Ssd::new(model).unwrap(), Stream::new(7, 7));
    for at in 0..model.logical_pages() {
        ssd.submit(&page(Direction::Write, at), Time(0)).unwrap();
    }
    let (begin, count) = (3_600_000_000_000, 20_000);
    let mut slots = vec![begin; depth];
    for _ in 0..count {
        slots.sort_unstable();
        let request = page(Direction::Read, random.below(model.logical_pages()));
        slots[0] = ssd.submit(&request, Time(slots[0])).unwrap().0;
    }
    f64::from(count) / ((slots.iter().max().unwrap() - begin) as f64 / 1e9)
}

/// L13: throughput rises with the queue depth until dies or channels are full.
#[test]
fn throughput_rises_with_queue_depth_until_the_parts_are_full() {
    let model = model();
    let rates: Vec<f64> = [1, 2, 4, 8, 16, 64, 256].map(|depth| reads_per_second(model, depth)).into();
    let alone = 1e9 / (model.command_ns + model.read_ns + model.transfer_ns) as f64;
    assert!((rates[0] / alone - 1.0).abs() < 1e-3, "{rates:?} {alone}");
    assert!(rates[..6].windows(2).all(|pair| pair[1] > pair[0] * 1.1), "{rates:?}");
    // A die is taken for reading and transfer; its channel is shared by two.
    let die = model.dies() as f64 * 1e9 / (model.read_ns + model.transfer_ns) as f64;
    assert!(rates[6] <= die && rates[6] > 0.9 * die, "{rates:?} {die}");
    // With slow channels these are what fills, up to holes that are too short for a transfer: a completion that was told is
    // not put off for a request that comes later.
    let slow = SsdModel { transfer_ns: 100_000, ..model };
    let (rate, channel) = (reads_per_second(slow, 256), slow.channels as f64 * 1e9 / 100_000.0);
    assert!(rate <= channel && rate > 0.75 * channel, "{rate} {channel}");
    // Twice the channels, twice the rate.
    let twice = reads_per_second(SsdModel { channels: 8, ..model }, 512) / rates[6];
    assert!((twice - 2.0).abs() < 0.1, "{twice}");
}

#[test]
fn buffered_writes_are_fast_until_the_buffer_is_full() {
    let with = SsdModel { buffer_pages: 10, ..model() };
    let mut ssd = Ssd::new(with).unwrap();
    let times: Vec<u64> =
        (0..200).map(|at| ssd.submit(&page(Direction::Write, at), Time(0)).unwrap().0).collect();
    assert!(times[..10].iter().all(|ns| *ns == with.command_ns), "{times:?}");
    assert!(times[10] > with.program_ns);
    // Then it is as fast as its dies.
    let rate = 190.0 / (times[199] as f64 / 1e9);
    let dies = with.dies() as f64 * 1e9 / (with.program_ns + with.transfer_ns) as f64;
    assert!((rate / dies - 1.0).abs() < 0.1, "{rate} {dies}");
}

/// Until a page is on the flash it is read from the buffer, and no die has anything to do for that.
#[test]
fn reads_of_what_is_in_the_write_buffer_do_not_wait_for_the_flash() {
    let with = SsdModel { buffer_pages: 2, ..model() };
    let on_flash = with.command_ns + with.transfer_ns + with.program_ns;
    let mut ssd = Ssd::new(with).unwrap();
    let at = |ssd: &mut Ssd, direction, number, now| {
        ssd.submit(&page(direction, number), Time(now)).unwrap().0 - now
    };
    assert_eq!(at(&mut ssd, Direction::Write, 0, 0), with.command_ns);
    assert_eq!(at(&mut ssd, Direction::Read, 0, 1_000), with.command_ns);
    // The rest of a page that is written in part comes from there, too.
    let part = Request { direction: Direction::Write, sector: 1, sectors: 1 };
    assert_eq!(ssd.submit(&part, Time(2_000)).unwrap().0, 2_000 + with.command_ns);
    // Both slots are taken: another write comes in when the first page is on the flash, and is read no sooner.
    assert_eq!(at(&mut ssd, Direction::Write, 1, 3_000), on_flash - 3_000);
    assert_eq!(at(&mut ssd, Direction::Read, 1, 4_000), on_flash - 4_000);
    // Page 0 was written twice: its die is at the second one, which is in the buffer until that is done.
    assert_eq!(at(&mut ssd, Direction::Read, 0, on_flash + 1_000), with.command_ns);
    let later = 10 * on_flash;
    assert_eq!(at(&mut ssd, Direction::Read, 0, later), with.command_ns + with.read_ns + with.transfer_ns);
    // Without a buffer a read waits for the die that programs.
    let mut bare = Ssd::new(model()).unwrap();
    at(&mut bare, Direction::Write, 0, 0);
    assert!(at(&mut bare, Direction::Read, 0, 1_000) > with.program_ns);
}

#[test]
fn what_cannot_be_is_refused() {
    let said = |model: SsdModel| Ssd::new(model).unwrap_err().to_string();
    assert_eq!(said(SsdModel { channels: 0, ..model() }), "channels: 1 to 1048576");
    assert_eq!(said(SsdModel { blocks_per_die: 2, ..model() }), "blocks per die: 3 to 1048576");
    assert_eq!(said(SsdModel { channels: 1 << 20, ..model() }), "pages of flash: 1 to 16777216");
    assert!(said(SsdModel { pages_per_block: u64::MAX, ..model() }).starts_with("pages per block"));
    assert!(said(SsdModel { page_bytes: 1_000, ..model() }).contains("a multiple of 512"));
    assert!(said(SsdModel { over_provisioning: f64::NAN, ..model() }).starts_with("over-provisioning"));
    assert!(said(SsdModel { over_provisioning: 0.9999, ..model() }).starts_with("over-provisioning"));
    assert!(said(SsdModel { erase_ns: u64::MAX, ..model() }).starts_with("nanoseconds of an operation"));
    assert!(said(SsdModel { buffer_pages: u64::MAX, ..model() }).starts_with("pages of the write buffer"));
    let mut ssd = Ssd::new(model()).unwrap();
    let before = ssd.clone();
    let behind = Request { sector: u64::MAX - 1, ..page(Direction::Read, 0) };
    assert!(matches!(ssd.submit(&behind, Time(5)), Err(SsdError::BehindEnd { .. })));
    assert_eq!(ssd, before);
    ssd.submit(&page(Direction::Read, 0), Time(5)).unwrap();
    assert_eq!(ssd.submit(&page(Direction::Read, 0), Time(4)), Err(SsdError::BackInTime));
}

/// Arrivals as MQSim's traces have them are read, folded into the device, and all served in time.
#[test]
fn a_trace_is_served() {
    let text = "1000 0 264719034 16 0\n500 0 93230992 32 1\n90000 1 8 9 0\n95000 0 264719034 16 1\n";
    let arrivals = mqsim::read(text.as_bytes()).unwrap();
    let mut ssd = Ssd::new(model()).unwrap();
    let sectors = ssd.sectors();
    let mut done = Vec::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.device == 0) {
        let sector = arrival.request.sector % (sectors - u64::from(arrival.request.sectors));
        let request = Request { sector, ..arrival.request };
        done.push(ssd.submit(&request, arrival.at).unwrap().0 - arrival.at.0);
    }
    assert_eq!(done.len(), 3);
    assert_eq!(done[0], 5_000, "nothing was written there");
    assert!(done[1] > 500_000 && done[2] > 50_000, "{done:?}");
    // The compressed form is the reader's caller's: as the disks' traces are.
    assert!(mqsim::read(std::io::BufReader::new(GzDecoder::new(&[][..]))).is_err());
}
