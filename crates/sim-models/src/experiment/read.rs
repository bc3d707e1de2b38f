//! From TOML to an [`Experiment`].

use super::described::{self, Described};
use super::fields::{Fields, Problem, Source, quoted, unknown};
use super::trace::{self, OFFSET_MAX, Stamps};
use super::{Experiment, Failing, Failure, FailureTimes, Pool, Servers, Spreading, Switches};
use crate::buffer::BufferSpec;
use crate::cache::CacheSpec;
use crate::device::{DeviceSpec, DiskSpec, FlashSpec, HddSpec, LANES_MAX, SsdSpec, StationSpec};
use crate::message::Op;
use crate::node::{NODE_RANKS_MAX, NodeCache, NodesSpec, OnNodes};
use crate::power::{Power, PowerSpec, parse_power};
use crate::queue::{DEPTH_MAX, Policy, QueueSpec};
use crate::span::{Span, parse_span, parse_time};
use crate::striping::STRIPE_MAX;
use crate::system::{Application, Class};
use crate::topology::{Description, NODES_MAX, Topology};
use crate::workload::{Arrivals, Files, Ior, Mdtest, Order, Program, Sharing};
use crate::{Network, ServerSpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_devices::SECTOR_BYTES;
use tidepool_devices::disk::file::DiskFile;
use tidepool_devices::ssd::SsdModel;
use tidepool_io_traces::Format;
use tidepool_sim::Time;
use tidepool_types::Placement;
use toml::de::DeTable;

/// Most bytes of an experiment file.
pub const TEXT_MAX: usize = 1 << 20;
/// Most workloads of one.
pub const LOADS_MAX: usize = 64;
/// Most devices, and classes of servers.
const CLASSES_MAX: usize = 64;
const SERVERS_MAX: u64 = 100_000;
const RANKS_MAX: u64 = 10_000_000;
/// Requests of all ranks together: each is remembered until the run ends.
const REQUESTS_MAX: u128 = 1 << 26;
/// Sub-requests of one request, and those of all ranks that may be under way at once.
const PIECES_MAX: u64 = 1 << 16;
const FLYING_MAX: u128 = 1 << 26;
const FAILURES_MAX: usize = 65_536;
const REGIONS_MAX: usize = 65_536;
/// Of a disk that files are spread over, without a size.
const DISK_BYTES: u64 = 8_000_000_000;
pub const RATE_MAX: u64 = 1 << 50;
/// Bytes of a name.
const NAME_MAX: usize = 64;

type Load<'a> = &'a dyn Fn(&str) -> Result<String, String>;
type Describe<'a> = &'a dyn Fn(&str) -> Result<Description, String>;

pub fn read(text: &str, load: Load<'_>, describe: Describe<'_>) -> Result<Experiment, Vec<Problem>> {
    let whole = |what: String| vec![Problem { line: None, what }];
    if text.len() > TEXT_MAX {
        return Err(whole(format!("it has {} bytes; at most {TEXT_MAX}", text.len())));
    }
    let source = Source::new(text);
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let source = Source::new(text);
        source.wrong(at, format!("not TOML: {}", error.message().trim_end()));
        source.end()
    })?;
    let experiment = top(Fields::new(&source, document.get_ref(), 0, "the file"), load, describe);
    let mut problems = source.end();
    if problems.is_empty() {
        // What is wrong between tables.
        if let Err(error) = experiment.system() {
            problems.extend(whole(error.to_string()));
        }
    }
    if problems.is_empty() { Ok(experiment) } else { Err(problems) }
}

fn top(mut fields: Fields<'_, '_>, load: Load<'_>, describe: Describe<'_>) -> Experiment {
    let seed = fields.number("seed", 1, 0, i64::MAX as u64);
    let (network, switches) = network(&mut fields, describe);
    let server = server(&mut fields);
    let devices: Vec<Device<'_>> = fields
        .tables("device", "[[device]]", CLASSES_MAX)
        .into_iter()
        .filter_map(|f| device(f, load))
        .collect();
    let servers = servers(&mut fields, &devices);
    let (stripe, spreading) = layout(&mut fields, &servers);
    let count = servers.iter().map(|servers| u64::from(servers.class.count)).sum();
    let (timeout, mut nodes) = client(&mut fields, stripe);
    let applications = applications(&mut fields, (stripe, count), &mut nodes, load);
    let failures = failures(&mut fields, &servers);
    let calibration = super::measured::calibration(&mut fields);
    fields.end();
    Experiment {
        seed,
        network,
        switches,
        server,
        servers,
        stripe,
        spreading,
        applications,
        failures,
        timeout,
        nodes,
        calibration,
    }
}

