//! Proof that both sides know the pool's secret, without sending it.
//!
//! ```text
//! client → Hello{nonce_c}      server → Challenge{nonce_s, HMAC(secret, "server" ‖ nonces ‖ instance)}
//! client → Answer{HMAC(secret, "client" ‖ nonces ‖ instance)}          server → Welcome | Refused
//! ```
//! The connection itself is not encrypted; see `docs/formats/01-protocol.md`.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tidepool_types::InstanceId;
use tidepool_wire::message::{Nonce, Proof};

/// What others may do with a file.
const OTHERS_MODE: u32 = 0o077;

/// The shared secret of one pool instance.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

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

impl Secret {
    pub fn random() -> Secret {
        Secret(random_bytes())
    }

    /// 64 hexadecimal digits, for the pool file (mode 0600) and a daemon's standard input.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Of a file that nobody else can read, with 64 hexadecimal digits. The error says what is wrong with it.
    pub fn read(path: &Path) -> Result<Secret, String> {
        let meta = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if meta.permissions().mode() & OTHERS_MODE != 0 {
            return Err("others can read it; chmod 600".into());
        }
        let own = rustix::process::geteuid().as_raw();
        if meta.uid() != own && meta.uid() != 0 {
            let owner = meta.uid();
            return Err(format!("it belongs to user {owner}, who can read it; chown it to user {own}"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        Secret::from_hex(text.trim()).ok_or_else(|| {
            "is no secret: it holds 64 hexadecimal digits, as 'openssl rand -hex 32' prints them".into()
        })
    }

    pub fn from_hex(text: &str) -> Option<Secret> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Secret(bytes))
    }

    fn mac(&self, role: &[u8], client: &Nonce, server: &Nonce, instance: &InstanceId) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
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
}
