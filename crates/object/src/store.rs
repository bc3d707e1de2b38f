//! One bucket: what is asked of the service, as blocking calls.
//!
//! `opendal`'s innermost interface is used, because the one above it trims white space off keys
//! and refuses metadata on keys that end in '/'.

use crate::attrs::Attrs;
use crate::url::ObjectUrl;
use crate::{Credentials, PARTS_AT_ONCE, THREADS};
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::raw::oio::{Copy, Delete, List, Read, Write};
use opendal::raw::{
    Access, Accessor, BytesRange, OpCopier, OpCopy, OpCreateDir, OpDelete, OpList, OpRead, OpStat, OpWrite,
    oio,
};
use opendal::{Buffer, Capability, ErrorKind, Metadata, Operator, services};
use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::ops::Range;
use std::time::{Duration, SystemTime};
use tidepool_stage::{EndError, EndResult};
use tidepool_types::{Errno, TimeSpec};
use tokio::runtime::{Builder, Runtime};

const RETRY_DELAY_MIN: Duration = Duration::from_millis(250);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(8);
/// Time after which a request without data counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a piece of data counts as failed: a part on a slow line.
const DATA_TIMEOUT: Duration = Duration::from_secs(120);
/// The service whose directories are objects with metadata.
const S3: &str = "s3";
/// Characters of a service's own words that are passed on.
const DETAIL_MAX: usize = 400;

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
    reader: oio::Reader,
    piece: Buffer,
}

pub(crate) struct Store {
    runtime: Runtime,
    accessor: Accessor,
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

/// One exhaustive mapping of what services say.
fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::PermissionDenied => Errno::EACCES,
        ErrorKind::IsADirectory => Errno::EISDIR,
        ErrorKind::NotADirectory => Errno::ENOTDIR,
        ErrorKind::AlreadyExists => Errno::EEXIST,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        // The only configuration the service can judge: no such bucket.
        ErrorKind::ConfigInvalid => Errno::ENODEV,
        ErrorKind::RateLimited => Errno::EBUSY,
        ErrorKind::ConditionNotMatch => Errno::ESTALE,
        _ => Errno::EIO,
    }
}

