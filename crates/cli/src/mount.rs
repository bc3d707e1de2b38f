//! `tidepool mount`: a FUSE mount in the foreground.

use crate::exit::{Context, Kind, Result};
use crate::flags::MountArgs;
use crate::instance;
use crate::signals::Signals;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tidepool_fuse::MountOptions;

pub fn mount(args: &MountArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    let client = Arc::new(instance.client()?);
    let path = args.mountpoint.clone().unwrap_or_else(|| instance.mount_path());
    let path = std::fs::canonicalize(&path).context(Kind::Usage, || path.display().to_string())?;
    let options = MountOptions {
        cache_ttl_ms: args.cache_ttl,
        leases: !args.no_leases,
        allow_other: args.allow_other,
        read_only: args.read_only,
        relaxed: !client.pool().mode.checks_permissions(),
        ..MountOptions::new(path.clone())
    };
    let signals = Signals::watch()?;
    let mounted = tidepool_fuse::mount(client, &options)
        .context(Kind::Start, || format!("mounting at {}", path.display()))?;
    eprintln!("pool '{}' is mounted at {}; Ctrl-C unmounts it", instance.name, path.display());
    while signals.seen().is_none() && !mounted.ended() {
        std::thread::sleep(Duration::from_millis(50));
    }
    mounted.unmount().context(Kind::Cleanup, || format!("unmounting {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}
