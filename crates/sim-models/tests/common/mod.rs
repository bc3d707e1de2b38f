//! Small systems: one for sums by hand, and random ones.

#![allow(dead_code)] // Each test file uses a part.

use std::sync::Arc;
use tidepool_devices::disk::{
    CLASSES, CacheModel, Class as OfDisk, Cost, DiskModel, Kind, Seek, Spread, WriteBack, Zones,
};
use tidepool_devices::ssd::SsdModel;
use tidepool_sim::{Stream, Time};
use tidepool_sim_models::device::{
    Cost as MeasuredCost, DeviceSpec, DiskSpec, FlashSpec, HddSpec, MeasuredSpec, SsdSpec, StationSpec,
};
use tidepool_sim_models::outages::drawn;
use tidepool_sim_models::pool::PoolLayout;
use tidepool_sim_models::striping::{Layout, Ring};
use tidepool_sim_models::topology::{Description, Topology};
use tidepool_sim_models::workload::{
    After, Arrivals, Files, Ior, Listed, Mdtest, Order, Pace, Program, Request, Sharing,
};
use tidepool_sim_models::{
    Application, BufferSpec, CacheSpec, Class, Network, NodeCache, NodesSpec, OnNodes, Op, Pfs, Policy,
    QueueSpec, Results, ServerSpec, Span,
};
use tidepool_types as types;

pub fn fixed(ticks: u64) -> Span {
    Span::Fixed(Time(ticks))
}

/// Links without limits: everything but the latency is up to the servers.
pub fn fast_network(latency: u64) -> Network {
    Network { latency: Time(latency), client_bandwidth: 0, header: 0, eager: u32::MAX }
}

pub fn idle_server(bus: u64) -> ServerSpec {
    ServerSpec { threads: 1, request: Span::NONE, metadata: Span::NONE, bus: Time(bus), cache: None }
}

pub fn station(lanes: u32, time: Span) -> DeviceSpec {
    DeviceSpec::Station(StationSpec { lanes, time })
}

pub fn even(stripe: u64, servers: u32) -> Layout {
    Layout::Striped(Ring::new(stripe, &(0..servers).map(|server| (server, 1)).collect::<Vec<_>>()).unwrap())
}

pub fn class(name: &str, count: u32, device: DeviceSpec) -> Class {
    Class::new(name, count, device)
}

pub fn application(program: Program) -> Application {
    Application { name: "a".into(), start: Time::ZERO, program }
}

/// `ranks` that write `transfers` of 64 KiB one after the other, in a shared file.
pub fn writes(ranks: u32, transfers: u64) -> Ior {
    Ior {
        ranks,
        op: Op::Write,
        segments: 1,
        block: transfers * 65_536,
        transfer: 65_536,
        order: Order::Sequential,
        sharing: Sharing::Shared,
        open: false,
        fsync: false,
        depth: 1,
        barrier: false,
        think: Span::NONE,
        file: 0,
    }
}

/// Hits take about 100 us, misses 1 to 7 ms and the seek, writes 50 us until the buffer is full.
pub fn disk_model() -> DiskModel {
    let mut costs = [const { None }; CLASSES];
    for kind in [Kind::ReadHit, Kind::ReadMiss, Kind::Write] {
        let (from, to, seek_share) = match kind {
            Kind::ReadHit => (100.0, 110.0, 0.0),
            Kind::ReadMiss => (1_000.0, 7_000.0, 1.0),
            Kind::Write => (50.0, 60.0, 0.0),
        };
        for class in OfDisk::all().filter(|class| class.kind == kind) {
            costs[class.index()] =
                Some(Cost { sector_us: 10.0, media_share: 0.0, seek_share, wait: Spread::even(from, to) });
        }
    }
    DiskModel {
        rotation_us: 6_000.0,
        zones: Zones::even(20.0),
        near_sectors: 1_000,
        seek: Seek::Formula { root_us: 2.0, linear_us: 0.0, bend_sectors: 1e9 },
        cache: CacheModel {
            segments: 2,
            behind_sectors: 50,
            ahead_sectors: 200,
            track_sectors: 0,
            keep: 0.9,
            keep_after_write: 0.5,
            keep_written: 0.5,
        },
        write_back: WriteBack { segments: 2, segment_sectors: 100, reads_wait: true },
        costs,
    }
}