fn choose_cryptography() {
    // Another part of the process may have chosen already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn failed(operation: &'static str, key: &str, error: &opendal::Error) -> EndError {
    let plain = |text: String| text.chars().filter(|c| !c.is_control()).take(DETAIL_MAX).collect::<String>();
    // The first cause says most: a refused connection, an unknown certificate.
    let mut first: Option<&(dyn Error + 'static)> = error.source();
    while let Some(before) = first.and_then(Error::source) {
        first = Some(before);
    }
    let cause = first.map(|cause| format!(": {}", plain(cause.to_string()))).unwrap_or_default();
    let words = plain(error.to_string());
    EndError { errno: errno(error.kind()), operation, detail: Some(format!("'{key}': {words}{cause}")) }
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
        if url.anonymous {
            builder = builder.skip_signature();
        } else {
            let found = url.credentials.as_ref().map_or_else(Credentials::from_env, |f| Credentials::read(f));
            let found = found.map_err(|error| refuse(Errno::EACCES, error.to_string()))?;
            builder = builder.access_key_id(&found.key_id).secret_access_key(&found.secret);
            if let Some(token) = &found.token {
                builder = builder.session_token(token);
            }
        }
        choose_cryptography();
        let operator = Operator::new(builder).map_err(|e| refuse(Errno::EINVAL, e.to_string()))?.finish();
        // Otherwise a layer in between answers for directories, without asking for their metadata.
        let info = operator.inner().info();
        info.set_native_capability(Capability { create_dir: true, ..info.native_capability() });
        Store::new(operator, format!("s3://{} at {}", url.bucket, url.endpoint), url.retries)
    }

    pub fn of_service(service: impl opendal::Builder, name: &str) -> EndResult<Store> {
        choose_cryptography();
        let operator = Operator::new(service).map_err(|e| failed("open service", name, &e))?.finish();
        Store::new(operator, name.to_string(), 0)
    }

    fn new(operator: Operator, name: String, retries: usize) -> EndResult<Store> {
        let built =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("object").enable_all().build();
        let runtime = built.map_err(|e| EndError::new("start threads", Errno::from(e)))?;
        let retry = RetryLayer::new()
            .with_max_times(retries)
            .with_min_delay(RETRY_DELAY_MIN)
            .with_max_delay(RETRY_DELAY_MAX)
            .with_jitter();
        let timeout = TimeoutLayer::new().with_timeout(REQUEST_TIMEOUT).with_io_timeout(DATA_TIMEOUT);
        let operator = operator.layer(timeout).layer(retry);
        let keeps_metadata = operator.info().full_capability().write_with_user_metadata;
        let marks_directories = operator.info().scheme() == S3;
        let accessor = operator.into_inner();
        Ok(Store {
            runtime,
            accessor,
            name,
            keeps_metadata,
            marks_directories,
            opened: timespec(SystemTime::now()),
        })
    }

    fn run<T>(
        &self,
        operation: &'static str,
        key: &str,
        work: impl Future<Output = opendal::Result<T>>,
    ) -> EndResult<T> {
        self.runtime.block_on(work).map_err(|error| failed(operation, key, &error))
    }

    /// None when there is nothing under the key.
    pub fn head(&self, key: &str) -> EndResult<Option<Head>> {
        let work = async {
            match self.accessor.stat(place(key), OpStat::new()).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                other => other.map(|found| Some(found.into_metadata())),
            }
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
        let work = async {
            let (_, mut lister) = self.accessor.list(place(dir), args).await?;
            let mut found = Vec::new();
            while let Some(entry) = lister.next().await? {
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
        match self.run("list", dir, work) {
            Err(error) if error.errno == Errno::ENOENT => Ok(Vec::new()),
            other => other,
        }
    }

    pub fn download(&self, key: &str, range: Range<u64>) -> EndResult<Download> {
        let bytes = BytesRange::new(range.start, Some(range.end - range.start));
        let work = self.accessor.read(key, OpRead::new().with_range(bytes));
        self.run("read", key, work).map(|(_, reader)| Download { reader, piece: Buffer::new() })
    }

    /// Next bytes; 0 at the end of what was asked for.
    pub fn receive(&self, key: &str, from: &mut Download, buf: &mut [u8]) -> EndResult<usize> {
        if from.piece.is_empty() {
            from.piece = self.run("read", key, from.reader.read())?;
        }
        let bytes = from.piece.current();
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        drop(from.piece.split_to(count));
        Ok(count)
    }

    /// A whole object in one request; it appears when all of it has arrived.
    pub fn put(&self, key: &str, data: Vec<u8>, attrs: &Attrs) -> EndResult<()> {
        let mut upload = self.upload(key, attrs)?;
        if !data.is_empty() {
            self.send(key, &mut upload, data)?;
        }
        self.complete(key, &mut upload)
    }

    /// The object that marks a directory.
    pub fn put_dir(&self, key: &str, attrs: &Attrs) -> EndResult<()> {
        if self.marks_directories {
            return self.put(key, Vec::new(), attrs);
        }
        self.run("make directory", key, self.accessor.create_dir(key, OpCreateDir::new())).map(drop)
    }

    /// Begins an upload in parts, in order.
    pub fn upload(&self, key: &str, attrs: &Attrs) -> EndResult<oio::Writer> {
        let mut args = OpWrite::new().with_concurrent(PARTS_AT_ONCE);
        if self.keeps_metadata {
            let map: HashMap<String, String> = attrs.encode();
            args = args.with_user_metadata(map);
        }
        self.run("write", key, self.accessor.write(key, args)).map(|(_, writer)| writer)
    }

    pub fn send(&self, key: &str, upload: &mut oio::Writer, part: Vec<u8>) -> EndResult<()> {
        self.run("write", key, upload.write(Buffer::from(part)))
    }

    pub fn complete(&self, key: &str, upload: &mut oio::Writer) -> EndResult<()> {
        self.run("complete upload", key, upload.close()).map(drop)
    }

    /// Best effort: what it leaves behind only costs space, and the failure before it is the one to tell.
    pub fn abort(&self, key: &str, upload: &mut oio::Writer) {
        let _ = self.run("abort upload", key, upload.abort());
    }

    /// A copy made by the service, with the metadata.
    pub fn copy(&self, from: &str, to: &str, size: Option<u64>) -> EndResult<()> {
        let mut how = OpCopier::new().with_concurrent(PARTS_AT_ONCE);
        if let Some(size) = size {
            how = how.with_source_content_length_hint(size);
        }
        let work = async {
            let (_, mut copier) = self.accessor.copy(from, to, OpCopy::new(), how).await?;
            while copier.next().await?.is_some() {}
            copier.close().await.map(drop)
        };
        self.run("copy object", to, work)
    }

    pub fn delete(&self, key: &str) -> EndResult<()> {
        let work = async {
            let (_, mut deleter) = self.accessor.delete().await?;
            deleter.delete(key, OpDelete::new()).await?;
            deleter.close().await
        };
        self.run("remove", key, work)
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
