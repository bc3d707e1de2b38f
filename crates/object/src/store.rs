//! One bucket: what is asked of the service, as blocking calls.
//!
//! `opendal`'s innermost interface is used, because the one above it trims white space off keys
//! and refuses metadata on keys that end in '/'.

use crate::attrs::Attrs;
use crate::multipart::{Part, Service, Started};
use crate::patience::{Patience, Tries};
use crate::refusal::Failure;
use crate::url::ObjectUrl;
use crate::wire::Wire;
use crate::{Credentials, PARTS_AT_ONCE, THREADS};
use opendal::layers::TimeoutLayer;
use opendal::raw::oio::{Copy, Delete, List, Read, Write};
use opendal::raw::{
    Access, Accessor, BytesRange, HttpClient, OpCopier, OpCopy, OpCreateDir, OpDelete, OpList, OpRead,
    OpStat, OpWrite, oio,
};
use opendal::{Buffer, Capability, ErrorKind, Metadata, Operator, services};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidepool_stage::{Control, EndError, EndResult};
use tidepool_types::{Errno, TimeSpec};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// Time after which a request without data counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a piece of data counts as failed: a part on a slow line.
const DATA_TIMEOUT: Duration = Duration::from_secs(120);
/// The service whose directories are objects with metadata.
const S3: &str = "s3";

/// What a key stands for.
pub(crate) struct Head {
    pub size: u64,
    /// Of what was written last: another one after each change.
    pub etag: String,
    pub modified: Option<TimeSpec>,
    pub attrs: Attrs,
}

/// A key below a prefix, up to the next '/'.
pub(crate) struct Listed {
    pub key: String,
    pub size: u64,
}

/// An object's data on its way here.
pub(crate) struct Download {
    /// None before the first request, and after a connection broke.
    reader: Option<oio::Reader>,
    /// Bytes that are to come yet.
    range: Range<u64>,
    piece: Buffer,
}

/// An object's data on its way there.
pub(crate) enum Sink {
    Writer(oio::Writer),
    Parts(Parts),
}

/// An upload whose parts may be there already, of a run before this one.
pub(crate) struct Parts {
    upload: Started,
    /// What the service had when this run began.
    had: BTreeMap<u32, Part>,
    done: BTreeMap<u32, Part>,
    last: u32,
    on_their_way: JoinSet<Result<(u32, Part), Failure>>,
}

pub(crate) struct Store {
    runtime: Runtime,
    accessor: Accessor,
    patience: Arc<Patience>,
    /// None for services other than S3.
    service: Option<Arc<Service>>,
    bucket: String,
    /// For people.
    pub name: String,
    /// Objects keep user metadata.
    pub keeps_metadata: bool,
    /// Directories are objects, too.
    pub marks_directories: bool,
    /// Time of what has none.
    pub opened: TimeSpec,
}

