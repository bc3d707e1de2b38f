//! What runs where, who waits for what, and of whom no start can be told: a queue and its nodes as the simulator takes them.
//!
//! Where all running jobs have their nodes for themselves a job is given whole nodes; else processors are counted on each
//! node, and a job gets as many of each of its nodes as it asks for on average.

use crate::cluster::Cluster;
use crate::later::Submission;
use crate::rows::{Entry, Id, State};
use crate::words::Ends;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidepool_joblog::Job;
use tidepool_jobsim::engine::{Early, Order, Policy, Running, Setup, Task};
use tidepool_jobsim::forecast::Scene;
use tidepool_jobsim::plan::{Allocation, Block, NodeSet, Nodes, Share};

/// Processors that are told from each other; of a larger cluster only nodes are.
const UNITS_MAX: usize = 1 << 20;
/// The limit of a job without one.
const NO_LIMIT_S: u64 = 365 * 86_400;
/// How long a job may still take that runs beyond its limit, or is about to end.
const GRACE_S: u64 = 60;

/// Ends that are waited for, of all jobs together: of jobs beyond that no start is told.
pub const ENDS_MAX: usize = 2_000_000;

/// Why jobs wait that the simulator can tell the start of, in Slurm's words.
const PLANNED: [&str; 10] = [
    "",
    "None",
    "Priority",
    "Resources",
    "BeginTime",
    "Dependency",
    "JobArrayTaskLimit",
    "Cleaning",
    "Prolog",
    "WaitingForScheduling",
];
/// Why jobs wait until somebody lets them go.
const HELD: [&str; 6] = [
    "JobHeldUser",
    "JobHeldAdmin",
    "JobHoldMaxRequeue",
    "launch_failed_requeued_held",
    "job_requeued_in_held_state",
    "ReservationDeleted",
];

/// What the queue does not say.
#[derive(Clone, PartialEq, Debug)]
pub struct Rules {
    pub now_s: u64,
    pub policy: Policy,
    /// Those with more are ahead of all jobs of others, whatever their priorities.
    pub tiers: BTreeMap<String, i32>,
    /// From when until when nobody is placed there: places of nodes.
    pub blocks: Vec<(u64, u64, BTreeSet<usize>)>,
}

/// A scene, and whose tasks those are.
#[derive(Clone, Debug)]
pub struct Set {
    pub scene: Scene,
    /// Of each task, its place in the queue.
    pub places: Vec<usize>,
    /// Of each job of the queue that is no task: why no start can be told.
    pub untold: BTreeMap<usize, String>,
    /// Processors are counted, on nodes that several jobs share.
    pub is_shared: bool,
    /// Submissions of the past that would fit, as tasks behind all others, in the order of their times.
    pub past: Vec<Task>,
    /// Bits of a node.
    size: u32,
}

impl Set {
    /// Places of the nodes of a list.
    pub fn nodes(&self, list: &NodeSet) -> BTreeSet<usize> {
        list.nodes().map(|bit| (bit / self.size) as usize).collect()
    }
}

/// Sets the scene. `past` are submissions of the past: such ones may come later.
pub fn set(entries: &[Entry], cluster: &Cluster, rules: &Rules, past: &[Submission]) -> Set {
    let maker = Maker::new(entries, cluster, rules);
    maker.set(past)
}

struct Maker<'a> {
    entries: &'a [Entry],
    cluster: &'a Cluster,
    rules: &'a Rules,
    by_name: HashMap<&'a str, usize>,
    is_shared: bool,
    size: u32,
    kinds: Vec<NodeSet>,
    shares: Vec<Share>,
    /// Number of each kind of job: where it may run, and what it wants of a node.
    known: BTreeMap<(Vec<usize>, Option<u32>), usize>,
}

