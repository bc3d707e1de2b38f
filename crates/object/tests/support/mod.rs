//! An S3 server in the tests' own process: the protocol and its signatures are those of the crate
//! `s3s`, the bucket is a map. It fails on demand.
#![allow(dead_code, reason = "each test file uses a part")]

use futures::TryStreamExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::S3ServiceBuilder;
use s3s::{Body, S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;
use tidepool_object::ObjectUrl;
use tokio::runtime::Runtime;

pub const BUCKET: &str = "data";
pub const KEY_ID: &str = "TESTKEY";
pub const SECRET: &str = "test-secret";
/// Keys of one page of a listing: few, so that there are pages.
const PAGE: usize = 7;

#[derive(Clone)]
pub struct Stored {
    pub data: Vec<u8>,
    pub metadata: HashMap<String, String>,
    etag: u64,
    time: SystemTime,
}

struct Part {
    key: String,
    metadata: HashMap<String, String>,
    parts: BTreeMap<i32, Vec<u8>>,
}

/// What goes wrong.
#[derive(Default)]
pub struct Faults {
    /// All writing requests are refused with this status.
    pub refuse: Mutex<Option<u16>>,
    /// So many requests are answered with 503 first.
    pub busy: AtomicUsize,
    /// Data stored from now on has one bit changed.
    pub corrupt: AtomicBool,
}

#[derive(Default)]
pub struct Bucket {
    objects: Mutex<BTreeMap<String, Stored>>,
    uploads: Mutex<HashMap<String, Part>>,
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
        let busy = &self.faults.busy;
        if busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(s3_error!(SlowDown));
        }
        if let Some(status) = *lock(&self.faults.refuse)
            && write
        {
            let mut error = S3Error::with_message(S3ErrorCode::Custom("StorageFull".into()), "no space left");
            error.set_status_code(status.try_into().unwrap());
            return Err(error);
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
        let etag = self.0.store(&input.key, from.data, from.metadata);
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
        let part = Part {
            key: input.key.clone(),
            metadata: input.metadata.unwrap_or_default(),
            parts: BTreeMap::new(),
        };
        lock(&self.0.uploads).insert(id.clone(), part);
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
        let data = self.0.receive(input.body, input.checksum_crc32c).await?;
        let etag = format!("\"{:08x}\"", crc32c::crc32c(&data));
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
        let upload = lock(&self.0.uploads).remove(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        let (last, sizes) = (upload.parts.len(), upload.parts.values().map(Vec::len));
        if sizes.take(last - 1).any(|size| size < 5 << 20) {
            return Err(s3_error!(EntityTooSmall));
        }
        let data = upload.parts.into_values().flatten().collect();
        let etag = self.0.store(&upload.key, data, upload.metadata);
        Ok(S3Response::new(CompleteMultipartUploadOutput { e_tag: Some(etag), ..Default::default() }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> Reply<AbortMultipartUploadOutput> {
        lock(&self.0.uploads).remove(&req.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
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
