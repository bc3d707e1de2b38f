//! For mounts, whose kernels keep what they are told: asking for leases, and hearing of their end
//! (`docs/formats/10-leases.md`).
//!
//! A lease starts before its request is sent and lasts for a term: then the daemon changes things without a word. Before that it
//! sends a recall, and waits until it was answered.

use crate::attrs::put_together;
use crate::calls::{Bulk, Call, expect_reply};
use crate::walk::{Entry, Spot};
use crate::{Client, Cred, FsError};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidepool_placement::entry_owner;
use tidepool_transport::Link;
use tidepool_types::{Attr, DaemonIndex, Errno, FileKind, Ino, NAME_MAX};
use tidepool_wire::frame::{FLAG_KEEP, FLAG_KEEP_ATTR, Header};
use tidepool_wire::message::{LEASE_TERM_MS, LeaseKey, Reply, Request};

/// Daemons of a pool up to which attributes of directories are kept: all of them have to be asked, and told.
const DIR_DAEMONS_MAX: usize = 16;
/// How long is listened at a time.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// How long parts of an answer may be kept; `None`: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub entry: Option<Instant>,
    pub attr: Option<Instant>,
}

impl Kept {
    fn of(sent: Instant, flags: u16) -> Kept {
        let end = sent + Duration::from_millis(LEASE_TERM_MS);
        Kept {
            entry: (flags & FLAG_KEEP != 0).then_some(end),
            attr: (flags & FLAG_KEEP_ATTR != 0).then_some(end),
        }
    }
}

/// What a daemon says to who wants to keep an object's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLease {
    /// Until then nobody else changes them without a recall. The version of the content.
    Granted(u64, Instant),
    /// They are being changed; in a moment they can be had.
    AskAgain,
    Refused,
}

/// What comes to who watches a daemon.
#[derive(Debug)]
pub enum Word {
    /// To be forgotten; then [`Client::released`] is to be called with the number.
    Recall { id: u64, key: LeaseKey },
    /// Nothing for a while.
    Silence,
}

/// A connection on which a daemon sends recalls.
pub struct Watch {
    link: Box<dyn Link>,
    daemon: DaemonIndex,
}

impl Watch {
    /// Waits for the next word. An error: the daemon is gone, and gives no leases until it is watched again.
    pub fn hear(&mut self) -> Result<Word, FsError> {
        loop {
            let received = match self.link.receive(&mut []) {
                Ok(received) => received,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Word::Silence),
                Err(error) => {
                    return Err(FsError::new(Errno::EIO, format!("daemon {}: {error}", self.daemon)));
                }
            };
            match Reply::decode(received.header.kind, received.meta) {
                Ok(Reply::Recall { id, key }) => return Ok(Word::Recall { id, key }),
                // That we watch has been noted.
                Ok(Reply::Done {}) => {}
                Ok(other) => {
                    let text = format!("daemon {}: leases: {other:?}", self.daemon);
                    return Err(FsError::new(Errno::EIO, text));
                }
                Err(error) => return Err(FsError::new(Errno::EPROTO, error.to_string())),
            }
        }
    }
}

/// Tells whether a change in a directory should give way.
pub(crate) type GiveWay = Box<dyn Fn(Ino) -> bool + Send + Sync>;

impl Client {
    /// Has changes in a directory that meet a recall fail with `ESTALE` when `asks` says so: for kernels, which try them once more.
    /// The first call wins.
    pub fn give_way(&self, asks: impl Fn(Ino) -> bool + Send + Sync + 'static) {
        let _ = self.give_way.set(Box::new(asks));
    }

    /// Only steps before which nothing was done.
    pub(crate) fn gives_way(&self, request: &Request) -> bool {
        let dir = match request {
            Request::Create { parent, .. }
            | Request::Unlink { parent, .. }
            | Request::Prepare { parent, .. } => *parent,
            _ => return false,
        };
        self.give_way.get().is_some_and(|asks| asks(dir))
    }

    /// Watches a daemon, which gives leases from then on.
    pub fn watch(&self, daemon: DaemonIndex) -> Result<Watch, FsError> {
        let mut link = self.own_link(daemon)?;
        let header = Header { kind: Request::Watch {}.kind(), ..Header::default() };
        let sent = link.set_timeout(SILENCE_MAX).and_then(|()| link.send(&header, &[], &[]));
        sent.map_err(|e| FsError::new(Errno::EIO, format!("daemon {daemon}: {e}")))?;
        self.keeps.store(true, Ordering::Release);
        Ok(Watch { link, daemon })
    }

    /// What a recall was about is forgotten.
    pub fn released(&self, daemon: DaemonIndex, id: u64) -> Result<(), FsError> {
        self.request(daemon, &Request::Released { id }).map(|_| ())
    }

    pub(crate) fn keep_flag(&self) -> u16 {
        if self.keeps.load(Ordering::Acquire) { FLAG_KEEP } else { 0 }
    }

