//! Agents that start other agents: a tree over the hosts, so that no step of the start is made node by node by one
//! machine (INVENTORY A8). Slurm's srun has a tree of its own.
//!
//! With fan-out F the command starts the agents of nodes 0 to F-1 by ssh, and the agent of node i those of nodes
//! F·(i+1) to F·(i+1)+F-1. What an agent reads from above it hands down; what it hears from below it hands up,
//! line by line.

use crate::agent::{LINE_MAX, POLL, Report};
use crate::remote;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Agents that one machine starts through ssh, unless told otherwise.
pub const FAN_OUT: usize = 32;
/// Lines of standard error that are told when an agent below ends too early.
const WORDS_LINES_MAX: usize = 3;
/// An agent reports twice: when its daemons can be reached, and when the node is open to programs.
const REPORTS: usize = 2;

/// How the agents of a pool reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Agents that each machine starts; 0: the command starts all.
    pub fan_out: usize,
    /// Hosts by the number of their node, as ssh knows them. Empty: nobody starts others.
    pub hosts: Vec<String>,
    /// The words before ssh's own: what `$TIDEPOOL_SSH` holds.
    pub ssh: Vec<String>,
}

impl Tree {
    /// Nodes whose agents the command itself starts.
    pub fn roots(&self) -> Range<usize> {
        let count = if self.fan_out == 0 { self.hosts.len() } else { self.fan_out };
        0..count.min(self.hosts.len())
    }

    /// Nodes whose agents the agent of `node` starts.
    fn below(&self, node: usize) -> Range<usize> {
        let all = self.hosts.len();
        if self.fan_out == 0 || node >= all {
            return 0..0;
        }
        let first = self.fan_out.saturating_mul(node + 1);
        first.min(all)..first.saturating_add(self.fan_out).min(all)
    }

    /// Nodes that are reached through `node`, itself among them.
    pub fn reached_through(&self, node: usize) -> usize {
        1 + self.below(node).map(|n| self.reached_through(n)).sum::<usize>()
    }

    /// The command that starts the agent of `node`.
    pub fn command(&self, node: usize, agent: &Path) -> Command {
        remote::ssh(&self.ssh, &self.hosts[node], agent, node)
    }
}

/// Tells an agent lines. In a thread of its own: an ssh that does not reach its host reads nothing, and the others must not wait
/// for it. The agent's input ends when this is dropped.
pub struct Teller(Sender<String>);

impl Teller {
    pub fn new(mut input: impl Write + Send + 'static) -> Teller {
        let (sender, lines) = channel::<String>();
        std::thread::spawn(move || {
            for line in lines {
                // An agent that is gone is reported with what it said last.
                if writeln!(input, "{line}").and_then(|()| input.flush()).is_err() {
                    return;
                }
            }
        });
        Teller(sender)
    }

    pub fn tell(&self, line: &str) {
        // As above.
        let _ = self.0.send(line.to_string());
    }
}

/// The agents that this one has started.
pub struct Below {
    children: Vec<Lower>,
}

/// One of them.
struct Lower {
    process: Child,
    teller: Option<Teller>,
    /// Hands up what it says.
    voice: JoinHandle<()>,
}

impl Below {
    /// Starts the agents below `node` and tells them `plan`, the line that was read from above. One that cannot be
    /// started is reported in its place.
    pub fn start(tree: &Tree, node: usize, agent: &Path, plan: &str) -> Below {
        let mut below = Below { children: Vec::new() };
        for number in tree.below(node) {
            match Lower::start(tree, number, agent) {
                Ok(lower) => below.children.push(lower),
                Err(error) => report_lost(&tree.hosts[number], number, &error.to_string()),
            }
        }
        below.tell(plan);
        below
    }

    /// Hands a line down.
    pub fn tell(&self, line: &str) {
        self.children.iter().filter_map(|lower| lower.teller.as_ref()).for_each(|teller| teller.tell(line));
    }

