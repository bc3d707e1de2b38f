//! What services refuse, by the codes of S3, and what to do about it.

use crate::xml;
use http::response::Parts;
use opendal::ErrorKind;
use std::cell::RefCell;
use std::error::Error;
use std::time::Duration;
use tidepool_stage::EndError;
use tidepool_types::Errno;

/// Characters of a service's own words that are passed on.
const DETAIL_MAX: usize = 300;

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: u16,
    /// S3's word for it; empty where the answer has none, as those to HEAD.
    pub code: String,
    pub message: String,
    pub retry_after: Option<Duration>,
}

tokio::task_local! {
    /// The last refusal that the requests of this task met: the layers between keep its text only.
    pub(crate) static MET: RefCell<Option<Refusal>>;
}

/// In a task that nobody watches there is nobody to tell.
pub(crate) fn note(refusal: Refusal) {
    let _ = MET.try_with(|met| met.replace(Some(refusal)));
}

/// What is known of a code.
struct Known {
    code: &'static str,
    errno: Errno,
    /// May be gone by itself.
    passes: bool,
    advice: &'static str,
}

const fn known(code: &'static str, errno: Errno, passes: bool, advice: &'static str) -> Known {
    Known { code, errno, passes, advice }
}

const BUSY: &str = "ask its owner why it is busy for so long";
const KEYS: &str = "check the keys in the file that credentials= names, or in the environment";
const TOKEN: &str = "get a new token and put it where the keys are";
const ROOM: &str = "make room in the bucket, or ask its owner for a larger quota";

/// <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>, and those of MinIO and Ceph that mean the same.
const KNOWN: [Known; 29] = [
    known(
        "AccessDenied",
        Errno::EACCES,
        false,
        "ask the bucket's owner for the permission, or use other keys",
    ),
    known("AllAccessDisabled", Errno::EACCES, false, "ask the bucket's owner"),
    known("BadDigest", Errno::EIO, true, "the data was damaged on the way; check the network"),
    known(
        "EntityTooLarge",
        Errno::EFBIG,
        false,
        "it is beyond the largest object or part that the service takes",
    ),
    known("EntityTooSmall", Errno::EIO, false, "the service wants larger parts than S3 does; ask its owner"),
    known("ExpiredToken", Errno::EACCES, false, TOKEN),
    known("InternalError", Errno::EIO, true, BUSY),
    known("InvalidAccessKeyId", Errno::EACCES, false, KEYS),
    known("InvalidBucketName", Errno::EINVAL, false, "check the bucket's name in the URL"),
    known("InvalidToken", Errno::EACCES, false, TOKEN),
    known("KeyTooLongError", Errno::ENAMETOOLONG, false, "use a shorter prefix or path"),
    known("NoSuchBucket", Errno::ENODEV, false, "make the bucket, or check its name, endpoint= and region="),
    known(
        "NotImplemented",
        Errno::EOPNOTSUPP,
        false,
        "the service lacks this; checksum=none may be enough for it",
    ),
    known("OperationAborted", Errno::EBUSY, true, BUSY),
    known("PermanentRedirect", Errno::EINVAL, false, "the bucket is elsewhere; check endpoint= and region="),
    known("AuthorizationHeaderMalformed", Errno::EINVAL, false, "check region="),
    known("QuotaExceeded", Errno::EDQUOT, false, ROOM),
    known("RequestTimeTooSkewed", Errno::EACCES, false, "set this node's clock right"),
    known("RequestTimeout", Errno::ETIMEDOUT, true, "check the network"),
    known("ServiceUnavailable", Errno::EBUSY, true, BUSY),
    known("SignatureDoesNotMatch", Errno::EACCES, false, KEYS),
    known("SlowDown", Errno::EBUSY, true, BUSY),
    known("SlowDownRead", Errno::EBUSY, true, BUSY),
    known("SlowDownWrite", Errno::EBUSY, true, BUSY),
    known("StorageFull", Errno::ENOSPC, false, ROOM),
    known("TooManyRequests", Errno::EBUSY, true, BUSY),
    known(
        "XAmzContentSHA256Mismatch",
        Errno::EIO,
        true,
        "the data was damaged on the way; check the network",
    ),
    known("XMinioStorageFull", Errno::ENOSPC, false, ROOM),
    known("XMinioAdminBucketQuotaExceeded", Errno::EDQUOT, false, ROOM),
];

