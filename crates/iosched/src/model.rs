//! What a scheduler knows: applications and their I/O phases, tiers, data that wait for being flushed.
//!
//! Times are nanoseconds of one clock of the caller's, sizes bytes, bandwidths bytes/s.

use crate::curve::Curves;
use std::fmt;
use std::sync::Arc;

/// Applications of one view.
pub const APPS_MAX: usize = 4096;
/// Earlier phases that are kept of an application; older ones say little of the next.
pub const PAST_MAX: usize = 32;
/// Largest weight of an application.
pub const WEIGHT_MAX: u32 = 1000;
/// Processes of an application.
pub const PROCESSES_MAX: u32 = crate::curve::PROCESSES_MAX;
/// Knowledge that is older is late, unless phases are long ([`LATE_PART`]): what it says of the load has probably changed
/// since. Reports come every second.
pub const LATE_AFTER_NS: u64 = 5_000_000_000;
/// Knowledge is not late before this part of what phases usually last. In the fluid model, acting on old news became worse than
/// acting on none when they were half a phase (`ia`, `fcfs`) to a whole one (`model`) old.
pub const LATE_PART: u64 = 4;

/// Where data can be written to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// Non-volatile memory of the application's own nodes.
    Local,
    /// The shared burst buffer: a pool on dedicated nodes.
    Burst,
    /// The parallel file system, where everything ends.
    Pfs,
}

impl Tier {
    pub const ALL: [Tier; 3] = [Tier::Local, Tier::Burst, Tier::Pfs];

    pub fn name(self) -> &'static str {
        match self {
            Tier::Local => "local",
            Tier::Burst => "burst",
            Tier::Pfs => "pfs",
        }
    }
}

/// How the processes of a phase go through their files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pattern {
    Sequential,
    Strided,
    Random,
}

/// An application, in every view the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// A running application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct App {
    pub job: JobId,
    /// Processes that do I/O.
    pub processes: u32,
    /// Its part when shares are given out, 1 to [`WEIGHT_MAX`]: the site's priority.
    pub weight: u32,
    /// Its I/O phase, when it is in one. An application has one phase at a time; waiting for its turn is part of it.
    pub phase: Option<Phase>,
    /// Earlier phases, oldest first; at most [`PAST_MAX`].
    pub past: Vec<PastPhase>,
    /// What the links of its nodes carry to shared tiers, where that is known.
    pub link_bytes_per_s: Option<u64>,
    /// What all its processes have begun and not ended while they write, in bytes: who is sent elsewhere ends it where it was begun.
    /// 0 where that is next to nothing.
    pub under_way_bytes: u64,
    /// Node-local memory of its nodes; none where they have none.
    pub local: Option<Local>,
}

/// An I/O phase that has begun and not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    pub begin_ns: u64,
    pub written_bytes: u64,
    /// All that it is going to write, where it is known.
    pub expected_bytes: Option<u64>,
    pub pattern: Pattern,
    /// Where it writes now; none before the first verdict and while it waits.
    pub tier: Option<Tier>,
}

/// An I/O phase that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastPhase {
    pub begin_ns: u64,
    pub end_ns: u64,
    pub bytes: u64,
}

/// Node-local memory of all nodes of an application together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    pub bytes_per_s: u64,
}

/// A tier that applications share, as it was reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    /// Applications in an I/O phase there that are not among the view's.
    pub foreign_users: u32,
    /// The processes of these.
    pub foreign_processes: u32,
    /// What flushing brings, in bytes/s.
    pub flush_in_bytes_per_s: u64,
    /// What flushing takes away, in bytes/s.
    pub flush_out_bytes_per_s: u64,
    /// How old this is, and what is known of the other applications on it. None: nothing was ever heard of it.
    pub age_ns: Option<u64>,
    /// Its measured bandwidth; none where it was not measured.
    pub curves: Option<Arc<Curves>>,
}

/// How far what is known of a tier can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knowledge {
    Fresh,
    /// Older than [`View::late_after_ns`].
    Late,
    /// Nothing was ever heard.
    Missing,
}

/// Data of an application that lie on a tier above the PFS and have not been flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirty {
    pub job: JobId,
    /// `Local` or `Burst`.
    pub tier: Tier,
    pub bytes: u64,
    /// When the oldest of them were written.
    pub since_ns: u64,
}

/// Everything a scheduler knows at one moment. Its parts are sorted when it is made, so that no verdict can depend on the
/// order in which they were told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    now_ns: u64,
    apps: Vec<App>,
    burst: Shared,
    pfs: Shared,
    dirty: Vec<Dirty>,
}

