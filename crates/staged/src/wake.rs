//! How other threads wake the event loop. While it looks for events awake, a word of memory is enough.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Wake {
    fd: OwnedFd,
    /// There is news that the loop has not looked for yet.
    news: AtomicBool,
    /// The loop sleeps, or is about to: it sees nothing but the descriptor.
    asleep: AtomicBool,
}

impl Wake {
    pub fn new() -> rustix::io::Result<Wake> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Wake { fd, news: AtomicBool::new(false), asleep: AtomicBool::new(false) })
    }

    /// Called when there is news.
    pub fn ring(&self) {
        // Either the loop sees the news before it sleeps, or this sees that it sleeps: both orders are total.
        self.news.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.ring_fd();
        }
    }

    fn ring_fd(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_le_bytes());
    }

    /// Whether there is news since the last time.
    pub fn take_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::SeqCst)
    }

    /// Lets the loop sleep in `wait`, unless there is news.
    pub fn sleep<T>(&self, wait: impl FnOnce() -> T) -> Option<T> {
        self.asleep.store(true, Ordering::SeqCst);
        let slept = if self.news.load(Ordering::SeqCst) { None } else { Some(wait()) };
        self.asleep.store(false, Ordering::SeqCst);
        slept
    }

    /// Makes the descriptor quiet again.
    pub fn hush(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;
    use std::sync::mpsc;

    fn is_loud(wake: &Wake, seconds: i64) -> bool {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&timeout)).expect("it can be polled") > 0
    }

    #[test]
    fn a_loop_that_is_awake_needs_no_descriptor() {
        let wake = Wake::new().unwrap();
        assert!(!wake.take_news());
        wake.ring();
        assert!(!is_loud(&wake, 0), "nobody sleeps");
        assert_eq!(wake.sleep(|| ()), None, "there is news");
        assert!(wake.take_news() && !wake.take_news());
    }

    #[test]
    fn a_loop_that_sleeps_is_woken() {
        let wake = Wake::new().unwrap();
        assert_eq!(
            wake.sleep(|| {
                wake.ring();
                is_loud(&wake, 0)
            }),
            Some(true)
        );
        wake.hush();
        assert!(wake.take_news() && !is_loud(&wake, 0));
    }

    /// One thread rings for each of many items, at any moment of the other's falling asleep; a ring that got lost would
    /// leave an item unseen for a minute.
    #[test]
    fn no_ring_is_lost() {
        const ITEMS: usize = 100_000;
        let wake = Arc::new(Wake::new().unwrap());
        let (send, items) = mpsc::channel();
        let ringer = {
            let wake = Arc::clone(&wake);
            std::thread::spawn(move || {
                for item in 0..ITEMS {
                    send.send(item).expect("the other side listens");
                    wake.ring();
                    (0..item % 64).for_each(|_| std::hint::spin_loop());
                }
            })
        };
        let mut seen = 0;
        while seen < ITEMS {
            if !wake.take_news() {
                if let Some(loud) = wake.sleep(|| is_loud(&wake, 60)) {
                    assert!(loud, "{seen} of {ITEMS} were seen, and nobody rang for the next");
                    wake.hush();
                }
                continue;
            }
            seen += items.try_iter().count();
        }
        ringer.join().unwrap();
    }
}
