//! What is where at one moment of a run, and how it moves.

use super::plan::{Testbed, Workload};
use crate::curve::{Curve, Curves};
use crate::model::{App, Dirty, Local, PAST_MAX, PastPhase, Pattern, Phase, Shared, Tier, View};
use crate::share::{self, Sharer};
use std::sync::Arc;

/// Billionths of a byte in one.
pub(super) const NANO: u128 = 1_000_000_000;
/// A tier with less room is full. Large enough that no rate passes it within a nanosecond.
const FULL_BELOW: u128 = (1 << 20) * NANO;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Computing { until_ns: u64 },
    Writing { begin_ns: u64 },
    Done,
}

/// Unflushed data of one application on one tier, in billionths of bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Buffered {
    /// A lump that is being written.
    pub open: u128,
    /// Lumps that can be flushed.
    pub ready: u128,
    pub since_ns: u64,
    pub flush: Option<(Tier, u32)>,
}

#[derive(Clone, Debug)]
pub(super) struct Running {
    pub plan: Workload,
    pub stage: Stage,
    pub step: u32,
    /// Where it writes and with which weight; none while it waits.
    pub place: Option<(Tier, u32)>,
    /// Of the present phase, in billionths of bytes.
    pub left: u128,
    pub past: Vec<PastPhase>,
    pub io_ns: Vec<u64>,
    pub end_ns: u64,
    /// Written by the application to each tier.
    pub written: [u128; 3],
    /// On node-local memory and on the burst buffer.
    pub buffered: [Buffered; 2],
    pub on_pfs: u128,
    local: Option<Arc<Curves>>,
}

/// Something that moves bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub app: usize,
    /// Where a flush reads; none for an application's own writes.
    pub from: Option<Tier>,
    pub to: Tier,
    sharer: Sharer,
    pub rate: u64,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub testbed: Testbed,
    pub now_ns: u64,
    pub apps: Vec<Running>,
    /// Bytes on the burst buffer and on the PFS, in billionths.
    pub used: [u128; 2],
    pub flows: Vec<Flow>,
    pub busy_ns: [u64; 3],
    pub flushed_in: [u128; 3],
    pub flushed_out: [u128; 3],
}

impl Running {
    pub fn new(plan: &Workload) -> Running {
        let flat = |rate| Curve::flat(rate).expect("checked with the workload");
        Running {
            stage: Stage::Computing { until_ns: plan.start_ns + plan.compute_ns },
            step: 0,
            place: None,
            left: 0,
            past: Vec::new(),
            io_ns: Vec::new(),
            end_ns: 0,
            written: [0; 3],
            buffered: [Buffered::default(); 2],
            on_pfs: 0,
            local: plan.local.map(|(_, rate)| Arc::new(Curves::same(flat(rate)))),
            plan: plan.clone(),
        }
    }

    fn local_free(&self) -> u128 {
        let capacity = self.plan.local.map_or(0, |(capacity, _)| u128::from(capacity) * NANO);
        let used = self.buffered[0].open + self.buffered[0].ready;
        capacity.checked_sub(used).expect("node-local memory holds no more than fits")
    }

    /// What a scheduler is told of it.
    fn told(&self) -> App {
        let all = self.plan.step_bytes();
        let phase = match self.stage {
            Stage::Writing { begin_ns } => Some(Phase {
                begin_ns,
                written_bytes: all - self.left.div_ceil(NANO) as u64,
                expected_bytes: Some(all),
                pattern: self.plan.pattern,
                tier: self.place.map(|(tier, _)| tier),
            }),
            _ => None,
        };
        let local = self.plan.local.map(|(capacity_bytes, bytes_per_s)| Local {
            capacity_bytes,
            free_bytes: visible(self.local_free()),
            bytes_per_s,
        });
        App {
            job: self.plan.job,
            processes: self.plan.processes,
            weight: self.plan.weight,
            phase,
            past: self.past.clone(),
            link_bytes_per_s: self.plan.link_bytes_per_s,
            // What is sent elsewhere stops at once.
            under_way_bytes: 0,
            local,
        }
    }

