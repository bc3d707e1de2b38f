//! `tidepool pool`: pools that outlive one command.

use crate::agent::NodeRecord;
use crate::exit::{Failure, Kind, Result};
use crate::flags::{ListArgs, PoolCommand, StartArgs, StatusArgs, StopArgs};
use crate::flush::{self, flags::FlushTarget};
use crate::instance::{self, Instance, QUESTION_MAX, RunPhase, RunRecord};
use crate::launch::{self, Kept};
use crate::output::table;
use crate::plan::{Setup, Staged};
use crate::side_by_side::each_daemon;
use crate::signals::Signals;
use crate::stagers::{Begin, Started, Through};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile};
use tidepool_transport::random_bytes;
use tidepool_types::format_size;
use tidepool_wire::message::{DaemonStatus, Reply, Request};

/// How long the agent may take to clean up after its daemons.
const CLEAN_MAX: Duration = Duration::from_secs(20);

pub fn dispatch(command: &PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::Start(args) => start(args),
        PoolCommand::Stop(args) => stop(args),
        PoolCommand::Status(args) => status(args),
        PoolCommand::Flush(args) => flush::flush(args),
        PoolCommand::List(args) => list(args),
    }
}

/// A name nobody has: `PREFIX-` and eight random digits.
pub fn fresh_name(prefix: &str) -> String {
    let id: [u8; 4] = random_bytes();
    format!("{prefix}-{}", id.map(|b| format!("{b:02x}")).concat())
}

fn start(args: &StartArgs) -> Result<ExitCode> {
    let name = args.name.clone().unwrap_or_else(|| fresh_name("pool"));
    if let Some(through) = Through::asked(&args.through)? {
        return start_through(args, &through, &name);
    }
    let kept = if args.keep { find_kept(&name)? } else { None };
    let setup = Setup::choose(&args.shape, Staged::default(), kept.as_ref())?;
    let layout = &setup.layout;
    if let Some(kept) = &kept
        && kept.daemons != layout.daemons()
    {
        let text =
            format!("pool '{name}' has {} daemons; start it with --nodes {0} to find its data", kept.daemons);
        return Err(Failure::new(Kind::Usage, text));
    }
    setup.accept(&args.shape)?;
    if args.dry_run {
        println!("would start pool '{name}': {}, data in {}", layout.describe(), setup.store.display());
        return Ok(ExitCode::SUCCESS);
    }
    let began = Instant::now();
    let running = launch::start(&args.shape, setup, &name, kept.as_ref(), args.keep)?;
    let (pool, mounted) = (running.pool.clone(), running.mounted);
    let instance = running.detach();
    tell_started(args, &instance, &pool, mounted, began);
    Ok(ExitCode::SUCCESS)
}

fn start_through(args: &StartArgs, through: &Through, name: &str) -> Result<ExitCode> {
    let setup = through.choose(&args.shape, Staged::default())?;
    setup.accept(&args.shape)?;
    if args.dry_run {
        let (place, store) = (setup.layout.describe(), setup.store.display());
        println!("would start pool '{name}' of user {}: {place}, data in {store}", through.user.uid);
        return Ok(ExitCode::SUCCESS);
    }
    let began = Instant::now();
    let Started { instance, pool, mounted } = through.start(&args.shape, &setup, name, Begin::Once)?;
    tell_started(args, &instance, &pool, mounted, began);
    Ok(ExitCode::SUCCESS)
}

fn tell_started(args: &StartArgs, instance: &Instance, pool: &PoolFile, mounted: bool, began: Instant) {
    let (name, seconds) = (&instance.name, began.elapsed().as_secs_f64());
    if args.json {
        println!("{}", start_json(args, instance, pool, mounted, seconds));
    } else {
        println!("pool '{name}' is up: {} daemon(s), {seconds:.2} s", pool.members.len());
        for (tier, label) in args.shape.shaped() {
            println!("{tier} is {label}");
        }
        println!("path for programs: {}", pool.mount.display());
        println!("run a program on it: tidepool exec --pool {name} -- PROGRAM");
    }
}

fn start_json(args: &StartArgs, instance: &Instance, pool: &PoolFile, mounted: bool, seconds: f64) -> Value {
    json!({
        "name": instance.name,
        "instance": pool.instance.to_string(),
        "mount": pool.mount,
        "mounted": mounted,
        "pool_file": instance.pool_file(),
        "daemons": pool.members.len(),
        "seconds": seconds,
        "shaped": args.shape.shaped(),
    })
}