    /// Waits until they have ended, or `stop`: a node that is to be left does not wait for others. Agents of a pool
    /// that did not come up clean their nodes, for nobody speaks to them any more.
    pub fn finish(mut self, stop: &AtomicBool) {
        self.children.iter_mut().for_each(|lower| drop(lower.teller.take()));
        while !self.children.is_empty() {
            if stop.load(Ordering::Acquire) {
                return;
            }
            self.children.retain_mut(|lower| {
                matches!(lower.process.try_wait(), Ok(None)) || !lower.voice.is_finished()
            });
            std::thread::sleep(POLL);
        }
    }
}

impl Lower {
    fn start(tree: &Tree, number: usize, agent: &Path) -> std::io::Result<Lower> {
        let mut command = tree.command(number, agent);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let teller = process.stdin.take().map(Teller::new);
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        let (host, nodes) = (tree.hosts[number].clone(), tree.reached_through(number));
        let voice = std::thread::spawn(move || hand_up(stdout, stderr, &host, number, nodes * REPORTS));
        Ok(Lower { process, teller, voice })
    }
}

/// Hands up the lines of an agent until it ends; tells when some are missing.
fn hand_up(stdout: ChildStdout, stderr: ChildStderr, host: &str, number: usize, expected: usize) {
    let words = std::thread::spawn(move || hand_up_words(stderr));
    let mut heard = 0;
    let mut failed = false;
    let mut lines = BufReader::new(stdout);
    loop {
        let mut line = String::new();
        match lines.by_ref().take(LINE_MAX).read_line(&mut line) {
            Ok(1..) if line.ends_with('\n') => {
                heard += 1;
                failed |= serde_json::from_str::<Report>(&line).is_ok_and(|r| !r.error.is_empty());
                // Whoever is above may be gone; the pool then goes on without a listener.
                let _ = std::io::stdout().lock().write_all(line.as_bytes());
            }
            _ => break,
        }
    }
    let words = words.join().unwrap_or_default();
    if heard < expected && !failed {
        report_lost(host, number, &format!("ended before the pool was up{words}"));
    }
}

/// Hands up standard error; its last lines, as the end of a sentence.
fn hand_up_words(stderr: ChildStderr) -> String {
    let mut last = VecDeque::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let _ = writeln!(std::io::stderr(), "{line}");
        last.push_back(line);
        if last.len() > WORDS_LINES_MAX {
            last.pop_front();
        }
    }
    if last.is_empty() { String::new() } else { format!(": \"{}\"", Vec::from(last).join(" | ")) }
}

/// Reports for an agent that cannot.
fn report_lost(host: &str, number: usize, why: &str) {
    let error = format!(
        "host {host}, reached from {}: {why}; where nodes cannot reach each other by ssh, use --fan-out 0",
        crate::agent::own_name()
    );
    crate::agent::report(Report::failed(number, host, &error));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(fan_out: usize, hosts: usize) -> Tree {
        Tree { fan_out, hosts: (0..hosts).map(|i| format!("h{i}")).collect(), ssh: Vec::new() }
    }

    #[test]
    fn every_node_is_started_once() {
        for fan_out in [0, 1, 2, 3, 32] {
            for hosts in [0, 1, 2, 3, 7, 33, 512] {
                let tree = tree(fan_out, hosts);
                let mut started: Vec<usize> = tree.roots().collect();
                let mut next = 0;
                while let Some(&node) = started.get(next) {
                    started.extend(tree.below(node));
                    next += 1;
                }
                started.sort_unstable();
                assert_eq!(started, (0..hosts).collect::<Vec<_>>(), "{fan_out} {hosts}");
                let reached: usize = tree.roots().map(|n| tree.reached_through(n)).sum();
                assert_eq!(reached, hosts, "{fan_out} {hosts}");
            }
        }
    }

    #[test]
    fn no_machine_starts_more_than_the_fan_out() {
        let tree = tree(32, 512);
        assert_eq!(tree.roots().len(), 32);
        assert!((0..512).all(|n| tree.below(n).len() <= 32));
        // Two rounds of ssh reach all 512 nodes, three 33,824.
        assert!((0..32).flat_map(|n| tree.below(n)).all(|n| tree.below(n).is_empty()));
    }
}
