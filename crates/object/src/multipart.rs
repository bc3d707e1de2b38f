//! Uploads in parts, as S3 has them: each function is one request, asked once. `opendal` has these
//! requests, too, but tells no upload's id, without which none can be taken up again.

use crate::Credentials;
use crate::attrs::Attrs;
use crate::refusal::{self, Refusal};
use crate::url::ObjectUrl;
use crate::xml::{self, Element};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{Method, Request, StatusCode, request};
use md5::{Digest, Md5};
use opendal::raw::{HttpClient, percent_encode_path};
use opendal::{Buffer, Error, ErrorKind, Result};
use reqsign_aws_v4::{Credential, RequestSigner, StaticCredentialProvider};
use reqsign_core::{Context, Signer};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Pages of one listing; a page has up to 1,000 entries.
const PAGES_MAX: usize = 100;

/// A bucket and how requests to it are signed.
pub(crate) struct Service {
    client: HttpClient,
    signer: Option<Signer<Credential>>,
    /// Without '/' at the end.
    base: String,
    /// In the path, for the sources of copies.
    bucket: String,
    checksum: bool,
    timeout: Duration,
}

/// An upload that has been begun and neither completed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub key: String,
    pub id: String,
}

/// A part as the service has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub etag: String,
    pub size: u64,
    /// In base64; empty where the service does not tell.
    pub crc32c: String,
}

impl Part {
    /// Itself, when it is of these data: their size, and their checksum or, as an ETag mostly is, their MD5.
    pub fn if_of(mut self, data: &Buffer) -> Option<Part> {
        let crc32c = checksum(data);
        let same = match self.crc32c.as_str() {
            "" => self.etag.trim_matches('"').eq_ignore_ascii_case(&md5(data)),
            told => told == crc32c,
        };
        self.crc32c = crc32c;
        (same && self.size == data.len() as u64).then_some(self)
    }
}

fn md5(data: &Buffer) -> String {
    let digest = data.clone().fold(Md5::new(), |digest, piece| digest.chain_update(&piece));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn base(url: &ObjectUrl) -> String {
    let endpoint = url.endpoint.trim_end_matches('/');
    match endpoint.split_once("://").filter(|_| url.virtual_host) {
        Some((scheme, host)) => format!("{scheme}://{}.{host}", url.bucket),
        None => format!("{endpoint}/{}", url.bucket),
    }
}

fn bad(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unexpected, why)
}

fn escape(text: &str) -> String {
    percent_encode_path(text).replace('/', "%2F")
}

fn checksum(data: &Buffer) -> String {
    let crc = data.clone().fold(0, |crc, piece| crc32c::crc32c_append(crc, &piece));
    BASE64_STANDARD.encode(crc.to_be_bytes())
}

impl Service {
    pub fn new(
        url: &ObjectUrl,
        keys: Option<&Credentials>,
        client: HttpClient,
        timeout: Duration,
    ) -> Service {
        let signer = keys.map(|keys| {
            let mut provider = StaticCredentialProvider::new(&keys.key_id, &keys.secret);
            if let Some(token) = &keys.token {
                provider = provider.with_session_token(token);
            }
            Signer::new(Context::new(), provider, RequestSigner::new("s3", &url.region))
        });
        Service {
            client,
            signer,
            base: base(url),
            bucket: url.bucket.clone(),
            checksum: url.checksum,
            timeout,
        }
    }

    fn url(&self, key: &str, query: &str) -> String {
        format!("{}/{}?{query}", self.base, percent_encode_path(key))
    }

    fn request(&self, method: Method, url: &str) -> request::Builder {
        Request::builder().method(method).uri(url)
    }

    /// Headers and body of a success; what is refused has been noted by the wire.
    async fn send(&self, request: request::Builder, body: Buffer) -> Result<(http::HeaderMap, Vec<u8>)> {
        let request = request.header(http::header::CONTENT_LENGTH, body.len()).body(body);
        let (mut parts, body) = request.map_err(|error| bad(error.to_string()))?.into_parts();
        if let Some(signer) = &self.signer {
            signer.sign(&mut parts, None).await.map_err(|error| bad(format!("sign: {error}")))?;
            // The client sets it, in the way of its version of HTTP.
            parts.headers.remove(http::header::HOST);
        }
        let sent = tokio::time::timeout(self.timeout, self.client.send(Request::from_parts(parts, body)));
        let late = |_| bad(format!("no answer within {} s", self.timeout.as_secs())).set_temporary();
        let (parts, body) = sent.await.map_err(late)??.into_parts();
        let body = body.to_vec();
        if !parts.status.is_success() {
            return Err(bad(format!("HTTP {}", parts.status)));
        }
        // Some requests begin their answer before they know how they end.
        if parts.status == StatusCode::OK && xml::parse(&body).is_ok_and(|said| said.name == "Error") {
            refusal::note(Refusal::of(&parts, &body));
            return Err(bad("an error in an answer that began well"));
        }
        Ok((parts.headers, body))
    }

    async fn ask(&self, method: Method, url: &str, wanted: &str) -> Result<Element> {
        let (_, body) = self.send(self.request(method, url), Buffer::new()).await?;
        read(&body, wanted)
    }

