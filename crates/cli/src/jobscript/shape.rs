//! Pools of a script, as the flags that stand for the same.

use crate::flags::{Door, FsKind, ModeFlag, PoolShape};
use crate::flush::flags::FlushFlag;
use std::path::PathBuf;
use tidepool_directives::{Client, Flush, Fs, Lifetime, Mode, PoolRequest, Problem, Said, TierRequest};
use tidepool_plan::Deploy;

pub fn fs_of(pool: &PoolRequest) -> FsKind {
    match &pool.fs {
        None | Some(Fs::Tidepool) => FsKind::Tidepool,
        Some(Fs::Local) => FsKind::Local,
        Some(Fs::Script(program)) => FsKind::Script(program.into()),
    }
}

/// The flags of a pool. What stands on the command line wins, as options of `sbatch` win over `#SBATCH` lines. `nodes` is
/// how many there are; on one machine, which is none of several, nothing is divided.
pub fn shape_of(
    pool: &Said<PoolRequest>,
    flags: &PoolShape,
    nodes: Option<usize>,
) -> Result<PoolShape, Problem> {
    let size = pool.size.as_ref().map(|size| size.value);
    let mut shape = flags.clone();
    shape.layout.placement = flags.layout.placement.or(pool.placement);
    shape.layout.chunk_size = flags.layout.chunk_size.or(pool.chunk_size);
    shape.layout.stripe = flags.layout.stripe.or(pool.stripe);
    shape.mode = flags.mode.or(pool.mode.map(mode));
    shape.client = flags.client.or(pool.client.map(door));
    shape.encrypt = flags.encrypt.or(pool.encrypt);
    shape.quota = flags.quota.or(size);
    shape.job.expect_size = flags.job.expect_size.or(size);
    let tiers = &pool.tiers;
    shape.burst = flags.burst.clone().or(tiers.burst.as_ref().map(PathBuf::from));
    shape.pfs = flags.pfs.clone().or(tiers.pfs.as_ref().map(PathBuf::from));
    shape.strategy = flags.strategy.clone().or(tiers.strategy.clone());
    shape.flush = flags.flush.or(tiers.flush.map(flush));
    shape.phase_bytes = flags.phase_bytes.or(tiers.phase_bytes);
    shape.link_bandwidth = flags.link_bandwidth.or(tiers.link_bandwidth);
    shape.no_local = flags.no_local || tiers.no_local == Some(true);
    if let Some(nodes) = nodes.filter(|_| flags.deploy.is_none() && flags.job.program_nodes.is_none()) {
        shape.deploy = deploy(pool, nodes)?;
    }
    Ok(shape)
}

/// The shared storage of a pool, as a directive would say it.
pub fn tiers_of(shape: &PoolShape) -> TierRequest {
    let dir = |dir: &Option<PathBuf>| dir.as_ref().map(|dir| dir.display().to_string());
    TierRequest {
        burst: dir(&shape.burst),
        pfs: dir(&shape.pfs),
        strategy: shape.strategy.clone(),
        flush: shape.flush.map(|flush| match flush {
            FlushFlag::Strategy => Flush::Strategy,
            FlushFlag::Idle => Flush::Idle,
        }),
        no_local: Some(shape.no_local),
        phase_bytes: shape.phase_bytes,
        link_bandwidth: shape.link_bandwidth,
    }
}

fn mode(mode: Mode) -> ModeFlag {
    match mode {
        Mode::Posix => ModeFlag::Posix,
        Mode::Relaxed => ModeFlag::Relaxed,
        Mode::Compat => ModeFlag::Compat,
    }
}

fn door(client: Client) -> Door {
    match client {
        Client::Auto => Door::Auto,
        Client::Fuse => Door::Fuse,
        Client::Preload => Door::Preload,
    }
}

fn flush(flush: Flush) -> FlushFlag {
    match flush {
        Flush::Strategy => FlushFlag::Strategy,
        Flush::Idle => FlushFlag::Idle,
    }
}

fn deploy(pool: &Said<PoolRequest>, nodes: usize) -> Result<Option<Deploy>, Problem> {
    let refuse = |what: String| Err(Problem::new(&pool.at, format!("{what}: the job has {nodes} nodes")));
    match (pool.deploy, pool.nodes) {
        (_, Some(wanted)) if wanted > nodes => refuse(format!("nodes={wanted}")),
        (Some(deploy @ Deploy::Subset(n)), _) if n > nodes => refuse(format!("deploy={deploy}")),
        (Some(deploy @ Deploy::Dedicated(n)), _) if n >= nodes => refuse(format!("deploy={deploy}")),
        (Some(deploy), _) => Ok(Some(deploy)),
        (None, wanted) => Ok(wanted.filter(|wanted| *wanted < nodes).map(Deploy::Subset)),
    }
}

