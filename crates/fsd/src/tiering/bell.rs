//! Wakes the scheduler's thread when there is news.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default, Debug)]
pub struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *self.rung.lock().expect("no thread panics here") = true;
        self.ringing.notify_one();
    }

    /// Returns when it was rung since the last time, at the latest after `most`.
    pub fn wait(&self, most: Duration) {
        let rung = self.rung.lock().expect("no thread panics here");
        let (mut rung, _) =
            self.ringing.wait_timeout_while(rung, most, |rung| !*rung).expect("no thread panics here");
        *rung = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn who_waits_is_woken_once_for_each_time_that_it_was_rung() {
        let bell = Arc::new(Bell::default());
        bell.ring();
        bell.ring();
        bell.wait(LONG);
        let began = Instant::now();
        bell.wait(Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(20), "nobody has rung since");
        let sleeper = std::thread::spawn({
            let bell = Arc::clone(&bell);
            move || bell.wait(LONG)
        });
        bell.ring();
        sleeper.join().unwrap();
    }
}
