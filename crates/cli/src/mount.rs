//! `tidepool mount`: a FUSE mount in the foreground.

use crate::exit::{Context, Kind, Result};
use crate::flags::MountArgs;
use crate::instance;
use crate::signals::Signals;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use tidepool_client::Client;
use tidepool_fuse::{MountOptions, Mounted};

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
    let mounted = guarded(client, &options)?;
    eprintln!("pool '{}' is mounted at {}; Ctrl-C unmounts it", instance.name, path.display());
    while signals.seen().is_none() && !mounted.ended() {
        std::thread::sleep(Duration::from_millis(50));
    }
    mounted.unmount().context(Kind::Cleanup, || format!("unmounting {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts a pool, and has a process stand by that ends the mount if this one is killed and cannot end.
pub fn guarded(client: Arc<Client>, options: &MountOptions) -> Result<Mounted> {
    let fail = || format!("mounting at {}", options.mountpoint.display());
    let mut mounted = tidepool_fuse::mount(client, options).context(Kind::Start, fail)?;
    let mut guard = Command::new(std::env::current_exe().context(Kind::Start, fail)?);
    guard.arg("mount-guard").arg(std::process::id().to_string()).current_dir("/");
    // Where it cannot, `docs/guide/fuse.md` says what is to be done by hand.
    mounted.guard_by(guard).context(Kind::Start, fail)?;
    Ok(mounted)
}

/// The process that stands by.
pub fn stand_guard(guarded: u32) -> Result<ExitCode> {
    tidepool_fuse::stand_guard(guarded, std::io::stdout())
        .context(Kind::Other, || "ending a mount's connection".into())?;
    Ok(ExitCode::SUCCESS)
}
