//! What a scheduler knows, as the strategies see it: the counterpart of the daemons' `fsd::tiering::view`.
//!
//! As there, it decides by what it has told of its own application last, so that all who decide, decide alike; unflushed data are
//! its own; the age of what is known of a tier is that of the oldest news of somebody who writes; and flush traffic of others is not known.

use crate::app::AppState;
use crate::message::Told;
use crate::model::Tiers;
use tidepool_iosched::{App, Dirty, JobId, Local, Shared, Tier, View, ViewError};

/// Below this part of a server's capacity it counts as full: parts of chunks that are on their way would be refused.
const FULL_PART: u64 = 256;

pub fn view(model: &Tiers, me: usize, state: &AppState, now_ns: u64) -> Result<View, ViewError> {
    let mut apps = Vec::new();
    if state.told.running {
        apps.push(app(model, me, &state.told, Some(state.core.local_used)));
    }
    let others = state.heard.iter().enumerate().filter_map(|(at, told)| Some((at, told.as_deref()?)));
    apps.extend(others.filter(|(_, told)| told.running).map(|(at, told)| app(model, at, told, None)));
    let dirty = [Tier::Local, Tier::Burst].into_iter().filter_map(|tier| {
        let bytes = state.core.dirty[tier as usize];
        let since_ns = state.core.since_ns(tier);
        (bytes > 0).then_some(Dirty { job: JobId(me as u64 + 1), tier, bytes, since_ns })
    });
    let dirty = dirty.collect();
    let (burst, pfs) = (shared(model, state, Tier::Burst, now_ns), shared(model, state, Tier::Pfs, now_ns));
    View::new(now_ns, apps, burst, pfs, dirty)
}

/// `used`: of its own nodes' storage; of others that is not known.
fn app(model: &Tiers, at: usize, told: &Told, used: Option<u64>) -> App {
    let plan = &model.setup.apps[at];
    let nodes = u64::from(plan.nodes);
    let local = model.setup.local.map(|local| {
        let capacity_bytes = local.capacity_bytes.saturating_mul(nodes);
        let free_bytes = capacity_bytes.saturating_sub(used.unwrap_or(0));
        let full = free_bytes < model.setup.chunk_bytes;
        Local {
            capacity_bytes,
            free_bytes: if full { 0 } else { free_bytes },
            bytes_per_s: local.bytes_per_s.saturating_mul(nodes),
        }
    });
    let slots = u64::from(plan.workload.processes) * u64::from(model.setup.in_flight);
    let link = model.setup.link_bytes_per_s.filter(|_| model.setup.links_known);
    App {
        job: JobId(at as u64 + 1),
        processes: plan.workload.processes,
        weight: plan.weight,
        phase: told.phase,
        past: told.past.to_vec(),
        link_bytes_per_s: link.map(|link| link.saturating_mul(nodes)),
        under_way_bytes: model.setup.chunk_bytes.saturating_mul(slots),
        local,
    }
}

fn shared(model: &Tiers, state: &AppState, tier: Tier, now_ns: u64) -> Shared {
    let of = model.setup.tier(tier);
    let (first, count) = model.servers(tier);
    let each = of.capacity_bytes / u64::from(count.max(1));
    let from = first as usize - model.setup.apps.len();
    // Every chunk has a part on each server, so the fullest one decides.
    let least = state.room[from..from + count as usize].iter().copied().min().unwrap_or(0);
    let part = (each / FULL_PART).max(model.setup.chunk_bytes / u64::from(count.max(1)) + 1);
    let free = if least < part { 0 } else { least.saturating_mul(count.into()) };
    let writing = state.heard.iter().flatten().filter(|told| told.phase.is_some());
    let age_ns = writing.map(|told| now_ns.saturating_sub(told.at_ns)).max().unwrap_or(0);
    Shared {
        capacity_bytes: each.saturating_mul(count.into()),
        free_bytes: free,
        foreign_users: 0,
        foreign_processes: 0,
        flush_in_bytes_per_s: 0,
        flush_out_bytes_per_s: 0,
        age_ns: Some(age_ns),
        curves: Some(of.curves.clone()),
    }
}
