//! What a node keeps of a pool in `node-K.json`, so that it can be cleaned up by any process of its user, and what the
//! starter keeps in `starter.json`. Format: `docs/formats/34-node-records.md`.
//!
//! A record is believed only as far as it is the user's own: in a directory of his, of his uid, about processes that are
//! still those, and stores that carry the pool's identity.

use crate::agent::Plan;
use crate::exit::{Context, Kind, Result};
use crate::instance::{Instance, RECORD_VERSION, check_record, own_uid};
use crate::process::Process;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tidepool_fsd::{IdleStore, StoreDirError};
use tidepool_transport::LocalNode;
use tidepool_types::InstanceId;

const STARTER: &str = "starter.json";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// The identity of the pool; empty in what several records say together.
    pub instance: String,
    /// The machine, as long as it runs: process ids mean nothing on another one.
    pub boot_id: String,
    /// Slurm's number of the job that the pool is for; empty outside Slurm.
    pub job: String,
    pub agent: Process,
    pub daemons: Vec<Process>,
    pub stores: Vec<PathBuf>,
    /// Of the starter's record: the directory on every node in which the stores are.
    pub store: PathBuf,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: u32,
    instance: String,
    uid: u32,
    boot_id: String,
    job: String,
    agent: u32,
    agent_start: u64,
    daemons: Vec<u32>,
    daemon_starts: Vec<u64>,
    stores: Vec<PathBuf>,
    store: PathBuf,
}

impl NodeRecord {
    pub fn path(instance: &Instance, node: usize) -> PathBuf {
        instance.dir.join(format!("node-{node}.json"))
    }

    /// The records of all nodes that use this directory. One that cannot be read is an error: what it names may be in use.
    pub fn all(instance: &Instance) -> Result<Vec<NodeRecord>> {
        let Some(dir) = instance.open()? else { return Ok(Vec::new()) };
        let names = dir.names().context(Kind::Cleanup, || format!("pool '{}'", instance.name))?;
        let mut records = Vec::new();
        for name in names {
            let shown = name.to_string_lossy();
            if !shown.starts_with("node-") || !shown.ends_with(".json") {
                continue;
            }
            // Its agent may just have ended.
            let Some(text) = instance.read_in(&dir, &name)? else { continue };
            records.push(NodeRecord::parse(&text).map_err(|why| instance.unreadable(&shown, &why))?);
        }
        Ok(records)
    }

    fn is_here(&self) -> bool {
        self.boot_id == LocalNode::detect().boot_id
    }

    /// Agents that live on this machine.
    pub fn agents(instance: &Instance) -> Result<Vec<Process>> {
        let here = NodeRecord::all(instance)?.into_iter().filter(NodeRecord::is_here);
        Ok(here.map(|r| r.agent).filter(|agent| agent.lives()).collect())
    }

    /// The records of this machine in one. Its agent is one that lives, if any does. Stores
    /// are those of all records, for they outlive a restart of the machine.
    pub fn read(instance: &Instance) -> Result<NodeRecord> {
        let all = NodeRecord::all(instance)?;
        let here = || all.iter().filter(|r| r.is_here());
        Ok(NodeRecord {
            instance: String::new(),
            agent: here().map(|r| r.agent).find(|agent| agent.lives()).unwrap_or_default(),
            daemons: here().flat_map(|r| r.daemons.clone()).collect(),
            stores: all.iter().flat_map(|r| r.stores.clone()).collect(),
            job: here().map(|r| r.job.clone()).next().unwrap_or_default(),
            store: PathBuf::new(),
            boot_id: LocalNode::detect().boot_id,
        })
    }

    /// Processes of this machine that the record names.
    pub fn processes(&self) -> Vec<Process> {
        let all = self.daemons.iter().chain([&self.agent]).copied();
        if self.is_here() { all.collect() } else { Vec::new() }
    }