    /// The lump that is being written can be flushed.
    fn close(&mut self, tier: Tier) {
        if tier != Tier::Pfs {
            let buffered = &mut self.buffered[tier as usize];
            buffered.ready += std::mem::take(&mut buffered.open);
        }
    }

    /// Puts its writes elsewhere, or lets it wait.
    pub fn place(&mut self, place: Option<(Tier, u32)>) {
        if let Some((tier, _)) = self.place
            && place.map(|p| p.0) != Some(tier)
        {
            self.close(tier);
        }
        self.place = place;
    }

    fn begin(&mut self, now_ns: u64) {
        self.stage = Stage::Writing { begin_ns: now_ns };
        self.left = u128::from(self.plan.step_bytes()) * NANO;
    }

    fn finish(&mut self, begin_ns: u64, now_ns: u64) {
        self.place(None);
        self.io_ns.push(now_ns - begin_ns);
        if self.past.len() == PAST_MAX {
            self.past.remove(0);
        }
        self.past.push(PastPhase { begin_ns, end_ns: now_ns, bytes: self.plan.step_bytes() });
        self.step += 1;
        self.stage = if self.step == self.plan.steps {
            self.end_ns = now_ns;
            Stage::Done
        } else {
            Stage::Computing { until_ns: now_ns + self.plan.compute_ns }
        };
    }

    pub fn is_writing(&self) -> bool {
        matches!(self.stage, Stage::Writing { .. })
    }
}

/// Free bytes as they are told: none when the tier is full.
fn visible(free: u128) -> u64 {
    if free < FULL_BELOW { 0 } else { (free / NANO).min(u128::from(u64::MAX)) as u64 }
}

impl State {
    pub fn new(testbed: &Testbed, apps: &[Workload]) -> State {
        State {
            testbed: testbed.clone(),
            now_ns: 0,
            apps: apps.iter().map(Running::new).collect(),
            used: [0; 2],
            flows: Vec::new(),
            busy_ns: [0; 3],
            flushed_in: [0; 3],
            flushed_out: [0; 3],
        }
    }

    /// Room on a tier for an application, in billionths of bytes.
    fn free(&self, tier: Tier, app: usize) -> u128 {
        let shared = |capacity: u64, used: u128| {
            (u128::from(capacity) * NANO).checked_sub(used).expect("a tier holds no more than fits")
        };
        match tier {
            Tier::Local => self.apps[app].local_free(),
            Tier::Burst => shared(self.testbed.burst.capacity_bytes, self.used[0]),
            Tier::Pfs => shared(self.testbed.pfs.capacity_bytes, self.used[1]),
        }
    }

    pub fn is_full(&self, tier: Tier, app: usize) -> bool {
        self.free(tier, app) < FULL_BELOW
    }

    /// What is known now, to who learns of everything at once.
    pub fn told(&self) -> View {
        let running = self.apps.iter().filter(|app| self.has_started(app) && app.stage != Stage::Done);
        let dirty = self.apps.iter().flat_map(|app| {
            let lump = move |tier: Tier| {
                let buffered = app.buffered[tier as usize];
                let bytes = (buffered.ready / NANO) as u64;
                Dirty { job: app.plan.job, tier, bytes: bytes.max(1), since_ns: buffered.since_ns }
            };
            let waits = |tier: &Tier| app.buffered[*tier as usize].ready > 0;
            [Tier::Local, Tier::Burst].into_iter().filter(waits).map(lump).collect::<Vec<_>>()
        });
        let (apps, dirty) = (running.map(Running::told).collect(), dirty.collect());
        View::new(self.now_ns, apps, self.shared(Tier::Burst), self.shared(Tier::Pfs), dirty)
            .expect("the fluid model tells what can be")
    }

    fn has_started(&self, app: &Running) -> bool {
        app.plan.start_ns <= self.now_ns
    }