/// The identity of a stopped pool of this name, if there is one.
fn find_kept(name: &str) -> Result<Option<Kept>> {
    let Some(instance) = instance::list().into_iter().find(|i| i.name == name) else { return Ok(None) };
    let pool = instance.read_pool_file()?;
    if any_alive(&Client::new(pool.clone()).hurried(QUESTION_MAX)) {
        return Err(Failure::new(Kind::Start, format!("pool '{name}' is running; stop it first")));
    }
    // What its last run left on this node (mounts, an agent) would be in the way.
    launch::clean_here(&instance, false)?;
    let daemons = pool.members.len();
    let store = NodeRecord::starter(&instance)?.map(|r| r.store).filter(|path| path.is_absolute());
    let dir = instance.dir;
    let PoolFile { instance, secret, weights, groups, .. } = pool;
    Ok(Some(Kept { dir, instance, secret, daemons, weights, groups, store }))
}

fn any_alive(client: &Client) -> bool {
    (0..client.members() as u16).any(|daemon| client.is_there(daemon))
}

fn stop(args: &StopArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    if let Some(record) = instance.run_record()?
        && record.is_going_on()
        && record.pid != std::process::id()
    {
        let text =
            format!("pool '{}' belongs to a run that is going on (process {})", instance.name, record.pid);
        return Err(Failure::new(Kind::Other, text));
    }
    if args.dry_run {
        let what = if args.keep { "leave its data" } else { "remove its data" };
        println!("would stop pool '{}' and {what}", instance.name);
        return Ok(ExitCode::SUCCESS);
    }
    if args.flush_first {
        let client = instance.client()?;
        flush::wait(&instance, &client, FlushTarget::Last, 0, &Signals::watch()?)?;
    }
    let unreachable = stop_instance(&instance, args.keep)?;
    if args.json {
        println!("{}", json!({"name": instance.name, "kept": args.keep, "not_reached": unreachable}));
    } else {
        println!("pool '{}' is stopped{}", instance.name, if args.keep { "; its data stays" } else { "" });
    }
    if unreachable.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    // A dead daemon here was cleaned up after; one elsewhere was not.
    let pool_is_local = !instance.dir.exists() || args.keep;
    if pool_is_local {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::new(Kind::Cleanup, unreachable.join("; ")))
    }
}

/// Stops a pool that another process started; daemons that did not answer.
pub fn stop_instance(instance: &Instance, keep: bool) -> Result<Vec<String>> {
    launch::continue_here(instance)?;
    // As long as the daemons are there, mounts can write out what they keep.
    let mut mounts = launch::unmount_others(instance)?;
    mounts.extend(launch::copies_elsewhere(instance));
    // Asked first: an agent that ends takes its record with it before it is gone.
    let agents = NodeRecord::agents(instance)?;
    let unreachable = match instance.client() {
        Ok(client) => launch::tell_daemons(&client.hurried(launch::STOP_MAX), !keep),
        // It never came up: there is nobody to tell, only remains to clean.
        Err(_) => Vec::new(),
    };
    let deadline = Instant::now() + CLEAN_MAX;
    while agents.iter().any(|agent| agent.lives()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let cleaned = launch::clean_here(instance, !keep);
    launch::end_connections(mounts);
    cleaned.map(|()| unreachable)
}

fn status(args: &StatusArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    let client = instance.hurried_client()?;
    let daemons = statuses(&client);
    let all_well = daemons.iter().all(|(_, s)| s.as_ref().is_ok_and(|s| s.trouble.is_empty()));
    if args.json {
        println!("{}", status_json(&instance, &client, &daemons));
    } else {
        print!("{}", status_text(&instance, &client, &daemons));
    }
    if all_well { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::from(1)) }
}

/// What each daemon says of itself, or why it does not.
pub fn statuses(client: &Client) -> Vec<(u16, std::result::Result<DaemonStatus, String>)> {
    each_daemon(client, |daemon| (daemon, ask(client, daemon)))
}

fn ask(client: &Client, daemon: u16) -> std::result::Result<DaemonStatus, String> {
    match client.request(daemon, &Request::Status {}) {
        Ok(Reply::Report { status }) => Ok(status),
        Ok(other) => Err(format!("unexpected answer {}", other.name())),
        Err(error) => Err(error.to_string()),
    }
}

type Statuses = [(u16, std::result::Result<DaemonStatus, String>)];

fn status_json(instance: &Instance, client: &Client, daemons: &Statuses) -> Value {
    let shaped = shaped(daemons);
    let daemons: Vec<Value> = daemons
        .iter()
        .map(|(daemon, status)| match status {
            Ok(s) => json!({
                "daemon": daemon, "host": client.host(*daemon), "reachable": true, "pid": s.pid,
                "backend": s.backend, "total_bytes": s.space.total, "free_bytes": s.space.free,
                "used_bytes": s.space.used, "objects": s.space.objects, "sessions": s.sessions,
                "open_handles": s.open_handles, "trouble": s.trouble,
                "counters": s.counters.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            }),
            Err(why) => json!({
                "daemon": daemon, "host": client.host(*daemon), "reachable": false, "trouble": why,
            }),
        })
        .collect();
    let pool = client.pool();
    json!({
        "name": instance.name, "instance": pool.instance.to_string(), "mount": pool.mount,
        "mounted": crate::exec::is_mounted(instance), "layout": pool.layout.to_string(), "weights": pool.weights,
        "groups": pool.groups, "shaped": shaped_value(shaped), "daemons": daemons,
    })
}

