//! The way to a service: notes what it refuses, and takes no more of an answer than it may say.

use crate::ANSWER_BYTES_MAX;
use crate::refusal::{Refusal, note};
use http::{Method, Request, Response};
use opendal::raw::oio::Read;
use opendal::raw::{HttpBody, HttpClient, HttpFetch};
use opendal::{Buffer, Error, ErrorKind, Result};

pub(crate) struct Wire(pub HttpClient);

impl HttpFetch for Wire {
    async fn fetch(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        // Objects come as GET without a question; their reader takes them piece by piece.
        let is_object = *request.method() == Method::GET && request.uri().query().is_none();
        let is_head = *request.method() == Method::HEAD;
        let (parts, body) = self.0.fetch(request).await?.into_parts();
        if parts.status.is_success() && is_object {
            return Ok(Response::from_parts(parts, body));
        }
        let body = if is_head { Buffer::new() } else { whole(body).await? };
        if !parts.status.is_success() {
            note(Refusal::of(&parts, &body.to_bytes()));
        }
        let size = if is_head { None } else { Some(body.len() as u64) };
        let body = HttpBody::new(once(body), size);
        Ok(Response::from_parts(parts, body))
    }
}

fn once(body: Buffer) -> impl futures::Stream<Item = Result<Buffer>> + Send + Sync + Unpin + 'static {
    futures::stream::iter((!body.is_empty()).then_some(Ok(body)))
}

/// A whole answer, which is no object's data.
async fn whole(mut body: HttpBody) -> Result<Buffer> {
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    loop {
        let piece = body.read().await?;
        if piece.is_empty() {
            return Ok(pieces.into_iter().flatten().collect());
        }
        bytes += piece.len();
        if bytes > ANSWER_BYTES_MAX {
            let text = format!("the answer has more than {ANSWER_BYTES_MAX} bytes; this is no S3 service");
            return Err(Error::new(ErrorKind::Unexpected, text));
        }
        pieces.push(piece);
    }
}