    /// Stores that the records name and that carry their pool's identity: held, and with nothing in them that would have to stay.
    pub fn own_stores(records: &[NodeRecord]) -> std::result::Result<Vec<IdleStore>, StoreDirError> {
        // Several records may name one.
        let named: BTreeSet<(&Path, &str)> = records
            .iter()
            .flat_map(|record| record.stores.iter().map(|dir| (dir.as_path(), record.instance.as_str())))
            .collect();
        let idle = named
            .into_iter()
            .map(|(dir, instance)| IdleStore::hold(dir, own_uid(), |marked| marked.to_string() == instance));
        idle.filter_map(std::result::Result::transpose).collect()
    }

    fn starter_path(instance: &Instance) -> PathBuf {
        instance.dir.join(STARTER)
    }

    /// The process that started the pool, in the place of the agent.
    pub fn starter(instance: &Instance) -> Result<Option<NodeRecord>> {
        let Some(dir) = instance.open()? else { return Ok(None) };
        let Some(text) = instance.read_in(&dir, STARTER.as_ref())? else { return Ok(None) };
        NodeRecord::parse(&text).map(Some).map_err(|why| instance.unreadable(STARTER, &why))
    }

    /// The identity of the pool, by what its starter has noted.
    pub fn identity(instance: &Instance) -> Result<String> {
        let record = match NodeRecord::starter(instance)? {
            Some(record) => Some(record),
            None => NodeRecord::all(instance)?.into_iter().next(),
        };
        Ok(record.map(|record| record.instance).unwrap_or_default())
    }

    /// Notes that this process starts the pool: until there are agents nobody else knows
    /// what its directory is for.
    pub fn note_starter(instance: &Instance, id: InstanceId, store: &Path) -> Result<()> {
        let record = NodeRecord { store: store.to_path_buf(), ..NodeRecord::new(&id.to_string()) };
        record.write(&NodeRecord::starter_path(instance))
    }

    /// The first agent of a pool on this machine notes what a starter would; those after it find that. Another pool's
    /// directory is left alone.
    pub fn note_alone(instance: &Instance, plan: &Plan) -> Result<()> {
        let shown = || instance.dir.display().to_string();
        let _lock = instance.lock().context(Kind::Start, shown)?;
        match NodeRecord::starter(instance)? {
            Some(record) if record.instance == plan.alone => Ok(()),
            None if !instance.pool_file().exists() && NodeRecord::all(instance)?.is_empty() => {
                let record = NodeRecord { store: plan.store.clone(), ..NodeRecord::new(&plan.alone) };
                record.write(&NodeRecord::starter_path(instance))
            }
            _ => Err(instance.exists_already()),
        }
    }

    /// Notes a directory of this process's, on a node that has no agent.
    pub fn note_store(instance: &Instance, id: InstanceId, dir: &Path) -> Result<()> {
        let record = NodeRecord { stores: vec![dir.to_path_buf()], ..NodeRecord::new(&id.to_string()) };
        record.write(&NodeRecord::path(instance, 0))
    }

