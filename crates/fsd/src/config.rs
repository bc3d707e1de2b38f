//! The daemon's configuration: one JSON object on its standard input, because the secret
//! must not show in a process list. Format: `docs/formats/05-daemon-start.md`.

use crate::flush_config::FlushConfig;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use tidepool_iosched::Tier;
use tidepool_shape::Shape;
use tidepool_transport::Secret;
use tidepool_types::{DaemonIndex, Encryption, InstanceId, PHASE_BYTES_MAX};

/// Most worker threads.
const WORKERS_MAX: usize = 256;

/// Highest number of a core, plus one; the kernel's usual limit for one set of cores.
pub const CORES_MAX: u16 = rustix::thread::CpuSet::MAX_CPU as u16;

/// Which metadata store a daemon uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// In-memory tables with a write-ahead log: the fastest, for name spaces that fit memory.
    #[default]
    Memlog,
    /// LMDB, for name spaces larger than memory.
    Lmdb,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub instance: InstanceId,
    pub secret: Secret,
    pub index: DaemonIndex,
    /// Name of this node, for people; its own name when empty.
    pub host: String,
    /// Directory of the stores; made if missing.
    pub dir: PathBuf,
    pub unix: Option<PathBuf>,
    pub tcp: Option<SocketAddr>,
    /// Name or address under which others reach the TCP port; `host` when empty.
    pub advertise: String,
    pub backend: Backend,
    /// Reopen stores of this instance, and leave them at the end.
    pub keep: bool,
    /// With `keep`: the stores are there, of an earlier run. One that is missing is an error, not a new one.
    pub again: bool,
    /// Remove the stores of another instance found in `dir`.
    pub wipe: bool,
    /// Threads that serve requests.
    pub workers: usize,
    /// Cores the daemon may use; empty for all.
    pub cores: Vec<u16>,
    /// End, and clean up, when standard input ends.
    pub lifeline: bool,
    /// Most bytes of data stored here, and most objects at home here; 0 for no limit.
    pub quota_bytes: u64,
    pub quota_objects: u64,
    /// Provider of libfabric to offer clients of other nodes; none when empty.
    pub fabric: String,
    /// Of what goes over TCP.
    pub encryption: Encryption,
    /// Storage below the daemon's own, if any.
    pub tiers: Option<TierConfig>,
}

/// Directory of all daemons' stores below one of shared storage.
const STORES_DIR: &str = "tidepool-stores";

/// Shared storage that a daemon uses beside its own, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// Directories that all daemons of all pools see; each daemon makes its own store below them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pfs: Option<PathBuf>,
    pub strategy: String,
    /// Of the pool, for those who look at who does what to shared storage.
    #[serde(default)]
    pub name: String,
    /// Most bytes that a daemon flushes in a second; 0 for no limit.
    #[serde(default)]
    pub flush_bandwidth: u64,
    /// The nodes' own storage gets no new data, except where the last tier is full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_local: bool,
    /// What the directories are slowed down to, for tests and demonstrations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape_burst: Option<Shape>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape_pfs: Option<Shape>,
    #[serde(default, skip_serializing_if = "FlushConfig::is_usual")]
    pub flush: FlushConfig,
    /// What each process writes in an I/O phase, unless it says something else; None where nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_bytes: Option<u64>,
    /// Bytes/s that the daemon's node carries to shared storage; None where nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<NonZeroU64>,
}

impl TierConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let dirs = || self.burst.iter().chain(&self.pfs);
        if dirs().next().is_none() {
            return Err(ConfigError("tiers: names neither burst nor pfs".into()));
        }
        if let Some(dir) = dirs().find(|dir| !dir.is_absolute()) {
            return Err(ConfigError(format!("tiers: {} is no absolute path", dir.display())));
        }
        for (shape, dir, name) in
            [(&self.shape_burst, &self.burst, "burst"), (&self.shape_pfs, &self.pfs, "pfs")]
        {
            if shape.is_some() && dir.is_none() {
                return Err(ConfigError(format!("tiers: shape_{name} without {name}")));
            }
        }
        if let Some(bytes) = self.phase_bytes.filter(|bytes| !(1..=PHASE_BYTES_MAX).contains(bytes)) {
            let text = format!("tiers: phase_bytes {bytes}: a phase has 1 to {PHASE_BYTES_MAX} bytes");
            return Err(ConfigError(text));
        }
        let strategy =
            tidepool_iosched::by_name(&self.strategy).map_err(|e| ConfigError(format!("tiers: {e}")))?;
        if self.pfs.is_none() && strategy.name() == "baseline" {
            return Err(ConfigError(
                "tiers: 'baseline' uses the parallel file system only; name it with pfs".into(),
            ));
        }
        Ok(())
    }

    /// What lies below the daemon's own store, from fast to slow.
    pub fn below(&self) -> Vec<(Tier, &PathBuf)> {
        let burst = self.burst.iter().map(|dir| (Tier::Burst, dir));
        burst.chain(self.pfs.iter().map(|dir| (Tier::Pfs, dir))).collect()
    }

    /// What a tier is slowed down to, and where.
    pub fn shape(&self, tier: Tier) -> Option<(&PathBuf, &Shape)> {
        match tier {
            Tier::Local => None,
            Tier::Burst => self.burst.as_ref().zip(self.shape_burst.as_ref()),
            Tier::Pfs => self.pfs.as_ref().zip(self.shape_pfs.as_ref()),
        }
    }

    /// The stores of a daemon there.
    pub fn stores(&self, instance: InstanceId, index: DaemonIndex) -> Vec<PathBuf> {
        let name = format!("{instance}-{index}");
        self.below().into_iter().map(|(_, dir)| dir.join(STORES_DIR).join(&name)).collect()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    instance: String,
    secret: String,
    index: DaemonIndex,
    host: String,
    dir: PathBuf,
    #[serde(default)]
    unix: Option<PathBuf>,
    #[serde(default)]
    tcp: Option<String>,
    #[serde(default)]
    advertise: String,
    #[serde(default)]
    backend: Backend,
    #[serde(default)]
    keep: bool,
    #[serde(default)]
    again: bool,
    #[serde(default)]
    wipe: bool,
    #[serde(default)]
    workers: usize,
    #[serde(default)]
    cores: Vec<u16>,
    #[serde(default)]
    lifeline: bool,
    #[serde(default)]
    quota_bytes: u64,
    #[serde(default)]
    quota_objects: u64,
    #[serde(default)]
    fabric: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encrypt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tiers: Option<TierConfig>,
}