/// Why a pool cannot be had: it would have to be there when its job is over.
pub fn outlives(pool: &Said<PoolRequest>) -> Option<Problem> {
    let lifetime = pool.lifetime.filter(|lifetime| *lifetime != Lifetime::Job)?;
    let text = format!(
        "lifetime={lifetime}: a pool ends with its job; leave it away, or start one with 'tidepool pool start'"
    );
    Some(Problem::new(&pool.at, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Cli, Command};
    use clap::Parser;
    use std::num::NonZeroU64;
    use tidepool_directives::Directives;
    use tidepool_types::{ChunkSize, Encryption, Placement};

    fn shape(line: &str, flags: &[&str], nodes: Option<usize>) -> Result<PoolShape, String> {
        let (directives, _) = Directives::parse(format!("#TIDEPOOL pool {line}\n").as_bytes()).unwrap();
        let words = [&["tidepool", "run", "--job", "x"], flags].concat();
        let Command::Run(args) = Cli::try_parse_from(words).unwrap().command else { panic!("it is 'run'") };
        shape_of(&directives.pools[0], &args.shape, nodes).map_err(|problem| problem.to_string())
    }

    #[test]
    fn keys_are_flags_and_flags_win() {
        let whole =
            "size=10GiB mode=relaxed chunk-size=1MiB placement=wide stripe=2 client=preload encrypt=off";
        let said = shape(whole, &[], None).unwrap();
        assert_eq!((said.quota(), said.job.expect_size), (10 << 30, Some(10 << 30)));
        assert_eq!((said.mode(), said.door()), (ModeFlag::Relaxed, Door::Preload));
        assert_eq!(said.layout.chunk_size, Some(ChunkSize::Bytes(1 << 20)));
        assert_eq!((said.layout.placement, said.layout.stripe), (Some(Placement::Wide), Some(2)));
        assert_eq!(
            (said.encryption(), shape("", &[], None).unwrap().encryption()),
            (Encryption::Off, Encryption::Full)
        );
        let fabric = shape("", &["--fabric", "net"], None).unwrap();
        assert_eq!((fabric.encryption(), fabric.check_encryption()), (Encryption::Off, Ok(())));
        let both = shape("", &["--fabric", "net", "--encrypt", "full"], None).unwrap();
        assert!(both.check_encryption().unwrap_err().contains("leave out --fabric 'net'"));
        let tiers = "burst=/b pfs=/p strategy=hp flush=idle no-local=yes phase-bytes=1GiB link-bandwidth=1GB";
        let said = shape(tiers, &[], None).unwrap();
        assert_eq!((said.burst, said.pfs), (Some("/b".into()), Some("/p".into())));
        assert_eq!((said.strategy.as_deref(), said.flush), (Some("hp"), Some(FlushFlag::Idle)));
        assert!(said.no_local && said.phase_bytes == Some(1 << 30));
        assert_eq!(said.link_bandwidth.map(NonZeroU64::get), Some(1_000_000_000));
        let flags = ["--burst", "/c", "--strategy", "ia", "--flush", "strategy"];
        let won = shape(tiers, &flags, None).unwrap();
        assert_eq!((won.burst, won.pfs), (Some("/c".into()), Some("/p".into())));
        assert_eq!((won.strategy.as_deref(), won.flush), (Some("ia"), Some(FlushFlag::Strategy)));
        let flags =
            ["--quota", "0", "--mode", "posix", "--client", "auto", "--chunk-size", "2MiB", "--stripe", "0"];
        let won = shape(whole, &[&flags[..], &["--encrypt", "full"]].concat(), None).unwrap();
        assert_eq!(won.encryption(), Encryption::Full);
        assert_eq!((won.quota(), won.mode(), won.door()), (0, ModeFlag::Posix, Door::Auto));
        assert_eq!((won.layout.chunk_size, won.layout.stripe), (Some(ChunkSize::Bytes(2 << 20)), Some(0)));
    }

    #[test]
    fn nodes_are_divided_where_there_are_several() {
        let deploy = |line: &str, flags: &[&str], nodes| shape(line, flags, nodes).map(|shape| shape.deploy);
        assert_eq!(deploy("nodes=2 deploy=dedicated:1", &[], None), Ok(None));
        assert_eq!(deploy("", &[], Some(4)), Ok(None));
        assert_eq!(deploy("nodes=4", &[], Some(4)), Ok(None));
        assert_eq!(deploy("nodes=2", &[], Some(4)), Ok(Some(Deploy::Subset(2))));
        assert_eq!(deploy("nodes=4 deploy=dedicated:1", &[], Some(4)), Ok(Some(Deploy::Dedicated(1))));
        assert_eq!(deploy("nodes=9", &["--deploy", "shared"], Some(4)), Ok(Some(Deploy::Shared)));
        for (line, words) in [
            ("nodes=5", "nodes=5: the job has 4 nodes"),
            ("deploy=subset:5", "deploy=subset:5: the job has 4 nodes"),
            ("deploy=dedicated:4", "deploy=dedicated:4: the job has 4 nodes"),
        ] {
            let told = deploy(line, &[], Some(4)).unwrap_err();
            assert!(told.starts_with("line 1, column 11: ") && told.contains(words), "{told}");
        }
    }

    #[test]
    fn pools_that_outlive_their_script_are_told() {
        let outlives = |line: &str| {
            let (directives, _) =
                Directives::parse(format!("#NORNS workflow-start\n#TIDEPOOL pool {line}\n").as_bytes())
                    .unwrap();
            super::outlives(&directives.pools[0]).is_some()
        };
        assert!(!outlives("") && !outlives("lifetime=job"));
        assert!(outlives("name=a lifetime=workflow") && outlives("name=a lifetime=campaign"));
    }
}
