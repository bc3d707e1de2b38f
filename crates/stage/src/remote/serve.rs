//! Answering what a client asks, with an end of this node.

use super::fabric::Fabric;
use super::message::{
    Answer, Ask, Clothes, GotHead, NamingHead, Nothing, OpenHow, Page, Place, PutHead, ROOT, Spot, Told,
};
use super::session::Session;
use crate::compound;
use crate::end::{At, DirRef, EndError, EndResult, FileRef, Name, Naming, PackLimits, Put, PutHow, Written};
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tidepool_transport::random_bytes;
use tidepool_transport::remote::{Aside, BULK_MAX, Channel, META_MAX, Sealed};
use tidepool_types::{Errno, FileKind};

/// Bytes read at a time for a checksum.
const SUM_STEP: usize = 512 << 10;
/// Most bytes of attributes in one answer; what has more is asked for one by one.
const XATTRS_PACKED_MAX: usize = 64 << 10;

/// An answer and its bulk data.
struct Reply {
    answer: Answer,
    bulk: Vec<Vec<u8>>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Reply {
        Reply { answer, bulk: Vec::new() }
    }
}

fn refuse(errno: Errno, why: &str) -> EndError {
    EndError { errno, operation: "check the request", detail: Some(why.into()) }
}

/// A name of one entry and nothing else, whoever sends it.
fn check_name(name: &[u8]) -> EndResult<&[u8]> {
    let bad = matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0);
    if bad { Err(refuse(Errno::EINVAL, "not the name of an entry")) } else { Ok(name) }
}

/// Where no file has anything.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A range of a file's bytes, whoever sends it.
fn check_range(start: u64, end: u64) -> EndResult<Range<u64>> {
    let possible = start <= end && end <= OFFSET_MAX;
    if possible { Ok(start..end) } else { Err(refuse(Errno::EINVAL, "not a range of a file")) }
}

fn check_bytes(offset: u64, len: usize) -> EndResult<()> {
    check_range(offset, offset.saturating_add(len as u64)).map(drop)
}

fn changes_something(ask: &Ask) -> bool {
    !matches!(
        ask,
        Ask::Ping {}
            | Ask::Close { .. }
            | Ask::EnterDir { .. }
            | Ask::List { .. }
            | Ask::Stat { .. }
            | Ask::Look { .. }
            | Ask::ReadLink { .. }
            | Ask::OpenFile { how: OpenHow::Read, .. }
            | Ask::Read { .. }
            | Ask::NextData { .. }
            | Ask::NextHole { .. }
            | Ask::Checksum { .. }
            | Ask::StatFiles { .. }
            | Ask::GetFiles { .. }
    )
}

fn told<T>(results: Vec<EndResult<T>>) -> Vec<Told<T>> {
    results.into_iter().map(Told).collect()
}

fn nothing(results: Vec<EndResult<()>>) -> Vec<Told<Nothing>> {
    results.into_iter().map(|result| Told(result.map(|()| Nothing))).collect()
}

/// An entry's directory, opened, and its name.
type Named = (DirRef, Box<[u8]>);

fn names(places: &[Named]) -> Vec<Name<'_>> {
    places.iter().map(|(dir, name)| Name { dir, name }).collect()
}

/// A way for large data, and the answer that tells the client of it.
fn open_fabric(
    fabric: Option<&Fabric>,
    stream: &TcpStream,
    (provider, name, there): (&str, &[u8], u64),
) -> EndResult<(Box<dyn Aside>, Answer)> {
    let fabric = fabric.filter(|fabric| fabric.provider() == provider);
    let fabric = fabric.ok_or_else(|| refuse(Errno::EOPNOTSUPP, &format!("no fabric '{provider}' here")))?;
    let here = u64::from_le_bytes(random_bytes());
    let way = fabric.way(stream, name, here, there);
    let way = way.map_err(|error| refuse(Errno::EOPNOTSUPP, &error.to_string()))?;
    Ok((way, Answer::Fabric { name: fabric.name().into(), tag: here }))
}

