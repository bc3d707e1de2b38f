//! The workers, and what is seen of their tasks while they run.

use crate::errands::{self, Errand};
use crate::execute;
use crate::limits::Limits;
use crate::peers::Wanted;
use crate::places::Places;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use tidepool_stage::remote::Abandoner;
use tidepool_stage::{Control, Phase};
use tidepool_stage_state::{Ended, Live, Start};
use tidepool_wire::stager::{Reply, TaskPhase};

/// A task with all that a worker needs.
pub struct Work {
    pub start: Start,
    pub places: Places,
    pub limits: Arc<Limits>,
    pub run: Arc<Run>,
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
    /// Another stager wants to use a dataspace.
    Peer(Wanted),
    /// Another stager has put something into a dataspace.
    Received {
        job: u32,
        dataspace: String,
        bytes: u64,
    },
    /// An errand's reply.
    Answer {
        conn: u64,
        request: u64,
        answer: Answer,
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
    /// It has a directory of its own.
    dir: AtomicBool,
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

    pub fn note_dir(&self) {
        self.dir.store(true, Ordering::Release);
    }

    pub fn has_dir(&self) -> bool {
        self.dir.load(Ordering::Acquire)
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
    waiting: VecDeque<T>,
    closed: bool,
}

/// Threads that take one job after the other.
struct Crew<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

impl<T> Crew<T> {
    fn new() -> Arc<Crew<T>> {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), closed: false });
        Arc::new(Crew { queue, changed: Condvar::new() })
    }

    fn push(&self, work: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).waiting.push_back(work);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<T> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Tells the event loop, and wakes it.
#[derive(Clone)]
pub struct Teller {
    news: Sender<News>,
    wake: Arc<rustix::fd::OwnedFd>,
}

impl Teller {
    pub fn new(news: Sender<News>, wake: Arc<rustix::fd::OwnedFd>) -> Teller {
        Teller { news, wake }
    }

    pub fn tell(&self, news: News) {
        // A loop that has ended wants no news.
        if self.news.send(news).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1u64.to_le_bytes());
        }
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
    pub fn start(workers: u32, setup: &Arc<execute::Setup>, teller: &Teller) -> std::io::Result<Crews> {
        let (tasks, plans, looks) = (Crew::new(), Crew::new(), Crew::new());
        let mut crews = Crews { tasks, plans, looks, threads: Vec::new() };
        for _ in 0..workers {
            let (crew, setup, teller) = (Arc::clone(&crews.tasks), Arc::clone(setup), teller.clone());
            crews.spawn("task", move || {
                while let Some(work) = crew.next() {
                    let id = work.start.id;
                    let ended = execute::run(&setup, &work, &teller);
                    teller.tell(News::Ended { id, ended });
                }
            })?;
        }
        for (crew, threads) in
            [(Arc::clone(&crews.plans), PLAN_THREADS), (Arc::clone(&crews.looks), LOOK_THREADS)]
        {
            for _ in 0..threads {
                let (crew, setup, teller) = (Arc::clone(&crew), Arc::clone(setup), teller.clone());
                crews.spawn("errand", move || {
                    while let Some(errand) = crew.next() {
                        teller.tell(errand.run(&setup));
                    }
                })?;
            }
        }
        Ok(crews)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }

    pub fn task(&self, work: Work) {
        self.tasks.push(work);
    }

    pub fn errand(&self, errand: Errand) {
        match &errand.task {
            errands::Task::Plan { .. } => self.plans.push(errand),
            errands::Task::Look { .. } => self.looks.push(errand),
        }
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
