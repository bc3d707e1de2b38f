//! `tidepool sim scale`: the paper's study of the simulator's own speed (S1 §IV-C, Figure 6).

use super::engine::Watch;
use super::group::Group;
use super::pfs_flags::ScaleArgs;
use crate::bench::report::{identity, machine};
use crate::exit::{Context, Failure, Kind, Result};
use crate::signals::Signals;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use tidepool_sim::Time;
use tidepool_sim_models::device::{DeviceSpec, HddSpec};
use tidepool_sim_models::striping::{Layout, Ring};
use tidepool_sim_models::workload::{Ior, Order, Program, Sharing};
use tidepool_sim_models::{Application, Class, Network, Op, Pfs, ServerSpec, Span};
use tidepool_types::format_size;

/// Most sub-requests of one read.
const PIECES_MAX: u64 = 1 << 16;

pub fn scale(args: &ScaleArgs) -> Result<ExitCode> {
    Group::run(args.mpi, |group| scale_in(args, group))
}

fn scale_in(args: &ScaleArgs, group: &mut Group) -> Result<ExitCode> {
    group.same(args.engine.check())?;
    let signals = Signals::watch()?;
    let pieces = args.transfer.div_ceil(args.stripe);
    if pieces > PIECES_MAX {
        let text = format!("--transfer is {pieces} stripes; at most {PIECES_MAX}");
        return group.same(Err(Failure::new(Kind::Usage, text)));
    }
    let system = group.same(system(args))?;
    let watch = Watch { events: events(args), ..Watch::default() };
    let about = model(args).to_string();
    let outcome = match args.mpi {
        true => args.engine.run_over((system, &about), args.seed, (&signals, &watch), group, |_| {}),
        false => args.engine.run_with(system, args.seed, &signals, &watch, |_| {}),
    }?;
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    let results = &outcome.results;
    if args.json {
        let mut all = identity("sim-scale");
        all["machine"] = machine(Path::new("/"));
        all["model"] = model(args);
        all["result"] = args.engine.value(&outcome);
        all["result"]["ranks"] = group.ranks().into();
        all["result"]["requests"] = results.requests.into();
        all["result"]["bytes_read"] = results.bytes_read.into();
        all["result"]["virtual_ns"] = results.end.0.into();
        println!("{all}");
    } else {
        println!(
            "{} clients open a file each, read {} times {} in stripes of {} from {} servers, close it",
            args.clients,
            args.reads,
            format_size(args.transfer),
            format_size(args.stripe),
            args.servers
        );
        if group.ranks() > 1 {
            println!("{} ranks", group.ranks());
        }
        print!("{}", args.engine.text(&outcome));
        println!(
            "simulated: {} requests, {} in {:.3} s",
            results.requests,
            format_size(results.bytes_read),
            results.end.0 as f64 / 1e9
        );
    }
    signals.check()?;
    Ok(ExitCode::SUCCESS)
}

/// Events of the whole run: a start; seven for an open, a close, or a read of one stripe; six for each further stripe.
fn events(args: &ScaleArgs) -> u64 {
    let pieces = args.transfer.div_ceil(args.stripe);
    u64::from(args.clients) * (1 + 7 + 7 + u64::from(args.reads) * (1 + 6 * pieces))
}

/// All that decides what is simulated.
fn model(args: &ScaleArgs) -> Value {
    json!({
        "clients": args.clients,
        "servers": args.servers,
        "reads": args.reads,
        "transfer_bytes": args.transfer,
        "stripe_bytes": args.stripe,
        "latency_ns": args.latency.0,
        "seed": args.seed,
    })
}

/// Round figures of a disk of 7200 rpm and of 10-gigabit links: what is measured is the simulator.
fn system(args: &ScaleArgs) -> Result<Pfs> {
    let ms = |n: u64| Span::Fixed(Time(n * 1_000_000));
    let us = |n: u64| Span::Fixed(Time(n * 1_000));
    let device = DeviceSpec::Hdd(HddSpec {
        sequential: us(100),
        random: Span::Uniform(Time(4_000_000), Time(12_000_000)),
        read_rate: 150_000_000,
        write_rate: 150_000_000,
        open: ms(1),
        flush: ms(5),
    });
    let link = 1_250_000_000;
    let network = Network { latency: args.latency, client_bandwidth: link, header: 256, eager: 16 << 10 };
    let server = ServerSpec { threads: 1, request: us(10), metadata: us(20), bus: Time(20_000), cache: None };
    let classes = vec![Class { bandwidth: link, ..Class::new("servers", args.servers, device) }];
    let even: Vec<_> = (0..args.servers).map(|server| (server, 1)).collect();
    let what = || "sim scale".to_string();
    let layout = Layout::Striped(Ring::new(args.stripe, &even).context(Kind::Usage, what)?);
    let program = Program::Ior(Ior {
        ranks: args.clients,
        op: Op::Read,
        segments: 1,
        block: args.transfer * u64::from(args.reads),
        transfer: args.transfer,
        order: Order::Sequential,
        sharing: Sharing::PerProcess,
        open: true,
        fsync: false,
        depth: 1,
        barrier: false,
        think: Span::NONE,
        file: 0,
    });
    let applications = vec![Application { name: "scale".into(), start: Time::ZERO, program }];
    Pfs::new(network, server, classes, layout, applications).context(Kind::Usage, what)
}