fn us(n: u64) -> Time {
    Time(n * 1_000)
}

fn network(fields: &mut Fields<'_, '_>, describe: Describe<'_>) -> (Network, Option<Switches>) {
    let mut network = Network { latency: us(50), client_bandwidth: 0, header: 256, eager: 16 << 10 };
    let Some(mut fields) = fields.table("network", "[network]") else { return (network, None) };
    network.latency = fields.time("latency", network.latency);
    network.client_bandwidth = fields.size("client-bandwidth", 0, RATE_MAX).unwrap_or(0);
    network.header = fields.size("header", 0, 1 << 20).map_or(network.header, |size| size as u32);
    network.eager = fields.size("eager", 0, STRIPE_MAX).map_or(network.eager, |size| size as u32);
    let switches = switches(&mut fields, describe);
    fields.end();
    (network, switches)
}

/// The switches that a file tells of, without those that are off.
fn switches(fields: &mut Fields<'_, '_>, describe: Describe<'_>) -> Option<Switches> {
    let off = fields.words("off").unwrap_or_default();
    let off: Vec<String> = off.into_iter().map(|(_, word)| word.to_string()).collect();
    let together = fields.choice("nodes", &[("apart", false), ("together", true)]);
    let Some((at, path)) = fields.text("topology") else {
        if !off.is_empty() || together.is_some() {
            fields.source.wrong(fields.at, "'off' and 'nodes' are of use with 'topology' only");
        }
        return None;
    };
    let told = |why: String| fields.source.wrong(at, format!("{}: {why}", quoted(path)));
    let described = describe(path).map_err(told).ok()?;
    let topology = Topology::new(&described, &off).map_err(|error| told(error.to_string())).ok()?;
    Some(Switches { topology, together: together.unwrap_or(false) })
}

fn server(fields: &mut Fields<'_, '_>) -> ServerSpec {
    let mut server = ServerSpec {
        threads: 1,
        request: Span::Fixed(us(20)),
        metadata: Span::Fixed(us(50)),
        bus: us(10),
        cache: None,
    };
    let Some(mut fields) = fields.table("server", "[server]") else { return server };
    server.threads = fields.number("threads", 1, 1, LANES_MAX.into()) as u32;
    server.request = fields.span("request", server.request);
    server.metadata = fields.span("metadata", server.metadata);
    server.bus = fields.time("bus", server.bus);
    server.cache = fields.table("cache", "[server.cache]").map(|mut fields| {
        let spec = cache(&mut fields);
        fields.end();
        spec
    });
    fields.end();
    server
}

/// A page cache; a tenth of it, or a fifth, may be dirty in systems of today.
fn cache(fields: &mut Fields<'_, '_>) -> CacheSpec {
    if !fields.has("size") {
        fields.missing("size");
    }
    let size = fields.size("size", 1, OFFSET_MAX).unwrap_or(1);
    let spec = CacheSpec {
        size,
        dirty: fields.size("dirty", 0, OFFSET_MAX).unwrap_or(size / 5),
        delay: fields.time("delay", Time(30_000_000_000)),
        rate: fields.size("rate", 0, RATE_MAX).unwrap_or(0),
        read_ahead: fields.size("read-ahead", 0, STRIPE_MAX).unwrap_or(128 << 10) as u32,
        flushes: fields.number("flushes", 8, 1, LANES_MAX.into()) as u32,
        flush_bytes: fields.size("flush", 1, STRIPE_MAX).unwrap_or(1 << 20) as u32,
    };
    if let Err(why) = spec.check() {
        fields.source.wrong(fields.at, why);
    }
    spec
}

/// A name, and nothing else is called so.
fn name<'s>(fields: &mut Fields<'s, '_>, taken: &[&str]) -> Option<&'s str> {
    let Some((at, name)) = fields.text("name") else {
        fields.missing("name");
        return None;
    };
    let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if name.is_empty() || name.len() > NAME_MAX || !fits {
        let what = format!("name '{}': 1 to {NAME_MAX} letters, digits, '-' and '_'", quoted(name));
        fields.source.wrong(at, what);
        return None;
    }
    if taken.contains(&name) {
        fields.source.wrong(at, format!("'{name}' is there twice"));
        return None;
    }
    Some(name)
}

/// Name, figures, how requests wait, and what it draws.
type Device<'s> = (&'s str, DeviceSpec, Option<QueueSpec>, Power);

