//! Looking again: programs may have changed the pool while it was read.

use super::finding::{Finding, Subject};
use super::scan::Scan;
use super::tables::{Data, Part, Suspect, Tables};
use crate::exit::Result;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tidepool_client::Client;
use tidepool_types::{BLOCK_SIZE, DaemonIndex, FileKind, Ino};
use tidepool_wire::message::{Reply, Request};
use tidepool_wire::record::Inode;

/// What is under way when the check sees it is over after this: longer than a client waits
/// before it ends a dead client's hold.
const SETTLE: Duration = Duration::from_millis(2_000);
/// Looks after the first one. A single one is not enough: a directory that was made while the first look went on may be
/// removed during the second, and seem to be half there both times. By the third it is gone.
const LOOKS: usize = 2;

/// The findings that are still there at each look; what is about objects in use is left out.
pub fn confirm(scan: &Scan<'_>, first: Vec<Finding>) -> Result<Vec<Finding>> {
    let mut found = first;
    for _ in 0..LOOKS {
        if found.is_empty() {
            break;
        }
        std::thread::sleep(SETTLE);
        found = look_again(scan, &found)?;
    }
    Ok(found)
}

fn look_again(scan: &Scan<'_>, first: &[Finding]) -> Result<Vec<Finding>> {
    let again = Again { scan, wanted: wanted(&scan.tables(), first) };
    let before = again.records()?;
    again.replace(&before);
    again.look_at_entries()?;
    again.recount_names()?;
    again.recount_parts()?;
    again.look_at_data()?;
    let after = again.records()?;
    let in_use: HashSet<Ino> =
        before.iter().filter(|(ino, record)| after.get(*ino) != Some(*record)).map(|(ino, _)| *ino).collect();
    let known: HashSet<&Subject> = first.iter().map(|f| &f.subject).collect();
    let mut found = scan.tables().findings();
    found.retain(|f| known.contains(&f.subject) && !f.subject.ino.is_some_and(|i| in_use.contains(&i)));
    Ok(found)
}

/// Objects to look at again, and the daemon that had the record (or should have it).
fn wanted(tables: &Tables, findings: &[Finding]) -> BTreeMap<Ino, DaemonIndex> {
    let inos = findings.iter().flat_map(|f| f.involved.iter().copied().chain(f.subject.ino));
    inos.map(|ino| (ino, tables.objects.get(&ino).map_or(ino.home(), |o| o.daemon))).collect()
}

struct Again<'a> {
    scan: &'a Scan<'a>,
    wanted: BTreeMap<Ino, DaemonIndex>,
}

