//! The workers, and what is seen of their tasks while they run.

use crate::errands::{self, Errand};
use crate::execute;
use crate::keys::Trust;
use crate::peers::{Arrived, Wanted};
use crate::places::Places;
use crate::wake::Wake;
use crate::worker::About;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_shm::Spin;
use tidepool_stage::remote::{Abandoner, Dialed};
use tidepool_stage::{Charge, Control, EndError, Phase};
use tidepool_stage_state::{Ended, Live, Rank, Start};
use tidepool_transport::remote::GreetError;
use tidepool_wire::stager::{Reply, TaskPhase};

/// A task with all that a worker needs.
pub struct Work {
    pub start: Start,
    pub places: Places,
    pub limits: Arc<dyn Charge>,
    pub run: Arc<Run>,
    /// Part of the names of the task's temporary files.
    pub token: [u8; 8],
}

/// What workers tell the event loop.
pub enum News {
    Ended {
        id: u32,
        ended: Ended,
    },
    /// A task is about to make something, and waits until that is in the journal.
    Makes {
        id: u32,
        place: Vec<u8>,
        top: Vec<u8>,
        noted: Sender<()>,
    },
    /// A copy wants its journal, and waits for it; none when it has to do without.
    Journal {
        id: u32,
        answer: Sender<Option<File>>,
    },
    /// Another stager wants to use a dataspace.
    Peer(Wanted),
    /// A connection of another stager that is allowed to, to be served by a worker.
    Arrived(Box<Arrived>),
    /// Somebody of another node wants to ask as on the control socket; a thread carries what he says to the other end of this.
    Guest {
        stream: UnixStream,
        rank: Rank,
    },
    /// Another stager, or a task by cloning, has put something into a dataspace.
    Received {
        /// 0 for another stager.
        task: u32,
        job: u32,
        dataspace: String,
        place: Vec<u8>,
        bytes: u64,
    },
    /// The configuration has been read anew: who is trusted.
    Trust(Box<Trust>),
    /// Another stager has closed what it had opened in a dataspace of this number.
    PeerLeft(u32),
    /// An errand's reply.
    Answer {
        conn: u64,
        request: u64,
        answer: Answer,
    },
    /// A worker has not got a message, because what goes with it could not be opened.
    Undelivered {
        worker: u64,
        about: About,
        error: EndError,
    },
    /// A connection that a worker needs to another stager has been made, or not.
    Line {
        worker: u64,
        line: u64,
        made: Result<Dialed, GreetError>,
    },
    /// A worker's process has ended.
    WorkerGone {
        worker: u64,
        why: String,
    },
}

/// What an errand found.
pub enum Answer {
    Reply(Reply),
    /// What lies in dataspaces, with what is to be done now that it is known.
    Found {
        entries: Vec<tidepool_wire::stager::Leftover>,
        more: bool,
        then: crate::errands::Then,
    },
}

/// A running task, seen from the event loop.
#[derive(Default)]
pub struct Run {
    control: Mutex<Control>,
    cancelled: AtomicBool,
    /// Added up over the steps of a task.
    phase: AtomicU8,
    /// Its ends at other nodes, which may not answer for a long time.
    ends: Mutex<Vec<Abandoner>>,
}

impl Run {
    /// Stops it soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.control.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        for end in self.ends.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            end.abandon();
        }
    }

    /// An end that a cancelled task does not wait for.
    pub fn note_end(&self, end: Abandoner) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at under the lock: either this sees the cancel, or the cancel sees the end.
        if self.is_cancelled() {
            end.abandon();
        } else {
            ends.push(end);
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// A control for the next step; cancelled at once when the task is.
    pub fn control(&self) -> Control {
        let control = Control::default();
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = control.clone();
        if self.is_cancelled() {
            control.cancel();
        }
        control
    }

    /// The step that the control is of removes things.
    pub fn removing(&self) {
        self.phase.store(1, Ordering::Release);
    }

    pub fn live(&self) -> Live {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let progress = control.progress();
        let removing = self.phase.load(Ordering::Acquire) == 1;
        Live {
            phase: if removing { TaskPhase::Removing } else { phase_of(progress.phase) },
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_seen,
            files_done: progress.files_done,
            files_total: progress.files_seen,
            total_known: progress.walk_complete,
            rate: progress.rate as u64,
            eta_ms: progress.eta.map(|eta| eta.as_millis() as u64),
            // 100 is for what has ended.
            percent: progress.percent.map(|percent| (percent as u8).min(99)),
        }
    }
}