/// A device that has nothing wrong, or a stand-in whose problems are told.
fn device<'s>(mut fields: Fields<'s, '_>, load: Load<'_>) -> Option<Device<'s>> {
    let name = name(&mut fields, &[]);
    if !fields.has("kind") {
        fields.missing("kind");
    }
    let rate = |fields: &mut Fields<'_, '_>, key| fields.size(key, 0, RATE_MAX).unwrap_or(0);
    let kinds = [("hdd", 0), ("ssd", 1), ("station", 2), ("disk", 3), ("flash", 4), ("measured", 5)];
    let kind = fields.choice("kind", &kinds);
    let part = |fields: &mut Fields<'_, '_>, key| fields.number(key, 1, 1, LANES_MAX.into()) as u32;
    let (at, source) = (fields.at, fields.source);
    let spec = match kind? {
        0 => DeviceSpec::Hdd(HddSpec {
            sequential: fields.span("sequential", Span::NONE),
            random: required(&mut fields, "random"),
            read_rate: rate(&mut fields, "read-rate"),
            write_rate: rate(&mut fields, "write-rate"),
            open: fields.span("open", Span::NONE),
            flush: fields.span("flush", Span::NONE),
        }),
        1 => DeviceSpec::Ssd(SsdSpec {
            channels: part(&mut fields, "channels"),
            packages: part(&mut fields, "packages"),
            dies: part(&mut fields, "dies"),
            page: fields.size("page", 512, 1 << 24).unwrap_or(4096) as u32,
            read: required(&mut fields, "read"),
            program: required(&mut fields, "program"),
            channel_rate: rate(&mut fields, "channel-rate"),
            ftl: fields.span("ftl", Span::NONE),
            flush: fields.span("flush", Span::NONE),
        }),
        3 => DeviceSpec::Disk(disk(&mut fields, load)?),
        4 => DeviceSpec::Flash(flash(&mut fields)),
        5 => DeviceSpec::Measured(Box::new(super::measured::read(&mut fields))),
        _ => DeviceSpec::Station(StationSpec {
            lanes: part(&mut fields, "lanes"),
            time: required(&mut fields, "time"),
        }),
    };
    let queue = queue(&mut fields);
    let power = power(&mut fields);
    fields.end();
    if let Err(why) = spec.check() {
        source.wrong(at, why);
    }
    name.map(|name| (name, spec, queue, power))
}

/// What something draws; as much as when it is idle where nothing is said of when it is busy.
fn power(fields: &mut Fields<'_, '_>) -> Power {
    let idle = fields.read("idle-power", parse_power).unwrap_or(0);
    let busy = fields.read("busy-power", parse_power).unwrap_or(idle);
    if busy < idle {
        fields.source.wrong(fields.at, "'busy-power' is below 'idle-power'");
    }
    Power { idle, busy }
}

/// How requests wait for a device.
fn queue(fields: &mut Fields<'_, '_>) -> Option<QueueSpec> {
    let named = [("fifo", 0), ("sstf", 1), ("elevator", 2), ("deadline", 3)];
    let has = fields.has("scheduler");
    let policy = match fields.choice("scheduler", &named) {
        Some(3) => Policy::Deadline(fields.time("expire", us(500_000))),
        Some(2) => Policy::Elevator,
        Some(1) => Policy::Nearest,
        _ => Policy::Fifo,
    };
    let depth = fields.number("depth", 1, 1, DEPTH_MAX.into()) as u32;
    let merge = fields.size("merge", 0, STRIPE_MAX).unwrap_or(0) as u32;
    for key in ["depth", "merge", "expire"].into_iter().filter(|key| fields.has(key) && !has) {
        fields.source.wrong(fields.at, format!("'{key}' is of use with 'scheduler' only"));
    }
    has.then_some(QueueSpec { policy, depth, merge })
}

/// A disk whose model is in a file of its own (format 27).
fn disk(fields: &mut Fields<'_, '_>, load: Load<'_>) -> Option<DiskSpec> {
    let size = fields.size("size", SECTOR_BYTES, OFFSET_MAX).unwrap_or(DISK_BYTES);
    let (open, flush) = (fields.span("open", Span::NONE), fields.span("flush", Span::NONE));
    let Some((at, path)) = fields.text("model") else {
        fields.missing("model");
        return None;
    };
    let told = |why: String| fields.source.wrong(at, format!("{}: {why}", quoted(path)));
    let text = load(path).map_err(told).ok()?;
    let file = DiskFile::read(&text).map_err(|error| told(error.to_string())).ok()?;
    Some(DiskSpec { model: Arc::new(file.model), size, open, flush })
}

