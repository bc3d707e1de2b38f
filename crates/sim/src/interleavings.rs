//! The barrier, the exchange and the ledger under loom: it runs each test with every order of what threads do, and with every
//! old value that the memory orders allow a load to see. `make test-loom`.
//!
//! Each model has few threads and rounds, because their orders multiply; [`PREEMPTIONS_MAX`] bounds how often a thread is
//! interrupted where it does not wait.

use crate::emitted::{Emitted, Ledger, Sink};
use crate::event::{Key, ProcessId, Time};
use crate::exchange::{Barrier, Exchange, Far, Lead, Notice};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const PREEMPTIONS_MAX: usize = 3;

const QUIET: Notice = Notice { next: 0, handled: 1, undone: 0, until: 9, fault: false };

fn all_orders(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// What was written before the barrier, with no order of its own, is seen behind it; and nobody sleeps for ever.
fn meet(threads: u32, rounds: u32, looks: u32) {
    all_orders(move || {
        let barrier = Arc::new(Barrier::with_looks(threads as usize, looks));
        let written: Arc<Vec<AtomicU32>> = Arc::new((0..threads).map(|_| AtomicU32::new(0)).collect());
        let work = |me: u32| {
            let (barrier, written) = (barrier.clone(), written.clone());
            move || {
                for round in 1..=rounds {
                    written[me as usize].store(round, Ordering::Relaxed);
                    barrier.wait().unwrap();
                    for (who, place) in written.iter().enumerate() {
                        let seen = place.load(Ordering::Relaxed);
                        assert!(seen == round || seen == round + 1, "round {round}: {who} is at {seen}");
                    }
                }
            }
        };
        let others: Vec<_> = (1..threads).map(|me| thread::spawn(work(me))).collect();
        work(0)();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn loom_two_threads_that_sleep_at_once_meet() {
    meet(2, 2, 0);
}

#[test]
fn loom_two_threads_that_look_before_they_sleep_meet() {
    meet(2, 2, 1);
}

#[test]
fn loom_three_threads_meet() {
    meet(3, 1, 0);
}

#[test]
fn loom_a_broken_barrier_lets_go_whoever_waits_or_will() {
    for looks in [0, 1] {
        all_orders(move || {
            let barrier = Arc::new(Barrier::with_looks(2, looks));
            let there = barrier.clone();
            let waits = thread::spawn(move || there.wait().is_err());
            barrier.shatter();
            assert!(waits.join().unwrap());
        });
    }
}

#[test]
fn loom_mail_and_notices_are_those_of_the_round() {
    all_orders(|| {
        let exchange = Arc::new(Exchange::<u32>::new(2, None));
        let work = |me: usize| {
            let exchange = exchange.clone();
            move || {
                let mut post = exchange.join(me);
                // The halves are used again in the third round.
                for round in 0..3 {
                    post.send(1 - me, round * 2 + me as u32);
                    let notice = Notice { next: u64::from(round) + me as u64, ..QUIET };
                    let all = post.meet(notice, None).unwrap();
                    assert_eq!((all.next, all.handled), (round.into(), 2));
                    let mut mail = Vec::new();
                    post.take_mail(|item| mail.push(item));
                    assert_eq!(mail, [round * 2 + 1 - me as u32]);
                }
            }
        };
        let other = thread::spawn(work(1));
        work(0)();
        other.join().unwrap();
    });
}

/// Another rank that sends every thread a letter in each round.
struct Other;

impl Lead<u32> for Other {
    fn round(
        &mut self,
        round: u64,
        mine: Notice,
        mail: &mut [Vec<u8>],
        deliver: &mut dyn FnMut(usize, usize, u32),
    ) -> Option<Notice> {
        assert_eq!((mine.handled, &mail[1][..]), (2, &[round as u8; 2][..]));
        mail[1].clear();
        (0..2).for_each(|thread| deliver(1, thread, 10 + round as u32));
        Some(mine.and(&QUIET))
    }
}

#[test]
fn loom_mail_of_other_ranks_is_that_of_the_round() {
    all_orders(|| {
        let save: &'static (dyn Fn(&u32, &mut Vec<u8>) + Sync) = &|item, out| out.push(*item as u8);
        let far = Far { rank: 0, ranks: 2, threads: 2, save };
        let exchange = Arc::new(Exchange::<u32>::new(2, Some(far)));
        let work = |me: usize| {
            let exchange = exchange.clone();
            move || {
                let mut post = exchange.join(me);
                for round in 0..2 {
                    post.send(2 + me, round);
                    let mut lead = Other;
                    let lead = (me == 0).then_some(&mut lead as &mut dyn Lead<u32>);
                    assert_eq!(post.meet(QUIET, lead).unwrap().handled, 3);
                    let mut mail = Vec::new();
                    post.take_mail(|item| mail.push(item));
                    assert_eq!(mail, [10 + round]);
                }
            }
        };
        let other = thread::spawn(work(1));
        work(0)();
        other.join().unwrap();
    });
}

#[test]
fn loom_rows_are_given_on_in_their_order_and_none_is_left() {
    all_orders(|| {
        // The standard library's: it is not what is tried here, and the sink is never freed.
        let given = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let there = given.clone();
        let sink: Sink<'static, u32> =
            Box::leak(Box::new(move |row: Emitted<u32>| there.lock().unwrap().push(row.record)));
        let ledger = Arc::new(Ledger::new(sink, 2));
        let barrier = Arc::new(Barrier::with_looks(2, 0));
        let work = |me: usize| {
            let (ledger, barrier) = (ledger.clone(), barrier.clone());
            move || {
                for round in 0..2u64 {
                    let record = round as u32 * 2 + me as u32;
                    let at = Key { time: Time(record.into()), source: ProcessId(0), sequence: 0 };
                    ledger.post(me, round, [Emitted { at, process: ProcessId(0), record }]);
                    barrier.wait().unwrap();
                    if me == 0 {
                        ledger.deliver(round);
                    }
                }
            }
        };
        let other = thread::spawn(work(1));
        work(0)();
        other.join().unwrap();
        ledger.finish(None);
        assert_eq!(*given.lock().unwrap(), [0, 1, 2, 3]);
    });
}
