//! Where threads meet: a barrier, a board for notices, and mail for each other.
//!
//! ```text
//! round k   handle events ... post notice and mail k ── barrier ── read notices k, take mail k ... round k+1
//! ```
//! One barrier per round is enough because notices and mail lie in two halves, used in turn: who is in round k+2 has passed
//! the barrier of round k+1, which all others reached after they had read what was posted in round k.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How often a waiting thread looks before it sleeps, when each thread has a core: some 30 us.
const LOOKS: u32 = 4_000;

/// Somebody who should have come has panicked.
#[derive(Debug)]
pub(crate) struct Broken;

/// Lets all threads through when the last one has come.
pub(crate) struct Barrier {
    parties: u32,
    looks: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
    broken: AtomicBool,
    asleep: AtomicU32,
    sleep: Mutex<()>,
    bell: Condvar,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Barrier {
    pub fn new(parties: usize) -> Barrier {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Barrier {
            parties: parties as u32,
            // Who looks while another one needs the core keeps it waiting.
            looks: if parties <= cores { LOOKS } else { 0 },
            arrived: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            asleep: AtomicU32::new(0),
            sleep: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    pub fn wait(&self) -> Result<(), Broken> {
        // Before arriving: afterwards it may change at any moment.
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.parties {
            self.arrived.store(0, Ordering::Relaxed);
            // Sequentially consistent, as are the sleepers' accesses: either they see the new generation or we see them.
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            self.wake();
            return self.sound();
        }
        let passed = || self.generation.load(Ordering::SeqCst) != generation;
        let gone = || self.broken.load(Ordering::SeqCst);
        for _ in 0..self.looks {
            if passed() || gone() {
                return self.sound();
            }
            std::hint::spin_loop();
        }
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.sleep);
        while !passed() && !gone() {
            guard = self.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        self.sound()
    }

    fn sound(&self) -> Result<(), Broken> {
        if self.broken.load(Ordering::SeqCst) { Err(Broken) } else { Ok(()) }
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            // Who holds the lock has not begun to wait, and would miss the bell.
            drop(lock(&self.sleep));
            self.bell.notify_all();
        }
    }

    /// Nobody waits from now on.
    fn shatter(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// What each thread tells all others in each round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// Nothing of this thread, or on its way from it, is earlier.
    pub next: u64,
    /// Events handled and undone in this round.
    pub handled: u64,
    pub undone: u64,
    /// The run ends here, or earlier if another one says so.
    pub until: u64,
    /// An event that is certain was wrong.
    pub fault: bool,
}

/// On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Aligned<T>(pub T);

struct Half<T> {
    notices: Vec<Aligned<Mutex<Option<Notice>>>>,
    /// By sender and receiver.
    mail: Vec<Aligned<Mutex<Vec<T>>>>,
}

pub(crate) struct Exchange<T> {
    parties: usize,
    barrier: Barrier,
    halves: [Half<T>; 2],
}

impl<T> Exchange<T> {
    pub fn new(parties: usize) -> Exchange<T> {
        let half = || Half {
            notices: (0..parties).map(|_| Aligned(Mutex::new(None))).collect(),
            mail: (0..parties * parties).map(|_| Aligned(Mutex::new(Vec::new()))).collect(),
        };
        Exchange { parties, barrier: Barrier::new(parties), halves: [half(), half()] }
    }

    pub fn join(&self, me: usize) -> Post<'_, T> {
        Post { exchange: self, me, round: 0, out: (0..self.parties).map(|_| Vec::new()).collect() }
    }
}

/// One thread's place at the exchange. Dropped by a panic, it lets the others go.
pub(crate) struct Post<'a, T> {
    exchange: &'a Exchange<T>,
    me: usize,
    round: u64,
    out: Vec<Vec<T>>,
}

impl<T> Post<'_, T> {
    /// Mail for another thread, delivered with the next notice.
    pub fn send(&mut self, to: usize, item: T) {
        self.out[to].push(item);
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    /// Posts mail and notice, waits for everybody's, and gives all notices in one.
    pub fn meet(&mut self, notice: Notice) -> Result<Notice, Broken> {
        let half = &self.exchange.halves[(self.round % 2) as usize];
        for (to, out) in self.out.iter_mut().enumerate().filter(|(_, out)| !out.is_empty()) {
            let mut there = lock(&half.mail[self.me * self.exchange.parties + to].0);
            debug_assert!(there.is_empty(), "mail of two rounds ago was taken");
            std::mem::swap(&mut *there, out);
        }
        *lock(&half.notices[self.me].0) = Some(notice);
        self.exchange.barrier.wait()?;
        self.round += 1;
        let all = half.notices.iter().map(|place| lock(&place.0).expect("everybody has posted"));
        Ok(all
            .reduce(|a, b| Notice {
                next: a.next.min(b.next),
                handled: a.handled + b.handled,
                undone: a.undone + b.undone,
                until: a.until.min(b.until),
                fault: a.fault || b.fault,
            })
            .expect("there is at least one thread"))
    }

    /// Takes what was sent with the notices that were read last: each sender's in its order.
    pub fn take_mail(&mut self, mut each: impl FnMut(T)) {
        let half = &self.exchange.halves[((self.round - 1) % 2) as usize];
        for from in 0..self.exchange.parties {
            lock(&half.mail[from * self.exchange.parties + self.me].0).drain(..).for_each(&mut each);
        }
    }
}

impl<T> Drop for Post<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.exchange.barrier.shatter();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    const QUIET: Notice = Notice { next: 0, handled: 0, undone: 0, until: 9, fault: false };

    #[test]
    fn nobody_passes_before_the_last_one_came() {
        for looks in [0, 1, LOOKS] {
            let mut barrier = Barrier::new(3);
            barrier.looks = looks;
            let count = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for round in 1..=200 {
                            count.fetch_add(1, Ordering::SeqCst);
                            barrier.wait().unwrap();
                            assert!(count.load(Ordering::SeqCst) >= 3 * round);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn mail_arrives_in_the_round_it_was_sent_in() {
        let exchange = Exchange::new(3);
        std::thread::scope(|scope| {
            for me in 0..3 {
                let exchange = &exchange;
                scope.spawn(move || {
                    let mut post = exchange.join(me);
                    for round in 0..300u64 {
                        (0..3).for_each(|to| post.send(to, (me, round, to)));
                        let notice = Notice { next: round + me as u64, handled: 1, ..QUIET };
                        let all = post.meet(notice).unwrap();
                        assert_eq!((all.next, all.handled), (round, 3));
                        let mut mail = Vec::new();
                        post.take_mail(|item| mail.push(item));
                        assert_eq!(mail, [(0, round, me), (1, round, me), (2, round, me)]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_lets_the_others_go() {
        let exchange = Exchange::<()>::new(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| exchange.join(0).meet(QUIET).is_err());
            let panics = scope.spawn(|| {
                let _post = exchange.join(1);
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            assert!(panics.join().is_err());
            assert!(other.join().unwrap());
        });
    }
}