impl Again<'_> {
    fn records(&self) -> Result<BTreeMap<Ino, Option<Inode>>> {
        let members = self.scan.client.members();
        self.wanted
            .iter()
            .map(|(ino, daemon)| {
                // A damaged entry can name a daemon that there is not.
                let known = usize::from(*daemon) < members;
                Ok((*ino, if known { self.scan.inode(*daemon, *ino)? } else { None }))
            })
            .collect()
    }

    fn replace(&self, records: &BTreeMap<Ino, Option<Inode>>) {
        let mut tables = self.scan.tables();
        for (ino, record) in records {
            tables.replace(*ino, record.as_ref().map(|r| (self.wanted[ino], r)));
        }
    }

    /// Counts the names of the wanted objects in all directories, and learns one of each.
    fn recount_names(&self) -> Result<()> {
        let mut dirs = self.scan.tables().directories();
        dirs.extend(self.wanted.keys().filter(|ino| dirs.binary_search(ino).is_err()).collect::<Vec<_>>());
        self.scan.each_daemon(|daemon| {
            for dir in &dirs {
                self.scan.list(daemon, *dir, |page| {
                    let mut tables = self.scan.tables();
                    if self.wanted.contains_key(dir)
                        && let Some(object) = tables.objects.get_mut(dir)
                    {
                        object.entries += page.len() as u64;
                    }
                    for (name, dentry) in page.iter().filter(|(_, d)| self.wanted.contains_key(&d.ino)) {
                        tables.count_name(*dir, name, dentry);
                        tables.learn_name(dentry.ino, *dir, name);
                    }
                })?;
            }
            Ok(())
        })
    }

    /// Drops the suspects that are gone or have become something else.
    fn look_at_entries(&self) -> Result<()> {
        let suspects = std::mem::take(&mut self.scan.tables().suspects);
        for suspect in suspects {
            if self.still_there(&suspect)? {
                self.scan.tables().suspects.push(suspect);
            }
        }
        Ok(())
    }

    fn still_there(&self, suspect: &Suspect) -> Result<bool> {
        let request = Request::Lookup { parent: suspect.parent, name: suspect.name.clone(), open: false };
        let dentry = &suspect.dentry;
        Ok(match self.scan.ask(suspect.daemon, &request)? {
            Reply::Held { hold } => dentry.hold.is_some_and(|h| h.txn == hold.txn),
            Reply::Entry { ino, kind, .. } => {
                dentry.hold.is_none() && (ino, kind) == (dentry.ino, dentry.kind)
            }
            _ => false,
        })
    }

    fn recount_parts(&self) -> Result<()> {
        let parts = std::mem::take(&mut self.scan.tables().parts);
        let mut there: BTreeMap<DaemonIndex, HashSet<Ino>> = BTreeMap::new();
        for Part { daemon, dir, .. } in parts {
            let is_known = self.scan.tables().objects.contains_key(&dir);
            if !is_known && !there.contains_key(&daemon) {
                there.insert(daemon, self.scan.parts(daemon)?.into_iter().map(|(dir, _)| dir).collect());
            }
            // Asked about a directory that has gone meanwhile, a daemon tells of an empty part.
            if !is_known && !there[&daemon].contains(&dir) {
                continue;
            }
            if let Some(part) = self.scan.recount(daemon, dir)? {
                self.scan.tables().add_part(part);
            }
        }
        Ok(())
    }

    fn look_at_data(&self) -> Result<()> {
        let suspicious = std::mem::take(&mut self.scan.tables().data);
        let unreadable: HashSet<Ino> =
            suspicious.iter().filter(|d| !d.failed.is_empty()).map(|d| d.ino).collect();
        for ino in self.files().into_iter().filter(|ino| !unreadable.contains(ino)) {
            self.restore_data(ino)?;
        }
        suspicious.iter().try_for_each(|data| self.data_again(data))
    }

    fn files(&self) -> Vec<Ino> {
        let tables = self.scan.tables();
        let is_file = |ino: &&Ino| tables.objects.get(ino).is_some_and(|o| o.kind == FileKind::Regular);
        self.wanted.keys().filter(is_file).copied().collect()
    }

    /// Counts an object's blocks on all daemons, from their ranges.
    fn restore_data(&self, ino: Ino) -> Result<()> {
        for daemon in all_daemons(self.scan.client) {
            let ranges = self.scan.ranges(daemon, ino)?;
            let mut tables = self.scan.tables();
            tables.add_stored(daemon, ino, blocks_of(&ranges), &[]);
            tables.add_ranges(daemon, ino, &ranges);
        }
        Ok(())
    }

    /// Looks at suspicious data again, and keeps it when it still is.
    fn data_again(&self, data: &Data) -> Result<()> {
        let (daemon, ino) = (data.daemon, data.ino);
        if !data.failed.is_empty() {
            // Which object it is may be unknown; then there is nothing to look at again.
            let failed = if ino == Ino::ROOT {
                Some(data.failed.clone())
            } else {
                self.scan.read_back(daemon, ino)?
            };
            if let Some(failed) = failed {
                self.scan.tables().add_unverified(daemon, ino, failed);
            }
            return Ok(());
        }
        let known = self.scan.tables().objects.contains_key(&ino);
        let bad: Vec<u64> = data.bad.iter().copied().filter(|at| !known || self.is_bad(ino, *at)).collect();
        let blocks = if known { 0 } else { blocks_of(&self.scan.ranges(daemon, ino)?) };
        if blocks > 0 || known {
            self.scan.tables().add_stored(daemon, ino, blocks, &bad);
        }
        Ok(())
    }

    /// True when a damaged block cannot be read.
    fn is_bad(&self, ino: Ino, offset: u64) -> bool {
        self.scan.client.read(ino, offset, &mut [0]).is_err()
    }
}

fn all_daemons(client: &Client) -> impl Iterator<Item = DaemonIndex> {
    0..client.members() as DaemonIndex
}

/// Blocks that ranges touch.
pub fn blocks_of(ranges: &[(u64, u64)]) -> u64 {
    let block = u64::from(BLOCK_SIZE);
    let touched = |(start, len): &(u64, u64)| (start + len).div_ceil(block) - start / block;
    ranges.iter().filter(|(_, len)| *len > 0).map(touched).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_once_per_range() {
        assert_eq!(blocks_of(&[(0, 1), (4096, 8192), (20_000, 0), (16_384, 100)]), 4);
    }
}
