//! How a [`RemoteEnd`](super::RemoteEnd) gets its connections: by the secret, or, where that is not for its process to have, by
//! somebody who proves them for it.

use super::message::{Answer, Ask};
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use tidepool_transport::remote::GreetError;
use tidepool_transport::{Seals, Secret};

/// What came of a first request on a connection of its own.
pub struct Dialed {
    pub answer: Answer,
    /// The connection, when the answer is a root.
    pub connection: Option<(TcpStream, Seals)>,
}

/// Makes connections to one node, on which it proves itself and is proved to.
pub trait Dial: Send + Sync {
    /// Asks for a root, or to join a session, with a request of number [`FIRST_ID`].
    fn dial(&self, first: &Ask) -> Result<Dialed, GreetError>;
}

/// Number of the request that a [`Dial`] sends.
pub const FIRST_ID: u32 = 1;

/// What proves a connection.
#[derive(Clone)]
pub enum Reach {
    Secret(Secret),
    By(Arc<dyn Dial>),
}

impl From<Secret> for Reach {
    fn from(secret: Secret) -> Reach {
        Reach::Secret(secret)
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Secret(_) => "Secret(..)",
            Reach::By(_) => "By(..)",
        })
    }
}
