//! What takes time and is no task: plans, and looks at what lies in dataspaces.

use crate::execute::{Failed, Setup};
use crate::permit;
use crate::places::{Opener, PlaceError, Places, Whose, open_mount};
use crate::tasks::{Answer, News};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstatvfs, openat, statat};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use tidepool_stage::{Control, Cursor, EndError, Identity, StageOptions, What, stage};
use tidepool_stage_state::{Model, Start};
use tidepool_types::Errno;
use tidepool_wire::stager::{
    BODY_MAX, Code, DataspaceKind, DataspaceSpec, Leftover, Op, Plan, Refusal, Reply, TASKS_AT_ONCE_MAX,
};

/// Depth of directories that a look at a dataspace follows.
const DEPTH_MAX: usize = 512;

/// Bytes of names in one reply, and what each takes besides.
const ENTRIES_BYTES_MAX: usize = BODY_MAX / 2;
const NAME_BYTES: usize = 4;

/// What becomes of the answer to a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    Show,
    UnregisterJob(u32),
    UnregisterDataspace(String),
    Shutdown,
}

/// Something to be found out.
pub enum Task {
    Plan {
        start: Box<Start>,
        places: Places,
        model: Option<Model>,
    },
    Look {
        dataspaces: Vec<DataspaceSpec>,
        max: usize,
        then: Then,
    },
    Entries {
        start: Box<Start>,
        places: Places,
        after: Box<[u8]>,
        max: usize,
    },
    /// Whether this process, which is the reader that a location is shared with, gets to it.
    Reach {
        start: Box<Start>,
        places: Places,
    },
}

pub struct Errand {
    pub conn: u64,
    pub request: u64,
    pub task: Task,
}

impl Errand {
    pub fn run(self, setup: &Setup) -> News {
        let Errand { conn, request, task } = self;
        let answer = match task {
            Task::Plan { start, places, model } => {
                Answer::Reply(reply(plan(setup, Whose::Call(request), (&start, &places), model)))
            }
            Task::Entries { start, places, after, max } => {
                let page = (&*after, max.clamp(1, TASKS_AT_ONCE_MAX));
                let listed = entries(setup, Whose::Call(request), (&start, &places), page);
                Answer::Reply(listed.unwrap_or_else(refusal))
            }
            Task::Reach { start, places } => {
                let reached = reach(setup, &start, &places);
                Answer::Reply(reached.map_or_else(refusal, |()| Reply::Done {}))
            }
            Task::Look { dataspaces, max, then } => look_at(&dataspaces, max.min(TASKS_AT_ONCE_MAX), then),
        };
        News::Answer { conn, request, answer }
    }
}

fn reply(planned: Result<Plan, Failed>) -> Reply {
    planned.map_or_else(refusal, |plan| Reply::Planned { plan })
}

fn refusal(failed: Failed) -> Reply {
    let refusal = match failed {
        Failed::Refusal(refusal) => refusal,
        Failed::Cancelled => Refusal::new(Code::CANCELLED, ""),
        Failed::Place(PlaceError::NotSupported(text)) => Refusal::new(Code::NOT_SUPPORTED, text),
        Failed::Place(PlaceError::End(error)) => {
            Refusal { code: Code::SYSTEM_ERROR, errno: error.errno.0, detail: error.to_string() }
        }
    };
    Reply::Failed { refusal }
}