    /// A record of this process, for the pool of this identity.
    pub fn new(instance: &str) -> NodeRecord {
        NodeRecord {
            instance: instance.into(),
            boot_id: LocalNode::detect().boot_id,
            job: std::env::var("SLURM_JOB_ID").unwrap_or_default(),
            agent: Process::own(),
            ..NodeRecord::default()
        }
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, self.to_json())
            .and_then(|()| fs::rename(&temporary, path))
            .context(Kind::Start, || path.display().to_string())
    }

    fn to_json(&self) -> Vec<u8> {
        let raw = Raw {
            version: RECORD_VERSION,
            instance: self.instance.clone(),
            uid: own_uid(),
            boot_id: self.boot_id.clone(),
            job: self.job.clone(),
            agent: self.agent.pid,
            agent_start: self.agent.start,
            daemons: self.daemons.iter().map(|daemon| daemon.pid).collect(),
            daemon_starts: self.daemons.iter().map(|daemon| daemon.start).collect(),
            stores: self.stores.clone(),
            store: self.store.clone(),
        };
        serde_json::to_vec(&raw).expect("a record always serializes")
    }

    fn parse(text: &[u8]) -> std::result::Result<NodeRecord, String> {
        let raw: Raw = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        check_record(raw.version, raw.uid)?;
        if InstanceId::parse(&raw.instance).is_none() {
            return Err("has an instance that is not 32 hexadecimal digits".into());
        }
        if raw.daemons.len() != raw.daemon_starts.len() {
            return Err(format!(
                "names {} daemons and {} starts",
                raw.daemons.len(),
                raw.daemon_starts.len()
            ));
        }
        if let Some(relative) = raw.stores.iter().find(|dir| !dir.is_absolute()) {
            return Err(format!("names a store '{}', which is no path from '/' on", relative.display()));
        }
        let daemons = raw.daemons.into_iter().zip(raw.daemon_starts);
        Ok(NodeRecord {
            instance: raw.instance,
            boot_id: raw.boot_id,
            job: raw.job,
            agent: Process { pid: raw.agent, start: raw.agent_start },
            daemons: daemons.map(|(pid, start)| Process { pid, start }).collect(),
            stores: raw.stores,
            store: raw.store,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> NodeRecord {
        NodeRecord {
            instance: "0123456789abcdef0123456789abcdef".into(),
            boot_id: "b0".into(),
            job: "4711".into(),
            agent: Process { pid: 12, start: 3400 },
            daemons: vec![Process { pid: 13, start: 3401 }, Process { pid: 14, start: 3402 }],
            stores: vec!["/nvme/tidepool-p/d0".into()],
            store: "/nvme".into(),
        }
    }

    /// The example of `docs/formats/34-node-records.md`, with the uid of whoever runs this.
    fn literal() -> String {
        r#"{"version":1,"instance":"0123456789abcdef0123456789abcdef","uid":UID,"boot_id":"b0","job":"4711","agent":12,"agent_start":3400,"daemons":[13,14],"daemon_starts":[3401,3402],"stores":["/nvme/tidepool-p/d0"],"store":"/nvme"}"#
            .replace("UID", &own_uid().to_string())
    }

    #[test]
    fn a_record_is_these_bytes() {
        assert_eq!(String::from_utf8(sample().to_json()).expect("JSON is text"), literal());
        assert_eq!(NodeRecord::parse(literal().as_bytes()), Ok(sample()));
        let spec = include_str!("../../../docs/formats/34-node-records.md");
        assert!(
            spec.contains(&literal().replace(&format!("\"uid\":{}", own_uid()), "\"uid\":31001")),
            "the example"
        );
    }

    #[test]
    fn what_is_no_record_of_this_user_is_refused() {
        let own = format!("\"uid\":{}", own_uid());
        for (from, to, word) in [
            (&*own, "\"uid\":31999", "uid 31999"),
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"job\"", "\"jobs\"", "jobs"),
            ("\"store\":\"/nvme\"", "\"store\":\"/nvme\",\"more\":1", "more"),
            ("\"agent_start\":3400,", "", "agent_start"),
            ("[3401,3402]", "[3401]", "1 starts"),
            ("0123456789abcdef0", "", "hexadecimal"),
            ("/nvme/tidepool-p", "nvme", "from '/' on"),
            ("\"agent\":12", "\"agent\":-12", "-12"),
        ] {
            let text = literal().replacen(from, to, 1);
            assert_ne!(text, literal());
            let error = NodeRecord::parse(text.as_bytes()).expect_err(word);
            assert!(error.contains(word), "{word}: {error}");
        }
        for old in [r#"{"boot_id":"b","job":"1","agent":1,"daemons":[1],"stores":[]}"#, "", "[]", "{"] {
            assert!(NodeRecord::parse(old.as_bytes()).is_err(), "{old}");
        }
    }

    #[test]
    fn processes_of_another_start_of_the_machine_are_nobodys() {
        assert!(sample().processes().is_empty());
        let here = NodeRecord { boot_id: LocalNode::detect().boot_id, ..sample() };
        assert_eq!(here.processes().len(), 3);
    }
}
