//! From TOML to an [`Experiment`].

use super::fields::{Fields, Problem, Source, quoted, unknown};
use super::trace::{self, OFFSET_MAX, Stamps};
use super::{Experiment, Servers, Spreading};
use crate::buffer::BufferSpec;
use crate::device::{DeviceSpec, HddSpec, LANES_MAX, SsdSpec, StationSpec};
use crate::message::Op;
use crate::span::Span;
use crate::striping::STRIPE_MAX;
use crate::system::{Application, Class};
use crate::workload::{Arrivals, Files, Ior, Order, Program, Sharing};
use crate::{Network, ServerSpec};
use std::sync::Arc;
use tidepool_sim::Time;
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
const REGIONS_MAX: usize = 65_536;
pub const RATE_MAX: u64 = 1 << 50;
/// Bytes of a name.
const NAME_MAX: usize = 64;

type Load<'a> = &'a dyn Fn(&str) -> Result<String, String>;

pub fn read(text: &str, load: Load<'_>) -> Result<Experiment, Vec<Problem>> {
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
    let experiment = top(Fields::new(&source, document.get_ref(), 0, "the file"), load);
    let mut problems = source.end();
    if problems.is_empty() {
        // What is wrong between tables.
        if let Err(error) = experiment.system() {
            problems.extend(whole(error.to_string()));
        }
    }
    if problems.is_empty() { Ok(experiment) } else { Err(problems) }
}

fn top(mut fields: Fields<'_, '_>, load: Load<'_>) -> Experiment {
    let seed = fields.number("seed", 1, 0, i64::MAX as u64);
    let network = network(&mut fields);
    let server = server(&mut fields);
    let devices: Vec<(&str, DeviceSpec)> =
        fields.tables("device", "[[device]]", CLASSES_MAX).into_iter().filter_map(device).collect();
    let servers = servers(&mut fields, &devices);
    let (stripe, spreading) = layout(&mut fields, &servers);
    let count = servers.iter().map(|servers| u64::from(servers.class.count)).sum();
    let applications = applications(&mut fields, (stripe, count), load);
    let calibration = super::measured::calibration(&mut fields);
    fields.end();
    Experiment { seed, network, server, servers, stripe, spreading, applications, calibration }
}

fn us(n: u64) -> Time {
    Time(n * 1_000)
}

fn network(fields: &mut Fields<'_, '_>) -> Network {
    let mut network = Network { latency: us(50), client_bandwidth: 0, header: 256, eager: 16 << 10 };
    let Some(mut fields) = fields.table("network", "[network]") else { return network };
    network.latency = fields.time("latency", network.latency);
    network.client_bandwidth = fields.size("client-bandwidth", 0, RATE_MAX).unwrap_or(0);
    network.header = fields.size("header", 0, 1 << 20).map_or(network.header, |size| size as u32);
    network.eager = fields.size("eager", 0, STRIPE_MAX).map_or(network.eager, |size| size as u32);
    fields.end();
    network
}

fn server(fields: &mut Fields<'_, '_>) -> ServerSpec {
    let mut server =
        ServerSpec { threads: 1, request: Span::Fixed(us(20)), metadata: Span::Fixed(us(50)), bus: us(10) };
    let Some(mut fields) = fields.table("server", "[server]") else { return server };
    server.threads = fields.number("threads", 1, 1, LANES_MAX.into()) as u32;
    server.request = fields.span("request", server.request);
    server.metadata = fields.span("metadata", server.metadata);
    server.bus = fields.time("bus", server.bus);
    fields.end();
    server
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

/// A device that has nothing wrong, or a stand-in whose problems are told.
fn device<'s>(mut fields: Fields<'s, '_>) -> Option<(&'s str, DeviceSpec)> {
    let name = name(&mut fields, &[]);
    if !fields.has("kind") {
        fields.missing("kind");
    }
    let rate = |fields: &mut Fields<'_, '_>, key| fields.size(key, 0, RATE_MAX).unwrap_or(0);
    let kind = fields.choice("kind", &[("hdd", 0), ("ssd", 1), ("station", 2), ("measured", 3)]);
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
        3 => DeviceSpec::Measured(Box::new(super::measured::read(&mut fields))),
        _ => DeviceSpec::Station(StationSpec {
            lanes: part(&mut fields, "lanes"),
            time: required(&mut fields, "time"),
        }),
    };
    fields.end();
    if let Err(why) = spec.check() {
        source.wrong(at, why);
    }
    name.map(|name| (name, spec))
}