/// Flash with its translation layer.
fn flash(fields: &mut Fields<'_, '_>) -> FlashSpec {
    let page_bytes = fields.size("page", SECTOR_BYTES, 1 << 24).unwrap_or(4096);
    let rate = fields.size("channel-rate", 0, RATE_MAX).unwrap_or(0);
    let part = |fields: &mut Fields<'_, '_>, key, without| fields.number(key, without, 1, LANES_MAX.into());
    let ticks = |fields: &mut Fields<'_, '_>, key| {
        if !fields.has(key) {
            fields.missing(key);
        }
        fields.time(key, Time::ZERO).0
    };
    let model = SsdModel {
        channels: part(fields, "channels", 1),
        packages_per_channel: part(fields, "packages", 1),
        dies_per_package: part(fields, "dies", 1),
        blocks_per_die: part(fields, "blocks", 64),
        pages_per_block: part(fields, "block-pages", 64),
        page_bytes,
        over_provisioning: fields.number("spare", 7, 0, 99) as f64 / 100.0,
        read_ns: ticks(fields, "read"),
        program_ns: ticks(fields, "program"),
        erase_ns: ticks(fields, "erase"),
        transfer_ns: (page_bytes as f64 * crate::network::per_byte(rate)) as u64,
        command_ns: fields.time("command", Time::ZERO).0,
        buffer_pages: fields.size("buffer", 0, OFFSET_MAX).unwrap_or(0) / page_bytes,
    };
    let filled = fields.number("filled", 100, 0, 100) as u32;
    FlashSpec { model, filled, flush: fields.span("flush", Span::NONE) }
}

fn required(fields: &mut Fields<'_, '_>, key: &'static str) -> Span {
    if !fields.has(key) {
        fields.missing(key);
    }
    fields.span(key, Span::NONE)
}

