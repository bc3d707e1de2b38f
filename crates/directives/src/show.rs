//! Directives as lines of a script.

use crate::model::{Directives, PERSIST_OPS, Persist, PoolRequest, Stage, Timeouts, Workflow, YES_NO, word};
use crate::parse::SLURM_CAPACITY;
use crate::values::{show_kept_for, show_size, show_time};
use crate::words::show_word;
use tidepool_types::ChunkSize;

impl Directives {
    /// Lines that say the same, each as it is written in a script; `Directives::parse` reads them.
    pub fn to_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let slurm = self.slurm.iter();
        lines.extend(slurm.map(|buffer| format!("#NORNS capacity={} pool={}", buffer.capacity, buffer.pool)));
        lines.extend(self.pools.iter().map(|pool| pool_line(pool)));
        lines.extend(self.stage_in.iter().map(|stage| stage_line("stage_in", stage)));
        lines.extend(self.stage_out.iter().map(|stage| stage_line("stage_out", stage)));
        lines.extend(self.persist.iter().map(|persist| persist_line(persist)));
        lines.extend(workflow_lines(&self.workflow));
        lines.extend(self.reserve.then(|| "#TIDEPOOL reserve".to_string()));
        lines.extend(timeout_line(&self.timeouts));
        lines.extend(self.resume.iter().map(|job| format!("#TIDEPOOL resume {job}")));
        lines.extend(self.discard.iter().map(|job| format!("#TIDEPOOL discard {job}")));
        lines.extend(self.end_pool.iter().map(|pool| format!("#TIDEPOOL end-pool {pool}")));
        lines
    }
}

/// A word that Slurm finds nothing of its own in.
fn quiet(text: &[u8]) -> String {
    show_word(text).replace(SLURM_CAPACITY, "capacity\\x3D")
}

fn stage_line(name: &str, stage: &Stage) -> String {
    let places = [&stage.origin, &stage.destination].map(|place| quiet(&place.to_bytes()));
    let mapping = stage.mapping.as_ref().map(|mapping| quiet(mapping.to_string().as_bytes()));
    let words: Vec<String> = places.into_iter().chain(mapping).collect();
    format!("#NORNS {name} {}", words.join(" "))
}

fn persist_line(persist: &Persist) -> String {
    let location = quiet(&persist.location.to_bytes());
    let user = persist.user.as_ref().map(|user| format!(" {}", quiet(user.as_bytes())));
    let expires = persist.expires.map(|time| format!(" expires={}", show_kept_for(time)));
    let more = [user, expires].into_iter().flatten().collect::<String>();
    format!("#NORNS persist {} {location}{more}", word(&PERSIST_OPS, persist.op))
}

fn workflow_lines(workflow: &Workflow) -> Vec<String> {
    let name = workflow.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    let prior: Vec<String> = workflow.prior.iter().map(|job| job.to_string()).collect();
    let lines = [
        workflow.start.then(|| format!("#NORNS workflow-start{name}")),
        (!prior.is_empty()).then(|| format!("#NORNS workflow-prior-dependency {}", prior.join(" "))),
        workflow.same_nodes.then(|| "#NORNS workflow-same-nodes".to_string()),
        workflow.end.then(|| "#NORNS workflow-end".to_string()),
    ];
    lines.into_iter().flatten().collect()
}

fn timeout_line(timeouts: &Timeouts) -> Option<String> {
    let pair = |key: &str, time: Option<_>| time.map(|time| format!(" {key}={}", show_time(time)));
    let pairs = [pair("stage_in", timeouts.stage_in), pair("stage_out", timeouts.stage_out)];
    let pairs: String = pairs.into_iter().flatten().collect();
    (!pairs.is_empty()).then(|| format!("#TIDEPOOL timeout{pairs}"))
}

fn pool_line(pool: &PoolRequest) -> String {
    let tiers = &pool.tiers;
    let pairs = [
        ("name", pool.name.as_ref().map(|name| name.value.clone())),
        ("size", pool.size.as_ref().map(|size| show_size(size.value))),
        ("nodes", pool.nodes.map(|nodes| nodes.to_string())),
        ("deploy", pool.deploy.map(|deploy| deploy.to_string())),
        ("mode", pool.mode.map(|mode| mode.to_string())),
        ("chunk-size", pool.chunk_size.map(chunk_size)),
        ("placement", pool.placement.map(|placement| placement.word().into())),
        ("stripe", pool.stripe.map(|stripe| stripe.to_string())),
        ("client", pool.client.map(|client| client.to_string())),
        ("encrypt", pool.encrypt.map(|encryption| encryption.to_string())),
        ("lifetime", pool.lifetime.map(|lifetime| lifetime.to_string())),
        ("fs", pool.fs.as_ref().map(|fs| show_word(fs.to_string().as_bytes()))),
        ("burst", tiers.burst.as_ref().map(|dir| show_word(dir.as_bytes()))),
        ("pfs", tiers.pfs.as_ref().map(|dir| show_word(dir.as_bytes()))),
        ("strategy", tiers.strategy.clone()),
        ("flush", tiers.flush.map(|flush| flush.to_string())),
        ("no-local", tiers.no_local.map(|yes| word(&YES_NO, yes).into())),
        ("phase-bytes", tiers.phase_bytes.map(show_size)),
        ("link-bandwidth", tiers.link_bandwidth.map(|bytes| show_size(bytes.get()))),
    ];
    let said = pairs.into_iter().filter_map(|(key, value)| Some(format!(" {key}={}", value?)));
    format!("#TIDEPOOL pool{}", said.collect::<String>())
}

fn chunk_size(size: ChunkSize) -> String {
    match size {
        ChunkSize::Auto => "auto".into(),
        ChunkSize::Bytes(bytes) => show_size(bytes),
    }
}