    fn shared(&self, tier: Tier) -> Shared {
        let plan = if tier == Tier::Burst { &self.testbed.burst } else { &self.testbed.pfs };
        let flushes = || self.flows.iter().filter(|flow| flow.from.is_some());
        Shared {
            capacity_bytes: plan.capacity_bytes,
            free_bytes: visible(self.free(tier, 0)),
            foreign_users: 0,
            foreign_processes: 0,
            flush_in_bytes_per_s: flushes().filter(|flow| flow.to == tier).map(|flow| flow.rate).sum(),
            flush_out_bytes_per_s: flushes()
                .filter(|flow| flow.from == Some(tier))
                .map(|flow| flow.rate)
                .sum(),
            age_ns: Some(0),
            curves: Some(plan.curves.clone()),
        }
    }

    /// Makes flows of the placements and flushes as they are now, and finds their rates.
    pub fn set_flows(&mut self) {
        self.flows.clear();
        for app in 0..self.apps.len() {
            let running = &self.apps[app];
            let plan = &running.plan;
            if let Some((to, weight)) = running.place {
                let most = plan.link_bytes_per_s.filter(|_| to != Tier::Local);
                let sharer = Sharer { weight, processes: plan.processes, pattern: plan.pattern, most };
                self.flows.push(Flow { app, from: None, to, sharer, rate: 0 });
            }
            for from in [Tier::Local, Tier::Burst] {
                let buffered = running.buffered[from as usize];
                let Some((to, weight)) = buffered.flush.filter(|_| buffered.ready > 0) else { continue };
                let processes = self.testbed.flush_streams;
                let most = plan.link_bytes_per_s.filter(|_| from == Tier::Local);
                let sharer = Sharer { weight, processes, pattern: Pattern::Sequential, most };
                self.flows.push(Flow { app, from: Some(from), to, sharer, rate: 0 });
            }
        }
        self.set_rates();
        // What a flush leaves on one tier because the other is slower, goes to the others there.
        for flow in self.flows.iter_mut().filter(|flow| flow.from.is_some()) {
            flow.sharer.most = Some(flow.rate);
        }
        self.set_rates();
    }

    fn set_rates(&mut self) {
        let mut rates = vec![u64::MAX; self.flows.len()];
        for tier in [Tier::Burst, Tier::Pfs] {
            let plan = if tier == Tier::Burst { &self.testbed.burst } else { &self.testbed.pfs };
            self.share(&plan.curves, &mut rates, |flow| flow.to == tier || flow.from == Some(tier));
        }
        for (at, app) in self.apps.iter().enumerate() {
            if let Some(curves) = &app.local {
                let local = |flow: &Flow| flow.to == Tier::Local || flow.from == Some(Tier::Local);
                self.share(curves, &mut rates, |flow| flow.app == at && local(flow));
            }
        }
        for (flow, rate) in self.flows.iter_mut().zip(rates) {
            flow.rate = rate;
        }
    }

    fn share(&self, curves: &Curves, rates: &mut [u64], here: impl Fn(&Flow) -> bool) {
        let flows: Vec<usize> = (0..self.flows.len()).filter(|at| here(&self.flows[*at])).collect();
        let sharers: Vec<Sharer> = flows.iter().map(|at| self.flows[*at].sharer).collect();
        for (at, rate) in flows.into_iter().zip(share::share(curves, &sharers)) {
            rates[at] = rates[at].min(rate);
        }
    }

    /// Time until something ends, fills or can be flushed; none when nothing moves.
    pub fn until_change(&self) -> Option<u128> {
        let computing = self.apps.iter().filter_map(|app| match app.stage {
            Stage::Computing { until_ns } => Some(u128::from(until_ns - self.now_ns)),
            _ => None,
        });
        let starts = self.apps.iter().map(|app| app.plan.start_ns).filter(|start| *start > self.now_ns);
        let starts = starts.map(|start| u128::from(start - self.now_ns));
        let flows = self.flows.iter().flat_map(|flow| self.flow_changes(flow)).flatten();
        let fills = (0..self.apps.len()).flat_map(|app| Tier::ALL.map(|tier| self.fills(tier, app)));
        computing.chain(starts).chain(flows).chain(fills.flatten()).min()
    }