fn phase_of(phase: Phase) -> TaskPhase {
    match phase {
        Phase::Starting | Phase::Walking => TaskPhase::Walking,
        Phase::Copying => TaskPhase::Copying,
        Phase::Finishing | Phase::Complete | Phase::Failed => TaskPhase::Finishing,
    }
}

struct Queue<T> {
    /// With the time since when it waits.
    waiting: VecDeque<(Instant, T)>,
    closed: bool,
    /// Threads that look for work awake, those that are at work, and those that have to be woken.
    awake: usize,
    busy: usize,
    asleep: usize,
    /// Of those asleep, those that have been woken.
    coming: usize,
    /// When one was woken last for what had waited for too long.
    woken: Option<Instant>,
}

/// Threads of a crew that look for work awake at a time: more would only take turns at it.
const AWAKE_MAX: usize = 1;
/// How long a task is left to workers that are up before one more is woken: waking one takes longer than a small file does.
const PATIENCE: Duration = Duration::from_micros(100);

/// Threads that take one job after the other.
struct Crew<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
    /// Work waits for so long for those who are up.
    patience: Duration,
}

impl<T> Crew<T> {
    fn new(patience: Duration) -> Arc<Crew<T>> {
        let (waiting, closed, woken) = (VecDeque::new(), false, None);
        let queue = Queue { waiting, closed, awake: 0, busy: 0, asleep: 0, coming: 0, woken };
        Arc::new(Crew { queue: Mutex::new(queue), changed: Condvar::new(), patience })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes somebody, unless somebody is up who may take it soon.
    fn push(&self, work: T) {
        let mut queue = self.queue();
        queue.waiting.push_back((Instant::now(), work));
        let nobody = queue.awake + queue.busy + queue.coming == 0;
        if (nobody || self.patience.is_zero()) && queue.coming < queue.asleep {
            self.wake(queue);
        }
    }

    fn leave(&self, work: T) {
        self.queue().waiting.push_back((Instant::now(), work));
    }

    fn take_alone(&self) -> Option<T> {
        let mut queue = self.queue();
        if queue.busy + queue.coming > 0 {
            return None;
        }
        let (_, work) = queue.waiting.pop_front()?;
        queue.busy += 1;
        Some(work)
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue<T>>) {
        queue.coming += 1;
        drop(queue);
        self.changed.notify_one();
    }

    /// Wakes one more for what those who are up have not taken for too long. How long it may be until the next look, if
    /// there is something to be looked at.
    fn look(&self) -> Option<Duration> {
        let mut queue = self.queue();
        let since = queue.waiting.front()?.0.max(queue.woken.unwrap_or(queue.waiting.front()?.0));
        if queue.asleep == queue.coming {
            return None;
        }
        let left = self.patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            queue.woken = Some(Instant::now());
            self.wake(queue);
            return Some(self.patience);
        }
        Some(left)
    }

    fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_all();
    }

    /// The next work, or none when there will be none any more. Waits awake for a moment and then asleep.
    fn next(&self, spin: &mut Spin) -> Option<T> {
        let mut queue = self.queue();
        if queue.waiting.is_empty() && queue.awake < AWAKE_MAX {
            queue.awake += 1;
            drop(queue);
            spin.until(|| self.has_news().then_some(()));
            queue = self.queue();
            queue.awake -= 1;
        }
        loop {
            if let Some((_, work)) = queue.waiting.pop_front() {
                queue.busy += 1;
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            queue.asleep += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.asleep -= 1;
            // Who wakes up for no reason takes another's place: that one will be woken again if it is needed.
            queue.coming = queue.coming.saturating_sub(1);
        }
    }

    /// What [`Crew::next`] gave is done.
    fn done(&self) {
        self.queue().busy -= 1;
    }

    fn has_news(&self) -> bool {
        let queue = self.queue();
        !queue.waiting.is_empty() || queue.closed
    }
}

