//! What the site has, `/etc/tidepool/slurm.toml`:
//!
//! ```toml
//! state-dir = "/var/lib/tidepool/slurm"            # of the job book, on the controller
//! stager-port = 42000                              # 'listen' of the nodes' stagers
//! secret-file = "/etc/tidepool/admin.secret"       # theirs, with a key of its own
//! stage-in-timeout = "1h"
//! stage-out-timeout = "4h"
//! stager-away-max = "2m"                           # so long a job waits for a stager that is updated or does not answer
//! pool-store = "/tmp"                              # directory of each node for the data of jobs' pools
//! pool-size-max = "10TiB"                          # of one pool
//! pool-capacity = "3TiB"                           # of one node, for the pools of all jobs that it has
//! campaign-idle-max = "30d"                        # after so long without a job, pools with lifetime=campaign are removed
//! libexec = "/usr/local/libexec/tidepool"          # where the parts in C are
//!
//! [[dataspace]]
//! name = "nvme0://"
//! kind = "local"        # local, shared, object
//! mount = "/mnt/nvme0"
//! ```
//!
//! The file is checked whole: all that is wrong is told at once.

use crate::exit::{Context, Failure, Kind, Result};
use nix::unistd::User;
use serde::Deserialize;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidepool_directives::{
    DataspaceKind, Directives, POOL, Place, Problem, Site as Given, SiteDataspace, check, near,
};
use tidepool_stage_client::words::parse_duration;
use tidepool_types::parse_size;

/// Where it is when nobody says.
pub const SITE_FILE: &str = "/etc/tidepool/slurm.toml";
/// Where prolog, epilog and the parts in C are when nobody says.
pub const LIBEXEC: &str = "/usr/local/libexec/tidepool";
const BYTES_MAX: u64 = 1 << 20;

const KEYS: [&str; 12] = [
    "state-dir",
    "stager-port",
    "secret-file",
    "stage-in-timeout",
    "stage-out-timeout",
    "stager-away-max",
    "pool-store",
    "pool-size-max",
    "pool-capacity",
    "campaign-idle-max",
    "libexec",
    "dataspace",
];
const DATASPACE_KEYS: [&str; 3] = ["name", "kind", "mount"];
const KINDS: [(&str, DataspaceKind); 3] =
    [("local", DataspaceKind::Local), ("shared", DataspaceKind::Shared), ("object", DataspaceKind::Object)];

#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    pub file: PathBuf,
    pub dataspaces: Vec<SiteDataspace>,
    /// Bytes.
    pub pool_size_max: Option<u64>,
    /// Bytes that a node has for pools; none where nobody counts.
    pub pool_capacity: Option<u64>,
    /// Of the job book.
    pub state_dir: PathBuf,
    pub stager_port: u16,
    pub secret_file: PathBuf,
    pub stage_in_timeout: Duration,
    pub stage_out_timeout: Duration,
    /// How long a job that is made ready waits for a stager that does not answer; then it is queued again, as other nodes
    /// may do.
    pub stager_away_max: Duration,
    /// Directory of every node for the data of pools.
    pub pool_store: PathBuf,
    /// How long a campaign's pool stays that no job uses; without it, until somebody ends it.
    pub campaign_idle_max: Option<Duration>,
    /// Where the parts in C are.
    pub libexec: PathBuf,
}

/// As it is written.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Written {
    state_dir: Option<PathBuf>,
    stager_port: Option<u16>,
    secret_file: Option<PathBuf>,
    stage_in_timeout: Option<String>,
    stage_out_timeout: Option<String>,
    stager_away_max: Option<String>,
    pool_store: Option<PathBuf>,
    pool_size_max: Option<String>,
    pool_capacity: Option<String>,
    campaign_idle_max: Option<String>,
    libexec: Option<PathBuf>,
    #[serde(default)]
    dataspace: Vec<WrittenDataspace>,
    #[serde(flatten)]
    others: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct WrittenDataspace {
    name: Option<String>,
    kind: Option<String>,
    mount: Option<String>,
    #[serde(flatten)]
    others: BTreeMap<String, toml::Value>,
}

