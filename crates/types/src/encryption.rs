//! What is done to what goes over a pool's TCP connections.

use std::fmt;

/// What is done to what goes over a pool's TCP connections once both sides have proved themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encryption {
    /// Nothing: whoever can change packets of the network can change, and read, what goes there.
    #[default]
    Off,
    /// Nobody else can read, change, repeat or leave out any of it.
    Full,
}

/// What is no [`Encryption`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownEncryption(String);

impl fmt::Display for UnknownEncryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_str() {
            "auth" => f.write_str(
                "there is no 'auth': proofs without encryption take longer than encryption does; say 'full'",
            ),
            other => write!(f, "'{other}' is neither 'off' nor 'full'"),
        }
    }
}

impl std::error::Error for UnknownEncryption {}

impl Encryption {
    pub fn word(self) -> &'static str {
        match self {
            Encryption::Off => "off",
            Encryption::Full => "full",
        }
    }

    pub fn parse(word: &str) -> Result<Encryption, UnknownEncryption> {
        match word {
            "off" => Ok(Encryption::Off),
            "full" => Ok(Encryption::Full),
            other => Err(UnknownEncryption(other.into())),
        }
    }

    pub fn is_off(self) -> bool {
        self == Encryption::Off
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_what_is_none_says_what_to_do() {
        for how in [Encryption::Off, Encryption::Full] {
            assert_eq!(Encryption::parse(how.word()), Ok(how));
        }
        assert!(Encryption::parse("auth").unwrap_err().to_string().contains("say 'full'"));
        assert!(Encryption::parse("Full").unwrap_err().to_string().contains("neither"));
    }
}