/// Who is told news: the event loop, or that of another process.
pub trait Hear: Send + Sync {
    fn hear(&self, news: News);
}

/// Tells the event loop of this process, and wakes it.
pub struct Here {
    pub news: Sender<News>,
    pub wake: Arc<Wake>,
}

impl Hear for Here {
    fn hear(&self, news: News) {
        // A loop that has ended wants no news.
        if self.news.send(news).is_ok() {
            self.wake.ring();
        }
    }
}

/// What threads tell their news by.
#[derive(Clone)]
pub struct Teller(Arc<dyn Hear>);

impl Teller {
    pub fn new(hear: Arc<dyn Hear>) -> Teller {
        Teller(hear)
    }

    pub fn tell(&self, news: News) {
        self.0.hear(news);
    }
}

/// All threads but the event loop.
pub struct Crews {
    tasks: Arc<Crew<Work>>,
    /// Plans: as many as users like, and as large.
    plans: Arc<Crew<Errand>>,
    /// What administrators wait for is not held up by those.
    looks: Arc<Crew<Errand>>,
    threads: Vec<JoinHandle<()>>,
}

/// Threads for plans.
const PLAN_THREADS: u32 = 2;
/// Threads for looks at what lies in dataspaces.
const LOOK_THREADS: u32 = 1;

