//! One small file between directories of this node, without what the engine keeps for trees: queues, links, workers
//! and their journal cost several times what such a file does.
//!
//! Whatever is not plain (another kind, a size, attributes, a name that is taken, anything that fails) is the engine's,
//! which starts from the beginning and says what is wrong. Only file systems in memory are written to: nothing has to be
//! made durable there, and a file without a name leaves nothing behind if it does not come to its end.

use crate::attrs::{is_wanted, refusal, wanted};
use crate::beneath::split;
use crate::compound::read_told;
use crate::end::{At, End, Meta, Name, PackLimits, Put, PutHow, Refused, Rights};
use crate::identity::Identity;
use crate::job::{bump, is_leftover};
use crate::local::LocalEnd;
use crate::nearby::Medium;
use crate::options::StageOptions;
use crate::progress::{Control, Phase};
use crate::report::{StageReport, StageWarning};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tidepool_blocks::crc;
use tidepool_types::{Errno, FileKind};

/// A small regular file that was read whole, and did not change meanwhile, with the directory where it is going to be.
pub struct Lone {
    name: Vec<u8>,
    meta: Meta,
    data: Vec<u8>,
    target: LocalEnd,
    /// What it is going to be called there, if not as it is.
    to: Option<Vec<u8>>,
    begun: Instant,
}

impl Lone {
    /// The file that a path below a root names, if it is one for this, and so is its destination: below the other root a directory
    /// if the path is empty or ends in '/', an entry if not. No file is looked at before it is known that the destination is in
    /// memory. The calling thread's rights are those of `user`.
    pub fn read(
        (root, path): (&Arc<OwnedFd>, &[u8]),
        (target_root, target_path): (&Arc<OwnedFd>, &[u8]),
        user: &Identity,
    ) -> Option<Lone> {
        let begun = Instant::now();
        let rights = Rights::of(user);
        let (dir, name, slash) = split(path).ok()?;
        let (target, to) = target_beneath(target_root, target_path, rights)?;
        let end = LocalEnd::passage_beneath(root, dir, rights).ok()?;
        if slash || is_leftover(name) || end.root_medium() == Medium::Other {
            return None;
        }
        let (meta, data) = read_plain(&end, name, rights)?;
        Some(Lone { name: name.to_vec(), meta, data, target, to, begun })
    }

    /// What it is called.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Makes a copy of it at its destination, in the name of the user who read it. `None`: nothing was made.
    pub fn put(&self, options: &StageOptions, control: &Control) -> Option<StageReport> {
        let (end, dir) = (&self.target, self.target.root());
        let at = Name { dir: &dir, name: self.to.as_deref().unwrap_or(&self.name) };
        if options.bandwidth.is_some() || !end.names_at_once(&dir) || !may_try(options, end, &at) {
            return None;
        }
        self.announce(control);
        if control.is_cancelled() || !may_put(options, self.meta.size) {
            return None;
        }
        let (set, crc) = (wanted(&self.meta, end), crc::append(0, &self.data));
        let put = Put { at, data: &self.data, crc, set, xattrs: &[] };
        let how = PutHow { verify: options.verify, keys: false };
        let written = end.put_named(&[put], how).pop()?.ok()?;
        written.intact.then(|| self.report(control, &written.refused))
    }

    /// What is going to be done.
    fn announce(&self, control: &Control) {
        bump(&control.inner.files_seen, 1);
        bump(&control.inner.bytes_seen, self.meta.size);
        control.inner.set_walk_complete();
    }

    fn report(&self, control: &Control, refused: &[Refused]) -> StageReport {
        let path = crate::show_bytes(&self.name);
        let warning = |refused| StageWarning { path: path.clone(), text: refusal(refused) };
        bump(&control.inner.bytes_copied, self.meta.size);
        bump(&control.inner.bytes_done, self.meta.size);
        bump(&control.inner.files_done, 1);
        control.inner.set_phase(Phase::Complete);
        StageReport {
            files: 1,
            bytes_total: self.meta.size,
            bytes_copied: self.meta.size,
            seconds_data: self.begun.elapsed().as_secs_f64(),
            warnings: refused.iter().map(warning).collect(),
            warning_count: refused.len() as u64,
            complete: true,
            ..StageReport::default()
        }
    }
}

/// The directory that takes the copy, if it is in memory, and the entry's name, if the path has one.
fn target_beneath(root: &Arc<OwnedFd>, path: &[u8], rights: Rights) -> Option<(LocalEnd, Option<Vec<u8>>)> {
    let into = path.is_empty() || path.ends_with(b"/");
    let (dir, name) =
        if into { (path, None) } else { split(path).ok().map(|(dir, name, _)| (dir, Some(name)))? };
    let end = LocalEnd::passage_beneath(root, dir, rights).ok()?;
    (end.root_medium() == Medium::Memory).then(|| (end, name.map(<[u8]>::to_vec)))
}

/// A file with its content, if it is plain and stays as it was seen first.
fn read_plain(end: &LocalEnd, name: &[u8], rights: Rights) -> Option<(Meta, Vec<u8>)> {
    let dir = end.root();
    // Opening a device can be more than a look, so it is asked for before. What is opened may be something else by then, which shows
    // at the end.
    let seen = end.stat(At::Name(&dir, name)).ok()?;
    if seen.kind != FileKind::Regular || seen.size > PackLimits::NEAR.file_bytes || !seen.is_dense() {
        return None;
    }
    let file = end.open_read(&dir, name).ok()?;
    let data = read_told(end, &file, &seen).ok()??;
    let xattrs = end.xattrs(At::File(&file)).ok()?;
    let is_plain = !xattrs.iter().any(|(name, _)| is_wanted(name, rights.root));
    (is_plain && seen.unchanged(&end.stat(At::File(&file)).ok()?)).then_some((seen, data))
}

/// The engine will charge for what is left to it, so a name that is taken has to be known before. Where nothing is
/// counted, naming the file tells.
fn may_try(options: &StageOptions, end: &LocalEnd, at: &Name<'_>) -> bool {
    let is_free = || end.stat(At::Name(at.dir, at.name)).is_err_and(|error| error.errno == Errno::ENOENT);
    options.charge.as_ref().is_none_or(|limits| !limits.0.counts()) || is_free()
}

fn may_put(options: &StageOptions, bytes: u64) -> bool {
    options.charge.as_ref().is_none_or(|limits| limits.0.charge(bytes).is_ok())
}