impl Refusal {
    /// Of an answer, and what could be read of its body.
    pub fn of(parts: &Parts, body: &[u8]) -> Refusal {
        let said = xml::parse(body).ok().filter(|said| said.name == "Error").unwrap_or_default();
        let seconds = parts.headers.get(http::header::RETRY_AFTER).and_then(|after| after.to_str().ok());
        Refusal {
            status: parts.status.as_u16(),
            code: plain(said.text_of("Code")),
            message: plain(said.text_of("Message")),
            retry_after: seconds.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs),
        }
    }

    fn known(&self) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.code == self.code)
    }

    /// May be gone by itself.
    pub fn passes(&self) -> bool {
        let by_status = matches!(self.status, 408 | 429 | 499 | 500 | 502 | 503 | 504);
        self.known().map_or(by_status, |known| known.passes)
    }

    /// The whole service is asked too much, not for this object only.
    pub fn is_of_all(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    fn errno(&self) -> Errno {
        let by_status = match self.status {
            401 | 403 => Errno::EACCES,
            404 => Errno::ENOENT,
            408 | 504 => Errno::ETIMEDOUT,
            413 => Errno::EFBIG,
            429 | 503 => Errno::EBUSY,
            501 => Errno::EOPNOTSUPP,
            507 => Errno::ENOSPC,
            _ => Errno::EIO,
        };
        self.known().map_or(by_status, |known| known.errno)
    }

    fn words(&self) -> String {
        let code = if self.code.is_empty() { format!("HTTP {}", self.status) } else { self.code.clone() };
        let message = if self.message.is_empty() { String::new() } else { format!(" ({})", self.message) };
        let advice = match (self.known(), self.status) {
            (Some(known), _) => known.advice,
            (None, 401 | 403) => "ask the bucket's owner for the permission, or check the keys",
            (None, 500..=599) => BUSY,
            (None, _) => "ask the service's owner",
        };
        format!("{code}{message}; {advice}")
    }
}

/// Why a request failed in the end.
pub(crate) struct Failure {
    pub error: opendal::Error,
    pub refusal: Option<Refusal>,
    /// What was tried, where it was tried more than once.
    pub tried: Option<String>,
}

impl Failure {
    pub fn of(error: opendal::Error, refusal: Option<Refusal>) -> Failure {
        Failure { error, refusal, tried: None }
    }

    /// May be gone by itself: the service is busy, or the way to it is broken.
    pub fn passes(&self) -> bool {
        match &self.refusal {
            Some(refusal) => refusal.passes(),
            None => self.error.is_temporary() && !self.is_distrust(),
        }
    }

    /// Nobody vouches for the service, which no waiting changes.
    fn is_distrust(&self) -> bool {
        causes(&self.error).any(is_of_tls)
    }

    pub fn has_code(&self, codes: &[&str]) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| codes.contains(&refusal.code.as_str()))
    }

    /// The service knows no such request, or this user may not make it.
    pub fn is_forbidden(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| matches!(refusal.status, 400 | 403 | 404 | 405 | 501))
    }

    pub fn into_error(self, operation: &'static str, bucket: &str, key: &str) -> EndError {
        let words = match &self.refusal {
            Some(refusal) => refusal.words(),
            None => words_of(&self.error),
        };
        let errno = self.refusal.as_ref().map_or_else(|| errno(self.error.kind()), Refusal::errno);
        let tried = self.tried.map(|tried| format!("; {tried}")).unwrap_or_default();
        EndError { errno, operation, detail: Some(format!("bucket '{bucket}', key '{key}': {words}{tried}")) }
    }
}

/// One exhaustive mapping of what `opendal` says.
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

fn causes(error: &opendal::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source())
}

/// Errors of the system hide what they are made of from those who ask for their source.
fn is_of_tls(cause: &(dyn Error + 'static)) -> bool {
    let within = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    cause.is::<rustls::Error>() || within.is_some_and(|within| is_of_tls(within))
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(DETAIL_MAX).collect()
}

/// The first cause says most: a refused connection, an unknown certificate.
fn words_of(error: &opendal::Error) -> String {
    let cause = causes(error).last().map(|cause| format!(": {}", plain(&cause.to_string())));
    plain(&error.to_string()) + &cause.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, after: Option<&str>, body: &str) -> Refusal {
        let mut answer = http::Response::builder().status(status);
        if let Some(after) = after {
            answer = answer.header("retry-after", after);
        }
        Refusal::of(&answer.body(()).unwrap().into_parts().0, body.as_bytes())
    }

    #[test]
    fn codes_decide_before_statuses() {
        let body = "<Error><Code>SlowDown</Code><Message>Please\nwait</Message></Error>";
        let slow = refusal(503, Some("7"), body);
        assert_eq!((slow.code.as_str(), slow.message.as_str()), ("SlowDown", "Pleasewait"));
        assert_eq!(slow.retry_after, Some(Duration::from_secs(7)));
        assert!(slow.passes() && slow.is_of_all());
        assert!(refusal(400, None, "<Error><Code>BadDigest</Code></Error>").passes());
        assert!(!refusal(500, None, "<Error><Code>StorageFull</Code></Error>").passes());
        assert!(refusal(502, None, "<html>bad gateway").passes());
        let none = refusal(403, Some("Fri, 27 Nov 2026 00:00:00 GMT"), "");
        assert_eq!((none.passes(), none.errno(), none.retry_after), (false, Errno::EACCES, None));
        assert!(none.words().starts_with("HTTP 403"), "{}", none.words());
    }
}