/// Counts what a task would move, with its user's rights, and looks for what speaks against it.
fn plan(
    setup: &Setup,
    whose: Whose,
    (start, places): (&Start, &Places),
    model: Option<Model>,
) -> Result<Plan, Failed> {
    let identity = setup.own.identity_of(start.identity.uid, start.identity.gid)?;
    let run = std::sync::Arc::default();
    let (peers, verify_disk) = (&setup.peers, setup.verify_disk);
    let opener = Opener { places, start, identity: &identity, peers, whose, run: &run, verify_disk };
    let source = opener.open(&start.spec.src)?;
    let target = start.spec.dst.as_ref().map(|dst| opener.open(dst)).transpose()?;
    setup.own.must_be(&identity)?;
    let (src, name) = source.source(false)?;
    let what = name.map_or(What::Tree, |name| What::Entry { from: name.clone(), to: name });
    let options = StageOptions { dry_run: true, ..StageOptions::default() };
    let counted = stage(&*src, &*src, &what, &options, &Control::default());
    let mut plan = Plan {
        files: counted.files + counted.links + counted.specials,
        dirs: counted.dirs,
        bytes: counted.bytes_total,
        free: target.as_ref().and_then(|target| free_of(target.fd()?)),
        quota_left: start.quotas.iter().map(|q| q.limit.saturating_sub(q.used)).min(),
        estimate_ms: None,
        lead_ms: None,
        problems: counted.errors.iter().map(ToString::to_string).collect(),
    };
    let ms = |seconds: f64| (seconds * 1000.0) as u64;
    plan.estimate_ms = model.and_then(|model| model.estimate(plan.bytes, plan.files)).map(ms);
    plan.lead_ms = model.and_then(|model| model.lead(plan.bytes, plan.files)).map(ms);
    let limits = [("free at the destination", plan.free), ("left of the quota", plan.quota_left)];
    for (what, limit) in limits.into_iter().filter(|_| start.spec.op != Op::Remove) {
        if let Some(limit) = limit.filter(|limit| *limit < plan.bytes) {
            plan.problems.push(format!("{} bytes are to be copied, and only {limit} are {what}", plan.bytes));
        }
    }
    Ok(plan)
}

/// Names in the directory that a task would copy, with its user's rights. They are looked for in the whole directory each time,
/// which nobody keeps open between two pages.
fn entries(
    setup: &Setup,
    whose: Whose,
    (start, places): (&Start, &Places),
    (after, max): (&[u8], usize),
) -> Result<Reply, Failed> {
    let identity = setup.own.identity_of(start.identity.uid, start.identity.gid)?;
    let run = std::sync::Arc::default();
    let (peers, verify_disk) = (&setup.peers, setup.verify_disk);
    let opener = Opener { places, start, identity: &identity, peers, whose, run: &run, verify_disk };
    let source = opener.open(&start.spec.src)?;
    setup.own.must_be(&identity)?;
    let (end, name) = source.source(false)?;
    if name.is_some() {
        let detail = Some(format!("in {}", end.describe()));
        let error = EndError { errno: Errno::ENOTDIR, operation: "list", detail };
        return Err(Failed::Place(PlaceError::End(error)));
    }
    let (root, mut cursor) = (end.root(), Some(Cursor::Start));
    let mut page = Page { after, max, names: BTreeSet::new() };
    while let Some(from) = cursor {
        let (items, next) = end.list(&root, &from)?;
        items.into_iter().for_each(|item| page.add(item.name));
        cursor = next;
    }
    Ok(page.reply())
}

fn reach(setup: &Setup, start: &Start, places: &Places) -> Result<(), Failed> {
    let identity = Identity::of_thread()?;
    let (run, peers, whose) = (std::sync::Arc::default(), &setup.peers, Whose::Call(0));
    let opener = Opener { places, start, identity: &identity, peers, whose, run: &run, verify_disk: false };
    let place = opener.open(&start.spec.src)?;
    let (Some((root, path)), Some(permit)) = (place.local(), &start.permit) else { return Ok(()) };
    let wanted = permit::Wanted { root, path, place: &start.spec.src, owner: &identity, permit, run: &run };
    permit::reach(&wanted, &setup.node).map_err(Failed::Refusal)
}

/// The smallest so many of all names that are shown to it.
struct Page<'a> {
    after: &'a [u8],
    max: usize,
    names: BTreeSet<Vec<u8>>,
}

impl Page<'_> {
    fn add(&mut self, name: Vec<u8>) {
        if name.as_slice() > self.after {
            self.names.insert(name);
        }
        // One more tells that there are more.
        if self.names.len() > self.max + 1 {
            self.names.pop_last();
        }
    }

    /// As many as fit: some stores have long names.
    fn reply(self) -> Reply {
        let (all, mut bytes) = (self.names.len(), 0);
        let fits = |name: &Vec<u8>| {
            bytes += name.len() + NAME_BYTES;
            bytes <= ENTRIES_BYTES_MAX
        };
        let names: Vec<Box<[u8]>> =
            self.names.into_iter().take(self.max).take_while(fits).map(Into::into).collect();
        let more = names.len() < all;
        Reply::Entries { names, more }
    }
}