/// Why parts make no view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViewError {
    TooManyApps(usize),
    Twice(JobId),
    Processes(JobId, u32),
    Weight(JobId, u32),
    TooMuchPast(JobId, usize),
    Future(JobId),
    Backwards(JobId),
    TooFree(&'static str),
    NoBandwidth(JobId),
    DirtyTwice(JobId, Tier),
    DirtyOnPfs(JobId),
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewError::TooManyApps(count) => write!(f, "{count} applications; at most {APPS_MAX}"),
            ViewError::Twice(job) => write!(f, "job {} is there twice", job.0),
            ViewError::Processes(job, n) => {
                write!(f, "job {} with {n} processes; give 1 to {PROCESSES_MAX}", job.0)
            }
            ViewError::Weight(job, w) => write!(f, "job {} with weight {w}; give 1 to {WEIGHT_MAX}", job.0),
            ViewError::TooMuchPast(job, n) => {
                write!(f, "job {} with {n} earlier phases; keep the last {PAST_MAX}", job.0)
            }
            ViewError::Future(job) => write!(f, "a phase of job {} begins or ended after now", job.0),
            ViewError::Backwards(job) => write!(f, "a phase of job {} ended before it began", job.0),
            ViewError::TooFree(what) => write!(f, "more free bytes than capacity: {what}"),
            ViewError::NoBandwidth(job) => {
                write!(f, "job {} has links or node-local memory of 0 bytes/s; leave them out", job.0)
            }
            ViewError::DirtyTwice(job, tier) => {
                write!(f, "unflushed data of job {} on {} are there twice; add them up", job.0, tier.name())
            }
            ViewError::DirtyOnPfs(job) => write!(f, "data of job {} on the PFS wait for nothing", job.0),
        }
    }
}

impl std::error::Error for ViewError {}

