//! When a daemon flushes, and how much in a second (format 5, `tiers.flush`).

use serde::{Deserialize, Serialize};
use tidepool_iosched::Tier;

/// When what lies above the last tier is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlushWhen {
    /// As the strategy says.
    #[default]
    Strategy,
    /// While the pool's own programs are in no I/O phase, and only then, whatever the strategy says.
    Idle,
}

/// What is said of flushing beside the strategy. Bytes in a second of each daemon; 0 for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushConfig {
    #[serde(default)]
    pub when: FlushWhen,
    #[serde(default)]
    pub to_burst: u64,
    #[serde(default)]
    pub to_pfs: u64,
}

impl FlushConfig {
    /// Most bytes in a second that are flushed to a tier.
    pub fn limit_to(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Local => 0,
            Tier::Burst => self.to_burst,
            Tier::Pfs => self.to_pfs,
        }
    }

    /// For the configuration: what says nothing is left out.
    pub fn is_usual(&self) -> bool {
        *self == FlushConfig::default()
    }
}
