//! Small systems: one for sums by hand, and random ones.

use tidepool_sim::{Stream, Time};
use tidepool_sim_models::device::{Cost, DeviceSpec, HddSpec, MeasuredSpec, SsdSpec, StationSpec};
use tidepool_sim_models::striping::{Layout, Ring};
use tidepool_sim_models::workload::{Arrivals, Files, Ior, Order, Program, Sharing};
use tidepool_sim_models::{Application, BufferSpec, Class, Network, Op, Pfs, ServerSpec, Span};

pub fn fixed(ticks: u64) -> Span {
    Span::Fixed(Time(ticks))
}

/// Links without limits: everything but the latency is up to the servers.
pub fn fast_network(latency: u64) -> Network {
    Network { latency: Time(latency), client_bandwidth: 0, header: 0, eager: u32::MAX }
}

pub fn idle_server(bus: u64) -> ServerSpec {
    ServerSpec { threads: 1, request: Span::NONE, metadata: Span::NONE, bus: Time(bus) }
}

pub fn station(lanes: u32, time: Span) -> DeviceSpec {
    DeviceSpec::Station(StationSpec { lanes, time })
}

pub fn even(stripe: u64, servers: u32) -> Layout {
    Layout::Striped(Ring::new(stripe, &(0..servers).map(|server| (server, 1)).collect::<Vec<_>>()).unwrap())
}

pub fn class(name: &str, count: u32, device: DeviceSpec) -> Class {
    Class { name: name.into(), count, device, bandwidth: 0, buffer: None }
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
        think: Span::NONE,
        file: 0,
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
        match self.0.below(4) {
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
                let costs = [(); 4].map(|()| Cost {
                    operation: self.span(9_000),
                    batch: self.span(9_000),
                    rate: self.among(&[0, 200_000_000]),
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

    fn program(&mut self, file: u32) -> Program {
        let ranks = 1 + self.0.below(4) as u32;
        match self.0.below(4) {
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
        match self.0.below(4) {
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
    };
    let counts = [1 + dice.0.below(3) as u32, 1 + dice.0.below(3) as u32];
    let mut classes = vec![class("h", counts[0], dice.device()), class("s", counts[1], dice.device())];
    classes[1].bandwidth = dice.among(&[0, 100_000_000]);
    let capacity = dice.among(&[3_000, 20_000, 1 << 30]);
    classes[1].buffer = Some(BufferSpec { capacity, evict_above: dice.among(&[0, capacity / 2, capacity]) });
    let layout = dice.layout(counts[0], counts[0] + counts[1]);
    let applications = (0..1 + dice.0.below(2)).map(|n| {
        let start = Time(dice.0.below(2) * 100_000);
        Application { start, ..application(dice.program(n as u32 * 40)) }
    });
    let applications: Vec<_> = applications.collect();
    let mut pfs = Pfs::new(network, server, classes, layout, applications).unwrap();
    (pfs.keep_requests, pfs.keep_steps) = (true, seed.is_multiple_of(2));
    pfs
}