    fn flow_changes(&self, flow: &Flow) -> [Option<u128>; 2] {
        let app = &self.apps[flow.app];
        let until = |left: u128| Some(left.div_ceil(u128::from(flow.rate)));
        match flow.from {
            Some(from) => [until(app.buffered[from as usize].ready), None],
            None if flow.to == Tier::Pfs => [until(app.left), None],
            None => {
                let lump = u128::from(self.testbed.lump_bytes) * NANO;
                [until(app.left), until(lump - app.buffered[flow.to as usize].open)]
            }
        }
    }

    /// Time until a tier, or an application's node-local memory, is full.
    fn fills(&self, tier: Tier, app: usize) -> Option<u128> {
        let ours = |flow: &&Flow| tier != Tier::Local || flow.app == app;
        let sum = |flows: &dyn Fn(&Flow) -> bool| -> u128 {
            self.flows.iter().filter(ours).filter(|flow| flows(flow)).map(|flow| u128::from(flow.rate)).sum()
        };
        let net = sum(&|flow| flow.to == tier).checked_sub(sum(&|flow| flow.from == Some(tier)))?;
        let free = self.free(tier, app);
        (net > 0 && free >= FULL_BELOW).then(|| (free - FULL_BELOW + 1).div_ceil(net))
    }

    /// Lets everything flow for a time within which nothing changes.
    pub fn advance(&mut self, ns: u64) {
        for tier in Tier::ALL {
            if self.flows.iter().any(|flow| flow.to == tier || flow.from == Some(tier)) {
                self.busy_ns[tier as usize] += ns;
            }
        }
        for at in 0..self.flows.len() {
            self.move_bytes(self.flows[at], ns);
        }
        self.now_ns += ns;
        let lump = u128::from(self.testbed.lump_bytes) * NANO;
        for app in &mut self.apps {
            for tier in [Tier::Local, Tier::Burst] {
                if app.buffered[tier as usize].open >= lump {
                    app.close(tier);
                }
            }
            match app.stage {
                Stage::Computing { until_ns } if until_ns <= self.now_ns => app.begin(self.now_ns),
                Stage::Writing { begin_ns } if app.left == 0 => app.finish(begin_ns, self.now_ns),
                _ => (),
            }
        }
    }

    fn move_bytes(&mut self, flow: Flow, ns: u64) {
        let app = &mut self.apps[flow.app];
        let wish = u128::from(flow.rate) * u128::from(ns);
        let moved = match flow.from {
            None => {
                let moved = wish.min(app.left);
                app.left -= moved;
                app.written[flow.to as usize] += moved;
                moved
            }
            Some(from) => {
                let buffered = &mut app.buffered[from as usize];
                let moved = wish.min(buffered.ready);
                buffered.ready -= moved;
                self.flushed_out[from as usize] += moved;
                self.flushed_in[flow.to as usize] += moved;
                moved
            }
        };
        match flow.to {
            Tier::Pfs => app.on_pfs += moved,
            tier => {
                let buffered = &mut app.buffered[tier as usize];
                if buffered.open + buffered.ready == 0 {
                    buffered.since_ns = self.now_ns;
                }
                let part = if flow.from.is_some() { &mut buffered.ready } else { &mut buffered.open };
                *part += moved;
            }
        }
        match flow.to {
            Tier::Local => (),
            Tier::Burst => self.used[0] += moved,
            Tier::Pfs => self.used[1] += moved,
        }
        if flow.from == Some(Tier::Burst) {
            self.used[0] -= moved;
        }
    }

    /// True when all is on the PFS.
    pub fn is_over(&self) -> bool {
        let done =
            |app: &Running| app.stage == Stage::Done && app.buffered.iter().all(|b| b.open + b.ready == 0);
        self.apps.iter().all(done)
    }
}