impl<'a> Maker<'a> {
    fn new(entries: &'a [Entry], cluster: &'a Cluster, rules: &'a Rules) -> Maker<'a> {
        let by_name: HashMap<&str, usize> =
            cluster.names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
        let most = cluster.processors.iter().copied().max().unwrap_or(1).max(1);
        let is_shared =
            most as usize * cluster.names.len() <= UNITS_MAX && is_shared(entries, cluster, &by_name);
        let size = if is_shared { most } else { 1 };
        Maker {
            entries,
            cluster,
            rules,
            by_name,
            is_shared,
            size,
            kinds: Vec::new(),
            shares: Vec::new(),
            known: BTreeMap::new(),
        }
    }

    fn units(&self) -> u32 {
        self.size * self.cluster.names.len() as u32
    }

    /// The bits of a node.
    fn bits(&self, place: usize) -> (u32, u32) {
        let first = place as u32 * self.size;
        (first, first + if self.is_shared { self.cluster.processors[place].min(self.size) } else { 1 })
    }

    fn of_places(&self, places: impl IntoIterator<Item = usize>) -> NodeSet {
        let mut set = NodeSet::none(self.units());
        for place in places {
            let (first, end) = self.bits(place);
            set.add(first, end);
        }
        set
    }

    fn set(mut self, past: &[Submission]) -> Set {
        let mut untold: BTreeMap<usize, String> = BTreeMap::new();
        let (mut tasks, mut running, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut taken = NodeSet::none(self.units());
        for (place, entry) in
            self.entries.iter().enumerate().filter(|(_, entry)| entry.state == State::Running)
        {
            let (task, runs) = self.runs(entry, &mut taken);
            tasks.push(task);
            running.push(runs);
            places.push(place);
        }
        for (place, task) in self.waiting(&mut untold) {
            tasks.push(task);
            places.push(place);
        }
        let past = self.past(past);
        let after = self.after(&places, running.len());
        let plan = self.plan();
        let setup = self.setup();
        let scene = Scene { now_s: self.rules.now_s, plan, tasks, running, after, setup };
        Set { scene, places, untold, past, is_shared: self.is_shared, size: self.size }
    }

    fn plan(&mut self) -> Nodes {
        if self.kinds.is_empty() {
            self.kinds.push(self.of_places(0..self.cluster.names.len()));
            self.shares.push(Share::Whole);
        }
        let kinds = std::mem::take(&mut self.kinds);
        if self.is_shared {
            let all = self.of_places(0..self.cluster.names.len());
            let plan = Nodes::new(self.units(), kinds, Allocation::Parts(self.size));
            return plan.with_shares(all, std::mem::take(&mut self.shares));
        }
        Nodes::new(self.units(), kinds, Allocation::Lowest)
    }

    /// As Slurm's backfill plans: anew when a job ends early, in the order of the queue.
    fn setup(&self) -> Setup {
        let now = self.rules.now_s;
        let block = |(from_s, until_s, places): &(u64, u64, BTreeSet<usize>)| {
            let set = self.of_places(places.iter().copied());
            (now, Block { from_s: *from_s, until_s: *until_s, nodes: set.count(), set })
        };
        Setup {
            early: Early::Anew(Order::Queue),
            keeps_nodes: false,
            blocks: self.rules.blocks.iter().map(block).collect(),
            ..Setup::new(self.rules.policy)
        }
    }

    fn runs(&self, entry: &Entry, taken: &mut NodeSet) -> (Task, Running<NodeSet>) {
        let now_s = self.rules.now_s;
        let start_s = entry.start_s.or(entry.submit_s).unwrap_or(now_s).min(now_s);
        let ran_s = now_s - start_s;
        let request_s = match entry.limit_s.unwrap_or(NO_LIMIT_S) {
            _ if entry.is_ending => ran_s + GRACE_S,
            limit if limit > ran_s => limit,
            _ => ran_s + GRACE_S,
        };
        let list = self.where_it_runs(entry, taken);
        let nodes = if self.is_shared { entry.nodes } else { list.count() };
        (self.task(entry, now_s, request_s, nodes, 0, 0), Running { start_s, list })
    }

    /// Its nodes, or its part of each, of what nobody else has.
    fn where_it_runs(&self, entry: &Entry, taken: &mut NodeSet) -> NodeSet {
        let mut list = NodeSet::none(self.units());
        let known: Vec<usize> =
            entry.list.iter().filter_map(|name| self.by_name.get(name.as_str()).copied()).collect();
        let count = entry.list.len().max(1) as u32;
        for (number, place) in known.iter().enumerate() {
            let (first, end) = self.bits(*place);
            // As many on each; the first ones have what is left over.
            let wanted = entry.processors / count + u32::from((number as u32) < entry.processors % count);
            let wanted = if self.is_shared && !entry.exclusive { wanted.max(1) } else { end - first };
            let free: Vec<u32> = (first..end).filter(|bit| !taken.has(*bit)).take(wanted as usize).collect();
            for bit in free {
                list.add(bit, bit + 1);
                taken.add(bit, bit + 1);
            }
        }
        list
    }

    fn task(
        &self,
        entry: &Entry,
        submit_s: u64,
        request_s: u64,
        nodes: u32,
        partition: usize,
        rank: i64,
    ) -> Task {
        let job = Job {
            number: entry.id.job,
            submit_s,
            run_s: request_s,
            request_s,
            processors: entry.processors,
            asked: entry.limit_s.is_some(),
            ..Job::default()
        };
        Task { job, nodes, partition, rank }
    }

    /// Those that can be told of, in the order in which they come into the queue.
    fn waiting(&mut self, untold: &mut BTreeMap<usize, String>) -> Vec<(usize, Task)> {
        let entries = self.entries;
        let mut order: Vec<usize> =
            (0..entries.len()).filter(|place| entries[*place].state != State::Running).collect();
        let tier = |entry: &Entry| {
            entry.partitions.iter().filter_map(|name| self.rules.tiers.get(name)).max().copied().unwrap_or(0)
        };
        order.sort_by(|a, b| {
            let (a, b) = (&entries[*a], &entries[*b]);
            let by_priority = tier(b).cmp(&tier(a)).then(b.priority.total_cmp(&a.priority));
            by_priority.then(a.submit_s.cmp(&b.submit_s)).then(a.id.cmp(&b.id))
        });
        let mut all = Vec::new();
        for (rank, place) in order.into_iter().enumerate() {
            let entry = &entries[place];
            match why_untold(entry).map_or_else(|| self.kind(entry), Err) {
                Ok(kind) => {
                    let begin = entry.start_s.unwrap_or(0).max(self.rules.now_s);
                    let limit = entry.limit_s.unwrap_or(NO_LIMIT_S).max(1);
                    all.push((place, self.task(entry, begin, limit, entry.nodes, kind, rank as i64)));
                }
                Err(why) => {
                    untold.insert(place, why);
                }
            }
        }
        all.sort_by_key(|(_, task)| (task.job.submit_s, task.rank));
        all
    }

    /// On as few nodes as have so many processors. Those that do not fit would wait for ever.
    fn past(&mut self, past: &[Submission]) -> Vec<Task> {
        let most = self.cluster.processors.iter().copied().max().unwrap_or(1).max(1);
        let mut known: HashMap<(u32, Option<&str>), Option<usize>> = HashMap::new();
        let mut all = Vec::with_capacity(past.len());
        for one in past {
            let partition =
                one.partition.as_deref().filter(|name| self.cluster.partitions.contains_key(*name));
            let nodes = one.processors.div_ceil(most).max(1);
            let entry = Entry {
                nodes,
                processors: one.processors.max(1),
                partitions: partition.map(str::to_string).into_iter().collect(),
                limit_s: one.limit_s,
                ..Entry::default()
            };
            let kind = *known.entry((one.processors, partition)).or_insert_with(|| self.kind(&entry).ok());
            let Some(kind) = kind else { continue };
            let limit_s = one.limit_s.unwrap_or(NO_LIMIT_S).max(1);
            let mut task = self.task(&entry, one.submit_s, limit_s, nodes, kind, i64::MAX);
            task.job.run_s = one.run_s.clamp(1, limit_s);
            all.push(task);
        }
        all.sort_by_key(|task| task.job.submit_s);
        all
    }

    /// The number of its kind of job; why it fits nowhere.
    fn kind(&mut self, entry: &Entry) -> Result<usize, String> {
        let allowed = self.allowed(entry)?;
        let share = entry.processors.div_ceil(entry.nodes.max(1));
        let enough =
            |place: &usize| !self.is_shared || entry.exclusive || self.cluster.processors[*place] >= share;
        let fitting: Vec<usize> = allowed.into_iter().filter(enough).collect();
        let up: Vec<usize> = fitting.iter().copied().filter(|place| self.cluster.is_up[*place]).collect();
        let wanted = entry.nodes as usize;
        if fitting.len() < wanted {
            return Err(format!("it wants {wanted} nodes, and only {} would do", fitting.len()));
        }
        if up.len() < wanted {
            return Err(format!(
                "it wants {wanted} nodes, and of {} that would do only {} are up",
                fitting.len(),
                up.len()
            ));
        }
        let bits = (self.is_shared && !entry.exclusive).then_some(share);
        let key = (up, bits);
        if let Some(kind) = self.known.get(&key) {
            return Ok(*kind);
        }
        let kind = self.kinds.len();
        self.kinds.push(self.of_places(key.0.iter().copied()));
        self.shares.push(bits.map_or(Share::Whole, Share::Bits));
        self.known.insert(key, kind);
        Ok(kind)
    }

    /// Nodes that it may have by partition, feature and name.
    fn allowed(&self, entry: &Entry) -> Result<BTreeSet<usize>, String> {
        let everywhere = || (0..self.cluster.names.len()).collect::<BTreeSet<usize>>();
        let mut allowed = match self.cluster.partitions.is_empty() || entry.partitions.is_empty() {
            true => everywhere(),
            false => entry
                .partitions
                .iter()
                .filter_map(|name| self.cluster.partitions.get(name))
                .flatten()
                .copied()
                .collect(),
        };
        if allowed.is_empty() {
            return Err(format!("of partition '{}' no nodes are known", entry.partitions.join(",")));
        }
        if let Some(features) = &entry.features {
            if !features.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:&,".contains(c)) {
                return Err(format!(
                    "it asks for features in a way that is not understood: '{}'",
                    crate::rows::cut(features)
                ));
            }
            let words: Vec<&str> = features.split(['&', ',']).collect();
            allowed.retain(|place| words.iter().all(|word| self.cluster.features[*place].contains(*word)));
        }
        if !entry.required.is_empty() {
            if entry.required.len() < entry.nodes as usize {
                return Err("it asks for some nodes by name beside others, which is not simulated".into());
            }
            allowed.retain(|place| entry.required.contains(&self.cluster.names[*place]));
        }
        allowed.retain(|place| !entry.excluded.contains(&self.cluster.names[*place]));
        Ok(allowed)
    }

    /// For each task those tasks whose ends it waits for; one that is no task never ends.
    fn after(&self, places: &[usize], running: usize) -> Vec<Vec<usize>> {
        let entries = self.entries;
        let task_of: HashMap<usize, usize> =
            places.iter().enumerate().map(|(task, place)| (*place, task)).collect();
        let known = Known::of(entries);
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); running];
        let mut left = ENDS_MAX;
        for place in &places[running..] {
            let ends = known.ends(entries, *place, left);
            left -= ends.as_ref().map_or(0, BTreeSet::len);
            let task = |place: &usize| task_of.get(place).copied().unwrap_or(usize::MAX);
            after.push(ends.map_or(vec![usize::MAX], |ends| ends.iter().map(task).collect()));
        }
        after
    }
}