/// What is wrong with a configuration.
#[derive(Debug)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "daemon configuration: {}", self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads one JSON object; nothing applies unless all of it is right.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let raw: Raw = serde_json::from_str(text).map_err(|e| ConfigError(e.to_string()))?;
        let fail = |what: &str| ConfigError(what.to_string());
        let tcp = match &raw.tcp {
            Some(text) => {
                Some(text.parse().map_err(|_| ConfigError(format!("tcp '{text}' is not address:port")))?)
            }
            None => None,
        };
        if raw.unix.is_none() && tcp.is_none() {
            return Err(fail("needs unix, tcp or both to listen on"));
        }
        if !raw.fabric.is_empty() && tcp.is_none() {
            return Err(fail("fabric needs tcp, over which clients prove themselves"));
        }
        let encryption = raw.encrypt.as_deref().map_or(Ok(Encryption::default()), Encryption::parse);
        let encryption = encryption.map_err(|e| ConfigError(format!("encrypt: {e}")))?;
        if !raw.fabric.is_empty() && !encryption.is_off() {
            return Err(fail("encrypt: nothing encrypts what goes over a fabric; leave out one of both"));
        }
        if raw.workers > WORKERS_MAX {
            return Err(ConfigError(format!("workers {} is more than {WORKERS_MAX}", raw.workers)));
        }
        if let Some(core) = raw.cores.iter().find(|core| **core >= CORES_MAX) {
            return Err(ConfigError(format!("cores: {core} is not below {CORES_MAX}")));
        }
        if !raw.dir.is_absolute() {
            return Err(fail("dir must be an absolute path"));
        }
        raw.tiers.as_ref().map_or(Ok(()), TierConfig::check)?;
        let host = if raw.host.is_empty() { own_host() } else { raw.host };
        Ok(Config {
            instance: InstanceId::parse(&raw.instance)
                .ok_or_else(|| fail("instance is not 32 hexadecimal digits"))?,
            secret: Secret::from_hex(&raw.secret)
                .ok_or_else(|| fail("secret is not 64 hexadecimal digits"))?,
            index: raw.index,
            advertise: if raw.advertise.is_empty() { host.clone() } else { raw.advertise },
            host,
            dir: raw.dir,
            unix: raw.unix,
            tcp,
            backend: raw.backend,
            keep: raw.keep,
            again: raw.again,
            wipe: raw.wipe,
            workers: if raw.workers == 0 { default_workers() } else { raw.workers },
            cores: raw.cores,
            lifeline: raw.lifeline,
            quota_bytes: raw.quota_bytes,
            quota_objects: raw.quota_objects,
            fabric: raw.fabric,
            encryption,
            tiers: raw.tiers,
        })
    }

    /// The JSON object that [`Config::parse`] reads, on one line.
    pub fn to_json(&self) -> String {
        let raw = Raw {
            instance: self.instance.to_string(),
            secret: self.secret.to_hex(),
            index: self.index,
            host: self.host.clone(),
            dir: self.dir.clone(),
            unix: self.unix.clone(),
            tcp: self.tcp.map(|a| a.to_string()),
            advertise: self.advertise.clone(),
            backend: self.backend,
            keep: self.keep,
            again: self.again,
            wipe: self.wipe,
            workers: self.workers,
            cores: self.cores.clone(),
            lifeline: self.lifeline,
            quota_bytes: self.quota_bytes,
            quota_objects: self.quota_objects,
            fabric: self.fabric.clone(),
            encrypt: (!self.encryption.is_off()).then(|| self.encryption.word().into()),
            tiers: self.tiers.clone(),
        };
        serde_json::to_string(&raw).expect("strings and numbers always serialize")
    }
}

