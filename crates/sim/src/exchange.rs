//! Where threads meet: a barrier, a board for notices, and mail for each other.
//!
//! ```text
//! round k   handle events ... post notice and mail k ── barrier ── read notices k, take mail k ... round k+1
//! ```
//! One barrier per round is enough because notices and mail lie in two halves, used in turn: who is in round k+2 has passed
//! the barrier of round k+1, which all others reached after they had read what was posted in round k.
//!
//! In a run over ranks ([`Far`]) mail for threads of other ranks is written as bytes, and behind the barrier thread 0 exchanges
//! notices and mail with them ([`Lead`]) while its rank's other threads wait at a second barrier.

use crate::sync::{AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, spin_loop};
use std::sync::PoisonError;

/// How often a waiting thread looks before it sleeps, when each thread has a core: some 30 us.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 4_000 };

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
        // Who looks while another one needs the core keeps it waiting.
        Barrier::with_looks(parties, if parties <= cores { LOOKS } else { 0 })
    }

    /// With so many looks before sleep.
    pub fn with_looks(parties: usize, looks: u32) -> Barrier {
        Barrier {
            parties: parties as u32,
            looks,
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
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
            self.wake();
            return self.sound();
        }
        let passed = || self.generation.load(Ordering::Acquire) != generation;
        let gone = || self.broken.load(Ordering::Acquire);
        for _ in 0..self.looks {
            if passed() || gone() {
                return self.sound();
            }
            spin_loop();
        }
        self.asleep.fetch_add(1, Ordering::AcqRel);
        let mut guard = lock(&self.sleep);
        while !passed() && !gone() {
            guard = self.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.asleep.fetch_sub(1, Ordering::AcqRel);
        self.sound()
    }

    fn sound(&self) -> Result<(), Broken> {
        if self.broken.load(Ordering::Acquire) { Err(Broken) } else { Ok(()) }
    }

    /// Behind the change that sleepers wait for. They and we write to `asleep`, so one comes first: if they, we see them;
    /// if we, they see the change. A load here could miss them, and they the change.
    fn wake(&self) {
        if self.asleep.fetch_add(0, Ordering::AcqRel) > 0 {
            // Who holds the lock has not begun to wait, and would miss the bell.
            drop(lock(&self.sleep));
            self.bell.notify_all();
        }
    }

    /// Nobody waits from now on.
    pub fn shatter(&self) {
        self.broken.store(true, Ordering::Release);
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

impl Notice {
    /// Both in one.
    pub fn and(self, other: &Notice) -> Notice {
        Notice {
            next: self.next.min(other.next),
            handled: self.handled + other.handled,
            undone: self.undone + other.undone,
            until: self.until.min(other.until),
            fault: self.fault || other.fault,
        }
    }
}

/// Where threads of other ranks are.
pub(crate) struct Far<'a, T> {
    pub rank: usize,
    pub ranks: usize,
    /// That each rank may have: thread `t` of rank `r` has the number `r * threads + t`.
    pub threads: usize,
    pub save: &'a (dyn Fn(&T, &mut Vec<u8>) + Sync),
}

/// What thread 0 does with other ranks in each round.
pub(crate) trait Lead<T> {
    /// Gives them this rank's notice and mail, and takes theirs: `deliver` is called with the rank, the thread of this rank,
    /// and the item. The notice of all; None when that did not work.
    fn round(
        &mut self,
        round: u64,
        mine: Notice,
        mail: &mut [Vec<u8>],
        deliver: &mut dyn FnMut(usize, usize, T),
    ) -> Option<Notice>;
}

/// On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Aligned<T>(pub T);

struct Half<T> {
    notices: Vec<Aligned<Mutex<Option<Notice>>>>,
    /// By sender and receiver; behind the threads as senders the ranks.
    mail: Vec<Aligned<Mutex<Vec<T>>>>,
    /// For other ranks, by sender and rank.
    away: Vec<Aligned<Mutex<Vec<u8>>>>,
    /// Of all ranks.
    common: Mutex<Option<Notice>>,
}

pub(crate) struct Exchange<'a, T> {
    parties: usize,
    barrier: Barrier,
    halves: [Half<T>; 2],
    far: Option<Far<'a, T>>,
}

