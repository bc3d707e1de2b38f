//! Proof that both sides know the pool's secret, without sending it.
//!
//! ```text
//! client → Hello{nonce_c}      server → Challenge{nonce_s, HMAC(secret, "server" ‖ nonces ‖ instance)}
//! client → Answer{HMAC(secret, "client" ‖ nonces ‖ instance)}          server → Welcome | Refused
//! ```
//! The connection itself is not encrypted; see `docs/formats/01-protocol.md`.

use curve25519_dalek::MontgomeryPoint;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use tidepool_types::InstanceId;
use tidepool_wire::message::{Nonce, Proof};

/// What others may do with a file.
const OTHERS_MODE: u32 = 0o077;

/// The shared secret of one pool instance, or of all stagers; and a key of its own that whoever has the file proves, besides.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    shared: [u8; 32],
    key: Option<[u8; 32]>,
}

/// Lines of a secret's file: the secret, and a key.
const LINES_MAX: usize = 2;
/// Bytes of the longest such file.
const FILE_MAX: u64 = 4096;

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Bytes of the operating system's random source.
///
/// # Panics
/// When the operating system has no random source: nothing safe can be done then.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// 32 bytes as 64 hexadecimal digits.
pub fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What [`hex`] makes.
pub fn digits(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

impl Secret {
    pub fn random() -> Secret {
        Secret { shared: random_bytes(), key: None }
    }

    /// The same with a private key (X25519).
    #[must_use]
    pub fn with_key(&self, key: [u8; 32]) -> Secret {
        Secret { shared: self.shared, key: Some(key) }
    }

    /// The same with the private key of another one.
    #[must_use]
    pub fn with_key_of(&self, other: &Secret) -> Secret {
        Secret { shared: self.shared, key: other.key }
    }

    /// True when the holders of both prove themselves to each other.
    pub fn is_shared_with(&self, other: &Secret) -> bool {
        self.shared == other.shared
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.shared
    }

    /// The private key, or one that is used only once.
    pub(crate) fn private_key(&self) -> [u8; 32] {
        self.key.unwrap_or_else(random_bytes)
    }

    /// What others know the holder of the private key by.
    pub fn public_key(&self) -> Option<[u8; 32]> {
        self.key.map(|key| MontgomeryPoint::mul_base_clamped(key).to_bytes())
    }

    /// 64 hexadecimal digits, for the pool file (mode 0600) and a daemon's standard input.
    pub fn to_hex(&self) -> String {
        hex(&self.shared)
    }

    /// Of a file that nobody else can read, with 64 hexadecimal digits, and as many in a second line where its holder has a key of
    /// his own. The error says what is wrong with it.
    pub fn read(path: &Path) -> Result<Secret, String> {
        // What is no file must not keep anybody waiting.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| error.to_string())?;
        let meta = file.metadata().map_err(|error| error.to_string())?;
        if !meta.is_file() {
            return Err("is no file".into());
        }
        if meta.permissions().mode() & OTHERS_MODE != 0 {
            return Err("others can read it; chmod 600".into());
        }
        let own = rustix::process::geteuid().as_raw();
        if meta.uid() != own && meta.uid() != 0 {
            let owner = meta.uid();
            return Err(format!("it belongs to user {owner}, who can read it; chown it to user {own}"));
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
        Secret::parse(text.trim()).ok_or_else(|| {
            "is no secret: it holds 64 hexadecimal digits, as 'openssl rand -hex 32' prints them, and an administrator's has his key as a second such line".into()
        })
    }

    fn parse(text: &str) -> Option<Secret> {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.len() > LINES_MAX {
            return None;
        }
        let secret = Secret::from_hex(lines.first()?)?;
        match lines.get(1) {
            Some(key) => Some(secret.with_key(digits(key)?)),
            None => Some(secret),
        }
    }

    pub fn from_hex(text: &str) -> Option<Secret> {
        Some(Secret { shared: digits(text)?, key: None })
    }

    fn mac(&self, role: &[u8], client: &Nonce, server: &Nonce, instance: &InstanceId) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.shared).expect("HMAC takes keys of any length");
        for part in [role, &client.0, &server.0, &instance.0] {
            mac.update(part);
        }
        mac
    }

    fn prove(&self, role: &[u8], client: &Nonce, server: &Nonce, instance: &InstanceId) -> Proof {
        Proof(self.mac(role, client, server, instance).finalize().into_bytes().into())
    }

    fn verify(&self, role: &[u8], client: &Nonce, server: &Nonce, of: &InstanceId, proof: &Proof) -> bool {
        self.mac(role, client, server, of).verify_slice(&proof.0).is_ok()
    }
}