/// Answers a client that offers a fabric; large data go that way from the next frame on.
fn answer_fabric(
    fabric: Option<&Fabric>,
    channel: &mut Channel<Sealed<TcpStream>>,
    id: u32,
    theirs: (&str, &[u8], u64),
) -> io::Result<()> {
    let (way, answer) = match open_fabric(fabric, channel.get_ref().get_ref(), theirs) {
        Ok((way, answer)) => (Some(way), answer),
        Err(error) => (None, Answer::Failed { error }),
    };
    channel.send(answer.kind(), id, |out| answer.encode(out), &[])?;
    if let Some(way) = way {
        channel.go_aside(way);
    }
    Ok(())
}

impl Session {
    /// Answers until the client is gone. `fabric` is offered to clients that have the same.
    pub fn serve(
        &self,
        channel: &mut Channel<Sealed<TcpStream>>,
        mut fabric: Option<&Fabric>,
    ) -> io::Result<()> {
        loop {
            let head = match channel.receive() {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            };
            if self.serving.is_over.load(Ordering::Acquire) {
                return Ok(());
            }
            let ask = Ask::decode(head.kind, channel.meta());
            let bulk = channel.bulk(&head)?;
            let ask = ask.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Ask::Close { dirs, files } = &ask {
                let closed = self.table.close(dirs, files);
                closed.iter().for_each(|dir| self.serving.end.leave_dir(dir));
                continue;
            }
            if let Ask::OpenFabric { provider, name, tag } = &ask {
                // Once: from then on all large data go that way.
                answer_fabric(fabric.take(), channel, head.id, (provider, name, *tag))?;
                continue;
            }
            let reply = self.reply(ask, &bulk).unwrap_or_else(|error| Answer::Failed { error }.into());
            self.send(channel, head.id, &reply)?;
        }
    }

    fn send(&self, channel: &mut Channel<Sealed<TcpStream>>, id: u32, reply: &Reply) -> io::Result<()> {
        let mut fields = Vec::new();
        reply.answer.encode(&mut fields);
        if fields.len() > META_MAX {
            let error = EndError::new("answer", Errno::E2BIG);
            let failed = Answer::Failed { error };
            return channel.send(failed.kind(), id, |out| failed.encode(out), &[]);
        }
        let bulk: Vec<&[u8]> = reply.bulk.iter().map(Vec::as_slice).collect();
        channel.send(reply.answer.kind(), id, |out| out.extend_from_slice(&fields), &bulk)
    }

    fn reply(&self, ask: Ask, bulk: &[u8]) -> EndResult<Reply> {
        if !self.serving.write && changes_something(&ask) {
            return Err(refuse(Errno::EROFS, "the dataspace was opened for reading only"));
        }
        match ask {
            Ask::Read { file, offset, len } => self.read(file, offset, len),
            Ask::GetFiles { names, limits } => self.get_files(names, limits),
            Ask::Write { file, offset } => self.write(file, offset, bulk).map(Reply::from),
            Ask::PutFiles { files, verify } => self.put_files(files, bulk, verify).map(Reply::from),
            ask => self.answer(ask).map(Reply::from),
        }
    }