fn required(fields: &mut Fields<'_, '_>, key: &'static str) -> Span {
    if !fields.has(key) {
        fields.missing(key);
    }
    fields.span(key, Span::NONE)
}

fn servers(fields: &mut Fields<'_, '_>, devices: &[(&str, DeviceSpec)]) -> Vec<Servers> {
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
        let device = fields.text("device");
        let known: Vec<&str> = devices.iter().map(|(name, _)| *name).collect();
        let spec = device.and_then(|(at, word)| {
            let found = devices.iter().find(|(name, _)| *name == word);
            if found.is_none() {
                fields.source.wrong(at, unknown("device", word, &known));
            }
            found.map(|(_, spec)| spec.clone())
        });
        if evict_above.is_some() && capacity.is_none() {
            fields.source.wrong(fields.at, "'evict-above' is of use with 'capacity' only");
        }
        fields.end();
        if let (Some(name), Some(device)) = (name, spec) {
            all.push(Servers { class: Class { name, count, device, bandwidth, buffer }, weight, price });
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
    let kind = fields.choice("kind", &[("striped", 0), ("buffered", 1), ("tiered", 2)]).unwrap_or(0);
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

/// Of files with this stripe size, on so many servers.
fn applications(fields: &mut Fields<'_, '_>, system: (u64, u64), load: Load<'_>) -> Vec<Application> {
    let (mut all, mut requests, mut flying) = (Vec::<Application>::new(), 0u128, 0u128);
    let mut next_file = 0u32;
    for mut fields in fields.tables("workload", "[[workload]]", LOADS_MAX) {
        let (at, source) = (fields.at, fields.source);
        let taken: Vec<&str> = all.iter().map(|all| all.name.as_str()).collect();
        let name = name(&mut fields, &taken).map(String::from);
        let start = fields.time("start", Time::ZERO);
        let file = fields.number("file", next_file.into(), 0, u32::MAX.into()) as u32;
        let Some((program, files)) = program(&mut fields, file, load) else {
            continue;
        };
        fields.end();
        let Some(end) = u32::try_from(files).ok().and_then(|files| file.checked_add(files)) else {
            source.wrong(at, format!("{files} files from number {file} on; at most {}", u32::MAX));
            continue;
        };
        next_file = next_file.max(end);
        let ranks = u128::from(program.ranks());
        requests += ranks * u128::from(program.longest());
        flying += ranks * u128::from(under_way(&program, system, source, at));
        if requests > REQUESTS_MAX {
            source.wrong(at, format!("{requests} requests up to here; at most {REQUESTS_MAX}"));
        }
        if flying > FLYING_MAX {
            let what =
                format!("up to {flying} sub-requests under way at once up to here; at most {FLYING_MAX}");
            source.wrong(at, what);
        }
        if let Some(name) = name {
            all.push(Application { name, start, program });
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

/// And how many files it has.
fn program(fields: &mut Fields<'_, '_>, file: u32, load: Load<'_>) -> Option<(Program, u64)> {
    if !fields.has("kind") {
        fields.missing("kind");
    }
    let kind = fields.choice("kind", &[("ior", 0), ("files", 1), ("arrivals", 2), ("trace", 3)])?;
    if kind == 3 {
        return listed(fields, file, load);
    }
    let ranks = fields.number("ranks", 1, 1, RANKS_MAX) as u32;
    let ops = [("read", Op::Read), ("write", Op::Write)];
    let program = match kind {
        0 => Program::Ior(ior(fields, ranks, file, &ops)),
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
    let text = load(path).map_err(|why| told(&why)).ok()?;
    match trace::read(&text, stamps, file) {
        Ok((listed, files)) => Some((Program::Listed(Arc::new(listed)), files.into())),
        Err(problems) => {
            problems.iter().for_each(|problem| told(problem));
            None
        }
    }
}
