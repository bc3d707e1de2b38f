//! An S3 server in the tests' own process: the protocol and its signatures are those of the crate
//! `s3s`, the bucket is a map. It fails on demand.
#![allow(dead_code, reason = "each test file uses a part")]

use futures::TryStreamExt;
use http::header::RETRY_AFTER;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use md5::{Digest, Md5};
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::S3ServiceBuilder;
use s3s::{Body, S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};
use tidepool_object::ObjectUrl;
use tokio::runtime::Runtime;

pub const BUCKET: &str = "data";
pub const KEY_ID: &str = "TESTKEY";
pub const SECRET: &str = "test-secret";
/// Keys of one page of a listing: few, so that there are pages.
const PAGE: usize = 7;
const UPLOADS_PAGE: usize = 2;
const PARTS_PAGE: usize = 3;

#[derive(Clone)]
pub struct Stored {
    pub data: Vec<u8>,
    pub metadata: HashMap<String, String>,
    etag: u64,
    time: SystemTime,
}

struct Started {
    key: String,
    metadata: HashMap<String, String>,
    parts: BTreeMap<i32, Vec<u8>>,
}

/// What goes wrong.
#[derive(Default)]
pub struct Faults {
    /// All writing requests are refused with this status and code.
    pub refuse: Mutex<Option<(u16, &'static str)>>,
    /// So many requests are answered with 503 first.
    pub busy: AtomicUsize,
    /// Until then all are, and told to come back after so many seconds, if any.
    pub busy_until: Mutex<Option<(Instant, Option<u32>)>>,
    /// Answers with 503.
    pub refused: AtomicUsize,
    /// Data stored from now on has one bit changed.
    pub corrupt: AtomicBool,
    /// So many uploads are completed, and begun, with the answer lost.
    pub lose_complete: AtomicUsize,
    pub lose_begin: AtomicUsize,
    /// Nobody may end uploads, or see which there are.
    pub no_abort: AtomicBool,
    pub no_uploads: AtomicBool,
    /// Parts from this number on are refused for good.
    pub last_part: AtomicUsize,
    /// Parts after this number are answered with 503.
    pub busy_part: AtomicUsize,
}

#[derive(Default)]
pub struct Bucket {
    objects: Mutex<BTreeMap<String, Stored>>,
    uploads: Mutex<HashMap<String, Started>>,
    pub faults: Faults,
    pub parts_sent: AtomicUsize,
    counter: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Bucket {
    pub fn objects(&self) -> BTreeMap<String, Stored> {
        lock(&self.objects).clone()
    }

    pub fn uploads_left(&self) -> usize {
        lock(&self.uploads).len()
    }

    /// An upload that somebody has begun.
    pub fn begin(&self, id: &str, key: &str, parts: &[&[u8]]) {
        let parts = (1..).zip(parts.iter().map(|data| data.to_vec())).collect();
        let started = Started { key: key.to_string(), metadata: HashMap::new(), parts };
        lock(&self.uploads).insert(id.to_string(), started);
    }

    pub fn insert(&self, key: &str, data: &[u8]) {
        self.store(key, data.to_vec(), HashMap::new());
    }

    fn store(&self, key: &str, data: Vec<u8>, metadata: HashMap<String, String>) -> String {
        let etag = self.counter.fetch_add(1, Ordering::Relaxed);
        let stored = Stored { data, metadata, etag, time: SystemTime::now() };
        lock(&self.objects).insert(key.to_string(), stored);
        format!("\"{etag:032x}\"")
    }

    fn check(&self, bucket: &str, write: bool) -> S3Result<()> {
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        if one_of(&self.faults.busy) {
            return Err(s3_error!(SlowDown));
        }
        if let Some((until, after)) = *lock(&self.faults.busy_until)
            && Instant::now() < until
        {
            self.faults.refused.fetch_add(1, Ordering::Relaxed);
            let mut error = s3_error!(SlowDown);
            if let Some(after) = after {
                error.set_headers([(RETRY_AFTER, after.into())].into_iter().collect());
            }
            return Err(error);
        }
        if let Some((status, code)) = *lock(&self.faults.refuse)
            && write
        {
            return Err(refusal(status, code));
        }
        Ok(())
    }

    fn get(&self, key: &str) -> S3Result<Stored> {
        lock(&self.objects).get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }

    async fn receive(&self, body: Option<StreamingBlob>, crc: Option<String>) -> S3Result<Vec<u8>> {
        let mut data = Vec::new();
        if let Some(mut body) = body {
            while let Some(piece) = body.try_next().await.map_err(|_| s3_error!(IncompleteBody))? {
                data.extend_from_slice(&piece);
            }
        }
        if let Some(crc) = crc
            && crc != base64(&crc32c::crc32c(&data).to_be_bytes())
        {
            return Err(s3_error!(BadDigest));
        }
        if self.faults.corrupt.load(Ordering::Relaxed)
            && let Some(byte) = data.first_mut()
        {
            *byte ^= 1;
        }
        Ok(data)
    }
}

/// Takes one of what is left.
fn one_of(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn refusal(status: u16, code: &str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), "no space left");
    error.set_status_code(status.try_into().unwrap());
    error
}

fn md5(data: &[u8]) -> String {
    Md5::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of four bytes.
fn base64(bytes: &[u8; 4]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = u64::from(u32::from_be_bytes(*bytes)) << 4;
    let text: String =
        (0..6).rev().map(|at| char::from(letters[(value >> (6 * at) & 63) as usize])).collect();
    text + "=="
}

#[derive(Clone)]
struct Service(Arc<Bucket>);

type Reply<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl S3 for Service {
    async fn put_object(&self, req: S3Request<PutObjectInput>) -> Reply<PutObjectOutput> {
        let input = req.input;
        self.0.check(&input.bucket, true)?;
        let data = self.0.receive(input.body, input.checksum_crc32c).await?;
        let etag = self.0.store(&input.key, data, input.metadata.unwrap_or_default());
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(etag), ..Default::default() }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> Reply<GetObjectOutput> {
        let input = req.input;
        self.0.check(&input.bucket, false)?;
        let stored = self.0.get(&input.key)?;
        let all = stored.data.len() as u64;
        let range = input.range.map(|range| range.check(all)).transpose()?.unwrap_or(0..all);
        let data = stored.data[range.start as usize..range.end as usize].to_vec();
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(data.len() as i64),
            content_range: Some(format!("bytes {}-{}/{all}", range.start, range.end.max(1) - 1)),
            body: Some(StreamingBlob::from(Body::from(data))),
            e_tag: Some(format!("\"{:032x}\"", stored.etag)),
            ..Default::default()
        }))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> Reply<HeadObjectOutput> {
        self.0.check(&req.input.bucket, false)?;
        let stored = self.0.get(&req.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(stored.data.len() as i64),
            e_tag: Some(format!("\"{:032x}\"", stored.etag)),
            last_modified: Some(stored.time.into()),
            metadata: Some(stored.metadata),
            ..Default::default()
        }))
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> Reply<DeleteObjectOutput> {
        self.0.check(&req.input.bucket, true)?;
        lock(&self.0.objects).remove(&req.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> Reply<CopyObjectOutput> {
        let input = req.input;
        self.0.check(&input.bucket, true)?;
        let CopySource::Bucket { key, .. } = input.copy_source else { return Err(s3_error!(NotImplemented)) };
        let from = self.0.get(&key)?;
        let replaced = input.metadata_directive.is_some_and(|how| how.as_str() == "REPLACE");
        let metadata = if replaced { input.metadata.unwrap_or_default() } else { from.metadata };
        let etag = self.0.store(&input.key, from.data, metadata);
        let result = CopyObjectResult { e_tag: Some(etag), ..Default::default() };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> Reply<ListObjectsV2Output> {
        let input = req.input;
        self.0.check(&input.bucket, false)?;
        let prefix = input.prefix.unwrap_or_default();
        let after = input.continuation_token.or(input.start_after).unwrap_or_default();
        let most = input.max_keys.map_or(PAGE, |max| PAGE.min(max as usize));
        let mut seen = BTreeMap::new();
        for (key, stored) in lock(&self.0.objects).iter().filter(|(key, _)| key.starts_with(&prefix)) {
            let below = key[prefix.len()..].find('/').filter(|_| input.delimiter.is_some());
            match below {
                Some(at) => seen.insert(key[..=prefix.len() + at].to_string(), None),
                None => seen.insert(key.clone(), Some(stored.clone())),
            };
        }
        let mut rest = seen.into_iter().filter(|(key, _)| *key > after);
        let page: Vec<_> = rest.by_ref().take(most).collect();
        let more = rest.next().is_some();
        let mut output = ListObjectsV2Output {
            is_truncated: Some(more),
            next_continuation_token: page.last().filter(|_| more).map(|(key, _)| key.clone()),
            ..Default::default()
        };
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        for (key, stored) in page {
            match stored {
                None => prefixes.push(CommonPrefix { prefix: Some(key) }),
                Some(stored) => contents.push(Object {
                    key: Some(key),
                    size: Some(stored.data.len() as i64),
                    e_tag: Some(format!("\"{:032x}\"", stored.etag)),
                    last_modified: Some(stored.time.into()),
                    ..Default::default()
                }),
            }
        }
        (output.contents, output.common_prefixes) = (Some(contents), Some(prefixes));
        Ok(S3Response::new(output))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> Reply<CreateMultipartUploadOutput> {
        let input = req.input;
        self.0.check(&input.bucket, true)?;
        let id = format!("upload-{}", self.0.counter.fetch_add(1, Ordering::Relaxed));
        let part = Started {
            key: input.key.clone(),
            metadata: input.metadata.unwrap_or_default(),
            parts: BTreeMap::new(),
        };
        lock(&self.0.uploads).insert(id.clone(), part);
        if one_of(&self.0.faults.lose_begin) {
            return Err(s3_error!(InternalError));
        }
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> Reply<UploadPartOutput> {
        let input = req.input;
        self.0.check(&input.bucket, true)?;
        let last = self.0.faults.last_part.load(Ordering::Relaxed);
        if last > 0 && input.part_number as usize > last {
            return Err(refusal(507, "StorageFull"));
        }
        let busy = self.0.faults.busy_part.load(Ordering::Relaxed);
        if busy > 0 && input.part_number as usize > busy {
            return Err(s3_error!(SlowDown));
        }
        let data = self.0.receive(input.body, input.checksum_crc32c).await?;
        let etag = format!("\"{}\"", md5(&data));
        let mut uploads = lock(&self.0.uploads);
        let upload = uploads.get_mut(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(input.part_number, data);
        self.0.parts_sent.fetch_add(1, Ordering::Relaxed);
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(etag), ..Default::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> Reply<CompleteMultipartUploadOutput> {
        let input = req.input;
        self.0.check(&input.bucket, true)?;
        let mut upload =
            lock(&self.0.uploads).remove(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let mut parts = Vec::new();
        for part in &named {
            let number = part.part_number.unwrap_or_default();
            let data = upload.parts.remove(&number).ok_or_else(|| s3_error!(InvalidPart))?;
            let etag = part.e_tag.as_deref().unwrap_or_default().trim_matches('"').to_string();
            if etag != md5(&data) {
                return Err(s3_error!(InvalidPart));
            }
            parts.push(data);
        }
        let last = parts.len();
        if parts.iter().map(Vec::len).take(last - 1).any(|size| size < 5 << 20) {
            return Err(s3_error!(EntityTooSmall));
        }
        let etag = self.0.store(&upload.key, parts.concat(), upload.metadata);
        if one_of(&self.0.faults.lose_complete) {
            return Err(s3_error!(InternalError));
        }
        Ok(S3Response::new(CompleteMultipartUploadOutput { e_tag: Some(etag), ..Default::default() }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> Reply<AbortMultipartUploadOutput> {
        if self.0.faults.no_abort.load(Ordering::Relaxed) {
            return Err(s3_error!(AccessDenied));
        }
        lock(&self.0.uploads).remove(&req.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> Reply<ListMultipartUploadsOutput> {
        let input = req.input;
        self.0.check(&input.bucket, false)?;
        if self.0.faults.no_uploads.load(Ordering::Relaxed) {
            return Err(s3_error!(AccessDenied));
        }
        let prefix = input.prefix.unwrap_or_default();
        let after = (input.key_marker.unwrap_or_default(), input.upload_id_marker.unwrap_or_default());
        let uploads = lock(&self.0.uploads);
        let mut found: Vec<(String, String)> = uploads
            .iter()
            .map(|(id, upload)| (upload.key.clone(), id.clone()))
            .filter(|found| found.0.starts_with(&prefix) && *found > after)
            .collect();
        found.sort();
        let more = found.len() > UPLOADS_PAGE;
        found.truncate(UPLOADS_PAGE);
        let last = found.last().filter(|_| more).cloned();
        let upload =
            |(key, id)| MultipartUpload { key: Some(key), upload_id: Some(id), ..Default::default() };
        Ok(S3Response::new(ListMultipartUploadsOutput {
            is_truncated: Some(more),
            next_key_marker: last.as_ref().map(|(key, _)| key.clone()),
            next_upload_id_marker: last.map(|(_, id)| id),
            uploads: Some(found.into_iter().map(upload).collect()),
            ..Default::default()
        }))
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> Reply<ListPartsOutput> {
        let input = req.input;
        self.0.check(&input.bucket, false)?;
        let uploads = lock(&self.0.uploads);
        let upload = uploads.get(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        let after: i32 = input.part_number_marker.and_then(|after| after.parse().ok()).unwrap_or_default();
        let mut rest = upload.parts.iter().filter(|(number, _)| **number > after);
        let page: Vec<_> = rest.by_ref().take(PARTS_PAGE).collect();
        let more = rest.next().is_some();
        let next = page.last().filter(|_| more).map(|(number, _)| number.to_string());
        let part = |(number, data): (&i32, &Vec<u8>)| Part {
            part_number: Some(*number),
            size: Some(data.len() as i64),
            e_tag: Some(format!("\"{}\"", md5(data))),
            ..Default::default()
        };
        Ok(S3Response::new(ListPartsOutput {
            is_truncated: Some(more),
            next_part_number_marker: next,
            parts: Some(page.into_iter().map(part).collect()),
            ..Default::default()
        }))
    }
}

/// A way to the server that breaks off.
pub struct Cut {
    pub address: SocketAddr,
    /// Connections that have been cut.
    pub cuts: Arc<AtomicUsize>,
}

impl Cut {
    /// The first `times` connections that carry more than `after` bytes either way are closed then.
    pub fn start(server: SocketAddr, after: usize, times: usize) -> Cut {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicUsize::new(0));
        let seen = cuts.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), std::net::TcpStream::connect(server).unwrap());
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cuts = seen.clone();
                    std::thread::spawn(move || pass(from, to, after, times, &cuts));
                }
            }
        });
        Cut { address, cuts }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, after: usize, times: usize, cuts: &AtomicUsize) {
    let (mut buffer, mut passed) = (vec![0; 64 << 10], 0);
    while let Ok(count) = from.read(&mut buffer) {
        passed += count;
        let fewer = |cut: usize| (cut < times).then_some(cut + 1);
        let cut = passed > after && cuts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        if count == 0 || cut || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

pub struct Server {
    pub bucket: Arc<Bucket>,
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    pub fn start() -> Server {
        let bucket = Arc::new(Bucket::default());
        let mut builder = S3ServiceBuilder::new(Service(bucket.clone()));
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        let service = builder.build().into_shared();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Server { bucket, address, runtime: Some(runtime) }
    }

    /// Ends all connections at once and answers no more.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// A URL with credentials in `dir`.
    pub fn url(&self, dir: &std::path::Path, prefix: &str) -> ObjectUrl {
        self.url_of(dir, BUCKET, prefix, SECRET)
    }

    pub fn url_of(&self, dir: &std::path::Path, bucket: &str, prefix: &str, secret: &str) -> ObjectUrl {
        self.text(dir, bucket, prefix, secret).parse().unwrap()
    }

    pub fn text(&self, dir: &std::path::Path, bucket: &str, prefix: &str, secret: &str) -> String {
        let file = dir.join(format!("keys-{secret}"));
        let text = format!("[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {secret}\n");
        std::fs::write(&file, text).unwrap();
        format!("s3://{bucket}/{prefix}?endpoint=http://{}&credentials={}", self.address, file.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server, and a place for what is copied to it and for the state of copies.
pub struct Case {
    pub dir: tempfile::TempDir,
    pub server: Server,
}

impl Case {
    pub fn new() -> Case {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for name in ["src", "state"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Case { dir, server: Server::start() }
    }
}