pub(crate) fn timespec(time: SystemTime) -> TimeSpec {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeSpec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

fn choose_cryptography() {
    // Another part of the process may have chosen already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The file service and the root of a bucket name their root so.
fn place(key: &str) -> &str {
    if key.is_empty() { "/" } else { key }
}

impl Store {
    pub fn connect(url: &ObjectUrl) -> EndResult<Store> {
        let refuse =
            |errno, detail: String| EndError { errno, operation: "open bucket", detail: Some(detail) };
        let mut builder = services::S3::default()
            .bucket(&url.bucket)
            .endpoint(&url.endpoint)
            .region(&url.region)
            .disable_config_load()
            .disable_ec2_metadata();
        if url.virtual_host {
            builder = builder.enable_virtual_host_style();
        }
        if url.checksum {
            builder = builder.checksum_algorithm("crc32c");
        }
        let keys = if url.anonymous {
            builder = builder.skip_signature();
            None
        } else {
            let found = url.credentials.as_ref().map_or_else(Credentials::from_env, |f| Credentials::read(f));
            let found = found.map_err(|error| refuse(Errno::EACCES, error.to_string()))?;
            builder = builder.access_key_id(&found.key_id).secret_access_key(&found.secret);
            if let Some(token) = &found.token {
                builder = builder.session_token(token);
            }
            Some(found)
        };
        choose_cryptography();
        let operator = Operator::new(builder).map_err(|e| refuse(Errno::EINVAL, e.to_string()))?.finish();
        let info = operator.inner().info();
        // Otherwise a layer in between answers for directories, without asking for their metadata.
        info.set_native_capability(Capability { create_dir: true, ..info.native_capability() });
        info.update_http_client(|client| HttpClient::with(Wire(client)));
        let service = Service::new(url, keys.as_ref(), info.http_client(), DATA_TIMEOUT);
        let name = format!("s3://{} at {}", url.bucket, url.endpoint);
        Store::new(operator, name, Some(service), (&url.bucket, url.patience))
    }

    pub fn of_service(service: impl opendal::Builder, name: &str) -> EndResult<Store> {
        choose_cryptography();
        let failed = |error| Failure::of(error, None).into_error("open service", name, "");
        let operator = Operator::new(service).map_err(failed)?.finish();
        Store::new(operator, name.to_string(), None, (name, Duration::ZERO))
    }

    fn new(
        operator: Operator,
        name: String,
        service: Option<Service>,
        (bucket, patience): (&str, Duration),
    ) -> EndResult<Store> {
        let built =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("object").enable_all().build();
        let runtime = built.map_err(|e| EndError::new("start threads", Errno::from(e)))?;
        let timeout = TimeoutLayer::new().with_timeout(REQUEST_TIMEOUT).with_io_timeout(DATA_TIMEOUT);
        let operator = operator.layer(timeout);
        let keeps_metadata = operator.info().full_capability().write_with_user_metadata;
        let marks_directories = operator.info().scheme() == S3;
        let accessor = operator.into_inner();
        Ok(Store {
            runtime,
            accessor,
            patience: Arc::new(Patience::new(patience)),
            service: service.map(Arc::new),
            bucket: bucket.to_string(),
            name,
            keeps_metadata,
            marks_directories,
            opened: timespec(SystemTime::now()),
        })
    }

    /// Waits for a service no longer than this copy goes on.
    pub fn heed(&self, control: &Control) {
        self.patience.heed(control);
    }

    fn failed(&self, operation: &'static str, key: &str) -> impl Fn(Failure) -> EndError {
        move |failure| failure.into_error(operation, &self.bucket, key)
    }

    fn run<T>(
        &self,
        operation: &'static str,
        key: &str,
        work: impl AsyncFnMut() -> opendal::Result<T>,
    ) -> EndResult<T> {
        self.runtime.block_on(self.patience.ask(work)).map_err(self.failed(operation, key))
    }

    /// None when there is nothing under the key.
    pub fn head(&self, key: &str) -> EndResult<Option<Head>> {
        let work = async || match self.accessor.stat(place(key), OpStat::new()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(|found| Some(found.into_metadata())),
        };
        let found = self.run("stat", key, work)?;
        // The file service has directories, which are no objects.
        Ok(found.filter(|meta| key.ends_with('/') || !meta.is_dir()).map(|meta| head_of(&meta)))
    }

    /// Keys below `dir`, up to `max` if given; those with more below them end in '/'.
    pub fn list(&self, dir: &str, max: Option<usize>) -> EndResult<Vec<Listed>> {
        let mut args = OpList::new();
        if let Some(max) = max {
            // The prefix itself may be one of them.
            args = args.with_limit(max + 1);
        }
        let listed = || -> EndResult<Vec<Listed>> {
            let (_, mut lister) =
                self.run("list", dir, async || self.accessor.list(place(dir), args.clone()).await)?;
            let mut found = Vec::new();
            while let Some(entry) = self.run("list", dir, async || lister.next().await)? {
                let (key, meta) = entry.into_parts();
                if key != place(dir) {
                    found.push(Listed { key, size: meta.content_length() });
                }
                if max.is_some_and(|max| found.len() >= max) {
                    break;
                }
            }
            Ok(found)
        };
        match listed() {
            Err(error) if error.errno == Errno::ENOENT => Ok(Vec::new()),
            other => other,
        }
    }

    pub fn download(&self, key: &str, range: Range<u64>) -> EndResult<Download> {
        let mut download = Download { reader: None, range, piece: Buffer::new() };
        self.refill(key, &mut download)?;
        Ok(download)
    }

    /// Next bytes; 0 at the end of what was asked for.
    pub fn receive(&self, key: &str, from: &mut Download, buf: &mut [u8]) -> EndResult<usize> {
        if from.piece.is_empty() {
            self.refill(key, from)?;
        }
        let bytes = from.piece.current();
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        drop(from.piece.split_to(count));
        Ok(count)
    }

    /// The next piece, through a new connection where the old one broke.
    fn refill(&self, key: &str, from: &mut Download) -> EndResult<()> {
        if from.range.is_empty() {
            return Ok(());
        }
        let Download { reader, range, .. } = from;
        let next = async || {
            if reader.is_none() {
                let bytes = BytesRange::new(range.start, Some(range.end - range.start));
                let opened = self.accessor.read(key, OpRead::new().with_range(bytes)).await?;
                *reader = Some(opened.1);
            }
            let Some(open) = reader.as_mut() else { return Ok(Buffer::new()) };
            let piece = open.read().await;
            if piece.is_err() {
                *reader = None;
            }
            piece
        };
        let piece = self.run("read", key, next)?;
        from.range.start += piece.len() as u64;
        from.piece = piece;
        Ok(())
    }

    /// A whole object in one request; it appears when all of it has arrived.
    pub fn put(&self, key: &str, data: Vec<u8>, attrs: &Attrs) -> EndResult<()> {
        let data = Buffer::from(data);
        let work = async || {
            let (_, mut writer) = self.accessor.write(key, self.write_args(attrs)).await?;
            if !data.is_empty() {
                writer.write(data.clone()).await?;
            }
            writer.close().await.map(drop)
        };
        self.run("write", key, work)
    }

    fn write_args(&self, attrs: &Attrs) -> OpWrite {
        let args = OpWrite::new().with_concurrent(PARTS_AT_ONCE);
        if self.keeps_metadata { args.with_user_metadata(attrs.encode()) } else { args }
    }

    /// The object that marks a directory.
    pub fn put_dir(&self, key: &str, attrs: &Attrs) -> EndResult<()> {
        if self.marks_directories {
            return self.put(key, Vec::new(), attrs);
        }
        self.run("make directory", key, async || self.accessor.create_dir(key, OpCreateDir::new()).await)
            .map(drop)
    }

    /// Begins an upload in parts, in order, or takes up the one that an earlier run began under this key.
    pub fn upload(&self, key: &str, attrs: &Attrs) -> EndResult<Sink> {
        let Some(service) = &self.service else {
            let open = async || self.accessor.write(key, self.write_args(attrs)).await;
            return self.run("write", key, open).map(|(_, writer)| Sink::Writer(writer));
        };
        let old = self.started(service, key)?.into_iter().filter(|upload| upload.key == key);
        let mut parts = None;
        for upload in old.rev() {
            let had = match parts {
                None => self.parts_of(service, &upload),
                Some(_) => None,
            };
            match had {
                Some(had) => parts = Some((upload, had)),
                None => self.abort_started(service, &upload)?,
            }
        }
        let (upload, had) = match parts {
            Some(found) => found,
            None => (self.begin(service, key)?, BTreeMap::new()),
        };
        let (done, on_their_way) = (BTreeMap::new(), JoinSet::new());
        Ok(Sink::Parts(Parts { upload, had, done, last: 0, on_their_way }))
    }

    /// Uploads under keys that begin so. Who may not see them has none.
    fn started(&self, service: &Service, prefix: &str) -> EndResult<Vec<Started>> {
        match self.runtime.block_on(self.patience.ask(async || service.uploads(prefix).await)) {
            Err(failure) if failure.is_forbidden() => Ok(Vec::new()),
            other => other.map_err(self.failed("list uploads", prefix)),
        }
    }

    fn begin(&self, service: &Service, key: &str) -> EndResult<Started> {
        let mut again = false;
        let work = async || {
            // An answer that was lost has begun an upload, too.
            if std::mem::replace(&mut again, true)
                && let Ok(found) = service.uploads(key).await
                && let Some(begun) = found.into_iter().rfind(|upload| upload.key == key)
            {
                return Ok(begun);
            }
            service.begin(key).await
        };
        self.run("begin upload", key, work)
    }

    /// None when they cannot be seen, so that the upload is of no use.
    fn parts_of(&self, service: &Service, upload: &Started) -> Option<BTreeMap<u32, Part>> {
        self.runtime.block_on(self.patience.ask(async || service.parts(upload).await)).ok()
    }

    fn abort_started(&self, service: &Service, upload: &Started) -> EndResult<()> {
        let aborted = self.runtime.block_on(self.patience.ask(async || service.abort(upload).await));
        match aborted {
            Err(failure) if failure.has_code(&["NoSuchUpload"]) => Ok(()),
            Err(failure) => {
                let mut error = self.failed("abort upload", &upload.key)(failure);
                let why = error.detail.take().unwrap_or_default();
                error.detail = Some(format!("upload '{}' stays and takes up room: {why}", upload.id));
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Ends all uploads below a prefix that are open.
    pub fn abort_below(&self, prefix: &str) -> EndResult<()> {
        let Some(service) = &self.service else { return Ok(()) };
        self.started(service, prefix)?.iter().try_for_each(|upload| self.abort_started(service, upload))
    }

    pub fn send(&self, key: &str, to: &mut Sink, data: Vec<u8>) -> EndResult<()> {
        let data = Buffer::from(data);
        match (to, &self.service) {
            (Sink::Writer(writer), _) => self.run("write", key, async || writer.write(data.clone()).await),
            (Sink::Parts(parts), Some(service)) => {
                let sent = self.runtime.block_on(parts.send(service, &self.patience, data));
                sent.map_err(self.failed("write", key))
            }
            (Sink::Parts(_), None) => Err(EndError::new("write", Errno::EBADF)),
        }
    }

    pub fn complete(&self, key: &str, sink: &mut Sink, size: u64) -> EndResult<()> {
        let (parts, service) = match (sink, &self.service) {
            (Sink::Parts(parts), Some(service)) => (parts, service),
            (Sink::Writer(writer), _) => {
                return self.run("complete upload", key, async || writer.close().await).map(drop);
            }
            (Sink::Parts(_), None) => return Err(EndError::new("complete upload", Errno::EBADF)),
        };
        self.runtime.block_on(parts.arrive(0)).map_err(self.failed("write", key))?;
        let work = async || service.complete(&parts.upload, &parts.done).await;
        match self.runtime.block_on(self.patience.ask(work)) {
            Ok(()) => Ok(()),
            // An answer may have been lost. What is there is read back by whoever copies.
            Err(failure)
                if failure.has_code(&["NoSuchUpload"])
                    && self.head(key)?.is_some_and(|head| head.size == size) =>
            {
                Ok(())
            }
            Err(failure) => Err(self.failed("complete upload", key)(failure)),
        }
    }

    /// Gives an upload up: the service forgets what it has of it.
    pub fn abort(&self, key: &str, sink: &mut Sink) -> EndResult<()> {
        match (sink, &self.service) {
            (Sink::Writer(writer), _) => self.run("abort upload", key, async || writer.abort().await),
            (Sink::Parts(parts), Some(service)) => {
                // A part that arrives later would stay.
                self.runtime.block_on(parts.on_their_way.shutdown());
                self.abort_started(service, &parts.upload)
            }
            (Sink::Parts(_), None) => Ok(()),
        }
    }

    /// The same with other attributes, where the service can.
    pub fn copy_with(&self, from: &str, to: &str, attrs: &Attrs) -> EndResult<()> {
        match &self.service {
            Some(service) => self.run("copy object", to, async || service.copy(from, to, attrs).await),
            None => self.copy(from, to, None),
        }
    }

    /// A copy made by the service, with the metadata.
    pub fn copy(&self, from: &str, to: &str, size: Option<u64>) -> EndResult<()> {
        let mut how = OpCopier::new().with_concurrent(PARTS_AT_ONCE);
        if let Some(size) = size {
            how = how.with_source_content_length_hint(size);
        }
        let work = async || {
            let (_, mut copier) = self.accessor.copy(from, to, OpCopy::new(), how.clone()).await?;
            while copier.next().await?.is_some() {}
            copier.close().await.map(drop)
        };
        self.run("copy object", to, work)
    }

    pub fn delete(&self, key: &str) -> EndResult<()> {
        let work = async || {
            let (_, mut deleter) = self.accessor.delete().await?;
            deleter.delete(key, OpDelete::new()).await?;
            deleter.close().await
        };
        self.run("remove", key, work)
    }
}

impl Parts {
    /// Sends the next part, unless the service has it, when there is room on the way.
    async fn send(
        &mut self,
        service: &Arc<Service>,
        patience: &Arc<Patience>,
        data: Buffer,
    ) -> Result<(), Failure> {
        self.last += 1;
        let number = self.last;
        if let Some(had) = self.had.remove(&number)
            && let Some(same) = had.if_of(&data)
        {
            self.done.insert(number, same);
            return Ok(());
        }
        self.arrive(PARTS_AT_ONCE - 1).await?;
        let (service, patience, upload) = (service.clone(), patience.clone(), self.upload.clone());
        self.on_their_way.spawn(async move {
            let mut tries = Tries::default();
            loop {
                let sent = service.send_part(&upload, number, data.clone());
                if let Some(part) = patience.ask_once(&mut tries, sent).await? {
                    return Ok((number, part));
                }
            }
        });
        Ok(())
    }

    /// Waits until at most so many parts are on their way. After a failure, until none is: what
    /// has arrived need not be sent by the next run.
    async fn arrive(&mut self, most: usize) -> Result<(), Failure> {
        let mut failed = None;
        while self.on_their_way.len() > if failed.is_some() { 0 } else { most }
            && let Some(joined) = self.on_their_way.join_next().await
        {
            match joined {
                Ok(Ok((number, part))) => drop(self.done.insert(number, part)),
                Ok(Err(failure)) => drop(failed.get_or_insert(failure)),
                Err(error) => {
                    let lost = opendal::Error::new(ErrorKind::Unexpected, error.to_string());
                    failed.get_or_insert(Failure::of(lost, None));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

fn head_of(meta: &Metadata) -> Head {
    Head {
        size: meta.content_length(),
        etag: meta.etag().unwrap_or_default().to_string(),
        modified: meta.last_modified().map(|time| timespec(time.into())),
        attrs: meta.user_metadata().map(Attrs::decode).unwrap_or_default(),
    }
}