fn servers(fields: &mut Fields<'_, '_>, devices: &[Device<'_>]) -> Vec<Servers> {
    let mut all: Vec<Servers> = Vec::new();
    for mut fields in fields.tables("servers", "[[servers]]", CLASSES_MAX) {
        let taken: Vec<&str> = all.iter().map(|servers| servers.class.name.as_str()).collect();
        let name = name(&mut fields, &taken).map(String::from);
        let count = fields.number("count", 1, 0, SERVERS_MAX) as u32;
        let weight = fields.number("weight", 1, 0, 1_000) as u32;
        let price = fields.number("price", 1, 0, 1_000_000_000) as f64;
        let bandwidth = fields.size("bandwidth", 0, RATE_MAX).unwrap_or(0);
        let capacity = fields.size("capacity", 1, OFFSET_MAX);
        let evict_above = fields.size("evict-above", 0, OFFSET_MAX);
        let buffer = capacity
            .map(|capacity| BufferSpec { capacity, evict_above: evict_above.unwrap_or(capacity / 2) });
        if !fields.has("device") {
            fields.missing("device");
        }
        let server_power = power(&mut fields);
        let device = fields.text("device");
        let known: Vec<&str> = devices.iter().map(|device| device.0).collect();
        let spec = device.and_then(|(at, word)| {
            let found = devices.iter().find(|device| device.0 == word);
            if found.is_none() {
                fields.source.wrong(at, unknown("device", word, &known));
            }
            found.map(|(_, spec, queue, power)| (spec.clone(), *queue, *power))
        });
        if evict_above.is_some() && capacity.is_none() {
            fields.source.wrong(fields.at, "'evict-above' is of use with 'capacity' only");
        }
        fields.end();
        if let (Some(name), Some((device, queue, device_power))) = (name, spec) {
            let power = PowerSpec { server: server_power, device: device_power };
            let class = Class { bandwidth, buffer, queue, power, ..Class::new(name, count, device) };
            all.push(Servers { class, weight, price });
        }
    }
    all
}

/// The class of a name.
fn class(fields: &Fields<'_, '_>, servers: &[Servers], (at, word): (usize, &str)) -> Option<usize> {
    let found = servers.iter().position(|servers| servers.class.name == word);
    if found.is_none() {
        let known: Vec<&str> = servers.iter().map(|servers| servers.class.name.as_str()).collect();
        fields.source.wrong(at, unknown("class of servers", word, &known));
    }
    found
}

fn class_of(fields: &mut Fields<'_, '_>, servers: &[Servers], key: &'static str) -> usize {
    let Some(word) = fields.text(key) else {
        fields.missing(key);
        return 0;
    };
    class(fields, servers, word).unwrap_or(0)
}

fn layout(fields: &mut Fields<'_, '_>, servers: &[Servers]) -> (u64, Spreading) {
    let all = (0..servers.len()).collect();
    let Some(mut fields) = fields.table("layout", "[layout]") else {
        return (64 << 10, Spreading::Striped(all));
    };
    let stripe = fields.size("stripe", 1, STRIPE_MAX).unwrap_or(64 << 10);
    let kinds = [("striped", 0), ("buffered", 1), ("tiered", 2), ("pool", 3)];
    let kind = fields.choice("kind", &kinds).unwrap_or(0);
    if kind == 3 {
        let pool = pool(&mut fields, stripe);
        fields.end();
        return pool;
    }
    let spreading = match kind {
        0 => {
            let words = fields.words("servers");
            let named = words
                .map(|words| words.into_iter().filter_map(|word| class(&fields, servers, word)).collect());
            Spreading::Striped(named.unwrap_or(all))
        }
        1 => Spreading::Buffered {
            buffer: class_of(&mut fields, servers, "buffer"),
            store: class_of(&mut fields, servers, "store"),
        },
        _ => Spreading::Tiered {
            rest: class_of(&mut fields, servers, "rest"),
            regions: regions(&mut fields, servers),
        },
    };
    fields.end();
    (stripe, spreading)
}

fn pool(fields: &mut Fields<'_, '_>, stripe: u64) -> (u64, Spreading) {
    let words = [Placement::Wide, Placement::Local, Placement::Weighted, Placement::Group];
    let placement = fields.choice("placement", &words.map(|all| (all.word(), all)));
    let placement = placement.unwrap_or(Placement::Wide);
    let in_turn = fields.number("in-turn", 0, 0, u16::MAX.into()) as u16;
    let near = fields.read("near", parse_time);
    if in_turn > 0 && placement != Placement::Wide {
        fields.source.wrong(fields.at, "'in-turn' is of use with placement \"wide\" only");
    }
    let (groups, group) = groups(fields, placement);
    // Such files are not cut into chunks of any size.
    let stripe =
        if placement == Placement::Local { tidepool_types::Layout::LOCAL.chunk_size() } else { stripe };
    (stripe, Spreading::Pool(Pool { placement, in_turn, near, groups, group }))
}

/// The group of each server, numbered as they come up, as in a pool's file; and the one that has all data.
fn groups(fields: &mut Fields<'_, '_>, placement: Placement) -> (Vec<u16>, Option<u16>) {
    for key in ["groups", "group"] {
        if fields.has(key) && placement != Placement::Group {
            fields.source.wrong(fields.at, format!("'{key}' is of use with placement \"group\" only"));
        }
    }
    let mut numbers: BTreeMap<&str, u16> = BTreeMap::new();
    let words = fields.words("groups").unwrap_or_default();
    let all = words.into_iter().map(|(_, word)| {
        let next = u16::try_from(numbers.len()).unwrap_or(u16::MAX);
        *numbers.entry(word).or_insert(next)
    });
    let all = all.collect();
    let named = fields.text("group").and_then(|(at, word)| {
        let number = numbers.get(word).copied();
        if number.is_none() {
            let names: Vec<&str> = numbers.keys().copied().collect();
            fields.source.wrong(at, unknown("group", word, &names));
        }
        number
    });
    (all, named)
}

fn regions(fields: &mut Fields<'_, '_>, servers: &[Servers]) -> Vec<(u32, u64, u64, usize)> {
    let mut all: Vec<(u32, u64, u64, usize)> = Vec::new();
    for mut fields in fields.tables("region", "[[layout.region]]", REGIONS_MAX) {
        let file = fields.number("file", 0, 0, u32::MAX.into()) as u32;
        let from = fields.size("from", 0, OFFSET_MAX).unwrap_or(0);
        let to = fields.size("to", 1, OFFSET_MAX).unwrap_or(OFFSET_MAX);
        let class = class_of(&mut fields, servers, "servers");
        let last = all.iter().rfind(|region| region.0 == file);
        if from >= to {
            fields.source.wrong(fields.at, "a region that ends before it begins");
        } else if last.is_some_and(|last| from < last.2) {
            let what = format!("regions of file {file} overlap, or are out of order");
            fields.source.wrong(fields.at, what);
        }
        all.push((file, from, to, class));
        fields.end();
    }
    all
}

/// After which clients give up, and what ranks share, as far as it does not depend on the workload.
fn client(fields: &mut Fields<'_, '_>, stripe: u64) -> (Option<Time>, Option<NodesSpec>) {
    let Some(mut fields) = fields.table("client", "[client]") else { return (None, None) };
    let timeout = fields.read("timeout", parse_time);
    let has_call = fields.has("call");
    let call = fields.time("call", Time(500));
    let shares = fields.has("ranks-per-node");
    let ranks = fields.number("ranks-per-node", 1, 1, NODE_RANKS_MAX.into()) as u32;
    let cache = fields.table("cache", "[client.cache]").map(|fields| node_cache(fields, stripe));
    if has_call && cache.is_none() && !shares {
        fields.source.wrong(fields.at, "'call' is of use with 'ranks-per-node' or [client.cache] only");
    }
    fields.end();
    let nodes =
        (cache.is_some() || shares).then(|| NodesSpec { ranks, call, cache, applications: Vec::new() });
    (timeout, nodes)
}

fn node_cache(mut fields: Fields<'_, '_>, stripe: u64) -> NodeCache {
    let figures = cache(&mut fields);
    for (key, bytes) in [("flush", figures.flush_bytes), ("read-ahead", figures.read_ahead)] {
        let pieces = u64::from(bytes).div_ceil(stripe) + 1;
        if pieces > PIECES_MAX {
            let what = format!("'{key}': {bytes} bytes are {pieces} stripes; at most {PIECES_MAX}");
            fields.source.wrong(fields.at, what);
        }
    }
    let on_close = fields.choice("on-close", &[("flush", true), ("keep", false)]);
    let on_open = fields.choice("on-open", &[("keep", false), ("drop", true)]);
    fields.end();
    NodeCache { figures, flush_on_close: on_close.unwrap_or(true), drop_on_open: on_open.unwrap_or(false) }
}

/// Where a workload's first application runs, and how; `next` is the node behind those before.
fn on_nodes(fields: &mut Fields<'_, '_>, nodes: Option<&NodesSpec>, next: u32) -> OnNodes {
    if fields.has("node") && nodes.is_none() {
        fields.source.wrong(fields.at, "'node' is of use with 'ranks-per-node' or [client.cache] only");
    }
    if fields.has("direct") && nodes.is_none_or(|nodes| nodes.cache.is_none()) {
        fields.source.wrong(fields.at, "'direct' is of use with [client.cache] only");
    }
    let first = fields.number("node", next.into(), 0, NODES_MAX as u64 - 1) as u32;
    OnNodes { first, direct: fields.flag("direct", false) }
}

fn failures(fields: &mut Fields<'_, '_>, servers: &[Servers]) -> Vec<Failure> {
    let mut all = Vec::new();
    for mut fields in fields.tables("failure", "[[failure]]", FAILURES_MAX) {
        let (at, source) = (fields.at, fields.source);
        let count: u64 = servers.iter().map(|servers| u64::from(servers.class.count)).sum();
        let number = fields.number("server", 0, 0, count.saturating_sub(1)) as u32;
        let failing = match (fields.has("server"), fields.has("servers")) {
            (true, false) => Some(Failing::One(number)),
            (false, true) => Some(Failing::Class(class_of(&mut fields, servers, "servers"))),
            _ => {
                source
                    .wrong(at, "a [[failure]] has either 'server', a number, or 'servers', a class of them");
                None
            }
        };
        let once = fields.read("at", parse_time);
        let between = fields.read("between", parse_span);
        let until = fields.read("until", parse_time);
        let repair = required(&mut fields, "repair");
        let times = match (once, between, until, repair) {
            (Some(at), None, None, Span::Fixed(repair)) => Some(FailureTimes::Once(at, repair)),
            (None, Some(between), Some(until), repair) => Some(FailureTimes::Drawn(between, repair, until)),
            _ => {
                let what =
                    "a [[failure]] has either 'at' and a fixed 'repair', or 'between', 'repair' and 'until'";
                source.wrong(at, what);
                None
            }
        };
        fields.end();
        all.extend(failing.zip(times).map(|(servers, times)| Failure { servers, times }));
    }
    all
}

/// Of files with this stripe size, on so many servers.
fn applications(
    fields: &mut Fields<'_, '_>,
    system: (u64, u64),
    nodes: &mut Option<NodesSpec>,
    load: Load<'_>,
) -> Vec<Application> {
    let (mut all, mut requests, mut flying) = (Vec::<Application>::new(), 0u128, 0u128);
    let (mut next_file, mut next_node) = (0u32, 0u32);
    for mut fields in fields.tables("workload", "[[workload]]", LOADS_MAX) {
        let (at, source) = (fields.at, fields.source);
        let taken: Vec<&str> = all.iter().map(|all| all.name.as_str()).collect();
        let name = name(&mut fields, &taken).map(String::from);
        let start = fields.time("start", Time::ZERO);
        let file = fields.number("file", next_file.into(), 0, u32::MAX.into()) as u32;
        let mut on = on_nodes(&mut fields, nodes.as_ref(), next_node);
        let Some(loads) = loads(&mut fields, file, load) else {
            continue;
        };
        fields.end();
        let files = loads.iter().map(|load| load.files).sum::<u64>();
        let Some(end) = u32::try_from(files).ok().and_then(|files| file.checked_add(files)) else {
            source.wrong(at, format!("{files} files from number {file} on; at most {}", u32::MAX));
            continue;
        };
        next_file = next_file.max(end);
        for Loaded { within, later, program, .. } in loads {
            let ranks = u128::from(program.ranks());
            requests += ranks * u128::from(program.longest());
            flying += ranks * u128::from(under_way(&program, system, source, at));
            if let Some(name) = &name {
                let name = within.map_or(name.clone(), |within| format!("{name}.{within}"));
                if let Some(nodes) = nodes.as_mut() {
                    nodes.applications.push(on);
                    on.first = on.first.saturating_add(program.ranks().div_ceil(nodes.ranks));
                    next_node = next_node.max(on.first);
                }
                all.push(Application { name, start: start.plus(later), program });
            }
        }
        if requests > REQUESTS_MAX {
            source.wrong(at, format!("{requests} requests up to here; at most {REQUESTS_MAX}"));
        }
        if flying > FLYING_MAX {
            let what =
                format!("up to {flying} sub-requests under way at once up to here; at most {FLYING_MAX}");
            source.wrong(at, what);
        }
    }
    if all.is_empty() && fields.source.is_sound() {
        fields.source.wrong(0, "there is no [[workload]]");
    }
    all
}

/// Sub-requests that a rank may have under way.
fn under_way(program: &Program, (stripe, servers): (u64, u64), source: &Source<'_>, at: usize) -> u64 {
    let (length, depth) = match program {
        Program::Ior(all) => (all.transfer, u64::from(all.depth).min(program.longest())),
        Program::Files(all) => (all.bytes, 1),
        Program::Mdtest(all) => (all.bytes, 1),
        Program::Arrivals(all) => (all.length, u64::from(all.requests)),
        Program::Listed(all) => (all.ranks.iter().flatten().map(|r| r.length).max().unwrap_or(0), 1),
    };
    let pieces = length.div_ceil(stripe) + 1;
    if pieces > PIECES_MAX {
        source.wrong(at, format!("a request of {length} bytes is {pieces} stripes; at most {PIECES_MAX}"));
    }
    // An fsync goes to every server.
    let everywhere = match program {
        Program::Ior(all) if all.fsync => servers,
        Program::Listed(all) if all.ranks.iter().flatten().any(|r| r.op == Op::Fsync) => servers,
        _ => 0,
    };
    (pieces * depth).max(everywhere)
}

/// A program of a `[[workload]]`.
struct Loaded {
    /// Its name, where there are several.
    within: Option<String>,
    /// After the start of all.
    later: Time,
    program: Program,
    files: u64,
}

fn loads(fields: &mut Fields<'_, '_>, file: u32, load: Load<'_>) -> Option<Vec<Loaded>> {
    if fields.text("kind").is_some_and(|(_, kind)| kind == "workload") {
        return described(fields, file, load);
    }
    let (program, files) = program(fields, file, load)?;
    Some(vec![Loaded { within: None, later: Time::ZERO, program, files }])
}

/// Applications from a file of their own (format 23).
fn described(fields: &mut Fields<'_, '_>, file: u32, load: Load<'_>) -> Option<Vec<Loaded>> {
    let Some((at, path)) = fields.text("path") else {
        fields.missing("path");
        return None;
    };
    let told = |problem: String| fields.source.wrong(at, format!("{}: {problem}", quoted(path)));
    let text = load(path).map_err(told).ok()?;
    let all = described::read(&text, file).map_err(|problems| problems.into_iter().for_each(told)).ok()?;
    let one = |one: Described| Loaded {
        within: Some(one.name),
        later: one.start,
        program: Program::Listed(Arc::new(one.listed)),
        files: one.files.into(),
    };
    Some(all.into_iter().map(one).collect())
}

/// The last one is read before these are looked at.
const KINDS: &[(&str, u32)] =
    &[("ior", 0), ("files", 1), ("arrivals", 2), ("trace", 3), ("mdtest", 4), ("workload", 5)];

/// And how many files it has.
fn program(fields: &mut Fields<'_, '_>, file: u32, load: Load<'_>) -> Option<(Program, u64)> {
    if !fields.has("kind") {
        fields.missing("kind");
    }
    let kind = fields.choice("kind", KINDS)?;
    if kind == 3 {
        return listed(fields, file, load);
    }
    let ranks = fields.number("ranks", 1, 1, RANKS_MAX) as u32;
    let ops = [("read", Op::Read), ("write", Op::Write)];
    let program = match kind {
        0 => Program::Ior(ior(fields, ranks, file, &ops)),
        4 => Program::Mdtest(Mdtest {
            ranks,
            files: fields.number("files", 1, 1, 1 << 24) as u32,
            bytes: fields.size("bytes", 0, STRIPE_MAX).unwrap_or(0),
            directories: fields
                .choice("directories", &[("shared", Sharing::Shared), ("per-process", Sharing::PerProcess)])
                .unwrap_or(Sharing::Shared),
            file,
        }),
        1 => Program::Files(Files {
            ranks,
            files: fields.number("files", 1, 1, 1 << 24) as u32,
            bytes: fields.size("bytes", 0, STRIPE_MAX).unwrap_or(0),
            think: fields.span("think", Span::NONE),
            file,
        }),
        _ => {
            let length = fields.size("length", 1, STRIPE_MAX).unwrap_or(4096);
            Program::Arrivals(Arrivals {
                ranks,
                requests: fields.number("requests", 1, 1, 1 << 26) as u32,
                between: required(fields, "between"),
                op: fields.choice("op", &ops).unwrap_or(Op::Read),
                length,
                span: fields.size("span", length, OFFSET_MAX).unwrap_or(length),
                seed: fields.number("seed", 1, 0, i64::MAX as u64),
                file,
            })
        }
    };
    let files = program.files().1;
    Some((program, files))
}

fn ior(fields: &mut Fields<'_, '_>, ranks: u32, file: u32, ops: &[(&'static str, Op)]) -> Ior {
    let transfer = fields.size("transfer", 1, STRIPE_MAX).unwrap_or(256 << 10);
    let block = fields.size("block", 1, OFFSET_MAX >> 20).unwrap_or(transfer);
    let segments = fields.number("segments", 1, 1, 1 << 20);
    if !block.is_multiple_of(transfer) {
        let what = format!("'block' is {block} bytes, which is no multiple of 'transfer', {transfer}");
        fields.source.wrong(fields.at, what);
    }
    let far = u128::from(block) * u128::from(segments) * u128::from(ranks);
    if far > u128::from(OFFSET_MAX) {
        fields.source.wrong(fields.at, format!("all ranks together have {far} bytes; at most {OFFSET_MAX}"));
    }
    let seed = fields.number("seed", 1, 0, i64::MAX as u64);
    let orders = [("sequential", Order::Sequential), ("random", Order::Random(seed))];
    let sharing = [("shared", Sharing::Shared), ("per-process", Sharing::PerProcess)];
    Ior {
        ranks,
        op: fields.choice("op", ops).unwrap_or(Op::Write),
        segments,
        block,
        transfer,
        order: fields.choice("order", &orders).unwrap_or(Order::Sequential),
        sharing: fields.choice("files", &sharing).unwrap_or(Sharing::Shared),
        open: fields.flag("open", true),
        fsync: fields.flag("fsync", false),
        barrier: fields.flag("barrier", false),
        depth: fields.number("depth", 1, 1, 1 << 16) as u32,
        think: fields.span("think", Span::NONE),
        file,
    }
}

fn listed(fields: &mut Fields<'_, '_>, file: u32, load: Load<'_>) -> Option<(Program, u64)> {
    let stamps = [("recorded", Stamps::Recorded), ("ignored", Stamps::Ignored)];
    let stamps = fields.choice("stamps", &stamps).unwrap_or(Stamps::Recorded);
    let Some((at, path)) = fields.text("path") else {
        fields.missing("path");
        return None;
    };
    let told =
        |problem: &dyn std::fmt::Display| fields.source.wrong(at, format!("{}: {problem}", quoted(path)));
    let formats = Format::ALL.map(|format| (format.name(), Some(format)));
    let formats = [&[("requests", None)], &formats[..]].concat();
    let format = if fields.has("format") { fields.choice("format", &formats)? } else { None };
    let text = load(path).map_err(|why| told(&why)).ok()?;
    let read = match format {
        None => trace::read(&text, stamps, file),
        Some(format) => trace::of_format(format, &text, stamps, file),
    };
    match read {
        Ok((listed, files)) => Some((Program::Listed(Arc::new(listed)), files.into())),
        Err(problems) => {
            problems.iter().for_each(|problem| told(problem));
            None
        }
    }
}
