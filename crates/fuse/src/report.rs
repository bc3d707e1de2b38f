//! Telling the user which node failed: FUSE has room for an error number only.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_client::FsError;

/// The same text is not printed again for this long.
const REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Texts remembered; all are forgotten when the table is full.
const TEXTS_MAX: usize = 256;

/// Prints the details of errors to standard error, each distinct text once a minute.
#[derive(Default)]
pub struct Reporter {
    told: Mutex<HashMap<Box<str>, Instant>>,
}

impl Reporter {
    pub fn report(&self, error: &FsError) {
        if let Some(detail) = error.detail()
            && self.is_news(detail, Instant::now())
        {
            eprintln!("tidepool mount: {detail}: {}", error.errno());
        }
    }

    fn is_news(&self, text: &str, now: Instant) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match told.get_mut(text) {
            Some(last) if now.duration_since(*last) < REPEAT_AFTER => return false,
            Some(last) => {
                *last = now;
                return true;
            }
            None => {}
        }
        if told.len() >= TEXTS_MAX {
            told.clear();
        }
        told.insert(text.into(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_wait() {
        let reporter = Reporter::default();
        let start = Instant::now();
        assert!(reporter.is_news("node a", start));
        assert!(!reporter.is_news("node a", start + Duration::from_secs(1)));
        assert!(reporter.is_news("node b", start));
        assert!(reporter.is_news("node a", start + REPEAT_AFTER));
    }

    #[test]
    fn the_table_is_bounded() {
        let reporter = Reporter::default();
        for n in 0..TEXTS_MAX * 3 {
            reporter.is_news(&n.to_string(), Instant::now());
        }
        assert!(reporter.told.lock().unwrap().len() <= TEXTS_MAX);
    }
}
