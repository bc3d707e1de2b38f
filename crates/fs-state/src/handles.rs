//! Which client processes have which objects open, and objects waiting for their end.

use std::collections::HashMap;
use std::time::Duration;
use tidepool_types::{Ino, SessionId};

/// Open handles by session. Volatile: a restarted daemon starts empty.
#[derive(Default)]
pub struct Handles {
    by_session: HashMap<SessionId, HashMap<Ino, u64>>,
    by_object: HashMap<Ino, u64>,
    /// Nameless objects without handles, and when they go, by a clock that nobody sets.
    doomed: HashMap<Ino, Duration>,
}

impl Handles {
    pub fn open(&mut self, session: SessionId, ino: Ino) {
        *self.by_session.entry(session).or_default().entry(ino).or_default() += 1;
        *self.by_object.entry(ino).or_default() += 1;
        self.doomed.remove(&ino);
    }

    /// Drops one handle; false when the session has none on the object.
    pub fn close(&mut self, session: SessionId, ino: Ino) -> bool {
        let Some(objects) = self.by_session.get_mut(&session) else { return false };
        let Some(count) = objects.get_mut(&ino) else { return false };
        *count -= 1;
        if *count == 0 {
            objects.remove(&ino);
            if objects.is_empty() {
                self.by_session.remove(&session);
            }
        }
        self.drop_object_handles(ino, 1);
        true
    }

    fn drop_object_handles(&mut self, ino: Ino, count: u64) {
        let left = self.by_object.get_mut(&ino).expect("each handle of a session counts for its object");
        *left -= count;
        if *left == 0 {
            self.by_object.remove(&ino);
        }
    }

    /// Drops all handles of a session and returns the objects it had open.
    pub fn end_session(&mut self, session: SessionId) -> Vec<Ino> {
        let objects = self.by_session.remove(&session).unwrap_or_default();
        for (ino, count) in &objects {
            self.drop_object_handles(*ino, *count);
        }
        objects.into_keys().collect()
    }

    pub fn is_open(&self, ino: Ino) -> bool {
        self.by_object.contains_key(&ino)
    }

    pub fn doom(&mut self, ino: Ino, at: Duration) {
        self.doomed.insert(ino, at);
    }

    /// Takes the objects whose time has come.
    pub fn take_doomed(&mut self, now: Duration) -> Vec<Ino> {
        let due: Vec<Ino> = self.doomed.iter().filter(|(_, at)| **at <= now).map(|(ino, _)| *ino).collect();
        for ino in &due {
            self.doomed.remove(ino);
        }
        due
    }

    pub fn sessions(&self) -> usize {
        self.by_session.len()
    }

    pub fn total(&self) -> u64 {
        self.by_object.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_count_per_session_and_object() {
        let (a, b) = (SessionId([1; 16]), SessionId([2; 16]));
        let ino = Ino(9);
        let mut handles = Handles::default();
        handles.open(a, ino);
        handles.open(a, ino);
        handles.open(b, ino);
        assert!(handles.close(a, ino));
        assert_eq!(handles.end_session(b), vec![ino]);
        assert!(handles.is_open(ino));
        assert!(handles.close(a, ino));
        assert!(!handles.is_open(ino));
        assert!(!handles.close(a, ino));
        assert_eq!((handles.sessions(), handles.total()), (0, 0));
    }
}