    /// Uploads under keys that begin so.
    pub async fn uploads(&self, prefix: &str) -> Result<Vec<Started>> {
        let (mut found, mut from) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let url = format!("{}?uploads&prefix={}{from}", self.base, escape(prefix));
            let page = self.ask(Method::GET, &url, "ListMultipartUploadsResult").await?;
            let started = |upload: &Element| Started {
                key: upload.text_of("Key").to_string(),
                id: upload.text_of("UploadId").to_string(),
            };
            // What a service says of others is not believed.
            found.extend(page.all("Upload").map(started).filter(|upload| upload.key.starts_with(prefix)));
            if !page.says_true("IsTruncated") {
                return Ok(found);
            }
            let (key, id) = (page.text_of("NextKeyMarker"), page.text_of("NextUploadIdMarker"));
            from = format!("&key-marker={}&upload-id-marker={}", escape(key), escape(id));
        }
        Err(bad(format!("there are more than {PAGES_MAX} pages of uploads")))
    }

    /// Parts that have arrived, by number.
    pub async fn parts(&self, of: &Started) -> Result<BTreeMap<u32, Part>> {
        let (mut found, mut from) = (BTreeMap::new(), String::new());
        for _ in 0..PAGES_MAX {
            let url = self.url(&of.key, &format!("uploadId={}{from}", escape(&of.id)));
            let page = self.ask(Method::GET, &url, "ListPartsResult").await?;
            for part in page.all("Part") {
                let number = part.text_of("PartNumber").parse().map_err(|_| bad("a part has no number"))?;
                let size = part.text_of("Size").parse().map_err(|_| bad("a part has no size"))?;
                let (etag, crc32c) = (part.text_of("ETag"), part.text_of("ChecksumCRC32C"));
                found.insert(number, Part { etag: etag.to_string(), size, crc32c: crc32c.to_string() });
            }
            if !page.says_true("IsTruncated") {
                return Ok(found);
            }
            from = format!("&part-number-marker={}", escape(page.text_of("NextPartNumberMarker")));
        }
        Err(bad(format!("there are more than {PAGES_MAX} pages of parts")))
    }

    pub async fn begin(&self, key: &str) -> Result<Started> {
        let mut request = self.request(Method::POST, &self.url(key, "uploads"));
        if self.checksum {
            request = request.header("x-amz-checksum-algorithm", "CRC32C");
        }
        let (_, body) = self.send(request, Buffer::new()).await?;
        let id = read(&body, "InitiateMultipartUploadResult")?.text_of("UploadId").to_string();
        if id.is_empty() {
            return Err(bad("an upload has no id"));
        }
        Ok(Started { key: key.to_string(), id })
    }

    pub async fn send_part(&self, to: &Started, number: u32, data: Buffer) -> Result<Part> {
        let url = self.url(&to.key, &format!("partNumber={number}&uploadId={}", escape(&to.id)));
        let (size, crc32c) = (data.len() as u64, checksum(&data));
        let mut request = self.request(Method::PUT, &url);
        if self.checksum {
            request = request.header("x-amz-checksum-crc32c", &crc32c);
        }
        let (headers, _) = self.send(request, data).await?;
        let etag = headers.get(http::header::ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.ok_or_else(|| bad("a part has no ETag"))?.to_string();
        Ok(Part { etag, size, crc32c })
    }

    pub async fn complete(&self, upload: &Started, parts: &BTreeMap<u32, Part>) -> Result<()> {
        let mut body = String::from("<CompleteMultipartUpload>");
        for (number, part) in parts {
            let etag = quick_xml::escape::escape(&part.etag);
            // Writing to a string cannot fail.
            let _ = write!(body, "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>");
            if self.checksum {
                let _ = write!(body, "<ChecksumCRC32C>{}</ChecksumCRC32C>", part.crc32c);
            }
            body.push_str("</Part>");
        }
        body.push_str("</CompleteMultipartUpload>");
        let url = self.url(&upload.key, &format!("uploadId={}", escape(&upload.id)));
        let request = self.request(Method::POST, &url).header(http::header::CONTENT_TYPE, "application/xml");
        // What services answer differs; whoever copies reads the object back.
        self.send(request, Buffer::from(body)).await.map(drop)
    }

    pub async fn abort(&self, upload: &Started) -> Result<()> {
        let url = self.url(&upload.key, &format!("uploadId={}", escape(&upload.id)));
        self.send(self.request(Method::DELETE, &url), Buffer::new()).await.map(drop)
    }

    /// A copy made by the service, with these attributes instead of those of its source.
    pub async fn copy(&self, from: &str, to: &str, attrs: &Attrs) -> Result<()> {
        let url = format!("{}/{}", self.base, percent_encode_path(to));
        let source = format!("{}/{}", self.bucket, percent_encode_path(from));
        let mut request = self.request(Method::PUT, &url).header("x-amz-copy-source", source);
        request = request.header("x-amz-metadata-directive", "REPLACE");
        for (name, value) in attrs.encode() {
            request = request.header(format!("x-amz-meta-{name}"), value);
        }
        self.send(request, Buffer::new()).await.map(drop)
    }
}

/// An answer that is torn may come whole the next time.
fn read(body: &[u8], wanted: &str) -> Result<Element> {
    let said = xml::parse(body).map_err(|why| bad(format!("the service's answer: {why}")).set_temporary())?;
    if said.name != wanted {
        return Err(bad(format!("the service's answer is '{}' instead of {wanted}", said.name)));
    }
    Ok(said)
}