impl Site {
    /// The named file, or the usual one if it is there.
    pub fn load(named: Option<&Path>) -> Result<Option<Site>> {
        let file = named.unwrap_or(Path::new(SITE_FILE));
        let is_there = named.is_some() || file.try_exists().context(Kind::Usage, || SITE_FILE.into())?;
        if !is_there {
            return Ok(None);
        }
        let text = read(file).context(Kind::Usage, || file.display().to_string())?;
        match parse(file, &text) {
            Ok(site) => Ok(Some(site)),
            Err(wrong) => {
                let lines = wrong.iter().map(|what| format!("{}: {what}", file.display()));
                Err(Failure::new(Kind::Usage, lines.collect::<Vec<_>>().join("\ntidepool: ")))
            }
        }
    }

    /// The named file, which hooks cannot do without.
    pub fn read(file: &Path) -> Result<Site> {
        let missing = || Failure::new(Kind::Usage, format!("{} is missing", file.display()));
        Site::load(Some(file))?.ok_or_else(missing)
    }

    pub fn book(&self) -> PathBuf {
        self.state_dir.join("jobs.db")
    }

    /// The dataspace that a place is in, and its path there.
    pub fn resolve(&self, place: &Place) -> std::result::Result<(&SiteDataspace, Vec<u8>), String> {
        let named = |name: &str| self.dataspaces.iter().find(|dataspace| dataspace.name == name);
        let (name, path) = match place {
            Place::Dataspace { name, path } => (name.clone(), path.clone()),
            Place::Path(path) => {
                let given = Given {
                    dataspaces: Cow::Borrowed(&self.dataspaces),
                    has_user: &|_| false,
                    pool_size_max: None,
                    job: None,
                };
                let found = given.resolve(path).map(|(found, path)| (found.name.clone(), path));
                found.ok_or_else(|| format!("{place} is in no dataspace"))?
            }
        };
        let found = named(&name).ok_or_else(|| format!("there is no dataspace {name}"))?;
        Ok((found, path))
    }

    pub fn dataspace_names(&self) -> Vec<String> {
        self.dataspaces.iter().map(|dataspace| dataspace.name.clone()).collect()
    }

    /// Dataspaces that programs see as directories.
    pub fn directories(&self) -> impl Iterator<Item = &SiteDataspace> {
        self.dataspaces.iter().filter(|d| matches!(d.kind, DataspaceKind::Local | DataspaceKind::Shared))
    }