/// Who may be waited for.
struct Known<'a> {
    of_id: HashMap<Id, Vec<usize>>,
    of_job: HashMap<u64, Vec<usize>>,
    /// In the order of their submission.
    of_name: HashMap<(&'a str, &'a str), Vec<usize>>,
    /// Of tasks of arrays.
    before: HashMap<usize, usize>,
}

impl<'a> Known<'a> {
    fn of(entries: &'a [Entry]) -> Known<'a> {
        let mut known = Known {
            of_id: HashMap::new(),
            of_job: HashMap::new(),
            of_name: HashMap::new(),
            before: HashMap::new(),
        };
        for (place, entry) in entries.iter().enumerate() {
            known.of_id.entry(entry.id).or_default().push(place);
            known.of_job.entry(entry.id.job).or_default().push(place);
            known.of_name.entry((&entry.user, &entry.name)).or_default().push(place);
        }
        let order = |place: &usize| (entries[*place].submit_s, entries[*place].id);
        known.of_name.values_mut().for_each(|all| all.sort_by_key(order));
        known.before = known.of_job.values().flat_map(|all| before_in_array(entries, all)).collect();
        known
    }

    /// Whose ends a job waits for; none where those are more than `most`.
    fn ends(&self, entries: &[Entry], place: usize, most: usize) -> Option<BTreeSet<usize>> {
        let entry = &entries[place];
        let of = |id: Id| match id.task {
            Some(_) => self.of_id.get(&id),
            None => self.of_job.get(&id.job),
        };
        let mut ends: BTreeSet<usize> = self.before.get(&place).copied().into_iter().collect();
        for end in &entry.after.ends {
            let all = match end {
                Ends::Of(id) => of(*id),
                Ends::SameTask(job) => of(Id { job: *job, task: entry.id.task }),
                Ends::Namesakes => self.of_name.get(&(entry.user.as_str(), entry.name.as_str())),
            };
            let all = all.map_or(&[][..], Vec::as_slice);
            let is_before = |other: &usize| {
                let other = &entries[*other];
                (other.submit_s, other.id) < (entry.submit_s, entry.id)
            };
            let all = if *end == Ends::Namesakes { &all[..all.partition_point(is_before)] } else { all };
            if ends.len() + all.len() > most {
                return None;
            }
            ends.extend(all);
        }
        ends.remove(&place);
        Some(ends)
    }
}

/// Of an array of which so many tasks run at once, each begins when that many before it have ended but for one: as if one took the
/// place of another in their order. For each such task, the one that it waits for.
fn before_in_array(entries: &[Entry], all: &[usize]) -> Vec<(usize, usize)> {
    if all.iter().all(|place| entries[*place].throttle.is_none()) {
        return Vec::new();
    }
    let mut all = all.to_vec();
    let waits = |place: &usize| entries[*place].state != State::Running;
    all.sort_by_key(|place| (waits(place), entries[*place].start_s, entries[*place].id));
    let before = |(at, place): (usize, &usize)| {
        let throttle = entries[*place].throttle? as usize;
        at.checked_sub(throttle).map(|before| (*place, all[before]))
    };
    all.iter().enumerate().filter_map(before).collect()
}

/// Whether a node has several jobs, or a job only a part of its nodes.
fn is_shared(entries: &[Entry], cluster: &Cluster, by_name: &HashMap<&str, usize>) -> bool {
    let mut used: BTreeSet<usize> = BTreeSet::new();
    for entry in entries.iter().filter(|entry| entry.state == State::Running) {
        let places: Vec<usize> =
            entry.list.iter().filter_map(|name| by_name.get(name.as_str()).copied()).collect();
        let all: u64 = places.iter().map(|place| u64::from(cluster.processors[*place])).sum();
        if !entry.exclusive && u64::from(entry.processors) < all
            || places.iter().any(|place| !used.insert(*place))
        {
            return true;
        }
    }
    // A job that waits and wants less than a node may get less.
    let least = cluster.processors.iter().copied().min().unwrap_or(1);
    entries.iter().any(|entry| {
        entry.state == State::Waiting
            && !entry.exclusive
            && u64::from(entry.processors) < u64::from(entry.nodes) * u64::from(least)
    })
}

/// Of whom no start can be told, and why.
fn why_untold(entry: &Entry) -> Option<String> {
    let reason = entry.reason.as_str();
    if entry.state == State::Held || HELD.contains(&reason) {
        return Some(format!(
            "held ({})",
            if reason.is_empty() { "somebody has to let it go" } else { reason }
        ));
    }
    if let Some(strange) = &entry.after.strange {
        return Some(format!("{strange}: when that is so cannot be told"));
    }
    if !PLANNED.contains(&reason) {
        return Some(format!("waits for '{}', which is not simulated", crate::rows::cut(reason)));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{After, after};

    fn cluster(nodes: usize, processors: u32) -> Cluster {
        Cluster {
            names: (0..nodes).map(|number| format!("n{number}")).collect(),
            processors: vec![processors; nodes],
            is_up: vec![true; nodes],
            features: vec![BTreeSet::new(); nodes],
            ..Cluster::default()
        }
    }

    fn entry(job: u64, nodes: u32, processors: u32, limit_s: u64, priority: f64) -> Entry {
        let id = Id { job, task: None };
        Entry {
            id,
            nodes,
            processors,
            limit_s: Some(limit_s),
            priority,
            submit_s: Some(job),
            ..Entry::default()
        }
    }

    fn running(job: u64, list: &[&str], processors: u32, limit_s: u64) -> Entry {
        let list: Vec<String> = list.iter().map(|name| name.to_string()).collect();
        let (state, start_s, nodes) = (State::Running, Some(900), list.len() as u32);
        Entry { state, start_s, list, ..entry(job, nodes, processors, limit_s, 0.0) }
    }

    fn rules() -> Rules {
        Rules { now_s: 1000, policy: Policy::Conservative, tiers: BTreeMap::new(), blocks: Vec::new() }
    }

    /// Starts and nodes of all jobs that are told of, with limits as run times.
    fn starts(entries: &[Entry], cluster: &Cluster, rules: &Rules) -> BTreeMap<String, (u64, Vec<usize>)> {
        let set = set(entries, cluster, rules, &[]);
        let asked: Vec<usize> = (0..set.places.len()).collect();
        let runs: Vec<u64> = set.scene.tasks.iter().map(|task| task.job.request_s).collect();
        let slots = set.scene.replay(&runs, &asked);
        let told = slots.into_iter().zip(&set.places).filter_map(|(slot, place)| {
            let slot = slot?;
            Some((
                entries[*place].id.to_string(),
                (slot.start_s, set.nodes(&slot.list).into_iter().collect()),
            ))
        });
        told.collect()
    }

    /// Whole nodes; priorities; who is down; who may not begin yet; maintenance.
    #[test]
    fn whole_nodes_by_hand() {
        let mut cluster = cluster(4, 8);
        cluster.is_up[3] = false;
        let mut queue = vec![
            running(1, &["n0", "n1"], 16, 500),
            entry(2, 2, 16, 100, 1.0),
            entry(3, 1, 8, 300, 5.0),
            entry(4, 3, 24, 50, 2.0),
        ];
        let got = starts(&queue, &cluster, &rules());
        // Job 1 runs until 1400. 3 starts now on n2 until 1300; 4 wants all three at 1400; 2 fits nowhere before that.
        assert_eq!(got["3"], (1000, vec![2]));
        assert_eq!(got["4"], (1400, vec![0, 1, 2]));
        assert_eq!(got["2"], (1450, vec![0, 1]));
        assert_eq!(got["1"], (900, vec![0, 1]));
        queue[2].start_s = Some(1200);
        // The first of the queue once it may begin; 4 has to wait for it.
        let got = starts(&queue, &cluster, &rules());
        assert_eq!((got["3"].clone(), got["4"].0), ((1200, vec![2]), 1500));
        let blocks = vec![(1420, 2000, BTreeSet::from([0, 1, 2, 3]))];
        queue[2].start_s = None;
        assert_eq!(starts(&queue, &cluster, &Rules { blocks, ..rules() })["4"].0, 2000);
    }

    /// Two jobs on a node: processors are counted. One who wants a node alone waits for both.
    #[test]
    fn shared_nodes_by_hand() {
        let queue = vec![
            running(1, &["n0"], 4, 500),
            running(2, &["n0"], 2, 200),
            entry(3, 1, 2, 50, 9.0),
            entry(4, 1, 3, 50, 8.0),
            Entry { exclusive: true, ..entry(5, 2, 2, 60, 7.0) },
        ];
        let set = set(&queue, &cluster(2, 8), &rules(), &[]);
        assert!(set.is_shared);
        let got = starts(&queue, &cluster(2, 8), &rules());
        assert_eq!((got["3"].clone(), got["4"].clone()), ((1000, vec![0]), (1000, vec![1])));
        assert_eq!(got["5"], (1400, vec![0, 1]));
    }

    #[test]
    fn dependencies_arrays_and_namesakes_by_hand() {
        let after_of =
            |text: &str, entry: Entry| Entry { after: after(text), reason: "Dependency".into(), ..entry };
        let task = |number: u32| Entry {
            throttle: Some(2),
            id: Id { job: 9, task: Some(number) },
            ..entry(9, 1, 8, 10, 1.0)
        };
        let named = |name: &str, entry: Entry| Entry { name: name.into(), ..entry };
        let queue = vec![
            running(1, &["n0"], 8, 300),
            after_of("afterok:1(unfulfilled)", entry(2, 1, 8, 40, 3.0)),
            after_of("afterok:2", entry(3, 1, 8, 40, 3.0)),
            task(1),
            task(2),
            task(3),
            task(4),
            named("x", entry(11, 1, 8, 70, 0.5)),
            named("x", after_of("singleton", entry(12, 1, 8, 70, 0.5))),
        ];
        let got = starts(&queue, &cluster(8, 8), &rules());
        let start = |id: &str| got[id].0;
        assert_eq!((start("2"), start("3")), (1200, 1240));
        assert_eq!(["9_1", "9_2", "9_3", "9_4"].map(start), [1000, 1000, 1010, 1010]);
        assert_eq!((start("11"), start("12")), (1000, 1070));
    }

    #[test]
    fn who_cannot_be_told_of_is_told_why() {
        let mut odd = cluster(3, 8);
        odd.partitions.insert("p".into(), BTreeSet::from([0]));
        odd.is_up[2] = false;
        let base = || entry(1, 1, 8, 50, 1.0);
        let held = |reason: &str| Entry { reason: reason.into(), ..base() };
        for (entry, wanted) in [
            (held("JobHeldUser"), "held (JobHeldUser)"),
            (Entry { state: State::Held, ..base() }, "held (somebody has to let it go)"),
            (held("QOSMaxJobsPerUserLimit"), "waits for 'QOSMaxJobsPerUserLimit', which is not simulated"),
            (
                Entry { after: After { strange: Some("x".into()), ..After::default() }, ..base() },
                "x: when that is so cannot be told",
            ),
            (Entry { partitions: vec!["q".into()], ..base() }, "of partition 'q' no nodes are known"),
            (
                Entry { partitions: vec!["p".into()], nodes: 2, processors: 16, ..base() },
                "it wants 2 nodes, and only 1 would do",
            ),
            (
                Entry { nodes: 3, processors: 24, ..base() },
                "it wants 3 nodes, and of 3 that would do only 2 are up",
            ),
            (
                Entry { features: Some("[a|b]".into()), ..base() },
                "it asks for features in a way that is not understood: '[a|b]'",
            ),
            (Entry { features: Some("ib".into()), ..base() }, "it wants 1 nodes, and only 0 would do"),
            (
                Entry { required: vec!["n0".into()], nodes: 2, processors: 16, ..base() },
                "it asks for some nodes by name beside others, which is not simulated",
            ),
        ] {
            let set = set(&[entry], &odd, &rules(), &[]);
            assert_eq!((set.untold.get(&0).map(String::as_str), set.places.len()), (Some(wanted), 0));
        }
        // Who waits for one that is held waits for ever.
        let queue = [held("JobHeldUser"), Entry { after: after("afterok:1"), ..entry(2, 1, 8, 50, 1.0) }];
        let got = starts(&queue, &cluster(2, 8), &rules());
        assert!(got.is_empty());
    }
}