/// The client's half of a handshake.
pub struct ClientAuth<'a> {
    secret: &'a Secret,
    instance: InstanceId,
    nonce: Nonce,
}

impl<'a> ClientAuth<'a> {
    pub fn new(secret: &'a Secret, instance: InstanceId) -> ClientAuth<'a> {
        ClientAuth { secret, instance, nonce: Nonce(random_bytes()) }
    }

    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Checks the server's proof; the client's own when it holds.
    pub fn answer(&self, server: &Nonce, proof: &Proof) -> Option<Proof> {
        let known = self.secret.verify(b"server", &self.nonce, server, &self.instance, proof);
        known.then(|| self.secret.prove(b"client", &self.nonce, server, &self.instance))
    }
}

/// The server's half of a handshake.
pub struct ServerAuth {
    client: Nonce,
    server: Nonce,
    instance: InstanceId,
}

impl ServerAuth {
    pub fn new(instance: InstanceId, client: Nonce) -> ServerAuth {
        ServerAuth { client, server: Nonce(random_bytes()), instance }
    }

    pub fn challenge(&self, secret: &Secret) -> (Nonce, Proof) {
        (self.server, secret.prove(b"server", &self.client, &self.server, &self.instance))
    }

    pub fn accepts(&self, secret: &Secret, proof: &Proof) -> bool {
        secret.verify(b"client", &self.client, &self.server, &self.instance, proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_opens() {
        let instance = InstanceId([7; 16]);
        let (secret, other) = (Secret::random(), Secret::random());
        let client = ClientAuth::new(&secret, instance);
        let server = ServerAuth::new(instance, client.nonce());
        let (nonce, proof) = server.challenge(&secret);
        let answer = client.answer(&nonce, &proof).expect("the server knows the secret");
        assert!(server.accepts(&secret, &answer));
        assert!(!server.accepts(&other, &answer));
        assert!(!server.accepts(&secret, &proof), "the server's own proof is no client's");
        let (nonce, forged) = server.challenge(&other);
        assert!(client.answer(&nonce, &forged).is_none());
    }

    #[test]
    fn secrets_do_not_print() {
        let secret = Secret::random();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(Secret::from_hex(&secret.to_hex()), Some(secret));
        assert_eq!(Secret::from_hex("12"), None);
    }

    #[test]
    fn a_file_has_a_secret_and_may_have_a_key() {
        let (one, two) = ("5a".repeat(32), "01".repeat(32));
        assert_eq!(Secret::parse(&one).unwrap().public_key(), None);
        let admin = Secret::parse(&format!("{one}\n{two}\n")).unwrap();
        assert_eq!(admin, Secret::from_hex(&one).unwrap().with_key([1; 32]));
        // As any other program computes it from the private key.
        let public = "a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209";
        assert_eq!(hex(&admin.public_key().unwrap()), public);
        for bad in ["", "12", &format!("{one}\n12"), &format!("{one}\n{two}\n{two}")] {
            assert!(Secret::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_file_is_no_secret_and_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(Secret::read(&fifo), Err("is no file".into()));
        assert!(Secret::read(Path::new("/dev/zero")).is_err());
    }
}