fn status_text(instance: &Instance, client: &Client, daemons: &Statuses) -> String {
    let mut rows =
        vec![["daemon", "node", "objects", "used", "free", "sessions", "state"].map(String::from).to_vec()];
    for (daemon, status) in daemons {
        let host = client.host(*daemon).to_string();
        rows.push(match status {
            Ok(s) => vec![
                daemon.to_string(),
                host,
                s.space.objects.to_string(),
                format_size(s.space.used),
                format_size(s.space.free),
                s.sessions.to_string(),
                if s.trouble.is_empty() { "ok".into() } else { s.trouble.clone() },
            ],
            Err(why) => vec![
                daemon.to_string(),
                host,
                "-".into(),
                "-".into(),
                "-".into(),
                "-".into(),
                format!("not reachable: {why}"),
            ],
        });
    }
    let pool = client.pool();
    if !pool.groups.is_empty() {
        let names = std::iter::once("group").chain(pool.groups.iter().map(String::as_str));
        rows.iter_mut().zip(names).for_each(|(row, name)| row.insert(2, name.into()));
    }
    let head = format!("pool '{}' at {}, files {}\n", instance.name, pool.mount.display(), pool.layout);
    head + &table(&rows) + &tiers_text(daemons)
}

/// What lies on each tier, where there are several.
fn tiers_text(daemons: &Statuses) -> String {
    let sum = |name: &str| {
        let counters =
            daemons.iter().filter_map(|(_, status)| status.as_ref().ok()).flat_map(|s| &s.counters);
        let found: Vec<u64> =
            counters.filter(|(counter, _)| counter == name).map(|(_, count)| *count).collect();
        (!found.is_empty()).then(|| found.iter().sum::<u64>())
    };
    let Some(flushed) = sum("flushed_bytes") else { return String::new() };
    let tier = |tier: &str| Some(format!("{tier} {}", format_size(sum(&format!("tier_{tier}_bytes"))?)));
    let tiers: Vec<String> = ["local", "burst", "pfs"].into_iter().filter_map(tier).collect();
    let mut text = format!("data on tiers: {}; {} flushed\n", tiers.join(", "), format_size(flushed));
    for (tier, name) in shaped(daemons) {
        text += &format!("{tier} is {}\n", tidepool_shape::label(&name));
    }
    text
}

/// Tiers that are slowed down, and the names of their shapes, as counters have them.
fn shaped(daemons: &Statuses) -> BTreeMap<String, String> {
    let counters = daemons.iter().filter_map(|(_, status)| status.as_ref().ok()).flat_map(|s| &s.counters);
    let parts = |counter: &str| {
        let (tier, name) = counter.strip_prefix("tier_")?.split_once("_shaped_")?;
        Some((tier.to_string(), name.to_string()))
    };
    counters.filter_map(|(counter, _)| parts(counter)).collect()
}

/// With what every output says of them.
fn shaped_value(shaped: BTreeMap<String, String>) -> Value {
    shaped.into_iter().map(|(tier, name)| (tier, tidepool_shape::label(&name))).collect()
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let pools: Vec<(Instance, String)> = instance::list()
        .into_iter()
        .map(|instance| {
            let state = describe(&instance);
            (instance, state)
        })
        .collect();
    if args.json {
        let all: Vec<Value> =
            pools.iter().map(|(i, state)| json!({"name": i.name, "dir": i.dir, "state": state})).collect();
        println!("{}", json!(all));
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![vec!["name".to_string(), "state".into()]];
    rows.extend(pools.into_iter().map(|(i, state)| vec![i.name, state]));
    print!("{}", table(&rows));
    Ok(ExitCode::SUCCESS)
}

/// State of a pool in words.
pub fn describe(instance: &Instance) -> String {
    let run = match instance.run_record() {
        Ok(run) => run,
        Err(failure) => return failure.to_string(),
    };
    let going_on = run.as_ref().is_some_and(RunRecord::is_going_on);
    let Ok(client) = instance.hurried_client() else {
        return "incomplete: it never came up; remove it with 'tidepool pool stop'".into();
    };
    let alive = any_alive(&client);
    let never_began = run.as_ref().is_some_and(|run| run.phase == RunPhase::StageIn);
    match (alive, run.is_some()) {
        (true, true) if going_on && never_began => "staging in for a program".into(),
        (true, true) if going_on => "running a program".into(),
        (true, true) if never_began => {
            "left by a run that was killed before its program began; remove it with 'tidepool pool stop'"
                .into()
        }
        (true, true) => "left by a killed run; finish it with 'tidepool drain'".into(),
        (true, false) => "running".into(),
        (false, _) => "stopped, data kept; 'tidepool pool start --keep' or 'tidepool pool stop'".into(),
    }
}
