//! Who reads the pipe. A thread that has read a task does it itself where nothing else is to be done: waking another one takes longer
//! than a small file does. When it is not back soon, or is about to wait for what comes by the pipe, its deputy reads on, and they have
//! changed their parts.

use super::pipe::Inbox;
use crate::start::lock;
use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a task may take before somebody else reads on.
const PATIENCE: Duration = Duration::from_millis(20);

/// The two threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    One,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Reads(Reader),
    /// Does a task since then.
    Works(Reader, Instant),
    /// Does a task, and somebody else has to read.
    Stays(Reader),
}

thread_local! {
    /// Who this thread is while it does a task instead of reading.
    static WORKS: Cell<Option<Reader>> = const { Cell::new(None) };
}

pub struct Reading {
    inbox: Mutex<Inbox>,
    turn: Mutex<Turn>,
    changed: Condvar,
}

impl Reading {
    /// One thread reads.
    pub fn new(inbox: Inbox) -> Reading {
        let turn = Mutex::new(Turn::Reads(Reader::One));
        Reading { inbox: Mutex::new(inbox), turn, changed: Condvar::new() }
    }

    /// Whoever has the turn reads.
    pub fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    /// Waits until the other one does not read.
    pub fn take_over(&self, me: Reader) {
        let mut turn = lock(&self.turn);
        loop {
            match *turn {
                Turn::Stays(who) if who != me => break,
                Turn::Works(who, since) if who != me && since.elapsed() >= PATIENCE => break,
                Turn::Reads(_) | Turn::Works(..) | Turn::Stays(_) => {}
            }
            let waited = self.changed.wait_timeout(turn, PATIENCE);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *turn = Turn::Reads(me);
    }

    /// Does something else than reading; false when the other one reads now.
    pub fn work(&self, me: Reader, work: impl FnOnce()) -> bool {
        *lock(&self.turn) = Turn::Works(me, Instant::now());
        WORKS.set(Some(me));
        work();
        WORKS.set(None);
        let mut turn = lock(&self.turn);
        let mine = matches!(*turn, Turn::Works(who, _) | Turn::Stays(who) if who == me);
        if mine {
            *turn = Turn::Reads(me);
        }
        mine
    }

    /// This thread is about to wait for something that comes by the pipe.
    pub fn waits(&self) {
        let Some(me) = WORKS.get() else { return };
        let mut turn = lock(&self.turn);
        if matches!(*turn, Turn::Works(who, _) if who == me) {
            *turn = Turn::Stays(me);
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    fn reading() -> Arc<Reading> {
        Arc::new(Reading::new(Inbox::new(UnixStream::pair().unwrap().0)))
    }

    #[test]
    fn who_is_back_soon_reads_on() {
        let reading = reading();
        assert!(reading.work(Reader::One, || ()));
        assert_eq!(*lock(&reading.turn), Turn::Reads(Reader::One));
    }

    /// Also when both are at something that takes long, each in his turn.
    #[test]
    fn who_is_not_back_soon_is_relieved() {
        let reading = reading();
        for (me, other) in [(Reader::One, Reader::Other), (Reader::Other, Reader::One)] {
            let deputy = Arc::clone(&reading);
            let (tell, took) = channel();
            let deputy = std::thread::spawn(move || {
                deputy.take_over(other);
                tell.send(()).unwrap();
            });
            assert!(!reading.work(me, || took.recv().unwrap()));
            deputy.join().unwrap();
            assert_eq!(*lock(&reading.turn), Turn::Reads(other));
        }
    }

    #[test]
    fn who_waits_for_the_pipe_is_relieved_at_once() {
        let reading = reading();
        reading.waits();
        assert_eq!(*lock(&reading.turn), Turn::Reads(Reader::One), "who reads waits for nobody");
        assert!(reading.work(Reader::One, || {
            reading.waits();
            assert_eq!(*lock(&reading.turn), Turn::Stays(Reader::One));
            reading.waits();
        }));
        let (tell, wait) = channel();
        let deputy = Arc::clone(&reading);
        let deputy = std::thread::spawn(move || {
            deputy.take_over(Reader::Other);
            tell.send(()).unwrap();
        });
        let mine = reading.work(Reader::One, || {
            reading.waits();
            wait.recv().unwrap();
            // The other one is at something now, and it is not for this one to say that it stays there.
            let works = Turn::Works(Reader::Other, Instant::now());
            *lock(&reading.turn) = works;
            reading.waits();
            assert_eq!(*lock(&reading.turn), works);
        });
        assert!(!mine);
        deputy.join().unwrap();
    }
}