/// Two dies with 80 KB each.
pub fn flash_model() -> SsdModel {
    SsdModel {
        channels: 2,
        packages_per_channel: 1,
        dies_per_package: 1,
        blocks_per_die: 6,
        pages_per_block: 8,
        page_bytes: 2_048,
        over_provisioning: 0.2,
        read_ns: 50_000,
        program_ns: 200_000,
        erase_ns: 2_000_000,
        transfer_ns: 10_000,
        command_ns: 5_000,
        buffer_pages: 0,
    }
}

/// Two leaf switches with four nodes each, and so many core switches; a link between two carries 100 MB/s.
pub fn two_leaves(cores: usize) -> Description {
    let leaves = ["leaf1", "leaf2"];
    let core = |n: usize| format!("core{}", n + 1);
    let links = |n: usize| leaves.map(|leaf| (leaf.to_string(), core(n), 100_000_000));
    Description {
        switches: leaves.iter().map(|leaf| leaf.to_string()).chain((0..cores).map(core)).collect(),
        nodes: (0..8).map(|n| (format!("n{n}"), leaves[n / 4].to_string(), 0)).collect(),
        links: (0..cores).flat_map(links).collect(),
    }
}

struct Dice(Stream);

impl Dice {
    fn among<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.0.below(values.len() as u64) as usize]
    }

    fn span(&mut self, scale: u64) -> Span {
        let scale = 1 + self.0.below(scale);
        match self.0.below(4) {
            0 => Span::NONE,
            1 => fixed(scale),
            2 => Span::Exponential(Time(scale)),
            _ => Span::Uniform(Time(scale / 2), Time(scale)),
        }
    }

    fn device(&mut self) -> DeviceSpec {
        match self.0.below(6) {
            3 => DeviceSpec::Disk(DiskSpec {
                model: Arc::new(disk_model()),
                size: self.among(&[10_000, 1 << 30]),
                open: self.span(100_000),
                flush: self.span(100_000),
            }),
            4 => {
                let model = SsdModel { buffer_pages: self.among(&[0, 3]), ..flash_model() };
                DeviceSpec::Flash(FlashSpec { model, filled: self.among(&[0, 100]), flush: self.span(9_000) })
            }
            0 => DeviceSpec::Hdd(HddSpec {
                sequential: self.span(20_000),
                random: self.span(2_000_000),
                read_rate: self.among(&[0, 100_000_000]),
                write_rate: self.among(&[0, 90_000_000]),
                open: self.span(100_000),
                flush: self.span(100_000),
            }),
            1 => DeviceSpec::Ssd(SsdSpec {
                channels: self.among(&[1, 3, 4]),
                packages: self.among(&[1, 2]),
                dies: self.among(&[1, 2]),
                page: self.among(&[512, 4096]),
                read: self.span(50_000),
                program: self.span(200_000),
                channel_rate: self.among(&[0, 40_000_000]),
                ftl: self.span(5_000),
                flush: self.span(9_000),
            }),
            2 => {
                let lanes = self.among(&[1, 2, 5]);
                station(lanes, self.span(300_000))
            }
            _ => {
                let costs = [(); 4].map(|()| MeasuredCost {
                    operation: self.span(9_000),
                    batch: self.span(9_000),
                    rate: self.among(&[0, 200_000_000]),
                    crowding: Time(self.among(&[0, 400_000])),
                    setup: self.span(200_000),
                    lane_rate: self.among(&[0, 90_000_000]),
                });
                let lanes = self.among(&[1, 3]);
                DeviceSpec::Measured(Box::new(MeasuredSpec {
                    lanes,
                    joined: lanes == 3,
                    costs,
                    open: self.span(9_000),
                    flush: self.span(99_000),
                }))
            }
        }
    }

    /// Nodes of the applications: each has its own, or the first ones are of all.
    fn nodes(&mut self, applications: &[Application]) -> Option<NodesSpec> {
        let ranks = self.among(&[1, 2, 3]);
        let cache = self.cache().map(|figures| NodeCache {
            figures,
            flush_on_close: self.0.chance(0.5),
            drop_on_open: self.0.chance(0.3),
        });
        let (mut first, apart) = (0, self.0.chance(0.5));
        let on = applications.iter().map(|all| {
            let on = OnNodes { first, direct: self.0.chance(0.2) };
            first += if apart { all.program.ranks().div_ceil(ranks) } else { 0 };
            on
        });
        let applications = on.collect();
        let call = Time(self.among(&[1, 500, 70_000]));
        self.0.chance(0.5).then_some(NodesSpec { ranks, call, cache, applications })
    }

    fn cache(&mut self) -> Option<CacheSpec> {
        let size = self.among(&[20_000, 200_000, 1 << 30]);
        let spec = CacheSpec {
            size,
            dirty: size / self.among(&[1, 2, 10]),
            delay: Time(self.among(&[1, 100_000, 10_000_000])),
            rate: self.among(&[0, 1_000_000_000]),
            read_ahead: self.among(&[0, 5_000, 100_000]),
            flushes: self.among(&[1, 4]),
            flush_bytes: self.among(&[1, 100_000]),
        };
        self.0.chance(0.5).then_some(spec)
    }

    fn program(&mut self, file: u32) -> Program {
        let ranks = 1 + self.0.below(4) as u32;
        match self.0.below(5) {
            4 => Program::Mdtest(Mdtest {
                ranks,
                files: 1 + self.0.below(3) as u32,
                bytes: self.among(&[0, 7_000]),
                directories: self.among(&[Sharing::Shared, Sharing::PerProcess]),
                file,
            }),
            0 => Program::Files(Files {
                ranks,
                files: 1 + self.0.below(3) as u32,
                bytes: self.among(&[0, 1, 7_000]),
                think: self.span(10_000),
                file,
            }),
            1 => Program::Arrivals(Arrivals {
                ranks,
                requests: 1 + self.0.below(15) as u32,
                between: self.span(300_000),
                op: self.among(&[Op::Read, Op::Write]),
                length: self.among(&[1, 4096, 10_000]),
                span: 100_000,
                seed: self.0.bits(),
                file,
            }),
            _ => {
                let transfer = self.among(&[100, 4096, 30_000]);
                Program::Ior(Ior {
                    ranks,
                    op: self.among(&[Op::Read, Op::Write]),
                    segments: 1 + self.0.below(2),
                    block: transfer * (1 + self.0.below(4)),
                    transfer,
                    order: self.among(&[Order::Sequential, Order::Random(5)]),
                    sharing: self.among(&[Sharing::Shared, Sharing::PerProcess]),
                    open: self.0.chance(0.5),
                    fsync: self.0.chance(0.5),
                    depth: self.among(&[1, 2, 9]),
                    barrier: self.0.chance(0.5),
                    think: self.span(50_000),
                    file,
                })
            }
        }
    }

    fn layout(&mut self, first: u32, all: u32) -> Layout {
        let stripe = self.among(&[500, 4096, 65_536]);
        let ring = |from: u32, to: u32, weight: u32| {
            Ring::new(stripe, &(from..to).map(|n| (n, 1 + n % weight)).collect::<Vec<_>>()).unwrap()
        };
        match self.0.below(5) {
            4 => {
                let weights: Vec<u32> = (0..all).map(|n| 1 + n % 2).collect();
                let chunk = self.among(&[4096, 65_536]);
                let layouts = [
                    types::Layout::wide(chunk, 0),
                    types::Layout::wide(chunk, 2),
                    types::Layout::weighted(chunk),
                    types::Layout::group(chunk, None),
                    types::Layout::group(chunk, Some(0)),
                ];
                let layout =
                    if self.0.chance(0.3) { types::Layout::LOCAL } else { self.among(&layouts).unwrap() };
                let groups: Vec<u16> = (0..all as u16).map(|n| n / 2).collect();
                Layout::Pool(PoolLayout::grouped(layout, &weights, &groups).unwrap())
            }
            3 => Layout::Buffered { buffer: ring(first, all, 2), store: ring(0, first, 1) },
            0 => Layout::Striped(ring(0, all, 1)),
            1 => Layout::Striped(ring(0, all, 3)),
            _ => {
                let regions = [(0, vec![region(3_000, 1), region(50_000, 0), region(70_000, 1)])];
                Layout::Tiered {
                    regions: regions.into(),
                    rings: vec![ring(0, first, 1), ring(first, all, 2)],
                }
            }
        }
    }
}

