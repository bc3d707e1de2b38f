//! Looks at shared storage, for people and as JSON.

use super::place::Look;
use super::who::{Pool, Scene};
use crate::output::{table, tame};
use serde_json::{Value, json};
use tidepool_iosched::blame::{By, Judged, Spread, Tally};
use tidepool_iosched::{JobId, Tier};
use tidepool_types::format_size;

/// Parts of a blame that are smaller are not told to people.
const PART_MIN: f64 = 0.01;
/// Those to blame that a line names.
const BLAMED_MAX: usize = 3;

/// A job's number, as it is called everywhere.
pub fn job(job: JobId) -> String {
    format!("{:016x}", job.0)
}

pub fn text(looks: &[Look]) -> String {
    looks.iter().map(|look| format!("{}\n{}", look.dir.display(), of_place(look))).collect()
}

fn of_place(look: &Look) -> String {
    let scene = &look.scene;
    let mut text: String = scene.tiers.iter().map(|(tier, tally)| of_tier(look, *tier, tally)).collect();
    let mut others = |what: &str, of: &dyn Fn(&Pool) -> Option<String>| {
        let told =
            scene.pools.values().filter_map(|pool| Some(format!("{} {}", tame(&pool.name), of(pool)?)));
        let told: Vec<String> = told.collect();
        if !told.is_empty() {
            text.push_str(&format!("{what}: {}\n", told.join(", ")));
        }
    };
    others("waiting for a turn, in a phase of", &|pool| {
        let since = pool.waits_since_ms?;
        Some(format!("{:.1} s", look.at_ms.saturating_sub(since) as f64 / 1000.0))
    });
    others("reading", &|pool| (pool.read_per_s > 0).then(|| per_s(pool.read_per_s)));
    if text.is_empty() {
        text = match scene.pools.len() {
            0 => "no pool tells of any load\n".into(),
            pools => format!("{pools} pool(s), none of which writes, reads or flushes\n"),
        };
    }
    text
}

