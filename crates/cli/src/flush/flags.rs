//! Flags on flushing, for pools on several tiers.

use crate::flags::{PoolChoice, size};
use clap::{Args, ValueEnum};
use tidepool_fsd::FlushWhen;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FlushFlag {
    /// When the strategy says so
    Strategy,
    /// While the pool's programs are in no I/O phase, and only then, whatever the strategy says
    Idle,
}

impl FlushFlag {
    pub fn when(self) -> FlushWhen {
        match self {
            FlushFlag::Strategy => FlushWhen::Strategy,
            FlushFlag::Idle => FlushWhen::Idle,
        }
    }
}

/// Most bytes in a second; 0 for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlushBandwidth {
    pub daemon: u64,
    /// Of all daemons together.
    pub pool: u64,
    pub to_burst: u64,
    pub to_pfs: u64,
}

impl FlushBandwidth {
    /// Of each of so many daemons.
    pub fn of_daemon(&self, daemons: usize) -> u64 {
        let share = self.pool.div_ceil(daemons.max(1) as u64);
        [self.daemon, share].into_iter().filter(|limit| *limit > 0).min().unwrap_or(0)
    }
}

/// `SIZE`, or `burst=SIZE,pfs=SIZE,pool=SIZE,daemon=SIZE`.
pub fn flush_bandwidth(text: &str) -> Result<FlushBandwidth, String> {
    let mut limits = FlushBandwidth::default();
    if !text.contains('=') {
        return Ok(FlushBandwidth { daemon: size(text)?, ..limits });
    }
    let mut named = Vec::new();
    for part in text.split(',') {
        let (name, bytes) = part.split_once('=').ok_or_else(|| format!("'{part}': write NAME=SIZE"))?;
        let limit = match name {
            "daemon" => &mut limits.daemon,
            "pool" => &mut limits.pool,
            "burst" => &mut limits.to_burst,
            "pfs" => &mut limits.to_pfs,
            _ => return Err(format!("'{name}' is unknown; write burst, pfs, pool or daemon")),
        };
        if named.contains(&name) {
            return Err(format!("'{name}' is named twice"));
        }
        named.push(name);
        *limit = size(bytes)?;
    }
    Ok(limits)
}

/// Where everything goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FlushTarget {
    /// The slowest tier that the pool has
    Last,
    /// What is above the burst buffer goes there
    Burst,
    /// Everything goes to the parallel file system
    Pfs,
}

#[derive(Args)]
pub struct FlushArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Where everything goes
    #[arg(long, value_enum, value_name = "TIER", default_value = "last")]
    pub to: FlushTarget,
    /// End when all of it lies there
    #[arg(long)]
    pub wait: bool,
    /// Most bytes that each daemon moves in a second, instead of the pool's limits
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bandwidth: Option<u64>,
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_divided() {
        assert_eq!(
            flush_bandwidth("1MiB").unwrap(),
            FlushBandwidth { daemon: 1 << 20, ..Default::default() }
        );
        let all = flush_bandwidth("burst=4KiB,pfs=2KiB,pool=10,daemon=7").unwrap();
        assert_eq!(all, FlushBandwidth { daemon: 7, pool: 10, to_burst: 4096, to_pfs: 2048 });
        assert_eq!((all.of_daemon(1), all.of_daemon(3)), (7, 4));
        assert_eq!(FlushBandwidth::default().of_daemon(3), 0);
        for (bad, said) in [
            ("bust=1", "'bust' is unknown; write burst, pfs, pool or daemon"),
            ("pfs=1,pfs=2", "'pfs' is named twice"),
            ("pfs=1,2", "'2': write NAME=SIZE"),
        ] {
            assert_eq!(flush_bandwidth(bad).unwrap_err(), said);
        }
        assert!(flush_bandwidth("pfs=much").is_err());
    }
}