    fn answer(&self, ask: Ask) -> EndResult<Answer> {
        let (end, table) = (&*self.serving.end, &self.table);
        Ok(match ask {
            Ask::Ping {} => Answer::Done {},
            Ask::EnterDir { dir, name, list } => {
                let (opened, meta) = end.enter_dir(&table.dir(dir)?, check_name(&name)?)?;
                let dir = table.add_dir(opened)?;
                // Errors are told when the listing is asked for.
                let first = if list { self.list(dir, &Place::Start).ok() } else { None };
                Answer::Dir { dir, meta, fresh: false, first }
            }
            Ask::MakeOrEnterDir { dir, name } => {
                let (opened, fresh) = end.make_or_enter_dir(&table.dir(dir)?, check_name(&name)?)?;
                let meta = end.stat(At::Dir(&opened))?;
                Answer::Dir { dir: table.add_dir(opened)?, meta, fresh, first: None }
            }
            Ask::FinishDir { dir, clothes } => {
                let clothes = clothes.as_ref().map(|c| (&c.set, c.xattrs.as_slice()));
                Answer::Dressed { refused: end.finish_dir(&table.dir(dir)?, clothes)? }
            }
            Ask::List { dir, from } => {
                let (items, next) = self.list(dir, &from)?;
                Answer::Listed { items, next }
            }
            Ask::Stat { at } => Answer::Attributes { meta: self.at(&at, |at| end.stat(at))? },
            Ask::Look { at } => {
                let (meta, xattrs) = self.at(&at, |at| end.look(at))?;
                Answer::Looked { meta, xattrs: Told(xattrs) }
            }
            Ask::ReadLink { dir, name } => {
                Answer::Target { target: end.read_link(&table.dir(dir)?, check_name(&name)?)?.into() }
            }
            Ask::Dress { at, clothes: Clothes { set, xattrs } } => {
                Answer::Dressed { refused: self.at(&at, |at| end.dress(at, &set, &xattrs))? }
            }
            Ask::OpenFile { dir, name, how } => self.open_file(dir, &name, how)?,
            Ask::NextData { file, offset } => {
                check_bytes(offset, 0)?;
                Answer::Offset { at: end.next_data(&table.file(file)?, offset)? }
            }
            Ask::NextHole { file, offset, limit } => {
                check_range(offset, limit)?;
                Answer::Offset { at: Some(end.next_hole(&table.file(file)?, offset, limit)?) }
            }
            Ask::Checksum { file, start, end, dense } => {
                self.checksum(file, check_range(start, end)?, dense)?
            }
            Ask::IsMount { dir } => Answer::Count { count: end.is_mount(&table.dir(dir)?)?.into() },
            Ask::StatFiles { names: list } => {
                let places = self.places(list)?;
                Answer::Stats { results: told(end.stat_files(&names(&places))) }
            }
            Ask::NameFiles { files } => Answer::Results { results: nothing(self.name_files(&files)?) },
            Ask::OpenRoot { .. }
            | Ask::JoinRoot { .. }
            | Ask::OpenFabric { .. }
            | Ask::Close { .. }
            | Ask::Read { .. }
            | Ask::Write { .. }
            | Ask::GetFiles { .. }
            | Ask::PutFiles { .. } => return Err(refuse(Errno::EPROTO, "not here")),
            ask => self.change(ask)?,
        })
    }

    fn list(&self, dir: u32, from: &Place) -> EndResult<Page> {
        let (items, next) = self.serving.end.list(&self.table.dir(dir)?, &self.table.cursor(dir, from)?)?;
        Ok((items, next.map(|cursor| self.table.keep_place(dir, cursor)).transpose()?))
    }