fn of_tier(look: &Look, tier: Tier, tally: &Tally) -> String {
    let Tally { users, processes, write_per_s, flush_per_s, .. } = tally;
    let mut text = format!("{}: {users} pool(s) write with {processes} process(es)", tier.name());
    text.push_str(&format!("; {} written, {} flushed", per_s(*write_per_s), per_s(*flush_per_s)));
    if let Some(part) = tally.utilisation {
        text.push_str(&format!("; {} of its peak", percent(part)));
    }
    if let Some(Spread { max, mean, fairness }) = tally.slowdown {
        text.push_str(&format!("; slowdown {mean:.1}, at most {max:.1}; fairness {fairness:.2}"));
    }
    text.push('\n');
    let note = look.note(tier);
    text.extend(note.label.into_iter().chain(note.trouble).map(|note| format!("{note}\n")));
    let head = ["pool", "job", "processes", "writes", "flushes", "alone", "slowdown", "because of"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(tally.all.iter().map(|judged| row(&look.scene, judged)));
    text.push_str(&table(&rows));
    let writes = |by: Option<By>| {
        tally.all.iter().any(|one| one.mover.processes > 0 && one.alone.map(|(_, by)| by) == by)
    };
    if writes(Some(By::BestPhase)) {
        text.push_str("* by its own best phase; 'tidepool tiers measure' would tell more\n");
    }
    if writes(None) && tier != Tier::Local {
        text.push_str(
            "? neither an earlier phase nor measured curves tell; 'tidepool tiers measure' makes some\n",
        );
    }
    text
}

fn row(scene: &Scene, judged: &Judged) -> Vec<String> {
    let mover = &judged.mover;
    let rate = |rate: u64| if rate > 0 { per_s(rate) } else { "-".into() };
    let unknown = || if mover.processes > 0 { "?" } else { "-" }.to_string();
    let alone = match judged.alone {
        None => unknown(),
        Some((rate, By::Curve)) => per_s(rate),
        Some((rate, By::BestPhase)) => format!("{}*", per_s(rate)),
    };
    vec![
        tame(&scene.pool(mover.job).name),
        job(mover.job)[..8].to_string(),
        mover.processes.to_string(),
        rate(mover.write_per_s),
        rate(mover.flush_per_s),
        alone,
        judged.slowdown.map_or_else(unknown, |slowdown| format!("{slowdown:.1}")),
        because(scene, judged),
    ]
}

/// Who and what slows one down, in words; empty for nothing.
pub fn because(scene: &Scene, judged: &Judged) -> String {
    let mut parts = Vec::new();
    if judged.held_back >= PART_MIN {
        parts.push(format!("its turn or share {}", percent(judged.held_back)));
    }
    let told = judged.blame.iter().filter(|blame| blame.part() >= PART_MIN);
    parts.extend(told.take(BLAMED_MAX).map(|blame| {
        let flushes = if blame.flush > blame.write { " (flushing)" } else { "" };
        format!("{}{flushes} {}", tame(&scene.pool(blame.job).name), percent(blame.part()))
    }));
    parts.join(", ")
}

fn per_s(rate: u64) -> String {
    format!("{}/s", format_size(rate))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

pub fn json(at_ms: u64, looks: &[Look]) -> Value {
    json!({"at_ms": at_ms, "dirs": looks.iter().map(place_json).collect::<Vec<_>>()})
}

fn place_json(look: &Look) -> Value {
    let tiers: Vec<Value> =
        look.scene.tiers.iter().map(|(tier, tally)| tier_json(look, *tier, tally)).collect();
    let pools: Vec<Value> = look.scene.pools.iter().map(|(id, pool)| pool_json(*id, pool)).collect();
    json!({"dir": look.dir, "tiers": tiers, "pools": pools})
}

fn pool_json(id: JobId, pool: &Pool) -> Value {
    json!({
        "pool": pool.name, "job": job(id), "daemons": pool.daemons, "processes": pool.processes,
        "write_per_s": pool.write_per_s, "read_per_s": pool.read_per_s, "flush_per_s": pool.flush_per_s,
        "held_back_ms": pool.held_back_ms, "waits_in_phase_since_ms": pool.waits_since_ms,
        "dirty_burst": pool.dirty_burst, "dirty_local": pool.dirty_local,
    })
}

fn tier_json(look: &Look, tier: Tier, tally: &Tally) -> Value {
    let note = look.note(tier);
    let all: Vec<Value> = tally.all.iter().map(|judged| judged_json(&look.scene, judged)).collect();
    json!({
        "tier": tier.name(), "label": note.label, "trouble": note.trouble, "users": tally.users,
        "processes": tally.processes, "write_per_s": tally.write_per_s, "flush_per_s": tally.flush_per_s,
        "peak_per_s": tally.peak_per_s, "utilisation": tally.utilisation,
        "slowdown": tally.slowdown.map(|all| json!({
            "max": all.max, "mean": all.mean, "fairness": all.fairness,
        })),
        "pools": all,
    })
}

fn judged_json(scene: &Scene, judged: &Judged) -> Value {
    let mover = &judged.mover;
    json!({
        "pool": scene.pool(mover.job).name, "job": job(mover.job), "processes": mover.processes,
        "write_per_s": mover.write_per_s, "flush_per_s": mover.flush_per_s,
        "alone_per_s": judged.alone.map(|(rate, _)| rate), "alone_by": judged.alone.map(|(_, by)| by_word(by)),
        "slowdown": judged.slowdown, "held_back": judged.held_back,
        "blame": judged.blame.iter().map(|blame| json!({
            "pool": scene.pool(blame.job).name, "job": job(blame.job), "write": blame.write, "flush": blame.flush,
        })).collect::<Vec<_>>(),
    })
}

fn by_word(by: By) -> &'static str {
    match by {
        By::Curve => "curve",
        By::BestPhase => "best phase",
    }
}