impl<'a, T> Exchange<'a, T> {
    pub fn new(parties: usize, far: Option<Far<'a, T>>) -> Exchange<'a, T> {
        let ranks = far.as_ref().map_or(0, |far| far.ranks);
        let half = || Half {
            notices: (0..parties).map(|_| Aligned(Mutex::new(None))).collect(),
            mail: (0..(parties + ranks) * parties).map(|_| Aligned(Mutex::new(Vec::new()))).collect(),
            away: (0..parties * ranks).map(|_| Aligned(Mutex::new(Vec::new()))).collect(),
            common: Mutex::new(None),
        };
        Exchange { parties, barrier: Barrier::new(parties), halves: [half(), half()], far }
    }

    pub fn join(&self, me: usize) -> Post<'_, 'a, T> {
        let lists = || (0..self.parties).map(|_| Vec::new()).collect();
        let away = vec![Vec::new(); self.far.as_ref().map_or(0, |far| far.ranks)];
        Post { exchange: self, me, round: 0, out: lists(), away }
    }
}

/// One thread's place at the exchange. Dropped by a panic, it lets the others go.
pub(crate) struct Post<'e, 'a, T> {
    exchange: &'e Exchange<'a, T>,
    me: usize,
    round: u64,
    out: Vec<Vec<T>>,
    /// For other ranks.
    away: Vec<Vec<u8>>,
}

impl<T> Post<'_, '_, T> {
    /// This thread, of its rank's.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Mail for another thread, by its number among those of all ranks, delivered with the next notice.
    pub fn send(&mut self, to: usize, item: T) {
        match &self.exchange.far {
            None => self.out[to].push(item),
            Some(far) if to / far.threads == far.rank => self.out[to % far.threads].push(item),
            Some(far) => (far.save)(&item, &mut self.away[to / far.threads]),
        }
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    /// Posts mail and notice, waits for everybody's, and gives all notices in one. Thread 0 of a run over ranks has a lead.
    pub fn meet(&mut self, notice: Notice, lead: Option<&mut (dyn Lead<T> + '_)>) -> Result<Notice, Broken> {
        let half = &self.exchange.halves[(self.round % 2) as usize];
        for (to, out) in self.out.iter_mut().enumerate().filter(|(_, out)| !out.is_empty()) {
            let mut there = lock(&half.mail[self.me * self.exchange.parties + to].0);
            debug_assert!(there.is_empty(), "mail of two rounds ago was taken");
            std::mem::swap(&mut *there, out);
        }
        let ranks = self.away.len();
        for (to, away) in self.away.iter_mut().enumerate().filter(|(_, away)| !away.is_empty()) {
            std::mem::swap(&mut *lock(&half.away[self.me * ranks + to].0), away);
        }
        *lock(&half.notices[self.me].0) = Some(notice);
        self.exchange.barrier.wait()?;
        let notices = half.notices.iter().map(|place| lock(&place.0).expect("everybody has posted"));
        let own = notices.reduce(|a, b| a.and(&b)).expect("there is at least one thread");
        let all = match &self.exchange.far {
            None => own,
            Some(_) => self.meet_ranks(half, own, lead)?,
        };
        self.round += 1;
        Ok(all)
    }

    fn meet_ranks(
        &self,
        half: &Half<T>,
        own: Notice,
        lead: Option<&mut (dyn Lead<T> + '_)>,
    ) -> Result<Notice, Broken> {
        let (parties, ranks) = (self.exchange.parties, self.away.len());
        if let Some(lead) = lead {
            let mut mail = vec![Vec::new(); ranks];
            for (at, away) in half.away.iter().enumerate() {
                mail[at % ranks].append(&mut lock(&away.0));
            }
            let mut deliver = |from: usize, to: usize, item| {
                lock(&half.mail[(parties + from) * parties + to].0).push(item);
            };
            let all = lead.round(self.round, own, &mut mail, &mut deliver);
            if all.is_none() {
                self.exchange.barrier.shatter();
                return Err(Broken);
            }
            *lock(&half.common) = all;
        }
        self.exchange.barrier.wait()?;
        Ok(lock(&half.common).expect("thread 0 has a lead"))
    }

    /// Takes what was sent with the notices that were read last: each sender's in its order.
    pub fn take_mail(&mut self, mut each: impl FnMut(T)) {
        let half = &self.exchange.halves[((self.round - 1) % 2) as usize];
        for place in half.mail.iter().skip(self.me).step_by(self.exchange.parties) {
            lock(&place.0).drain(..).for_each(&mut each);
        }
    }
}

impl<T> Drop for Post<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.exchange.barrier.shatter();
        }
    }
}

// Under loom nothing of these runs outside of its models: `interleavings`.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    const QUIET: Notice = Notice { next: 0, handled: 0, undone: 0, until: 9, fault: false };

    #[test]
    fn nobody_passes_before_the_last_one_came() {
        for looks in [0, 1, LOOKS] {
            let barrier = Barrier::with_looks(3, looks);
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
        let exchange = Exchange::new(3, None);
        std::thread::scope(|scope| {
            for me in 0..3 {
                let exchange = &exchange;
                scope.spawn(move || {
                    let mut post = exchange.join(me);
                    for round in 0..300u64 {
                        (0..3).for_each(|to| post.send(to, (me, round, to)));
                        let notice = Notice { next: round + me as u64, handled: 1, ..QUIET };
                        let all = post.meet(notice, None).unwrap();
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
        let exchange = Exchange::<()>::new(2, None);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| exchange.join(0).meet(QUIET, None).is_err());
            let panics = scope.spawn(|| {
                let _post = exchange.join(1);
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            assert!(panics.join().is_err());
            assert!(other.join().unwrap());
        });
    }
}