    /// Single changes.
    fn change(&self, ask: Ask) -> EndResult<Answer> {
        let (end, table) = (&*self.serving.end, &self.table);
        match ask {
            Ask::Truncate { size, .. } if size > OFFSET_MAX => {
                return Err(refuse(Errno::EFBIG, "no file is so large"));
            }
            Ask::Truncate { file, size } => end.truncate(&table.file(file)?, size)?,
            Ask::Sync { files } => {
                let files = files.iter().map(|file| table.file(*file)).collect::<EndResult<Vec<_>>>()?;
                let files: Vec<&FileRef> = files.iter().collect();
                return Ok(Answer::Results { results: nothing(end.fsync_many(&files)) });
            }
            Ask::SyncDir { dir } => end.fsync_dir(&table.dir(dir)?)?,
            Ask::SyncAll {} => end.fsync_all()?,
            Ask::MakeDir { dir, name } => end.make_dir(&table.dir(dir)?, check_name(&name)?)?,
            Ask::MakeSymlink { dir, name, target } => {
                let dir = table.dir(dir)?;
                end.make_symlink(&dir, check_name(&name)?, &target)?;
                return self.made(&dir, &name);
            }
            Ask::MakeNode { dir, name, kind, rdev } => {
                if matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
                    return Err(refuse(Errno::EINVAL, "not a kind of node"));
                }
                let dir = table.dir(dir)?;
                end.make_node(&dir, check_name(&name)?, kind, rdev)?;
                return self.made(&dir, &name);
            }
            Ask::MakeLink { old_dir, old, dir, name } => {
                let (old_dir, dir) = (table.dir(old_dir)?, table.dir(dir)?);
                end.make_link((&old_dir, check_name(&old)?), (&dir, check_name(&name)?))?;
                return self.made(&dir, &name);
            }
            Ask::RemoveDir { dir, name } => end.remove_dir(&table.dir(dir)?, check_name(&name)?)?,
            Ask::Unlink { dir, name } => end.unlink(&table.dir(dir)?, check_name(&name)?)?,
            _ => return Err(refuse(Errno::EPROTO, "unknown request")),
        }
        Ok(Answer::Done {})
    }

    fn made(&self, dir: &DirRef, name: &[u8]) -> EndResult<Answer> {
        Ok(Answer::Made { key: self.serving.end.stat(At::Name(dir, name))?.key() })
    }

    /// Does something with what a spot names.
    fn at<T>(&self, spot: &Spot, act: impl FnOnce(At<'_>) -> EndResult<T>) -> EndResult<T> {
        match spot {
            Spot::File(file) => act(At::File(&self.table.file(*file)?)),
            Spot::Dir(dir) => act(At::Dir(&self.table.dir(*dir)?)),
            Spot::Name(dir, name) => act(At::Name(&self.table.dir(*dir)?, check_name(name)?)),
        }
    }

    fn places(&self, list: Vec<(u32, Box<[u8]>)>) -> EndResult<Vec<Named>> {
        let place = |(dir, name): (u32, Box<[u8]>)| {
            check_name(&name)?;
            Ok((self.table.dir(dir)?, name))
        };
        list.into_iter().map(place).collect()
    }

    fn open_file(&self, dir: u32, name: &[u8], how: OpenHow) -> EndResult<Answer> {
        let (end, dir, name) = (&self.serving.end, self.table.dir(dir)?, check_name(name)?);
        let file = match how {
            OpenHow::Read => end.open_read(&dir, name)?,
            OpenHow::Write => end.open_write(&dir, name)?,
            OpenHow::Create => end.create(&dir, name)?,
        };
        let meta = end.stat(At::File(&file))?;
        Ok(Answer::File { file: self.table.add_file(file)?, meta })
    }

    fn read(&self, file: u32, offset: u64, len: u32) -> EndResult<Reply> {
        let len = len as usize;
        if len > BULK_MAX {
            return Err(refuse(Errno::EINVAL, "more than one answer holds"));
        }
        check_bytes(offset, len)?;
        let file = self.table.file(file)?;
        let mut data = vec![0; len];
        let count = self.serving.end.read(&file, offset, &mut data)?;
        data.truncate(count);
        Ok(Reply { answer: Answer::Data { offset }, bulk: vec![data] })
    }

    fn write(&self, file: u32, offset: u64, data: &[u8]) -> EndResult<Answer> {
        check_bytes(offset, data.len())?;
        self.charge(data.len() as u64)?;
        compound::write_all(&*self.serving.end, &self.table.file(file)?, offset, data)?;
        Ok(Answer::Count { count: data.len() as u32 })
    }

    fn charge(&self, bytes: u64) -> EndResult<()> {
        self.serving.charge.as_ref().map_or(Ok(()), |limits| limits.charge(bytes))
    }

    fn checksum(&self, file: u32, range: Range<u64>, dense: bool) -> EndResult<Answer> {
        let file = self.table.file(file)?;
        let room = range.end.saturating_sub(range.start).min(SUM_STEP as u64) as usize;
        let crc = self.serving.end.checksum(&file, range, dense, &mut vec![0; room])?;
        Ok(Answer::Sum { crc })
    }

    fn get_files(&self, list: Vec<(u32, Box<[u8]>)>, limits: PackLimits) -> EndResult<Reply> {
        let places = self.places(list)?;
        let limits = PackLimits { bytes: limits.bytes.min(BULK_MAX as u64), ..limits };
        let mut bulk = Vec::new();
        let mut packed = 0;
        let got = self.serving.end.get_files(&names(&places), &limits);
        let results = got.into_iter().map(|got| {
            Told(got.map(|got| {
                let content = got.content.filter(|content| {
                    let xattrs = content.xattrs.iter().flatten();
                    packed += xattrs.map(|(name, value)| name.len() + value.len()).sum::<usize>();
                    packed <= XATTRS_PACKED_MAX
                });
                let content = content.map(|content| {
                    let len = content.data.len() as u32;
                    bulk.push(content.data);
                    (len, Told(content.xattrs))
                });
                GotHead { meta: got.meta, content }
            }))
        });
        let results = results.collect();
        Ok(Reply { answer: Answer::Gots { results }, bulk })
    }

    fn put_files(&self, heads: Vec<PutHead>, mut bulk: &[u8], verify: bool) -> EndResult<Answer> {
        let dirs = heads.iter().map(|head| self.table.dir(head.dir)).collect::<EndResult<Vec<_>>>()?;
        let mut puts = Vec::with_capacity(heads.len());
        for (head, dir) in heads.iter().zip(&dirs) {
            let (data, rest) = bulk
                .split_at_checked(head.len as usize)
                .ok_or_else(|| refuse(Errno::EINVAL, "less data than said"))?;
            bulk = rest;
            let at = Name { dir, name: check_name(&head.name)? };
            let Clothes { set, xattrs } = &head.clothes;
            puts.push(Put { at, data, crc: head.crc, set: *set, xattrs });
        }
        if let Err(error) = self.charge(puts.iter().map(|put| put.data.len() as u64).sum()) {
            let results: Vec<EndResult<Written>> = puts.iter().map(|_| Err(error.clone())).collect();
            return Ok(Answer::Puts { results: told(results) });
        }
        let results: Vec<EndResult<Written>> =
            self.serving.end.put_files(&puts, PutHow { verify, keys: true });
        Ok(Answer::Puts { results: told(results) })
    }

    fn name_files(&self, files: &[NamingHead]) -> EndResult<Vec<EndResult<()>>> {
        let mut dirs = Vec::with_capacity(files.len());
        for file in files {
            check_name(&file.from)?;
            check_name(&file.to)?;
            dirs.push(self.table.dir(file.dir)?);
        }
        let namings: Vec<Naming<'_>> = files
            .iter()
            .zip(&dirs)
            .map(|(f, dir)| Naming { at: Name { dir, name: &f.from }, to: &f.to, key: f.key })
            .collect();
        let mut results = self.serving.end.name_files(&namings);
        for (naming, result) in namings.iter().zip(&mut results) {
            if matches!(result, Err(error) if error.errno == Errno::ENOENT) && self.is_named(naming) {
                *result = Ok(());
            }
        }
        if let Some(limits) = &self.serving.charge {
            let named = files.iter().zip(&results).filter(|(_, result)| result.is_ok());
            named.for_each(|(file, _)| limits.named((file.dir == ROOT).then_some(&*file.to)));
        }
        Ok(results)
    }

    /// The rename has happened before: its answer was lost and it is asked for again.
    fn is_named(&self, naming: &Naming<'_>) -> bool {
        let there = self.serving.end.stat(At::Name(naming.at.dir, naming.to));
        naming.key.is_some_and(|key| there.is_ok_and(|meta| meta.key() == key))
    }
}