fn own_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub fn default_workers() -> usize {
    workers_for(std::thread::available_parallelism().map_or(2, usize::from))
}

/// Two more threads than cores, so that a slow disk request does not stop all others.
pub fn workers_for(cores: usize) -> usize {
    (cores + 2).min(WORKERS_MAX)
}

/// What a daemon prints, as one line of JSON, when it can be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    pub ready: bool,
    pub index: DaemonIndex,
    pub pid: u32,
    pub host: String,
    pub boot_id: String,
    pub tcp: String,
    pub unix: String,
    /// Why it did not start; empty when it did.
    #[serde(default)]
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"instance":"00000000000000000000000000000001","secret":"SECRET","index":2,"host":"n2","dir":"/d","unix":"/s"}"#;

    fn good() -> String {
        GOOD.replace("SECRET", &"0f".repeat(32))
    }

    #[test]
    fn a_configuration_survives_its_own_json() {
        let config = Config::parse(&good()).unwrap();
        let again = Config::parse(&config.to_json()).unwrap();
        assert_eq!(again.to_json(), config.to_json());
        assert_eq!(config.workers, default_workers());
    }

    fn shaped(tier: &str, key: &str, name: &str) -> String {
        let shape = format!(
            r#"{{"name":"{name}","burst_bytes":0,"sequential":[[1,5]],"strided":[[1,5]],"random":[[1,2]]}}"#
        );
        format!(
            r#""tiers":{{"{tier}":"/x","strategy":"hp","name":"","flush_bandwidth":0,"{key}":{shape}}},"host""#
        )
    }

    #[test]
    fn tiers_can_be_shaped() {
        let text = good().replace("\"host\"", &shaped("pfs", "shape_pfs", "hdd"));
        let config = Config::parse(&text).unwrap();
        let tiers = config.tiers.as_ref().unwrap();
        let (dir, shape) = tiers.shape(Tier::Pfs).unwrap();
        assert_eq!((dir.to_str(), shape.name()), (Some("/x"), "hdd"));
        assert!(tiers.shape(Tier::Burst).is_none() && tiers.shape(Tier::Local).is_none());
        let told = shaped("pfs", "shape_pfs", "hdd");
        assert!(config.to_json().contains(told.trim_end_matches(",\"host\"")), "{}", config.to_json());
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, word) in [
            ("\"dir\"", "\"dri\"", "dri"),
            ("\"/d\"", "\"d\"", "absolute"),
            ("\"unix\":\"/s\"", "\"tcp\":\"here\"", "address:port"),
            (",\"unix\":\"/s\"", "", "listen"),
            ("\"host\"", "\"workers\":9999,\"host\"", "9999"),
            ("\"host\"", "\"fabric\":\"net\",\"host\"", "fabric needs tcp"),
            ("\"host\"", "\"encrypt\":\"auth\",\"host\"", "say 'full'"),
            (
                "\"host\"",
                "\"tcp\":\"127.0.0.1:0\",\"fabric\":\"net\",\"encrypt\":\"full\",\"host\"",
                "nothing encrypts what goes over a fabric",
            ),
            ("\"host\"", "\"cores\":[0,1024],\"host\"", "1024"),
            ("\"host\"", "\"tiers\":{\"strategy\":\"hp\"},\"host\"", "neither burst nor pfs"),
            ("\"host\"", "\"tiers\":{\"strategy\":\"hp\",\"pfs\":\"x\"},\"host\"", "no absolute path"),
            ("\"host\"", "\"tiers\":{\"strategy\":\"hpp\",\"pfs\":\"/x\"},\"host\"", "did you mean hp?"),
            (
                "\"host\"",
                "\"tiers\":{\"strategy\":\"baseline\",\"burst\":\"/x\"},\"host\"",
                "name it with pfs",
            ),
            (
                "\"host\"",
                "\"tiers\":{\"strategy\":\"hp\",\"pfs\":\"/x\",\"phase_bytes\":0},\"host\"",
                "a phase has 1 to 1152921504606846976 bytes",
            ),
            ("\"host\"", "\"tiers\":{\"strategy\":\"hp\",\"bb\":\"/x\"},\"host\"", "bb"),
            ("\"host\"", &shaped("pfs", "shape_burst", "hdd"), "shape_burst without burst"),
            ("\"host\"", &shaped("burst", "shape_pfs", "hdd"), "shape_pfs without pfs"),
            ("\"host\"", &shaped("pfs", "shape_pfs", "H D D"), "name 'H D D'"),
            (
                "\"host\"",
                "\"tiers\":{\"strategy\":\"hp\",\"pfs\":\"/x\",\"flush\":{\"to_bust\":1}},\"host\"",
                "unknown field `to_bust`, expected one of `when`, `to_burst`, `to_pfs`",
            ),
            (
                "\"host\"",
                "\"tiers\":{\"strategy\":\"hp\",\"pfs\":\"/x\",\"flush\":{\"when\":\"idel\"}},\"host\"",
                "unknown variant `idel`, expected `strategy` or `idle`",
            ),
        ] {
            let error = Config::parse(&good().replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