impl View {
    pub fn new(
        now_ns: u64,
        mut apps: Vec<App>,
        burst: Shared,
        pfs: Shared,
        mut dirty: Vec<Dirty>,
    ) -> Result<View, ViewError> {
        apps.sort_by_key(|app| app.job);
        dirty.sort_by_key(|lump| (lump.job, lump.tier));
        check_apps(now_ns, &apps)?;
        for (state, name) in [(&burst, "burst buffer"), (&pfs, "PFS")] {
            if state.free_bytes > state.capacity_bytes {
                return Err(ViewError::TooFree(name));
            }
        }
        if let Some(lump) = dirty.iter().find(|lump| lump.tier == Tier::Pfs) {
            return Err(ViewError::DirtyOnPfs(lump.job));
        }
        let twice = dirty.windows(2).find(|pair| (pair[0].job, pair[0].tier) == (pair[1].job, pair[1].tier));
        match twice {
            Some(pair) => Err(ViewError::DirtyTwice(pair[0].job, pair[0].tier)),
            None => Ok(View { now_ns, apps, burst, pfs, dirty }),
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The running applications, by job.
    pub fn apps(&self) -> &[App] {
        &self.apps
    }

    pub fn app(&self, job: JobId) -> Option<&App> {
        self.apps.binary_search_by_key(&job, |app| app.job).ok().map(|at| &self.apps[at])
    }

    /// Unflushed data, by job and tier.
    pub fn dirty(&self) -> &[Dirty] {
        &self.dirty
    }

    pub fn burst(&self) -> &Shared {
        &self.burst
    }

    pub fn pfs(&self) -> &Shared {
        &self.pfs
    }

    /// Knowledge that is older than this is late.
    pub fn late_after_ns(&self) -> u64 {
        let past = || self.apps.iter().flat_map(|app| &app.past);
        let lasted: u128 = past().map(|past| u128::from(past.end_ns - past.begin_ns)).sum();
        let mean = lasted.checked_div(past().count() as u128).unwrap_or(0) as u64;
        LATE_AFTER_NS.max(mean / LATE_PART)
    }

    /// How far what is known of a tier can be relied on; node-local memory is the application's own.
    pub fn knowledge(&self, tier: Tier) -> Knowledge {
        let age_ns = match tier {
            Tier::Local => Some(0),
            Tier::Burst => self.burst.age_ns,
            Tier::Pfs => self.pfs.age_ns,
        };
        match age_ns {
            None => Knowledge::Missing,
            Some(age) if age > self.late_after_ns() => Knowledge::Late,
            Some(_) => Knowledge::Fresh,
        }
    }

    /// Applications in a phase, in the order in which their phases began; of several at once, the lower job first.
    pub fn active(&self) -> Vec<(&App, &Phase)> {
        let mut active: Vec<_> =
            self.apps.iter().filter_map(|app| app.phase.as_ref().map(|phase| (app, phase))).collect();
        active.sort_by_key(|(app, phase)| (phase.begin_ns, app.job));
        active
    }

    /// Free bytes of a tier for an application.
    pub fn free_bytes(&self, tier: Tier, app: &App) -> u64 {
        match tier {
            Tier::Local => app.local.map_or(0, |local| local.free_bytes),
            Tier::Burst => self.burst.free_bytes,
            Tier::Pfs => self.pfs.free_bytes,
        }
    }

    /// Size of a tier for an application.
    pub fn capacity_bytes(&self, tier: Tier, app: &App) -> u64 {
        match tier {
            Tier::Local => app.local.map_or(0, |local| local.capacity_bytes),
            Tier::Burst => self.burst.capacity_bytes,
            Tier::Pfs => self.pfs.capacity_bytes,
        }
    }
}

fn check_apps(now_ns: u64, apps: &[App]) -> Result<(), ViewError> {
    if apps.len() > APPS_MAX {
        return Err(ViewError::TooManyApps(apps.len()));
    }
    if let Some(pair) = apps.windows(2).find(|pair| pair[0].job == pair[1].job) {
        return Err(ViewError::Twice(pair[0].job));
    }
    for app in apps {
        check_app(now_ns, app)?;
    }
    Ok(())
}

fn check_app(now_ns: u64, app: &App) -> Result<(), ViewError> {
    let moments = app.past.iter().map(|past| past.end_ns).chain(app.phase.iter().map(|phase| phase.begin_ns));
    if !(1..=PROCESSES_MAX).contains(&app.processes) {
        return Err(ViewError::Processes(app.job, app.processes));
    }
    if !(1..=WEIGHT_MAX).contains(&app.weight) {
        return Err(ViewError::Weight(app.job, app.weight));
    }
    if app.past.len() > PAST_MAX {
        return Err(ViewError::TooMuchPast(app.job, app.past.len()));
    }
    if moments.into_iter().any(|moment| moment > now_ns) {
        return Err(ViewError::Future(app.job));
    }
    if app.past.iter().any(|past| past.begin_ns > past.end_ns) {
        return Err(ViewError::Backwards(app.job));
    }
    if app.link_bytes_per_s == Some(0) {
        return Err(ViewError::NoBandwidth(app.job));
    }
    match app.local {
        Some(local) if local.free_bytes > local.capacity_bytes => {
            Err(ViewError::TooFree("node-local memory"))
        }
        Some(local) if local.bytes_per_s == 0 => Err(ViewError::NoBandwidth(app.job)),
        _ => Ok(()),
    }
}

impl App {
    /// Bytes that its phase has still to write, as far as can be told. Where that is not known: as much again as it has
    /// written. Never 0, because a phase that goes on has something to write. None without a phase.
    pub fn remaining_bytes(&self) -> Option<u64> {
        let phase = self.phase.as_ref()?;
        Some(self.known_remaining_bytes().unwrap_or(phase.written_bytes.max(1)))
    }

    /// The same, none where it is not known: neither expected nor usual, or more than usual has been written.
    pub fn known_remaining_bytes(&self) -> Option<u64> {
        let phase = self.phase.as_ref()?;
        let left = match phase.expected_bytes {
            Some(all) => all.saturating_sub(phase.written_bytes),
            None => self.usual_bytes()?.checked_sub(phase.written_bytes)?,
        };
        Some(left.max(1))
    }

    /// Size of its earlier phases: half of all bytes came in phases of this size or smaller ones. Programs also write small
    /// files now and then, which say nothing of their next phase; and they often begin with some, so that one phase says
    /// nothing, either.
    fn usual_bytes(&self) -> Option<u64> {
        let mut sizes: Vec<u64> = self.past.iter().map(|past| past.bytes).collect();
        sizes.sort_unstable();
        let all: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
        let mut sum = 0;
        let is_half = |size: &u64| {
            sum += u128::from(*size);
            2 * sum >= all
        };
        (sizes.len() > 1).then(|| sizes.iter().copied().find(is_half))?
    }

    /// Mean time between the beginnings of its phases, the present one included; none before the second phase.
    pub fn period_ns(&self) -> Option<u64> {
        let begins = || {
            self.past.iter().map(|past| past.begin_ns).chain(self.phase.iter().map(|phase| phase.begin_ns))
        };
        let count = begins().count() as u64;
        let (first, last) = (begins().min()?, begins().max()?);
        (count > 1).then(|| (last - first) / (count - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{S, app, shared, writing};

    fn view(apps: Vec<App>, dirty: Vec<Dirty>) -> Result<View, ViewError> {
        View::new(100, apps, shared(1000, 1000), shared(1000, 1000), dirty)
    }

    #[test]
    fn nonsense_is_refused() {
        let lump = |job, tier| Dirty { job: JobId(job), tier, bytes: 1, since_ns: 0 };
        let future = App { past: vec![PastPhase { begin_ns: 100, end_ns: 101, bytes: 1 }], ..app(1, 1) };
        let backwards = App { past: vec![PastPhase { begin_ns: 9, end_ns: 8, bytes: 1 }], ..app(1, 1) };
        let full =
            App { local: Some(Local { capacity_bytes: 1, free_bytes: 2, bytes_per_s: 1 }), ..app(1, 1) };
        let refused = [
            (view(vec![app(1, 1), app(1, 1)], vec![]), ViewError::Twice(JobId(1))),
            (view(vec![app(1, 0)], vec![]), ViewError::Processes(JobId(1), 0)),
            (view(vec![App { weight: 0, ..app(1, 1) }], vec![]), ViewError::Weight(JobId(1), 0)),
            (view(vec![future], vec![]), ViewError::Future(JobId(1))),
            (view(vec![backwards], vec![]), ViewError::Backwards(JobId(1))),
            (view(vec![full], vec![]), ViewError::TooFree("node-local memory")),
            (view(vec![], vec![lump(1, Tier::Pfs)]), ViewError::DirtyOnPfs(JobId(1))),
            (
                view(vec![], vec![lump(1, Tier::Burst), lump(2, Tier::Burst), lump(1, Tier::Burst)]),
                ViewError::DirtyTwice(JobId(1), Tier::Burst),
            ),
        ];
        for (result, error) in refused {
            assert!(!error.to_string().is_empty());
            assert_eq!(result, Err(error));
        }
        let too_free = View::new(0, vec![], shared(1, 2), shared(1, 1), vec![]);
        assert_eq!(too_free, Err(ViewError::TooFree("burst buffer")));
    }

    #[test]
    fn the_order_in_which_parts_are_told_is_forgotten() {
        let apps = vec![app(3, 1), app(1, 2), app(2, 3)];
        let turned: Vec<App> = apps.iter().rev().cloned().collect();
        assert_eq!(view(apps, vec![]), view(turned, vec![]));
    }

    /// Begins at 0, 40 and 100: two periods, 50 in the mean. Sizes 10 and 30: 20 is expected, of which 5 are written.
    #[test]
    fn periods_and_sizes_come_from_earlier_phases() {
        let past = vec![
            PastPhase { begin_ns: 0, end_ns: 9, bytes: 10 },
            PastPhase { begin_ns: 40, end_ns: 50, bytes: 30 },
        ];
        let mut one = App { past, ..writing(1, 1, 100, None) };
        one.phase.as_mut().unwrap().expected_bytes = None;
        one.phase.as_mut().unwrap().written_bytes = 5;
        assert_eq!(one.period_ns(), Some(50));
        assert_eq!(one.remaining_bytes(), Some(25), "of two the larger one");
        let first = App { past: one.past[..1].to_vec(), ..one.clone() };
        assert_eq!(
            (first.known_remaining_bytes(), first.remaining_bytes()),
            (None, Some(5)),
            "one says nothing"
        );
        let small = (0..9).map(|n| PastPhase { begin_ns: n, end_ns: n, bytes: 1 });
        let often = App { past: one.past.iter().copied().chain(small).collect(), ..one.clone() };
        assert_eq!(often.remaining_bytes(), Some(25), "small ones do not count");
        one.phase.as_mut().unwrap().written_bytes = 35;
        assert_eq!(one.known_remaining_bytes(), None);
        assert_eq!(one.remaining_bytes(), Some(35), "past the usual: as much again");
        one.phase.as_mut().unwrap().written_bytes = 5;
        one.phase.as_mut().unwrap().expected_bytes = Some(5);
        assert_eq!(one.remaining_bytes(), Some(1), "it goes on, so there is something");
        assert_eq!(app(1, 1).period_ns(), None);
        assert_eq!(app(1, 1).remaining_bytes(), None);
    }

    /// Phases of 20 s and 60 s: 40 s in the mean, of which a quarter is 10 s.
    #[test]
    fn knowledge_is_late_after_the_limit() {
        let known = |age_ns, lasted: &[u64]| {
            let past = lasted.iter().map(|s| PastPhase { begin_ns: 0, end_ns: s * S, bytes: 1 }).collect();
            let burst = Shared { age_ns, ..shared(1, 1) };
            let apps = vec![App { past, ..app(1, 1) }, app(2, 1)];
            View::new(100 * S, apps, burst, shared(1, 1), vec![]).unwrap().knowledge(Tier::Burst)
        };
        assert_eq!(known(Some(LATE_AFTER_NS), &[]), Knowledge::Fresh);
        assert_eq!(known(Some(LATE_AFTER_NS + 1), &[]), Knowledge::Late);
        assert_eq!(
            known(Some(LATE_AFTER_NS + 1), &[1, 3]),
            Knowledge::Late,
            "short phases do not shorten it"
        );
        assert_eq!(known(Some(10 * S), &[20, 60]), Knowledge::Fresh);
        assert_eq!(known(Some(10 * S + 1), &[20, 60]), Knowledge::Late);
        assert_eq!(known(None, &[20, 60]), Knowledge::Missing);
    }
}
