//! Which ways to daemons of the same node a process takes, as its environment says.

use std::fmt;

/// Variable that keeps a process from the nearest way to a daemon: for comparisons, and where
/// shared memory must not be used.
pub const TRANSPORT_VARIABLE: &str = "TIDEPOOL_TRANSPORT";

/// What [`TRANSPORT_VARIABLE`] may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Shared memory on one node; between nodes the pool's fabric if it has one, else TCP.
    #[default]
    Auto,
    /// The Unix socket on one node, TCP between nodes.
    Socket,
    /// TCP everywhere. A pool started with it has daemons on this machine listen at its loopback.
    Tcp,
    /// The pool's fabric everywhere, also to daemons of the same node.
    Fabric,
}

const NAMES: [(&str, Transport); 4] = [
    ("auto", Transport::Auto),
    ("socket", Transport::Socket),
    ("tcp", Transport::Tcp),
    ("fabric", Transport::Fabric),
];

/// A value of [`TRANSPORT_VARIABLE`] that is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownTransport(String);

impl fmt::Display for UnknownTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        write!(f, "{TRANSPORT_VARIABLE} is '{}'; set it to one of: {}", self.0, names.join(", "))?;
        match NAMES.iter().map(|(name, _)| *name).find(|name| is_near(name, &self.0)) {
            Some(name) => write!(f, " (did you mean '{name}'?)"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownTransport {}

impl Transport {
    /// What the environment says; empty is as good as unset.
    pub fn from_env() -> Result<Transport, UnknownTransport> {
        let value = std::env::var_os(TRANSPORT_VARIABLE).unwrap_or_default();
        Transport::parse(&value.to_string_lossy())
    }

    /// True for the Unix socket and shared memory.
    pub fn is_near(self) -> bool {
        matches!(self, Transport::Auto | Transport::Socket)
    }

    fn parse(text: &str) -> Result<Transport, UnknownTransport> {
        let found = NAMES.iter().find(|(name, _)| *name == text).map(|(_, transport)| *transport);
        match found {
            None if text.is_empty() => Ok(Transport::default()),
            None => Err(UnknownTransport(text.to_string())),
            Some(transport) => Ok(transport),
        }
    }
}

/// True for other cases, letters in another order, and beginnings or longer forms.
fn is_near(name: &str, text: &str) -> bool {
    let sorted = |text: &str| {
        let mut bytes = text.to_ascii_lowercase().into_bytes();
        bytes.sort_unstable();
        bytes
    };
    let text_low = text.to_ascii_lowercase();
    sorted(name) == sorted(text)
        || text_low.starts_with(name)
        || text.len() > 1 && name.starts_with(&text_low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_and_others_get_advice() {
        for (name, transport) in NAMES {
            assert_eq!(Transport::parse(name), Ok(transport));
        }
        assert_eq!(Transport::parse(""), Ok(Transport::Auto));
        for (wrong, meant) in
            [("tpc", "'tcp'?"), ("TCP", "'tcp'?"), ("sockets", "'socket'?"), ("sock", "'socket'?")]
        {
            let text = Transport::parse(wrong).unwrap_err().to_string();
            assert!(text.contains(meant) && text.contains(wrong), "{text}");
        }
        let text = Transport::parse("pigeon").unwrap_err().to_string();
        assert!(text.contains("auto, socket, tcp, fabric") && !text.contains("mean"), "{text}");
    }
}
