//! A remote end as the engine sees it.

use super::client::{RemoteEnd, places, remote_dir, remote_file, spot};
use super::handle::unexpected;
use super::lines::{Lease, Trouble};
use super::message::{Answer, Ask, Clothes, GotHead, NamingHead, OpenHow, Place, PutHead};
use super::stream::{BLOCK, Reader, Writer};
use crate::compound::PlainReader;
use crate::end::{
    At, Content, Cursor, DirRef, End, EndError, EndResult, FileRef, Got, Item, Meta, Name, Naming,
    PackLimits, Put, PutHow, ReadRange, Refused, Rights, SetMeta, WritePieces, Written, Xattr,
};
use std::ops::Range;
use tidepool_transport::remote::{BULK_MAX, META_MAX};
use tidepool_types::{Errno, FileKind};

/// What goes in one exchange: enough that a long way costs little, and little enough that
/// several are under way at once.
const PACK: PackLimits = PackLimits { files: 256, file_bytes: 1 << 20, bytes: 4 << 20 };
/// Room in a message for what a file has besides names and attributes that vary in length.
const FILE_FIELDS: usize = 128;

/// How many of the files fit into one message.
fn fitting(files: &[Put<'_>]) -> usize {
    let (mut bulk, mut fields, mut count) = (0, FILE_FIELDS, 0);
    for put in files {
        bulk += put.data.len();
        let xattrs = put.xattrs.iter().map(|(name, value)| name.len() + value.len() + 8).sum::<usize>();
        fields += FILE_FIELDS + put.at.name.len() + xattrs;
        if count > 0 && (bulk > BULK_MAX || fields > META_MAX) {
            break;
        }
        count += 1;
    }
    count
}

fn results<T>(told: Vec<super::message::Told<T>>, end: &RemoteEnd) -> Vec<EndResult<T>> {
    told.into_iter().map(|told| told.0.map_err(|error| end.lines.named(error))).collect()
}

impl RemoteEnd {
    fn put_some(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        self.exchange_many(files, |files, lease| {
            let bulk: Vec<&[u8]> = files.iter().map(|put| put.data).collect();
            let mut heads = Vec::with_capacity(files.len());
            for put in files {
                heads.push(PutHead {
                    dir: remote_dir(put.at.dir)?.resolve(lease)?,
                    name: put.at.name.into(),
                    len: put.data.len() as u32,
                    crc: put.crc,
                    clothes: Clothes { set: put.set, xattrs: put.xattrs.to_vec() },
                });
            }
            match lease.ask_with(&Ask::PutFiles { files: heads, verify: how.verify }, &bulk)? {
                Answer::Puts { results: puts } => Ok(results(puts, self)),
                _ => Err(unexpected()),
            }
        })
    }

    fn get_some(
        &self,
        names: &[Name<'_>],
        limits: &PackLimits,
        lease: &mut Lease<'_>,
    ) -> Result<Vec<EndResult<Got>>, Trouble> {
        let mut bulk = vec![0; usize::try_from(limits.bytes).unwrap_or(BULK_MAX).min(BULK_MAX)];
        let names = places(names, lease)?;
        let id = lease.send(&Ask::GetFiles { names, limits: *limits }, &[])?;
        let Answer::Gots { results: gots } = lease.receive(id, &mut bulk)?.0 else {
            return Err(unexpected());
        };
        let mut rest = &bulk[..];
        let mut unpack = |head: GotHead| {
            let Some((len, xattrs)) = head.content else { return Ok(Got { meta: head.meta, content: None }) };
            let (data, after) =
                rest.split_at_checked(len as usize).ok_or_else(|| EndError::new("answer", Errno::EPROTO))?;
            rest = after;
            let xattrs = xattrs.0.map_err(|error| self.lines.named(error));
            Ok(Got { meta: head.meta, content: Some(Content { data: data.to_vec(), xattrs }) })
        };
        Ok(results(gots, self).into_iter().map(|got| got.and_then(&mut unpack)).collect())
    }

    fn dressed(&self, at: At<'_>, set: &SetMeta, xattrs: &[Xattr]) -> EndResult<Vec<Refused>> {
        let clothes = Clothes { set: *set, xattrs: xattrs.to_vec() };
        let refused = self.ask(
            |lease, _| Ok(Ask::Dress { at: spot(at, lease)?, clothes: clothes.clone() }),
            |answer, _| match answer {
                Answer::Dressed { refused } => Some(refused),
                _ => None,
            },
        )?;
        Ok(refused.into_iter().map(|(name, error)| (name, self.lines.named(error))).collect())
    }

    /// Makes something that is no directory under a temporary name.
    fn make(&self, dir: &DirRef, name: &[u8], ask: impl Fn(u32) -> Ask) -> EndResult<()> {
        let dir = remote_dir(dir)?;
        let key = self.ask(
            |lease, _| Ok(ask(dir.resolve(lease)?)),
            |answer, _| match answer {
                Answer::Made { key } => Some(key),
                _ => None,
            },
        )?;
        self.remember(name, key);
        Ok(())
    }
}

impl End for RemoteEnd {
    fn describe(&self) -> String {
        format!("{} at node {}", self.info.describe, self.node())
    }

    fn identity(&self) -> Vec<u8> {
        let options = self.lines.options();
        let mut identity = format!("remote:{}:{}:", options.node, options.root.dataspace).into_bytes();
        identity.extend_from_slice(&self.info.identity);
        identity
    }

    fn rights(&self) -> Rights {
        self.info.rights
    }

    fn gives_group(&self, gid: u32) -> bool {
        // As whom the root was asked for; what the other node's kernel says to it is told with the answer.
        gid == self.info.rights.gid || self.lines.options().root.groups.contains(&gid)
    }

    fn reads_touch_atime(&self) -> bool {
        self.info.reads_touch_atime
    }

    fn root(&self) -> DirRef {
        DirRef::Remote(self.root_dir().clone())
    }

    fn open_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<DirRef> {
        let (opened, _, _) =
            self.open_dir_with(dir, name, |dir, name| Ask::EnterDir { dir, name, list: false })?;
        Ok(opened)
    }

    /// The server is told when the directory is closed.
    fn leave_dir(&self, _dir: &DirRef) {}

    fn list(&self, dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)> {
        let dir = remote_dir(dir)?;
        let from = match from {
            Cursor::Remote(place) => place.clone(),
            _ => match dir.take_first() {
                Some((items, next)) => return Ok((items, next.map(Cursor::Remote))),
                None => Place::Start,
            },
        };
        self.ask(
            |lease, _| Ok(Ask::List { dir: dir.resolve(lease)?, from: from.clone() }),
            |answer, _| match answer {
                Answer::Listed { items, next } => Some((items, next.map(Cursor::Remote))),
                _ => None,
            },
        )
    }

    fn stat(&self, at: At<'_>) -> EndResult<Meta> {
        self.ask(
            |lease, _| Ok(Ask::Stat { at: spot(at, lease)? }),
            |answer, _| match answer {
                Answer::Attributes { meta } => Some(meta),
                _ => None,
            },
        )
    }

    fn read_link(&self, dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>> {
        let dir = remote_dir(dir)?;
        self.ask(
            |lease, _| Ok(Ask::ReadLink { dir: dir.resolve(lease)?, name: name.into() }),
            |answer, _| match answer {
                Answer::Target { target } => Some(target.into_vec()),
                _ => None,
            },
        )
    }

    fn xattrs(&self, at: At<'_>) -> EndResult<Vec<Xattr>> {
        self.look(at)?.1
    }

    fn open_read(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, OpenHow::Read)
    }

    fn read(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        let file = remote_file(file)?;
        let len = buf.len().min(BLOCK);
        self.exchange(|lease, _| {
            let ask = Ask::Read { file: file.resolve(lease)?, offset, len: len as u32 };
            let id = lease.send(&ask, &[])?;
            match lease.receive(id, &mut buf[..len])? {
                (Answer::Data { offset: at }, count) if at == offset => Ok(count),
                _ => Err(unexpected()),
            }
        })
    }

    fn next_data(&self, file: &FileRef, offset: u64) -> EndResult<Option<u64>> {
        let file = remote_file(file)?;
        self.ask(
            |lease, _| Ok(Ask::NextData { file: file.resolve(lease)?, offset }),
            |answer, _| match answer {
                Answer::Offset { at } => Some(at),
                _ => None,
            },
        )
    }

    fn next_hole(&self, file: &FileRef, offset: u64, limit: u64) -> EndResult<u64> {
        let file = remote_file(file)?;
        self.ask(
            |lease, _| Ok(Ask::NextHole { file: file.resolve(lease)?, offset, limit }),
            |answer, _| match answer {
                Answer::Offset { at } => at,
                _ => None,
            },
        )
    }

    /// The server does so itself for a checksum.
    fn drop_cache(&self, _file: &FileRef, _offset: u64, _len: u64) {}

    fn create(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, OpenHow::Create)
    }

    fn open_write(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, OpenHow::Write)
    }

    fn write(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        let file = remote_file(file)?;
        let data = &data[..data.len().min(BLOCK)];
        self.exchange(|lease, _| {
            let ask = Ask::Write { file: file.resolve(lease)?, offset };
            match lease.ask_with(&ask, &[data])? {
                Answer::Count { count } => Ok(count as usize),
                _ => Err(unexpected()),
            }
        })
    }

    fn truncate(&self, file: &FileRef, size: u64) -> EndResult<()> {
        let file = remote_file(file)?;
        self.done(|lease, _| Ok(Ask::Truncate { file: file.resolve(lease)?, size }))
    }

    fn fsync(&self, file: &FileRef) -> EndResult<()> {
        let answer = || Err(EndError::new("answer", Errno::EPROTO));
        self.fsync_many(&[file]).pop().unwrap_or_else(answer)
    }

    fn fsync_many(&self, files: &[&FileRef]) -> Vec<EndResult<()>> {
        let synced = self.exchange_many(files, |files, lease| {
            let mut number = |file: &&FileRef| remote_file(file)?.resolve(lease);
            let files = files.iter().map(&mut number).collect::<Result<_, _>>()?;
            match lease.ask(&Ask::Sync { files })? {
                Answer::Results { results: synced } => Ok(results(synced, self)),
                _ => Err(unexpected()),
            }
        });
        synced.into_iter().map(|synced| synced.map(|_| ())).collect()
    }

    fn fsync_dir(&self, dir: &DirRef) -> EndResult<()> {
        let dir = remote_dir(dir)?;
        self.done(|lease, _| Ok(Ask::SyncDir { dir: dir.resolve(lease)? }))
    }

    fn fsync_all(&self) -> EndResult<()> {
        self.done(|_, _| Ok(Ask::SyncAll {}))
    }

    fn make_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let dir = remote_dir(dir)?;
        self.done(|lease, _| Ok(Ask::MakeDir { dir: dir.resolve(lease)?, name: name.into() }))
    }

    fn make_symlink(&self, dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()> {
        self.make(dir, name, |dir| Ask::MakeSymlink { dir, name: name.into(), target: target.into() })
    }

    fn make_node(&self, dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()> {
        self.make(dir, name, |dir| Ask::MakeNode { dir, name: name.into(), kind, rdev })
    }

    fn make_link(&self, old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()> {
        let (old_dir, dir) = (remote_dir(old.0)?, remote_dir(new.0)?);
        let key = self.ask(
            |lease, _| {
                let (old_dir, dir) = (old_dir.resolve(lease)?, dir.resolve(lease)?);
                Ok(Ask::MakeLink { old_dir, old: old.1.into(), dir, name: new.1.into() })
            },
            |answer, _| match answer {
                Answer::Made { key } => Some(key),
                _ => None,
            },
        )?;
        self.remember(new.1, key);
        Ok(())
    }

    fn rename(&self, dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()> {
        let naming = Naming { at: Name { dir, name: from }, to, key: None };
        let answer = || Err(EndError::new("answer", Errno::EPROTO));
        self.name_files(&[naming]).pop().unwrap_or_else(answer)
    }

    fn unlink(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let at = remote_dir(dir)?;
        self.forget(name);
        self.removed(|lease| Ok(Ask::Unlink { dir: at.resolve(lease)?, name: name.into() }))
    }

    fn remove_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let at = remote_dir(dir)?;
        self.removed(|lease| Ok(Ask::RemoveDir { dir: at.resolve(lease)?, name: name.into() }))
    }

    fn is_mount(&self, dir: &DirRef) -> EndResult<bool> {
        let at = remote_dir(dir)?;
        self.ask(
            |lease, _| Ok(Ask::IsMount { dir: at.resolve(lease)? }),
            |answer, _| match answer {
                Answer::Count { count } => Some(count != 0),
                _ => None,
            },
        )
    }

    fn set_meta(&self, at: At<'_>, set: &SetMeta) -> EndResult<()> {
        self.dressed(at, set, &[]).map(drop)
    }

    fn set_xattr(&self, at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()> {
        let refused = self.dressed(at, &SetMeta::default(), &[(name.to_vec(), value.to_vec())])?;
        refused.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    fn pack_limits(&self) -> PackLimits {
        PACK
    }

    fn workers_wanted(&self) -> usize {
        2 * self.lines.options().streams
    }

    fn checksum(
        &self,
        file: &FileRef,
        range: Range<u64>,
        dense: bool,
        _buf: &mut [u8],
    ) -> EndResult<Option<u32>> {
        let file = remote_file(file)?;
        let Range { start, end } = range;
        self.ask(
            |lease, _| Ok(Ask::Checksum { file: file.resolve(lease)?, start, end, dense }),
            |answer, _| match answer {
                Answer::Sum { crc } => Some(crc),
                _ => None,
            },
        )
    }

    fn reader<'a>(&'a self, file: &'a FileRef, range: Range<u64>) -> Box<dyn ReadRange + 'a> {
        if range.end - range.start <= BLOCK as u64 {
            return Box::new(PlainReader::new(self, file, range));
        }
        Box::new(Reader::new(self, file, range))
    }

    fn writer<'a>(&'a self, file: &'a FileRef) -> Box<dyn WritePieces + 'a> {
        Box::new(Writer::new(self, file))
    }

    fn stat_files(&self, names: &[Name<'_>]) -> Vec<EndResult<Meta>> {
        self.exchange_many(names, |names, lease| {
            let names = places(names, lease)?;
            match lease.ask(&Ask::StatFiles { names })? {
                Answer::Stats { results: stats } => Ok(results(stats, self)),
                _ => Err(unexpected()),
            }
        })
    }

    fn get_files(&self, names: &[Name<'_>], limits: &PackLimits) -> Vec<EndResult<Got>> {
        self.exchange_many(names, |names, lease| self.get_some(names, limits, lease))
    }

    fn put_files(&self, mut files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        let mut written = Vec::with_capacity(files.len());
        while !files.is_empty() {
            let (some, rest) = files.split_at(fitting(files));
            written.extend(self.put_some(some, how));
            files = rest;
        }
        written
    }

    fn name_files(&self, files: &[Naming<'_>]) -> Vec<EndResult<()>> {
        let named = self.exchange_many(files, |files, lease| {
            let mut heads = Vec::with_capacity(files.len());
            for file in files {
                heads.push(NamingHead {
                    dir: remote_dir(file.at.dir)?.resolve(lease)?,
                    from: file.at.name.into(),
                    to: file.to.into(),
                    key: self.known(file),
                });
            }
            match lease.ask(&Ask::NameFiles { files: heads })? {
                Answer::Results { results: named } => Ok(results(named, self)),
                _ => Err(unexpected()),
            }
        });
        let forget = |(file, named): (&Naming<'_>, EndResult<_>)| named.map(|_| self.forget(file.at.name));
        files.iter().zip(named).map(forget).collect()
    }

    fn enter_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<(DirRef, Meta)> {
        let (opened, meta, _) =
            self.open_dir_with(dir, name, |dir, name| Ask::EnterDir { dir, name, list: true })?;
        Ok((opened, meta))
    }

    fn make_or_enter_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<(DirRef, bool)> {
        let make = |dir, name| Ask::MakeOrEnterDir { dir, name };
        let (opened, _, fresh) = self.open_dir_with(dir, name, make)?;
        Ok((opened, fresh))
    }

    fn look(&self, at: At<'_>) -> EndResult<(Meta, EndResult<Vec<Xattr>>)> {
        self.ask(
            |lease, _| Ok(Ask::Look { at: spot(at, lease)? }),
            |answer, _| match answer {
                Answer::Looked { meta, xattrs } => {
                    Some((meta, xattrs.0.map_err(|error| self.lines.named(error))))
                }
                _ => None,
            },
        )
    }

    fn dress(&self, at: At<'_>, set: &SetMeta, xattrs: &[Xattr]) -> EndResult<Vec<Refused>> {
        self.dressed(at, set, xattrs)
    }

    fn finish_dir(&self, dir: &DirRef, dress: Option<(&SetMeta, &[Xattr])>) -> EndResult<Vec<Refused>> {
        let dir = remote_dir(dir)?;
        let clothes = dress.map(|(set, xattrs)| Clothes { set: *set, xattrs: xattrs.to_vec() });
        let refused = self.ask(
            |lease, _| Ok(Ask::FinishDir { dir: dir.resolve(lease)?, clothes: clothes.clone() }),
            |answer, _| match answer {
                Answer::Dressed { refused } => Some(refused),
                _ => None,
            },
        )?;
        Ok(refused.into_iter().map(|(name, error)| (name, self.lines.named(error))).collect())
    }
}