fn free_of(fd: &OwnedFd) -> Option<u64> {
    let stat = fstatvfs(fd).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn look_at(dataspaces: &[DataspaceSpec], max: usize, then: Then) -> Answer {
    let mut found = Look { entries: Vec::new(), max, more: false };
    for dataspace in dataspaces {
        if !matches!(dataspace.kind, DataspaceKind::Local | DataspaceKind::Shared) {
            continue;
        }
        if let Err(error) = found.dataspace(dataspace) {
            let detail = format!("dataspace '{}': {error}", dataspace.name);
            let refusal = Refusal { code: Code::SYSTEM_ERROR, errno: error.errno.0, detail };
            return Answer::Reply(Reply::Failed { refusal });
        }
    }
    Answer::Found { entries: found.entries, more: found.more, then }
}

/// Lists what is no directory, and empty directories.
struct Look {
    entries: Vec<Leftover>,
    max: usize,
    more: bool,
}

impl Look {
    fn dataspace(&mut self, dataspace: &DataspaceSpec) -> Result<(), EndError> {
        let root = open_mount(&dataspace.mount)?;
        self.directory(&dataspace.name, &root, Vec::new(), 0).map(drop)
    }

    /// How many entries the directory has.
    fn directory(
        &mut self,
        dataspace: &str,
        fd: &OwnedFd,
        path: Vec<u8>,
        depth: usize,
    ) -> Result<usize, EndError> {
        let fail = |errno: rustix::io::Errno| EndError {
            errno: Errno(errno.raw_os_error()),
            operation: "list",
            detail: Some(tidepool_stage::show_bytes(&path)),
        };
        let mut count = 0;
        for entry in Dir::read_from(fd.as_fd()).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            count += 1;
            if self.entries.len() >= self.max || depth >= DEPTH_MAX {
                self.more = true;
                return Ok(count);
            }
            let own = if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
            self.entry(dataspace, fd, (name, own), depth)?;
        }
        Ok(count)
    }

    fn entry(
        &mut self,
        dataspace: &str,
        dir: &OwnedFd,
        (name, path): (&[u8], Vec<u8>),
        depth: usize,
    ) -> Result<(), EndError> {
        // What is gone meanwhile is not left behind.
        let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(fd) = openat(dir, name, flags, Mode::empty()) else { return Ok(()) };
            if self.directory(dataspace, &fd, path.clone(), depth + 1)? > 0 {
                return Ok(());
            }
        }
        self.entries.push(Leftover {
            dataspace: dataspace.to_string(),
            path: path.into(),
            directory,
            size: if directory { 0 } else { stat.st_size as u64 },
            uid: stat.st_uid,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(all: &[&[u8]], after: &[u8], max: usize) -> (Vec<Box<[u8]>>, bool) {
        let mut page = Page { after, max, names: BTreeSet::new() };
        all.iter().for_each(|name| page.add(name.to_vec()));
        match page.reply() {
            Reply::Entries { names, more } => (names, more),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_follow_each_other_in_order() {
        let all: [&[u8]; 5] = [b"e", b"a", b"\xff", b"b", b"aa"];
        let names = |names: &[&[u8]]| names.iter().map(|name| Box::from(*name)).collect::<Vec<_>>();
        assert_eq!(page(&all, b"", 2), (names(&[b"a", b"aa"]), true));
        assert_eq!(page(&all, b"aa", 2), (names(&[b"b", b"e"]), true));
        assert_eq!(page(&all, b"e", 2), (names(&[b"\xff"]), false));
        assert!(!page(&all, b"", 5).1);
        assert_eq!(page(&[], b"", 5), (Vec::new(), false));
    }

    #[test]
    fn a_page_fits_into_a_reply() {
        let long: Vec<Vec<u8>> =
            (0..6000u32).map(|n| [&n.to_be_bytes()[..], &[b'x'; 1000]].concat()).collect();
        let all: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        let (names, more) = page(&all, b"", 10_000);
        assert!(more && names.len() > 4000, "{}", names.len());
        let mut frame = Vec::new();
        Reply::Entries { names, more }.put_frame(1, &mut frame).unwrap();
    }
}
