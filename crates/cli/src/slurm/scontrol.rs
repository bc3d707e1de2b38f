//! Slurm's own commands, as far as hooks need them. Never called from a hook that slurmctld waits for: it would answer
//! neither.

use crate::exit::{Context, Failure, Kind, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long slurmctld may take to answer: it may be starting again.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long the teardown of a job that cannot start is waited for, before it is cancelled: Slurm starts it again after two
/// minutes.
const TEARDOWN_MAX: Duration = Duration::from_secs(90);
const TEARDOWN_LOOK: Duration = Duration::from_millis(100);
/// A job that is over is not torn down any more if that has not begun by then.
const STAYS_STAGED: Duration = Duration::from_secs(10);
/// How often a job is cancelled that Slurm stages in again meanwhile.
const CANCELS_MAX: usize = 3;
/// Characters of a comment.
const COMMENT_MAX: usize = 400;
/// Between the fields that `squeue` prints. No name of a node, partition or state has it.
const FIELD: char = '|';

/// States of jobs whose program has ended badly, or never began.
const BAD: [&str; 8] =
    ["FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"];

/// What Slurm says of a job. Only fields that no user can write into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    pub state: String,
    pub node_count: usize,
    /// Empty before it has any.
    pub nodes: Vec<String>,
    pub partition: String,
    /// As `wait(2)` tells it; 0 while it is not known.
    pub exit: u32,
    /// How often it was queued again.
    pub restarts: u32,
}

impl JobFacts {
    /// It waits to be started, perhaps once more.
    pub fn is_queued(&self) -> bool {
        ["PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"].contains(&self.state.as_str())
    }

    /// Its program has ended badly, or never began.
    pub fn failed(&self) -> bool {
        self.exit != 0 || BAD.contains(&self.state.as_str())
    }
}

/// One run of a command of Slurm's.
fn once(program: &str, args: &[&str]) -> std::result::Result<String, String> {
    // Times in seconds since 1970.
    let said = Command::new(program)
        .args(args)
        .env("SLURM_TIME_FORMAT", "%s")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&said.stderr).trim().to_string();
    if why.contains("Could not establish a configuration source") {
        return Err(format!(
            "{program}: this machine has no Slurm configuration; ask on a machine of the cluster"
        ));
    }
    Err(format!(
        "{program} {}: {}",
        args.first().unwrap_or(&""),
        if why.is_empty() { said.status.to_string() } else { why }
    ))
}

/// True for what goes away when slurmctld is there again.
pub fn is_passing(why: &str) -> bool {
    const WORDS: [&str; 7] = [
        "Unable to contact",
        "Connection refused",
        "timed out",
        "Socket timed out",
        "temporarily unable",
        "Unexpected message received",
        "Zero Bytes were transmitted",
    ];
    WORDS.iter().any(|word| why.contains(word))
}

/// Asks again while slurmctld is away.
fn run(program: &str, args: &[&str]) -> Result<String> {
    let deadline = Instant::now() + ANSWER_MAX;
    loop {
        match once(program, args) {
            Err(why) if is_passing(&why) && Instant::now() < deadline => std::thread::sleep(ASK_AGAIN),
            other => return other.map_err(|why| Failure::new(Kind::Other, why)),
        }
    }
}

/// Fields of `squeue --Format`, behind the job's number.
fn fields_of(fields: &[&str]) -> String {
    let all = ["jobid:32"].iter().chain(fields);
    all.map(|field| format!("{field}{FIELD}")).collect::<Vec<_>>().join(",")
}

/// The job's own row, without its number. Asked for the first component of a heterogeneous job, squeue tells of all of them,
/// in any order.
fn own_row(said: &str, id: u32) -> Option<&str> {
    let mut rows = said.lines().filter_map(|line| line.split_once(FIELD));
    rows.find(|(job, _)| job.trim().parse() == Ok(id)).map(|(_, row)| row)
}