fn region(end: u64, ring: usize) -> tidepool_sim_models::striping::Region {
    tidepool_sim_models::striping::Region { end, ring }
}

/// The system of a seed: everything that there is comes up.
pub fn random_system(seed: u64) -> Pfs {
    let mut dice = Dice(Stream::new(seed, 77));
    let network = Network {
        latency: Time(dice.among(&[1, 1_000, 50_000])),
        client_bandwidth: dice.among(&[0, 10_000_000, 1_000_000_000]),
        header: dice.among(&[0, 100]),
        eager: dice.among(&[0, 4096, u32::MAX]),
    };
    let server = ServerSpec {
        threads: dice.among(&[1, 1, 3]),
        request: dice.span(30_000),
        metadata: dice.span(80_000),
        bus: Time(dice.among(&[1, 10_000])),
        cache: dice.cache(),
    };
    let counts = [1 + dice.0.below(3) as u32, 1 + dice.0.below(3) as u32];
    let mut classes = vec![class("h", counts[0], dice.device()), class("s", counts[1], dice.device())];
    classes[1].bandwidth = dice.among(&[0, 100_000_000]);
    for class in &mut classes {
        let policies = [Policy::Fifo, Policy::Nearest, Policy::Elevator, Policy::Deadline(Time(1_000_000))];
        let policy = dice.among(&policies);
        let queue = QueueSpec { policy, depth: dice.among(&[1, 1, 3]), merge: dice.among(&[0, 20_000]) };
        class.queue = dice.0.chance(0.5).then_some(queue);
    }
    let capacity = dice.among(&[3_000, 20_000, 1 << 30]);
    classes[1].buffer = Some(BufferSpec { capacity, evict_above: dice.among(&[0, capacity / 2, capacity]) });
    let layout = dice.layout(counts[0], counts[0] + counts[1]);
    let applications = (0..1 + dice.0.below(2)).map(|n| {
        let start = Time(dice.0.below(2) * 100_000);
        Application { start, ..application(dice.program(n as u32 * 40)) }
    });
    let applications: Vec<_> = applications.collect();
    // Of a stream of their own, so that all else is as without.
    let nodes = Dice(Stream::new(seed, 78)).nodes(&applications);
    let mut pfs = Pfs::new(network, server, classes, layout, applications).unwrap();
    if let Some(nodes) = nodes {
        pfs = pfs.with_nodes(nodes).unwrap();
    }
    if dice.0.chance(0.4) {
        let mut outages = Vec::new();
        for server in 0..pfs.servers() {
            let spans = (Span::Exponential(Time(3_000_000)), Span::Exponential(Time(1_000_000)));
            drawn(seed, server, spans, Time(20_000_000), &mut outages).unwrap();
        }
        pfs = pfs.with_outages(outages).unwrap();
    }
    if dice.0.chance(0.3) {
        let (topology, together) = (Topology::new(&two_leaves(2), &[]).unwrap(), dice.0.chance(0.5));
        pfs = pfs.with_topology(topology, together).unwrap();
    }
    pfs.near = dice.0.chance(0.5).then_some(Time(500));
    pfs.timeout = (dice.0.chance(0.2)).then_some(Time(dice.among(&[1_000_000, 5_000_000])));
    (pfs.keep_requests, pfs.keep_steps) = (true, seed.is_multiple_of(2));
    pfs
}

/// One rank's requests of file 0, one after the other.
pub fn listed(wanted: &[(Op, u64, u64)]) -> Program {
    let request = |&(op, offset, length): &(Op, u64, u64)| {
        let (after, pace) = (After::All, Pace::Think(Span::NONE));
        Request { op, file: 0, offset, length, after, pace }
    };
    Program::Listed(Listed { ranks: vec![wanted.iter().map(request).collect()] }.into())
}

/// Of each request, when all were kept.
pub fn took(results: &Results) -> Vec<u64> {
    results.all.iter().map(|request| request.end - request.begin).collect()
}
