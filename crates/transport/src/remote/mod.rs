//! Connections to stagers of other nodes, as far as everybody needs them who makes one: frames and the proof of the secret
//! (`docs/formats/13-remote-ends.md`). What is asked after that is in the crate `stage`.

mod door;
mod frame;
mod greeting;

pub use crate::sealed::{Sealed, SealedReader, SealedWriter};
pub use door::{Door, DoorError, Guest, connect, open_door, pass_on};
pub use frame::{ASIDE_MIN, Aside, BULK_MAX, Channel, GREETING_MAX, HEADER_LEN, Head, META_MAX};
pub use greeting::{GreetError, Greeting, Meant, Peer, REMOTE_VERSION, admit, greet, refuse};