    /// Like [`Client::lookup_home`], asked of the daemons in any case; `None` for a name that is not there. Until when it may be kept.
    pub fn lookup_kept(&self, dir: Ino, name: &[u8]) -> Result<(Option<Attr>, Option<Instant>), FsError> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.retrying(|generation| {
            self.dir_info(generation, dir)?;
            let daemon = entry_owner(dir, name, self.members());
            let request = Request::Lookup { parent: dir, name: name.into(), open: false };
            let sent = Instant::now();
            let answer = self.call_entry_with(generation, daemon, (dir, name), &request, FLAG_KEEP)?;
            let until = Kept::of(sent, answer.flags).entry;
            let entry = match answer.reply {
                Reply::Failed { errno: Errno::ENOENT, .. } => return Ok((None, until)),
                reply => expect_reply!(self, daemon, reply, Reply::Entry { ino, kind, attr, created } => Entry { ino, kind, attr, created, flags: 0 })?,
            };
            let attr = self.entry_attr(&entry)?;
            self.remember_layout(&attr);
            Ok((Some(attr), until))
        })
    }

    /// Like [`Client::get_attr`], asked of the daemons in any case; until when it may be kept.
    pub fn attr_kept(&self, ino: Ino) -> Result<(Attr, Option<Instant>), FsError> {
        let sent = Instant::now();
        let answer = self.call_with(ino.home(), &Request::GetAttr { ino }, (0, FLAG_KEEP), Bulk::None)?;
        let reply = answer.reply;
        let attr = expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)?;
        self.remember_layout(&attr);
        let until = Kept::of(sent, answer.flags).attr;
        if attr.is_dir() { self.whole_dir(attr, until) } else { Ok((attr, until)) }
    }

    fn whole_dir(&self, mut attr: Attr, until: Option<Instant>) -> Result<(Attr, Option<Instant>), FsError> {
        if until.is_none() || self.members() > DIR_DAEMONS_MAX {
            return Ok((self.complete_attr(attr)?, None));
        }
        let request = Request::DirStat { dir: attr.ino };
        let call = |daemon| Call {
            flags: FLAG_KEEP,
            ..Call::new(daemon as DaemonIndex, request.clone(), Bulk::None)
        };
        let mut calls: Vec<Call<'_>> = (0..self.members()).map(call).collect();
        let sent = Instant::now();
        let (mut parts, mut until) = (Vec::new(), until);
        for (daemon, answer) in self.call_all(&mut calls).into_iter().enumerate() {
            let answer = answer?;
            let part =
                expect_reply!(self, daemon as DaemonIndex, answer.reply, Reply::Part { part } => part)?;
            parts.push(part);
            until = until.zip(Kept::of(sent, answer.flags).attr).map(|(a, b)| a.min(b));
        }
        put_together(&mut attr, &parts);
        Ok((attr, until))
    }

    /// Asks once whether data of an object may be kept, or go on being kept.
    pub fn keep_data(&self, ino: Ino) -> Result<DataLease, FsError> {
        let sent = Instant::now();
        let answer = self.call_once(ino.home(), &Request::Keep { ino }, FLAG_KEEP)?;
        let until = Kept::of(sent, answer.flags).attr;
        Ok(match (answer.reply, until) {
            (Reply::Recalled {}, _) => DataLease::AskAgain,
            (Reply::Opened { version, .. }, Some(until)) if version != 0 => {
                DataLease::Granted(version, until)
            }
            (Reply::Opened { .. }, _) => DataLease::Refused,
            (other, _) => return Err(self.unexpected(ino.home(), other)),
        })
    }

    /// Like [`Client::reopen`]; also the version of the content when its data may be kept, and until when.
    pub fn reopen_kept(&self, ino: Ino) -> Result<(Attr, Option<(u64, Instant)>), FsError> {
        let sent = Instant::now();
        let answer = self.call_with(ino.home(), &Request::OpenKept { ino }, (0, FLAG_KEEP), Bulk::None)?;
        let (reply, until) = (answer.reply, Kept::of(sent, answer.flags).attr);
        let opened =
            expect_reply!(self, ino.home(), reply, Reply::Opened { attr, version } => (attr, version));
        let (attr, version) = opened?;
        self.note_handle(ino);
        self.remember_layout(&attr);
        Ok((attr, until.filter(|_| version != 0).map(|until| (version, until))))
    }

    /// Makes an object and its entry, which must not be there yet. Regular files are held open with `open`.
    pub fn make_kept(
        &self,
        dir: Ino,
        name: &[u8],
        (mode, rdev, target): (u32, u64, &[u8]),
        cred: &Cred,
        open: bool,
    ) -> Result<(Attr, Kept), FsError> {
        let kind = FileKind::from_mode(mode)?;
        let (entry, kept) = self.retrying(|generation| {
            let spot =
                Spot { dir: self.dir_info(generation, dir)?, name: Some(name.into()), wants_dir: false };
            let handed = self.handed_down(&spot.dir, kind.mode_bits() | (mode & 0o7777), cred)?;
            let object = self.new_object(&spot, name, cred, handed.mode, (rdev, target.into()));
            let sent = Instant::now();
            let entry = self.create_entry(generation, dir, name, object, true, open)?;
            let entry = self.give_lists(entry, &handed)?;
            let kept = Kept::of(sent, entry.flags);
            Ok((entry, kept))
        })?;
        let Entry { attr, ino, .. } = entry;
        if open {
            self.note_handle(ino);
        }
        let attr = match attr {
            Some(attr) => attr,
            None => self.home_attr(ino)?,
        };
        self.remember_layout(&attr);
        Ok((attr, kept))
    }
}
