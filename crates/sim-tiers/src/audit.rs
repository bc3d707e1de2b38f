//! What must hold at every moment of a run.

use crate::model::Tiers;
use std::fmt;
use tidepool_iosched::Tier;
use tidepool_sim::Simulation;

/// What does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuditError {
    /// More was acknowledged on a tier than lies there.
    Acknowledged { app: usize, tier: Tier, acked: u64, held: u64 },
    /// A server holds more than it can.
    Full { server: usize },
}

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuditError::Acknowledged { app, tier, acked, held } => write!(
                f,
                "application {app} has {acked} bytes acknowledged on {}, where {held} of it lie",
                tier.name()
            ),
            AuditError::Full { server } => write!(f, "server {server} holds more than fits"),
        }
    }
}

impl std::error::Error for AuditError {}

/// Nothing acknowledged lies on less than the tier it was acknowledged on, or was flushed to; no server holds more than fits.
pub fn audit(simulation: &Simulation<Tiers>) -> Result<(), AuditError> {
    let model = simulation.model();
    let states: Vec<_> = simulation.states().collect();
    let apps = model.setup.apps.len();
    for (app, state) in states.iter().enumerate().take(apps) {
        let Some(core) = state.app().map(|app| app.core) else { continue };
        for tier in [Tier::Burst, Tier::Pfs] {
            let at = tier as usize;
            let acked = core.acked[at] + core.flushed_in[at] - core.flushed_out[at];
            let (first, count) = model.servers(tier);
            let servers = states[first as usize..].iter().take(count as usize);
            let held = servers.filter_map(|state| state.server()).map(|server| server.held[app]).sum();
            if acked > held {
                return Err(AuditError::Acknowledged { app, tier, acked, held });
            }
        }
    }
    for (at, state) in states.iter().enumerate().skip(apps) {
        let Some(server) = state.server() else { continue };
        let of = model.setup.tier(server.core.tier);
        if server.core.used > of.capacity_bytes / u64::from(of.servers.max(1)) {
            return Err(AuditError::Full { server: at - apps });
        }
    }
    Ok(())
}
