//! Processes that do not outlive the test that started them, whatever becomes of it.

use std::process::{Child, ChildStdin, Command, Stdio};

/// Kills a process when the one that holds the leash ends without dropping it: by `kill -9`, a panic while it
/// unwinds, or Ctrl-C. A signal at the parent's death would not do: it comes at the end of the thread that started the
/// process, and a daemon that goes into the background has another parent.
pub struct Leash {
    watcher: Child,
    /// Ends with this process, and is inherited by none: it is closed on exec.
    _held: Option<ChildStdin>,
}

impl Leash {
    pub fn on(pid: u32) -> Leash {
        // It waits for the end of its input, and runs the command once when that was empty.
        let mut watcher = Command::new("xargs")
            .args(["kill", "-9", &pid.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is xargs");
        let held = watcher.stdin.take();
        Leash { watcher, _held: held }
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        // Killed first: it must not see the end of its input, because the number may be another process's by now.
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
    }
}
