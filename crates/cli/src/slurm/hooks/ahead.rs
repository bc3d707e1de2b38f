//! Data come in before the job has its nodes: on those that Slurm plans for it, which a reservation holds (ADA-FS, FORHLR
//! Section 4.2; INVENTORY D4, H11).
//!
//! The nodes of a job that waits are mostly busy until it starts. So they are reserved while others still run there
//! (`IGNORE_JOBS`), and so late that they are not kept for nothing.

use super::nodes::{Give, Way};
use super::watch::{Watch, meanwhile};
use super::world::{Around, reservation, user_name};
use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::orders::For;
use crate::slurm::scontrol::{self, NodesWanted};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_batch::Phase;

/// Between looks at what Slurm plans, and attempts to reserve nodes: all jobs that wait ask slurmctld.
const LOOK_MIN: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Longest time for which nodes are reserved; the teardown ends it.
const RESERVED_MINUTES: u64 = 7 * 24 * 60;

/// A job's reservation as it is asked for.
struct Ask {
    name: String,
    user: String,
    partition: String,
    node_count: usize,
    /// Nodes that the job insists on, and those that it may not have.
    wishes: (Vec<String>, Vec<String>),
    /// Slurm plans where jobs will start. Then a reservation of other nodes would overtake those that wait for them.
    has_plans: bool,
}

/// What a job waits for, told when it is something else.
#[derive(Default)]
struct Waits(String);

impl Waits {
    fn tell(&mut self, desk: &Desk, case: &Case, what: &str) {
        if self.0 != what {
            self.0 = what.into();
            desk.tell(case, what);
        }
    }
}

impl Desk {
    pub fn stage_ahead(&self, case: &Case) -> Result<()> {
        let job = case.id();
        let limit = case.asks.timeouts.stage_in.unwrap_or(self.site.stage_in_timeout);
        let mut watch = Watch::new(self, case);
        let (nodes, due) = match self.reserved_before(case)? {
            Some(nodes) => (nodes, SystemTime::now()),
            None => self.reserve_in_time(case, limit, &mut watch)?,
        };
        let deadline = Instant::now() + limit;
        self.noted(self.book.set_nodes(job, &nodes))?;
        let seen = self.patiently(case, &nodes, deadline, |fleet| {
            self.register(case, fleet)?;
            let around = Around::new(self, case, fleet)?;
            let target = For { owner: around.owner, nodes: &nodes, world: &around };
            let stages = case.asks.stage_in.iter().map(|stage| &stage.value);
            let orders = target.stage_in(stages.filter(|stage| !self.is_for_pool(case, stage)))?;
            let sources = self.register_sources(case, fleet, &orders)?;
            let given = self.give(case, fleet, &orders, Give::Now)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let (standing, seen) = meanwhile(&nodes, || self.settle(case, fleet, &given, "staging in", left));
            let standing = standing?;
            self.record(job, &standing, Way::In);
            self.forget_sources(case, &sources);
            super::start::arrived(&standing, limit)?;
            Ok(seen)
        })?;
        watch.ended(due, seen);
        scontrol::update_job(
            job,
            &[("ReservationName", &reservation(job)), ("ReqNodeList", &nodes.join(","))],
        )?;
        self.advance(case, Phase::Ready, "")
    }

    /// The job has its nodes: what it leaves of them is for others. Where that cannot be done, its end does it.
    pub fn end_reservation(&self, case: &Case) {
        let (job, name) = (case.id(), &case.job.reservation);
        if name.is_empty() {
            return;
        }
        // Slurm ends none that a job is in.
        let left =
            scontrol::update_job(job, &[("ReservationName", "")]).and_then(|()| scontrol::release(name));
        let done = left.and_then(|()| self.noted(self.book.set_reservation(job, "")));
        if let Err(failure) = done {
            self.note(job, &format!("its reservation lasts until its end: {failure}"));
        }
    }

    /// The nodes that this hook had reserved when it was called before, as before a restart of slurmctld; none where it did
    /// not come so far.
    fn reserved_before(&self, case: &Case) -> Result<Option<Vec<String>>> {
        let (name, nodes) = (&case.job.reservation, &case.job.nodes);
        if case.job.phase != Phase::StagingIn || name.is_empty() || nodes.is_empty() {
            return Ok(None);
        }
        // One that is gone is made anew.
        let there = scontrol::nodes_of_reservation(name).unwrap_or_default();
        Ok((there == *nodes).then_some(there))
    }

