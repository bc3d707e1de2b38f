//! Names of object stores: `s3://BUCKET/PREFIX?OPTION=VALUE&…`.

use crate::KEY_BYTES_MAX;
use crate::keys::check_name;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const OPTIONS: [&str; 7] =
    ["anonymous", "checksum", "credentials", "endpoint", "patience", "region", "style"];
const ENDPOINT_DEFAULT: &str = "https://s3.amazonaws.com";
const REGION_DEFAULT: &str = "us-east-1";
const PATIENCE_DEFAULT: Duration = Duration::from_secs(300);
const PATIENCE_SECONDS_MAX: u64 = 86_400;
/// Letters that may differ between an unknown option and one that is suggested.
const TYPOS_MAX: usize = 3;

/// A place in an object store, validated whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUrl {
    pub bucket: String,
    /// Empty, or ending in '/'.
    pub prefix: String,
    pub endpoint: String,
    pub region: String,
    /// A file with `[default]` keys, as the tools of AWS write it; `~/` stands for a home.
    pub credentials: Option<PathBuf>,
    pub anonymous: bool,
    /// The bucket is part of the host's name.
    pub virtual_host: bool,
    /// Uploads carry a CRC32C that the service checks.
    pub checksum: bool,
    /// How long a service is waited for that is busy or cannot be reached.
    pub patience: Duration,
}

/// What is wrong with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

impl FromStr for ObjectUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<ObjectUrl, UrlError> {
        parse(text).map_err(|why| UrlError(format!("'{text}': {why}")))
    }
}

impl ObjectUrl {
    /// The same with another place for `~`.
    #[must_use]
    pub fn with_home(mut self, home: &Path) -> ObjectUrl {
        if let Some(below) = self.credentials.as_ref().and_then(|file| file.strip_prefix("~").ok()) {
            self.credentials = Some(home.join(below));
        }
        self
    }
}

fn parse(text: &str) -> Result<ObjectUrl, String> {
    let rest = text
        .strip_prefix("s3://")
        .ok_or("an object store is named s3://BUCKET/PREFIX?endpoint=https://HOST")?;
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let mut url = ObjectUrl {
        bucket: check_bucket(bucket)?,
        prefix: check_prefix(&decode(prefix)?)?,
        endpoint: ENDPOINT_DEFAULT.into(),
        region: REGION_DEFAULT.into(),
        credentials: None,
        anonymous: false,
        virtual_host: false,
        checksum: true,
        patience: PATIENCE_DEFAULT,
    };
    let mut seen = BTreeSet::new();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) =
            option.split_once('=').ok_or_else(|| format!("option '{option}' has no value"))?;
        if !seen.insert(name) {
            return Err(format!("option '{name}' is there twice"));
        }
        set(&mut url, name, decode(value)?)?;
    }
    if url.anonymous && url.credentials.is_some() {
        return Err("with anonymous=yes, credentials are not used; leave one of them out".into());
    }
    Ok(url)
}