/// What Slurm says of a job; none when it does not know it (any more).
pub fn job(id: u32) -> Result<Option<JobFacts>> {
    // Widths are chosen so that nothing is cut: 16 KiB of node list are thousands of nodes.
    let format = fields_of(&[
        "state:32",
        "numnodes:16",
        "nodelist:16384",
        "partition:256",
        "exit_code:16",
        "restartcnt:16",
    ]);
    let args = ["--noheader", "--states=all", "--jobs", &id.to_string(), "--Format", &format];
    match run("squeue", &args) {
        Ok(said) => own_row(&said, id).map(facts).transpose(),
        Err(failure) if failure.to_string().contains("Invalid job id") => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn facts(line: &str) -> Result<JobFacts> {
    let fields: Vec<&str> = line.split(FIELD).map(str::trim).collect();
    let strange = || Failure::new(Kind::Other, format!("squeue said '{line}'"));
    let [state, count, nodes, partition, exit, restarts, ..] = fields[..] else { return Err(strange()) };
    let nodes = if nodes == "(null)" { "" } else { nodes };
    Ok(JobFacts {
        state: state.into(),
        node_count: count.split('-').next().unwrap_or(count).parse().map_err(|_| strange())?,
        nodes: tidepool_batch::nodes::expand(nodes).map_err(|why| Failure::new(Kind::Other, why))?,
        partition: partition.into(),
        exit: exit.parse().unwrap_or(0),
        restarts: restarts.parse().map_err(|_| strange())?,
    })
}

/// A job of which the book knows the end is not over: it was queued again, and no hook has been called yet. None where
/// slurmctld does not answer.
pub fn is_not_over(id: u32) -> Option<bool> {
    let said =
        once("squeue", &["--noheader", "--jobs", &id.to_string(), "--Format", &fields_of(&["state:32"])]);
    match said {
        // Without --states, squeue tells of jobs that are not over.
        Ok(said) => {
            let state = |row: &str| row.split(FIELD).next().unwrap_or_default().trim().to_string();
            Some(own_row(&said, id).map(state).is_some_and(|state| !HIDING.contains(&state.as_str())))
        }
        Err(why) => why.contains("Invalid job id").then_some(false),
    }
}

/// States that hide how a job's program has ended.
const HIDING: [&str; 2] = ["COMPLETING", "STAGE_OUT"];
/// The part in C that tells what they hide.
pub const STATE_PROGRAM: &str = "tidepool_job_state";

/// The same, with the state that the job will have when its nodes and its data are done with; `libexec` is where the parts
/// in C are. Where that cannot be told the state stays what squeue shows, and why comes with it.
pub fn job_beneath(id: u32, libexec: &Path) -> Result<Option<(JobFacts, Option<String>)>> {
    let Some(mut facts) = job(id)? else { return Ok(None) };
    let mut unknown = None;
    if HIDING.contains(&facts.state.as_str()) {
        let program = libexec.join(STATE_PROGRAM).display().to_string();
        match run(&program, &[&id.to_string()]) {
            Ok(said) => facts.state = said.trim().into(),
            Err(failure) => unknown = Some(failure.to_string()),
        }
    }
    Ok(Some((facts, unknown)))
}

/// Nodes that a queued job insists on, and those that it refuses.
pub fn wishes(id: u32) -> Result<(Vec<String>, Vec<String>)> {
    let format = fields_of(&["reqnodes:16384", "exc_nodes:16384"]);
    let said = run("squeue", &["--noheader", "--jobs", &id.to_string(), "--Format", &format])?;
    let strange = || Failure::new(Kind::Other, format!("squeue said '{said}'"));
    let row = own_row(&said, id).ok_or_else(strange)?;
    let [wanted, refused, ..] = row.split(FIELD).collect::<Vec<_>>()[..] else {
        return Err(strange());
    };
    let list = |text: &str| match text.trim() {
        "" | "(null)" => Ok(Vec::new()),
        nodes => tidepool_batch::nodes::expand(nodes).map_err(|why| Failure::new(Kind::Other, why)),
    };
    Ok((list(wanted)?, list(refused)?))
}

/// True where Slurm chooses nodes for jobs before they can start.
pub fn has_plans() -> Result<bool> {
    let said = run("scontrol", &["show", "config"])?;
    let line = said.lines().find(|line| line.starts_with("SchedulerType"));
    Ok(line.is_some_and(|line| line.contains("sched/backfill")))
}

/// When slurmctld was started, in seconds since 1970.
pub fn started_at() -> Result<u64> {
    let said = run("scontrol", &["show", "config"])?;
    let line = said.lines().find(|line| line.starts_with("BOOT_TIME")).unwrap_or_default();
    let value = line.split('=').nth(1).unwrap_or_default().trim();
    value
        .parse()
        .map_err(|_| Failure::new(Kind::Other, format!("scontrol show config: BOOT_TIME is '{line}'")))
}

/// What a job is at, and why it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    pub state: String,
    pub reason: String,
    /// What Slurm's burst buffers are at for it; empty where they have nothing to do.
    pub buffers: String,
    /// When it ended, in seconds since 1970, or when it will have to.
    pub end: Option<u64>,
}

impl Stand {
    /// Slurm calls no hook for the job any more.
    pub fn is_over(&self) -> bool {
        self.state == "COMPLETED" || BAD.contains(&self.state.as_str())
    }
}

/// All jobs that Slurm knows.
pub fn stands() -> Result<BTreeMap<u32, Stand>> {
    let said = run("squeue", &["--noheader", "--states=all", "--Format", &stand_format()])?;
    Ok(said.lines().filter_map(stand_of).collect())
}

/// One of them; none when Slurm does not know it.
pub fn stand(id: u32) -> Result<Option<Stand>> {
    let args = ["--noheader", "--states=all", "--jobs", &id.to_string(), "--Format", &stand_format()];
    match run("squeue", &args) {
        Ok(said) => {
            let mut all = said.lines().filter_map(stand_of);
            Ok(all.find(|(job, _)| *job == id).map(|(_, stand)| stand))
        }
        Err(failure) if failure.to_string().contains("Invalid job id") => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn stand_format() -> String {
    fields_of(&["state:32", "reason:64", "burstbufferstate:32", "endtime:32"])
}

fn stand_of(line: &str) -> Option<(u32, Stand)> {
    let fields: Vec<&str> = line.split(FIELD).map(str::trim).collect();
    let [job, state, reason, buffers, end, ..] = fields[..] else { return None };
    let stand = Stand {
        state: state.into(),
        reason: reason.into(),
        buffers: if buffers == "(null)" { String::new() } else { buffers.into() },
        end: end.parse().ok(),
    };
    Some((job.parse().ok()?, stand))
}

/// Puts a job that has ended back into the queue, under its number.
pub fn requeue(id: u32) -> Result<()> {
    run("scontrol", &["requeue", &id.to_string()])?;
    // Otherwise Slurm lets two minutes go by, which harms nothing: it is queued already.
    let _ = update_job(id, &[("StartTime", "now")]);
    Ok(())
}

/// The same, but it stays there until somebody releases it.
pub fn requeue_held(id: u32) -> Result<()> {
    run("scontrol", &["requeuehold", &id.to_string()]).map(drop)
}

/// Sets fields of a job, as `ReqNodeList`.
pub fn update_job(id: u32, fields: &[(&str, &str)]) -> Result<()> {
    let id = format!("JobId={id}");
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let args: Vec<&str> =
        ["update", id.as_str()].into_iter().chain(fields.iter().map(String::as_str)).collect();
    run("scontrol", &args).map(drop)
}

/// Puts a line where `squeue -O admin_comment` and `scontrol show job` have it. That it cannot be put fails nothing.
pub fn comment(id: u32, text: &str) {
    let field = format!("AdminComment={}", one_line(text));
    let _ = once("scontrol", &["update", &format!("JobId={id}"), &field]);
}

/// The same of a job whose program has ended, where Slurm keeps accounts: slurmctld takes no comment on it any more. `sacctmgr` makes
/// small letters of all, so names of places are not for here.
pub fn comment_in_accounts(id: u32, text: &str) {
    let field = format!("AdminComment={}", one_line(text));
    let _ =
        once("sacctmgr", &["--immediate", "modify", "job", "where", &format!("JobID={id}"), "set", &field]);
}

/// As long as a comment may be, and no longer than a line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(COMMENT_MAX).collect()
}

/// Makes Slurm consider a job again that it has taken back into the queue. A hook that failed leaves the job with a
/// reason (`FAIL_BURST_BUFFER_OP`) under which `job_independent` of slurmctld passes it over for ever; any change of the
/// job takes the reason away, and what it was is in the comment. A job that is held stays so.
pub fn look_again(id: u32, reason: &str) {
    comment(id, &format!("tidepool: {reason}"));
}

/// Ends a job whose hook fails, after it. Slurm calls the teardown for what the hook says, and once more when the job is
/// cancelled; the second call ends the first, and at times both. So a process of its own waits for the first one's end.
pub fn cancel_from_hook(id: u32, site: &Path) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().context(Kind::Other, || "finding this program".into())?;
    Command::new(program)
        .args(["slurm", "hook", "--site"])
        .arg(site)
        .args(["cancel", &id.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Slurm ends the hooks of a job that is cancelled with their groups.
        .process_group(0)
        .spawn()
        .map(drop)
        .context(Kind::Other, || "starting another process".into())
}

/// See [`cancel_from_hook`]. Where the teardown takes long the job is cancelled all the same: Slurm would start it again.
pub fn cancel_when_torn_down(id: u32) -> Result<()> {
    close_inherited()?;
    is_torn_down_in_time(id)?;
    for _ in 0..CANCELS_MAX {
        if stand(id)?.is_none() {
            return Ok(());
        }
        cancel(id)?;
        if !stays_staged(id)? {
            return Ok(());
        }
        requeue_held(id)?;
        is_torn_down_in_time(id)?;
    }
    Ok(())
}

/// Whether Slurm has begun to stage a job in again at the moment when it was cancelled: it is over then, takes its data to be there, and
/// nobody tears it down.
fn stays_staged(id: u32) -> Result<bool> {
    let began = Instant::now();
    loop {
        let stays = stand(id)?.is_some_and(|stand| stand.is_over() && stand.buffers.starts_with("stag"));
        if !stays || began.elapsed() > STAYS_STAGED {
            return Ok(stays);
        }
        std::thread::sleep(TEARDOWN_LOOK);
    }
}

/// Waits for a teardown that Slurm has begun; whether it has ended within [`TEARDOWN_MAX`].
pub fn is_torn_down_in_time(id: u32) -> Result<bool> {
    let began = Instant::now();
    while began.elapsed() < TEARDOWN_MAX {
        std::thread::sleep(TEARDOWN_LOOK);
        let is_at_work = |stand: &Stand| !["", "complete"].contains(&stand.buffers.as_str());
        if !stand(id)?.as_ref().is_some_and(is_at_work) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Slurm takes a hook for running as long as anybody has the pipe that it is listened to by. Called before this process has
/// opened anything.
fn close_inherited() -> Result<()> {
    const DIR: &str = "/proc/self/fd";
    let entries = std::fs::read_dir(DIR).context(Kind::Other, || DIR.into())?;
    let numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // That of the listing is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

pub fn cancel(id: u32) -> Result<()> {
    run("scancel", &[&id.to_string()]).map(drop)
}

/// Ends a job together with whatever is still done for it.
pub fn cancel_in_a_hurry(id: u32) -> Result<()> {
    run("scancel", &["--hurry", &id.to_string()]).map(drop)
}

/// When and where Slurm expects a pending job to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seconds since 1970.
    pub start: u64,
    /// Empty while it has not chosen any.
    pub nodes: Vec<String>,
}

/// None when Slurm has no plan.
pub fn plan(id: u32) -> Option<Plan> {
    let format = fields_of(&["starttime:32", "schednodes:16384"]);
    let args = ["--noheader", "--jobs", &id.to_string(), "--Format", &format];
    planned(own_row(&once("squeue", &args).ok()?, id)?)
}

fn planned(line: &str) -> Option<Plan> {
    let mut fields = line.split(FIELD).map(str::trim);
    let start = fields.next()?.parse().ok()?;
    let nodes = fields.next().filter(|nodes| *nodes != "(null)").unwrap_or_default();
    Some(Plan { start, nodes: tidepool_batch::nodes::expand(nodes).ok()? })
}

/// Until when jobs may still be on nodes, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// None is there.
    Free,
    /// The latest of their limits. They may pass it while their data go out.
    Until(u64),
}

/// None when Slurm does not answer, or a job there has no limit.
pub fn busy(nodes: &[String]) -> Option<Busy> {
    let states = "--states=running,configuring,completing,suspended,stopped";
    let format = format!("endtime:32{FIELD}");
    let args = ["--noheader", "--nodelist", &nodes.join(","), states, "--Format", &format];
    busy_until(&once("squeue", &args).ok()?)
}

fn busy_until(said: &str) -> Option<Busy> {
    let ends = said.lines().filter(|line| !line.trim().is_empty());
    let ends = ends.map(|line| line.split(FIELD).next().and_then(|end| end.trim().parse().ok()));
    let ends: Vec<u64> = ends.collect::<Option<_>>()?;
    Some(ends.into_iter().max().map_or(Busy::Free, Busy::Until))
}

/// Names of all nodes that are not down.
pub fn live_nodes() -> Result<Vec<String>> {
    let said = run("sinfo", &["--noheader", "--Node", "--responding", "--format", "%N"])?;
    let mut names: Vec<String> = said.lines().map(|line| line.trim().to_string()).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

pub enum NodesWanted<'a> {
    /// Whether or not jobs run there.
    These(&'a [String]),
    /// So many that nobody uses.
    Free(usize),
}

/// A reservation that keeps everybody else off.
pub fn reserve(
    name: &str,
    nodes: NodesWanted,
    partition: &str,
    user: &str,
    minutes: u64,
) -> std::result::Result<(), String> {
    let mut words = vec![
        "create".to_string(),
        "reservation".into(),
        format!("ReservationName={name}"),
        "StartTime=now".into(),
        format!("Duration={minutes}"),
        format!("PartitionName={partition}"),
        format!("Users={user},root"),
    ];
    match nodes {
        NodesWanted::These(nodes) => {
            words.extend([format!("Nodes={}", nodes.join(",")), "Flags=IGNORE_JOBS".into()])
        }
        NodesWanted::Free(count) => words.push(format!("NodeCnt={count}")),
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    once("scontrol", &words).map(drop)
}

pub fn nodes_of_reservation(name: &str) -> Result<Vec<String>> {
    let said = run("scontrol", &["--oneliner", "show", "reservation", name])?;
    let list = said.split_whitespace().find_map(|word| word.strip_prefix("Nodes=")).unwrap_or_default();
    tidepool_batch::nodes::expand(list).map_err(|why| Failure::new(Kind::Other, why))
}

/// Ends a reservation; one that is gone already is no trouble.
pub fn release(name: &str) -> Result<()> {
    match run("scontrol", &["delete", &format!("ReservationName={name}")]) {
        Err(failure)
            if failure.to_string().contains("not found") || failure.to_string().contains("invalid") =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

/// A node's features.
pub struct NodeFeatures {
    pub name: String,
    pub features: Vec<String>,
}

pub fn features() -> Result<Vec<NodeFeatures>> {
    let said = run("sinfo", &["--noheader", "--Node", "--format", &format!("%N{FIELD}%f")])?;
    let mut nodes: Vec<NodeFeatures> = Vec::new();
    for line in said.lines() {
        let Some((name, features)) = line.trim().split_once(FIELD) else { continue };
        // A node of several partitions has a line for each.
        if nodes.iter().any(|node| node.name == name) {
            continue;
        }
        let features = features.split(',').filter(|feature| !feature.is_empty() && *feature != "(null)");
        nodes.push(NodeFeatures { name: name.into(), features: features.map(String::from).collect() });
    }
    Ok(nodes)
}

pub fn set_features(node: &str, features: &[String]) -> Result<()> {
    let features = features.join(",");
    let words = [
        "update".to_string(),
        format!("NodeName={node}"),
        format!("AvailableFeatures={features}"),
        format!("ActiveFeatures={features}"),
    ];
    run("scontrol", &words.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
}

/// Pending jobs that start only when this one has ended well.
pub fn waiting_for(id: u32) -> Result<Vec<u32>> {
    let said = run("squeue", &["--noheader", "--states=PENDING", "--format", &format!("%i{FIELD}%E")])?;
    Ok(said
        .lines()
        .filter_map(|line| line.trim().split_once(FIELD))
        .filter(|(_, on)| depends(on, id))
        .filter_map(|(job, _)| job.parse().ok())
        .collect())
}

/// `afterok:12(unfulfilled),afterburstbuffer:12(unfulfilled)` names the job as one that has to end well.
fn depends(text: &str, id: u32) -> bool {
    text.split([',', '?']).any(|one| {
        let mut parts = one.split(':');
        let kind = parts.next().unwrap_or_default();
        let jobs = parts.map(|job| job.split(['(', '_']).next().unwrap_or_default());
        matches!(kind, "afterok" | "afterburstbuffer") && jobs.into_iter().any(|job| job.parse() == Ok(id))
    })
}

/// `scontrol show bbstat WORDS`: what the controller's own hook says.
pub fn bbstat(words: &[&str]) -> Result<String> {
    run("scontrol", &[&["show", "bbstat"], words].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_squeue_says_is_read() {
        let line = "CONFIGURING      |2               |node[1-2]   |test  |768             |2|";
        let job = facts(line).unwrap();
        assert_eq!((job.state.as_str(), job.node_count, job.exit), ("CONFIGURING", 2, 768));
        assert_eq!((job.nodes.join(" ").as_str(), job.partition.as_str()), ("node1 node2", "test"));
        assert!(job.failed() && job.restarts == 2);
        let job = facts("PENDING|1-3||test|0|0|").unwrap();
        assert!(job.nodes.is_empty() && !job.failed() && job.node_count == 1);
        assert!(
            facts("nonsense").is_err() && facts("A|b|c|d|0|0|").is_err() && facts("A|1||d|0|x|").is_err()
        );
    }

    /// A component that is over says nothing of the first one, whose epilogs may still run.
    #[test]
    fn of_several_components_the_one_asked_for_is_read() {
        let said = "2    |COMPLETED  |2 |node[2-3]|test |0 |0 |\n1    |COMPLETING |1 |node1|test |0 |0 |\n";
        let state = |id| own_row(said, id).map(|row| facts(row).unwrap().state);
        assert_eq!(state(1).as_deref(), Some("COMPLETING"));
        assert_eq!(state(2).as_deref(), Some("COMPLETED"));
        assert_eq!((state(3), state(21)), (None, None));
        assert_eq!(own_row("", 1), None);
    }

    #[test]
    fn what_slurm_plans_is_read() {
        let plan = |start, nodes: &[&str]| {
            Some(Plan { start, nodes: nodes.iter().map(|node| node.to_string()).collect() })
        };
        assert_eq!(planned("1700000000     |node[1-2]   |\n"), plan(1_700_000_000, &["node1", "node2"]));
        assert_eq!(planned("1700000000|(null)|"), plan(1_700_000_000, &[]));
        assert_eq!(planned("N/A|(null)|"), None);
        assert_eq!(planned(""), None);
    }

    #[test]
    fn until_when_nodes_are_busy_is_read() {
        assert_eq!(busy_until("1700000000   |\n1700000009   |\n"), Some(Busy::Until(1_700_000_009)));
        assert_eq!(busy_until("\n"), Some(Busy::Free));
        assert_eq!(busy_until("1700000000|\nNONE|\n"), None);
    }

    #[test]
    fn what_a_job_is_at_is_read() {
        let line = "12   |CANCELLED   |None   |teardown   |1700000000   |";
        let stand = Stand {
            state: "CANCELLED".into(),
            reason: "None".into(),
            buffers: "teardown".into(),
            end: Some(1_700_000_000),
        };
        assert_eq!(stand_of(line), Some((12, stand)));
        let (_, stand) = stand_of("12|PENDING|Priority|(null)|N/A|").unwrap();
        assert!(stand.buffers.is_empty() && stand.end.is_none());
        assert_eq!(stand_of("slurm_load_jobs error"), None);
    }

    #[test]
    fn who_waits_for_whom_is_known() {
        assert!(depends("afterok:12(unfulfilled),afterburstbuffer:12(unfulfilled)", 12));
        assert!(depends("afterok:3:12(unfulfilled)", 12) && !depends("afterany:12(unfulfilled)", 12));
        assert!(!depends("afterok:123(unfulfilled)", 12) && !depends("(null)", 12));
    }

    #[test]
    fn what_passes_is_known() {
        assert!(is_passing("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"));
        assert!(!is_passing("Invalid job id specified"));
    }
}