    /// Waits until staging has to begin, then for nodes; since when it has to. `limit` counts from then on, anew when
    /// Slurm postpones the job.
    fn reserve_in_time(
        &self,
        case: &Case,
        limit: Duration,
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<String>, SystemTime)> {
        let ask = self.ask(case)?;
        let (mut told, mut began, mut due, mut unplanned) = (false, false, None, Duration::ZERO);
        let mut waits = Waits::default();
        loop {
            self.check_wanted(case)?;
            // The sweep takes jobs for lost that nobody looks after.
            self.noted(self.book.touch(case.id(), super::now()))?;
            let plan = scontrol::plan(case.id());
            if let Some(early) = watch.early(plan.as_ref(), since_1970()) {
                if !told {
                    told = true;
                    self.tell_when(case, watch, early);
                }
                due = None;
                std::thread::sleep(pause(early));
                continue;
            }
            let nodes = plan.map(|plan| plan.nodes).unwrap_or_default();
            if ask.has_plans && nodes.is_empty() {
                unplanned += LOOK_MIN;
                waits.tell(
                    self,
                    case,
                    "waits until Slurm plans where it starts: then its nodes are reserved",
                );
                std::thread::sleep(pause(unplanned));
                continue;
            }
            if !began {
                began = true;
                self.advance(case, Phase::StagingIn, "")?;
            }
            let (since, at) = *due.get_or_insert_with(|| (Instant::now(), SystemTime::now()));
            match self.try_to_reserve(case, &ask, &nodes)? {
                Ok(nodes) => return Ok((nodes, at)),
                Err(why) if since.elapsed() > limit => {
                    let count = ask.node_count;
                    let text = format!("no {count} nodes could be reserved in time: {why}");
                    return Err(Failure::new(Kind::Start, text));
                }
                Err(why) => {
                    waits.tell(self, case, &format!("waits for nodes that can be reserved: {}", why.trim()));
                    std::thread::sleep(LOOK_MIN);
                }
            }
        }
    }

    fn tell_when(&self, case: &Case, watch: &mut Watch<'_>, early: Duration) {
        let (lead, early, why) = (watch.lead().as_secs(), early.as_secs(), watch.why());
        let text = format!("staging begins {lead} s before the job's expected start, in {early} s ({why})");
        self.note(case.id(), &text);
        self.tell(case, &text);
    }

    fn ask(&self, case: &Case) -> Result<Ask> {
        let job = case.id();
        let facts = scontrol::job(job)?
            .ok_or_else(|| Failure::new(Kind::Other, "Slurm does not know the job any more"))?;
        let name = reservation(job);
        // One of an attempt that was killed would be in the way.
        scontrol::release(&name)?;
        self.noted(self.book.set_reservation(job, &name))?;
        Ok(Ask {
            name,
            user: user_name(case.job.uid)?,
            partition: facts.partition,
            node_count: facts.node_count,
            wishes: scontrol::wishes(job)?,
            has_plans: scontrol::has_plans()?,
        })
    }

    /// The inner error says what is waited for.
    fn try_to_reserve(
        &self,
        case: &Case,
        ask: &Ask,
        planned: &[String],
    ) -> Result<std::result::Result<Vec<String>, String>> {
        let wanted = match (planned, &ask.wishes.0[..]) {
            ([], wishes) if wishes.len() >= ask.node_count => NodesWanted::These(wishes),
            ([], _) => NodesWanted::Free(ask.node_count),
            (planned, _) => NodesWanted::These(planned),
        };
        match scontrol::reserve(&ask.name, wanted, &ask.partition, &ask.user, RESERVED_MINUTES) {
            Ok(()) => {}
            Err(why) if scontrol::is_passing(&why) => {
                // It may have been made all the same.
                scontrol::release(&ask.name)?;
                return Ok(Err(why));
            }
            Err(why) if is_busy(&why) => return Ok(Err(why)),
            Err(why) => return Err(Failure::new(Kind::Start, format!("reserving nodes: {why}"))),
        }
        let nodes = scontrol::nodes_of_reservation(&ask.name)?;
        let why = match self.in_the_way(case, &nodes)? {
            None if ask.allows(&nodes) => return Ok(Ok(nodes)),
            None => "the nodes that are free are not those that the job may have".into(),
            Some(met) if met.stays() => return Err(Failure::new(Kind::Start, met.to_string())),
            Some(met) => met.to_string(),
        };
        scontrol::release(&ask.name)?;
        Ok(Err(why))
    }
}

impl Ask {
    fn allows(&self, nodes: &[String]) -> bool {
        let (wanted, refused) = &self.wishes;
        wanted.iter().all(|node| nodes.contains(node)) && !refused.iter().any(|node| nodes.contains(node))
    }
}

/// What may be otherwise in a moment.
fn is_busy(why: &str) -> bool {
    ["busy", "not available", "overlap"].iter().any(|word| why.contains(word))
}

/// Plans far ahead are looked at seldom; they may still come nearer.
fn pause(ahead: Duration) -> Duration {
    (ahead / 10).clamp(LOOK_MIN, LOOK_MAX).min(ahead)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_plans_are_looked_at_more_often() {
        let seconds = Duration::from_secs;
        let looks = [(1, 1), (10, 2), (100, 10), (100_000, 30)];
        assert!(looks.iter().all(|(ahead, look)| pause(seconds(*ahead)) == seconds(*look)));
    }

    #[test]
    fn a_reservation_has_what_the_job_insists_on() {
        let list = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let ask = Ask {
            name: String::new(),
            user: String::new(),
            partition: String::new(),
            node_count: 2,
            wishes: (list("n1"), list("n4")),
            has_plans: false,
        };
        assert!(ask.allows(&list("n1 n2")));
        assert!(!ask.allows(&list("n2 n3")) && !ask.allows(&list("n1 n4")));
    }
}