fn set(url: &mut ObjectUrl, name: &str, value: String) -> Result<(), String> {
    match name {
        "endpoint" => url.endpoint = check_endpoint(&value)?,
        "region" if value.is_empty() => return Err("region is empty".into()),
        "region" => url.region = value,
        "credentials" if !value.starts_with('/') && !value.starts_with("~/") => {
            return Err("credentials is an absolute path of a file, or one that starts with ~/".into());
        }
        "credentials" => url.credentials = Some(value.into()),
        "anonymous" => url.anonymous = choose(name, &value, ("no", "yes"))?,
        "style" => url.virtual_host = choose(name, &value, ("path", "virtual"))?,
        "checksum" => url.checksum = choose(name, &value, ("none", "crc32c"))?,
        "patience" => {
            let seconds = value.parse().ok().filter(|seconds| *seconds <= PATIENCE_SECONDS_MAX);
            let bad = || format!("patience={value} is no number of seconds up to {PATIENCE_SECONDS_MAX}");
            url.patience = Duration::from_secs(seconds.ok_or_else(bad)?);
        }
        "retries" => {
            return Err("option 'retries' is now patience=SECONDS, the time to wait for a service".into());
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

fn choose(name: &str, value: &str, (no, yes): (&str, &str)) -> Result<bool, String> {
    match value {
        value if value == no => Ok(false),
        value if value == yes => Ok(true),
        _ => Err(format!("{name}={value} is unknown; there are {no}, {yes}")),
    }
}

fn unknown(name: &str) -> String {
    let nearest = OPTIONS.iter().map(|known| (distance(name, known), known)).min();
    match nearest {
        Some((typos, known)) if typos <= TYPOS_MAX => {
            format!("option '{name}' is unknown; did you mean '{known}'?")
        }
        _ => format!("option '{name}' is unknown; there are {}", OPTIONS.join(", ")),
    }
}

/// Letters to insert, remove or replace to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in other.chars().enumerate() {
            let best = (corner + usize::from(a != b)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[row.len() - 1]
}

fn check_bucket(bucket: &str) -> Result<String, String> {
    let letters = bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if !(3..=63).contains(&bucket.len()) || !letters || bucket.starts_with('.') {
        return Err(format!("'{bucket}' is no bucket: 3 to 63 letters, digits, '-', '.', '_'"));
    }
    Ok(bucket.to_string())
}

fn check_prefix(prefix: &str) -> Result<String, String> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok(String::new());
    }
    if prefix.len() >= KEY_BYTES_MAX {
        return Err(format!("the prefix has more than {KEY_BYTES_MAX} bytes"));
    }
    for name in prefix.split('/') {
        check_name(name.as_bytes()).map_err(|why| format!("the prefix has the name '{name}': {why}"))?;
    }
    Ok(format!("{prefix}/"))
}

fn check_endpoint(value: &str) -> Result<String, String> {
    let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
    let plain = |host: &str| {
        let host = host.strip_suffix('/').unwrap_or(host);
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b))
    };
    match host {
        Some(host) if plain(host) => Ok(value.strip_suffix('/').unwrap_or(value).to_string()),
        _ => Err(format!("endpoint '{value}' is not http://HOST:PORT or https://HOST:PORT")),
    }
}

/// Takes %XX apart.
fn decode(text: &str) -> Result<String, String> {
    let bad = || format!("'{text}' has a '%' without two hexadecimal digits of UTF-8 after it");
    let bytes = crate::attrs::unescape(text).ok_or_else(bad)?;
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_name_is_read() {
        let url: ObjectUrl =
            "s3://data-1/a%20b/c/?endpoint=http://127.0.0.1:9000/&region=eu&style=virtual&checksum=none&patience=0&credentials=/k%3Dy"
                .parse()
                .unwrap();
        assert_eq!((url.bucket.as_str(), url.prefix.as_str()), ("data-1", "a b/c/"));
        assert_eq!((url.endpoint.as_str(), url.region.as_str()), ("http://127.0.0.1:9000", "eu"));
        assert_eq!(url.credentials, Some(PathBuf::from("/k=y")));
        assert_eq!((url.virtual_host, url.checksum, url.anonymous), (true, false, false));
        assert_eq!(url.patience, Duration::ZERO);
        let home: ObjectUrl = "s3://data?credentials=~/keys".parse().unwrap();
        assert_eq!(home.with_home("/h".as_ref()).credentials, Some(PathBuf::from("/h/keys")));
        let short: ObjectUrl = "s3://data".parse().unwrap();
        assert_eq!((short.prefix.as_str(), short.endpoint.as_str()), ("", ENDPOINT_DEFAULT));
        assert_eq!(short.patience, PATIENCE_DEFAULT);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let wrong = [
            ("http://data", "s3://BUCKET"),
            ("s3://", "3 to 63"),
            ("s3://da ta", "3 to 63"),
            ("s3://data/a//b", "empty"),
            ("s3://data/../b", "'..'"),
            ("s3://data/%zz", "hexadecimal"),
            ("s3://data?endpont=http://h", "did you mean 'endpoint'"),
            ("s3://data?colour=red", "there are anonymous"),
            ("s3://data?endpoint=h:80", "https://HOST:PORT"),
            ("s3://data?endpoint=http://u:p@h", "https://HOST:PORT"),
            ("s3://data?region", "no value"),
            ("s3://data?region=", "empty"),
            ("s3://data?region=a&region=b", "twice"),
            ("s3://data?credentials=keys", "absolute"),
            ("s3://data?patience=99999", "up to 86400"),
            ("s3://data?patience=5m", "seconds"),
            ("s3://data?retries=4", "patience=SECONDS"),
            ("s3://data?style=new", "path, virtual"),
            ("s3://data?anonymous=yes&credentials=/k", "leave one"),
        ];
        for (text, expected) in wrong {
            let error = text.parse::<ObjectUrl>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
