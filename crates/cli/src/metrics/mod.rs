//! `tidepool metrics`: what daemons count, and who loads shared storage, for Prometheus.

mod names;
mod serve;
mod text;

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolChoice;
use crate::instance::{self, Instance};
use crate::outfile::{self, How};
use crate::pool;
use crate::top::flags::MetricsArgs;
use crate::top::place::{Look, Observer, places_of};
use crate::top::show;
use std::path::Path;
use std::process::ExitCode;
use text::{Families, Labels};
use tidepool_iosched::Tier;
use tidepool_iosched::blame::{Judged, Tally};

/// Those to blame that are told of each pool: all of all would be the square of their number.
const BLAMED_MAX: usize = 10;

pub fn metrics(args: &MetricsArgs) -> Result<ExitCode> {
    let mut source = Source { args, observers: Vec::new() };
    if let Some(address) = args.listen {
        return serve::serve(address, || source.take().map(|families| families.text()));
    }
    let families = source.take()?;
    if families.is_empty() {
        let text = "no pool is running here; start one with 'tidepool pool start', or name a directory of shared storage";
        return Err(Failure::new(Kind::NoPool, text));
    }
    match &args.out {
        Some(file) => put(file, &families.text())?,
        None => print!("{}", families.text()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever reads it meanwhile sees the old one or the new one.
fn put(file: &Path, text: &str) -> Result<()> {
    // The collector is another user.
    let how = How { mode: Some(0o644), ..How::default() };
    let written = outfile::write(file, how, |out| out.write_all(text.as_bytes()));
    written.context(Kind::Other, || format!("writing {}", file.display()))
}

/// Where the values come from.
struct Source<'a> {
    args: &'a MetricsArgs,
    /// Kept from one time to the next: how much pools are held back is known from two looks.
    observers: Vec<Observer>,
}

impl Source<'_> {
    fn take(&mut self) -> Result<Families> {
        let at = &self.args.at;
        let pools = match &at.pool {
            Some(name) => vec![instance::find(&PoolChoice { pool: Some(name.clone()) })?],
            None => instance::list(),
        };
        let mut families = Families::default();
        pools.iter().for_each(|pool| put_pool(&mut families, pool));
        let places = places_of(at, &pools)?;
        self.observers.retain(|observer| places.contains(&observer.place));
        for place in places {
            if !self.observers.iter().any(|observer| observer.place == place) {
                self.observers.push(Observer::new(place));
            }
        }
        for observer in &mut self.observers {
            put_look(&mut families, &observer.look()?);
        }
        Ok(families)
    }
}

fn put_pool(families: &mut Families, pool: &Instance) {
    // One that never came up has no daemons.
    let Ok(client) = pool.hurried_client() else { return };
    for (daemon, status) in pool::statuses(&client) {
        let labels: Labels = vec![
            ("pool", pool.name.clone()),
            ("daemon", daemon.to_string()),
            ("host", client.host(daemon).to_string()),
        ];
        families.put(names::UP, &labels, f64::from(u8::from(status.is_ok())));
        if let Ok(status) = &status {
            names::put_daemon(families, &labels, status);
        }
    }
}

fn put_look(families: &mut Families, look: &Look) {
    let dir = || ("dir", look.dir.display().to_string());
    for (job, pool) in &look.scene.pools {
        let labels: Labels = vec![dir(), ("pool", pool.name.clone()), ("job", show::job(*job))];
        for (name, value) in [
            (names::WRITE, pool.write_per_s),
            (names::READ, pool.read_per_s),
            (names::FLUSH, pool.flush_per_s),
            (names::PROCESSES, u64::from(pool.processes)),
            (names::WAITS, u64::from(pool.waits_since_ms.is_some())),
        ] {
            families.put(name, &labels, value as f64);
        }
    }
    for (tier, tally) in &look.scene.tiers {
        put_tier(families, look, *tier, tally);
    }
}

fn put_tier(families: &mut Families, look: &Look, tier: Tier, tally: &Tally) {
    // What is shaped is called so.
    let label = look.note(tier).label.unwrap_or_default();
    let dir = look.dir.display().to_string();
    let labels: Labels = vec![("dir", dir), ("tier", tier.name().to_string()), ("storage", label)];
    for (name, value) in [
        (names::TIER_WRITE, Some(tally.write_per_s as f64)),
        (names::TIER_FLUSH, Some(tally.flush_per_s as f64)),
        (names::TIER_USERS, Some(tally.users as f64)),
        (names::TIER_PROCESSES, Some(f64::from(tally.processes))),
        (names::TIER_USE, tally.utilisation),
        (names::TIER_FAIR, tally.slowdown.map(|all| all.fairness)),
    ] {
        value.into_iter().for_each(|value| families.put(name, &labels, value));
    }
    tally.all.iter().for_each(|judged| put_judged(families, look, &labels, judged));
}

fn put_judged(families: &mut Families, look: &Look, tier: &Labels, judged: &Judged) {
    let Some(slowdown) = judged.slowdown else { return };
    let name = |job| look.scene.pool(job).name.clone();
    let job = judged.mover.job;
    let mut labels = tier.clone();
    labels.extend([("pool", name(job)), ("job", show::job(job))]);
    families.put(names::SLOWDOWN, &labels, slowdown);
    families.put(names::HELD, &labels, judged.held_back);
    judged.alone.into_iter().for_each(|(rate, _)| families.put(names::ALONE, &labels, rate as f64));
    for blame in judged.blame.iter().take(BLAMED_MAX) {
        for (by, part) in [("write", blame.write), ("flush", blame.flush)] {
            let mut labels = labels.clone();
            labels.extend([
                ("by_pool", name(blame.job)),
                ("by_job", show::job(blame.job)),
                ("by", by.to_string()),
            ]);
            families.put(names::BLAME, &labels, part);
        }
    }
}
