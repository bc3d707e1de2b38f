//! Keys for a service: from a file, or from the environment.

use std::fmt;
use std::path::Path;

const KEY_ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";
const TOKEN: &str = "aws_session_token";
const PROFILE: &str = "[default]";

/// Who is asking. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub key_id: String,
    pub secret: String,
    pub token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Why there are no credentials.
#[derive(Debug)]
pub enum CredentialsError {
    /// The file cannot be read.
    Unreadable(String, std::io::Error),
    /// The text, and the key that is missing in it.
    Missing(String, &'static str),
    /// The environment is another user's.
    NotLent,
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CredentialsError::Unreadable(file, error) => write!(f, "credentials {file}: {error}"),
            CredentialsError::NotLent => f.write_str(
                "keys in the environment of this process are for its own user; give credentials=FILE, or anonymous=yes",
            ),
            CredentialsError::Missing(place, key) => write!(f, "{place} has no {key}"),
        }
    }
}

impl std::error::Error for CredentialsError {}

impl Credentials {
    /// Keys of the section `[default]`, with the rights of the calling thread.
    pub fn read(file: &Path) -> Result<Credentials, CredentialsError> {
        let name = file.display().to_string();
        match std::fs::read_to_string(file) {
            Ok(text) => Credentials::parse(&name, &text),
            Err(error) => Err(CredentialsError::Unreadable(name, error)),
        }
    }

    fn parse(file: &str, text: &str) -> Result<Credentials, CredentialsError> {
        let mut section = PROFILE;
        let mut pairs = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            } else if let (PROFILE, Some((key, value))) = (section, line.split_once('=')) {
                pairs.push((key.trim().to_ascii_lowercase(), value.trim().to_string()));
            }
        }
        let find = |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
        Credentials::gather(&format!("credentials {file}"), find)
    }

    /// Those of this process's environment, which are lent to nobody: not to a user that the
    /// calling thread acts as.
    pub fn from_env() -> Result<Credentials, CredentialsError> {
        if rustix::process::geteuid() != rustix::process::getuid() {
            return Err(CredentialsError::NotLent);
        }
        let find = |key: &str| std::env::var(key.to_ascii_uppercase()).ok();
        Credentials::gather("the environment (or give credentials=FILE, or anonymous=yes)", find)
    }

    fn gather(place: &str, find: impl Fn(&str) -> Option<String>) -> Result<Credentials, CredentialsError> {
        let get = |key: &'static str| {
            let value = find(key).filter(|value| !value.is_empty());
            value.ok_or_else(|| CredentialsError::Missing(place.to_string(), key))
        };
        Ok(Credentials { key_id: get(KEY_ID)?, secret: get(SECRET)?, token: get(TOKEN).ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_usual_form_is_read() {
        let text = "# mine\n[other]\naws_access_key_id=no\n[default]\nAWS_ACCESS_KEY_ID = id\naws_secret_access_key=a=b\n";
        let read = Credentials::parse("f", text).unwrap();
        assert_eq!((read.key_id.as_str(), read.secret.as_str(), &read.token), ("id", "a=b", &None));
        assert_eq!(format!("{read:?}"), "Credentials { .. }");
        let error = Credentials::parse("f", "[default]\naws_access_key_id = id\n").unwrap_err();
        assert_eq!(error.to_string(), "credentials f has no aws_secret_access_key");
    }
}