impl Crews {
    /// So many `workers` for tasks, which are `gentle` or not; plans and looks are asked for by people and are not.
    pub fn start(
        (workers, gentle): (u32, bool),
        setup: &Arc<execute::Setup>,
        teller: &Teller,
    ) -> std::io::Result<Crews> {
        let (tasks, plans, looks) =
            (Crew::new(PATIENCE), Crew::new(Duration::ZERO), Crew::new(Duration::ZERO));
        let mut crews = Crews { tasks, plans, looks, threads: Vec::new() };
        // Threads have the policy of the one that starts them.
        std::thread::scope(|scope| {
            let started = scope.spawn(|| {
                if gentle {
                    tidepool_stage::be_gentle()?;
                }
                (0..workers).try_for_each(|_| crews.start_worker(setup, teller))
            });
            started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        for (crew, threads) in
            [(Arc::clone(&crews.plans), PLAN_THREADS), (Arc::clone(&crews.looks), LOOK_THREADS)]
        {
            for _ in 0..threads {
                let (crew, setup, teller) = (Arc::clone(&crew), Arc::clone(setup), teller.clone());
                crews.spawn("errand", move || {
                    let mut spin = Spin::of_work();
                    while let Some(errand) = crew.next(&mut spin) {
                        let news = errand.run(&setup);
                        crew.done();
                        teller.tell(news);
                    }
                })?;
            }
        }
        Ok(crews)
    }

    fn start_worker(&mut self, setup: &Arc<execute::Setup>, teller: &Teller) -> std::io::Result<()> {
        let (crew, setup, teller) = (Arc::clone(&self.tasks), Arc::clone(setup), teller.clone());
        self.spawn("task", move || {
            let mut spin = Spin::of_work();
            while let Some(work) = crew.next(&mut spin) {
                let id = work.start.id;
                let ended = execute::run(&setup, &work, &teller);
                crew.done();
                teller.tell(News::Ended { id, ended });
            }
        })
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }

    pub fn task(&self, work: Work) {
        self.tasks.push(work);
    }

    /// Leaves a task to those who are up, or to who takes it by [`Crews::lend_a_hand`].
    pub fn leave(&self, work: Work) {
        self.tasks.leave(work);
    }

    /// A task for the caller to do, where nobody else is at one; then [`Crews::done`].
    pub fn lend_a_hand(&self) -> Option<Work> {
        self.tasks.take_alone()
    }

    pub fn done(&self) {
        self.tasks.done();
    }

    pub fn errand(&self, errand: Errand) {
        match &errand.task {
            errands::Task::Plan { .. } | errands::Task::Entries { .. } | errands::Task::Reach { .. } => {
                self.plans.push(errand)
            }
            errands::Task::Look { .. } => self.looks.push(errand),
        }
    }

    /// Sees to it that no task waits for long while a worker sleeps; how long it may be until the next look.
    pub fn look(&self) -> Option<Duration> {
        self.tasks.look()
    }

    /// Ends the threads when they have finished what they are at.
    pub fn stop(&mut self) {
        self.tasks.close();
        self.plans.close();
        self.looks.close();
        for thread in self.threads.drain(..) {
            // A worker that panicked has printed why.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A crew of threads that do what they are given, with the loop that looks after it.
    struct Threads {
        crew: Arc<Crew<Box<dyn FnOnce() + Send>>>,
        joins: Vec<JoinHandle<()>>,
    }

    impl Threads {
        fn new(count: usize) -> Threads {
            let crew = Crew::new(PATIENCE);
            let run = |crew: Arc<Crew<Box<dyn FnOnce() + Send>>>| {
                move || {
                    let mut spin = Spin::of_work();
                    while let Some(work) = crew.next(&mut spin) {
                        work();
                        crew.done();
                    }
                }
            };
            let joins = (0..count).map(|_| std::thread::spawn(run(Arc::clone(&crew)))).collect();
            Threads { crew, joins }
        }

        /// Looks as the event loop does until something is heard.
        fn hear<T>(&self, from: &Receiver<T>) -> T {
            loop {
                let left = self.crew.look().unwrap_or(Duration::from_millis(1));
                if let Ok(heard) = from.recv_timeout(left) {
                    return heard;
                }
            }
        }

        fn end(self) {
            self.crew.close();
            self.joins.into_iter().for_each(|join| join.join().expect("no thread panicked"));
        }
    }

    /// Each task waits for the one behind it in the queue: all have to be taken, by a thread each.
    #[test]
    fn work_that_takes_long_holds_up_nothing_behind_it() {
        const TASKS: usize = 6;
        let threads = Threads::new(TASKS);
        for round in 0..50 {
            let (tell, heard) = channel();
            let mut before: Option<std::sync::mpsc::Sender<()>> = None;
            for at in 0..TASKS {
                let (release, released) = channel::<()>();
                let (tell, first) = (tell.clone(), before.replace(release));
                threads.crew.push(Box::new(move || {
                    if at < TASKS - 1 {
                        released.recv().expect("the next one lets this go on");
                    }
                    if let Some(first) = first {
                        first.send(()).expect("the one before waits");
                    }
                    tell.send(at).expect("the test listens");
                }));
            }
            drop(before);
            let mut ended: Vec<usize> = (0..TASKS).map(|_| threads.hear(&heard)).collect();
            ended.sort_unstable();
            assert_eq!(ended, [0, 1, 2, 3, 4, 5], "round {round}");
        }
        threads.end();
    }

    #[test]
    fn all_work_is_done_once_however_it_comes() {
        let threads = Threads::new(3);
        let (tell, heard) = channel();
        let mut expected = 0;
        for round in 0..2000u64 {
            for _ in 0..round % 4 {
                let tell = tell.clone();
                threads.crew.push(Box::new(move || tell.send(()).expect("the test listens")));
                expected += 1;
            }
            if round % 3 == 0 {
                // The threads fall asleep from time to time.
                (0..expected).for_each(|_| threads.hear(&heard));
                expected = 0;
                std::thread::sleep(Duration::from_micros(round % 7 * 20));
            }
        }
        (0..expected).for_each(|_| threads.hear(&heard));
        threads.end();
        drop(tell);
        assert!(heard.recv().is_err(), "nothing was done twice");
    }
}