    /// What speaks here against directives, by users of this machine.
    pub fn check(&self, directives: &Directives) -> Result<Vec<Problem>> {
        let failed = RefCell::new(None);
        let has_user = |name: &str| match User::from_name(name) {
            Ok(user) => user.is_some(),
            Err(error) => {
                failed.replace(Some(format!("cannot look for user '{name}': {error}")));
                true
            }
        };
        let given = Given {
            dataspaces: Cow::Borrowed(&self.dataspaces),
            has_user: &has_user,
            pool_size_max: self.pool_size_max,
            job: None,
        };
        let problems = check(directives, &given);
        match failed.take() {
            None => Ok(problems),
            Some(text) => Err(Failure::new(Kind::Other, text)),
        }
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let length = std::fs::File::open(file)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match length as u64 > BYTES_MAX {
        true => Err(std::io::Error::other(format!("longer than {BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

fn parse(file: &Path, text: &str) -> std::result::Result<Site, Vec<String>> {
    let written: Written = toml::from_str(text).map_err(|error| vec![error.to_string()])?;
    let mut wrong: Vec<String> = written.others.keys().map(|key| unknown(key, &KEYS)).collect();
    let mut size = |key: &str, value: &Option<String>| {
        let size = value.as_ref().map(|text| parse_size(text));
        size.and_then(|size| size.map_err(|e| wrong.push(format!("{key}: {e}"))).ok())
    };
    let pool_size_max = size("pool-size-max", &written.pool_size_max);
    let pool_capacity = size("pool-capacity", &written.pool_capacity);
    let mut time = |key: &str, value: &Option<String>, usual: u64| {
        let parsed = value.as_ref().map(|text| parse_duration(text));
        let time = parsed.and_then(|time| time.map_err(|e| wrong.push(format!("{key}: {e}"))).ok());
        time.unwrap_or(Duration::from_secs(usual))
    };
    let stage_in_timeout = time("stage-in-timeout", &written.stage_in_timeout, 3600);
    let stage_out_timeout = time("stage-out-timeout", &written.stage_out_timeout, 4 * 3600);
    let stager_away_max = time("stager-away-max", &written.stager_away_max, 120);
    let campaign_idle_max =
        written.campaign_idle_max.is_some().then(|| time("campaign-idle-max", &written.campaign_idle_max, 0));
    let mut path = |key: &str, value: &Option<PathBuf>, usual: &str| {
        let path = value.clone().unwrap_or_else(|| usual.into());
        if !path.is_absolute() {
            wrong.push(format!("{key} is '{}'; write a path from '/' on", path.display()));
        }
        path
    };
    let state_dir = path("state-dir", &written.state_dir, "/var/lib/tidepool/slurm");
    let secret_file = path("secret-file", &written.secret_file, "/etc/tidepool/admin.secret");
    let pool_store = path("pool-store", &written.pool_store, "/tmp");
    let libexec = path("libexec", &written.libexec, LIBEXEC);
    let mut dataspaces: Vec<SiteDataspace> = Vec::new();
    for (number, written) in (1..).zip(&written.dataspace) {
        let title = match &written.name {
            Some(name) => format!("dataspace '{name}'"),
            None => format!("dataspace {number}"),
        };
        match dataspace(written) {
            Ok(dataspace) if dataspaces.iter().any(|other| other.name == dataspace.name) => {
                wrong.push(format!("{title} is there twice"));
            }
            Ok(dataspace) => dataspaces.push(dataspace),
            Err(all) => wrong.extend(all.iter().map(|what| format!("{title}: {what}"))),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(Site {
        file: file.into(),
        dataspaces,
        pool_size_max,
        pool_capacity,
        state_dir,
        stager_port: written.stager_port.unwrap_or(42000),
        secret_file,
        stage_in_timeout,
        stage_out_timeout,
        stager_away_max,
        pool_store,
        campaign_idle_max,
        libexec,
    })
}

fn dataspace(written: &WrittenDataspace) -> std::result::Result<SiteDataspace, Vec<String>> {
    let mut wrong: Vec<String> = written.others.keys().map(|key| unknown(key, &DATASPACE_KEYS)).collect();
    let mut need = |key: &str, value: &Option<String>| match value {
        Some(value) => Some(value.clone()),
        None => {
            wrong.push(format!("{key} is missing"));
            None
        }
    };
    let name = need("name", &written.name);
    let kind = need("kind", &written.kind);
    let mount = need("mount", &written.mount);
    let name = name.and_then(|name| check_name(name).map_err(|why| wrong.push(why)).ok());
    let kind = kind.and_then(|kind| check_kind(&kind).map_err(|why| wrong.push(why)).ok());
    if let (Some(kind), Some(mount)) = (kind, &mount) {
        wrong.extend(check_mount(kind, mount).err());
    }
    match (name, kind, mount) {
        (Some(name), Some(kind), Some(mount)) if wrong.is_empty() => Ok(SiteDataspace { name, kind, mount }),
        _ => Err(wrong),
    }
}

/// A name is what scripts can write.
fn check_name(name: String) -> std::result::Result<String, String> {
    if name == format!("{POOL}://") {
        return Err("this name is that of a job's own pool".into());
    }
    match Place::parse(name.as_bytes()) {
        Ok(Place::Dataspace { name: whole, path }) if path.is_empty() => Ok(whole),
        _ => Err("write the name as nvme0://".into()),
    }
}

fn check_kind(kind: &str) -> std::result::Result<DataspaceKind, String> {
    let names = || KINDS.iter().map(|(name, _)| *name);
    let known = KINDS.iter().find(|(name, _)| *name == kind).map(|(_, kind)| *kind);
    known.ok_or_else(|| match near(kind, names()) {
        Some(meant) => format!("there is no kind '{kind}'; did you mean '{meant}'?"),
        None => format!("there is no kind '{kind}'; there are {}", names().collect::<Vec<_>>().join(", ")),
    })
}

fn check_mount(kind: DataspaceKind, mount: &str) -> std::result::Result<(), String> {
    match kind {
        DataspaceKind::Object if mount.contains("://") => Ok(()),
        DataspaceKind::Object => {
            Err(format!("mount is '{mount}'; write the store's address, as s3://bucket"))
        }
        _ if mount.starts_with('/') => Ok(()),
        _ => Err(format!("mount is '{mount}'; write a directory, from '/' on")),
    }
}

fn unknown(key: &str, known: &[&str]) -> String {
    match near(key, known.iter().copied()) {
        Some(meant) => format!("there is no key '{key}'; did you mean '{meant}'?"),
        None => format!("there is no key '{key}'; the keys are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "pool-size-max = \"10TiB\"\n\
        [[dataspace]]\nname = \"nvme0://\"\nkind = \"local\"\nmount = \"/mnt/nvme0\"\n\
        [[dataspace]]\nname = \"s3://\"\nkind = \"object\"\nmount = \"s3://data\"\n";

    #[test]
    fn a_site_is_read() {
        let site = parse(Path::new("f"), WHOLE).unwrap();
        assert_eq!((site.pool_size_max, site.stage_in_timeout.as_secs()), (Some(10 << 40), 3600));
        let local =
            SiteDataspace { name: "nvme0://".into(), kind: DataspaceKind::Local, mount: "/mnt/nvme0".into() };
        assert_eq!((&site.dataspaces[0], site.dataspaces.len()), (&local, 2));
        let (dataspace, path) = site.resolve(&Place::parse(b"/mnt/nvme0/a/b").unwrap()).unwrap();
        assert_eq!((dataspace, path), (&local, b"a/b".to_vec()));
        assert!(parse(Path::new("f"), "").unwrap().dataspaces.is_empty());
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let text = "pool-size-mx = 1\npool-size-max = \"1.5TiB\"\ncolour = \"red\"\n\
            state-dir = \"x\"\nstage-in-timeout = \"soon\"\n\
            [[dataspace]]\nnam = \"a://\"\nkind = \"locl\"\nmount = \"mnt\"\n\
            [[dataspace]]\nname = \"b\"\nkind = \"tape\"\n\
            [[dataspace]]\nname = \"c://\"\nkind = \"shared\"\nmount = \"c\"\n\
            [[dataspace]]\nname = \"pool://\"\nkind = \"object\"\nmount = \"bucket\"\n\
            [[dataspace]]\nname = \"d://\"\nkind = \"local\"\nmount = \"/d\"\n\
            [[dataspace]]\nname = \"d://\"\nkind = \"local\"\nmount = \"/e\"\n";
        assert_eq!(
            parse(Path::new("f"), text).unwrap_err(),
            [
                "there is no key 'colour'; the keys are state-dir, stager-port, secret-file, stage-in-timeout, stage-out-timeout, stager-away-max, pool-store, pool-size-max, pool-capacity, campaign-idle-max, libexec, dataspace",
                "there is no key 'pool-size-mx'; did you mean 'pool-size-max'?",
                "pool-size-max: '1.5TiB' is not a size: fractions are not accepted; write a whole number with an optional unit, such as 4096, 512KiB or 1GB",
                "stage-in-timeout: 'soon' is no time; write a number and s, m, h, d or w, such as 30s or 6w",
                "state-dir is 'x'; write a path from '/' on",
                "dataspace 1: there is no key 'nam'; did you mean 'name'?",
                "dataspace 1: name is missing",
                "dataspace 1: there is no kind 'locl'; did you mean 'local'?",
                "dataspace 'b': mount is missing",
                "dataspace 'b': write the name as nvme0://",
                "dataspace 'b': there is no kind 'tape'; there are local, shared, object",
                "dataspace 'c://': mount is 'c'; write a directory, from '/' on",
                "dataspace 'pool://': this name is that of a job's own pool",
                "dataspace 'pool://': mount is 'bucket'; write the store's address, as s3://bucket",
                "dataspace 'd://' is there twice",
            ]
        );
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        for text in ["dataspace = 1", "[[dataspace]]\nname = 1", "pool-size-max = 3", "[[dataspace"] {
            let told = parse(Path::new("f"), text).unwrap_err();
            assert!(told[0].contains("line "), "{text}: {told:?}");
        }
    }
}
