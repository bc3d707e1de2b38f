//! Frames: the length of the body in 8 bytes, big-endian, and the body.

use crate::{Request, Response};
use prost::Message;
use tidepool_wire::DecodeError;
use tidepool_wire::stager::{Code, Refusal};

/// Bytes before a body.
pub const LENGTH_LEN: usize = 8;
/// Most bytes of a body. The published daemon has no limit; the longest message its library makes is a
/// job's list of hosts.
pub const BODY_MAX: usize = 8 << 20;

/// Length of the body that follows, checked before memory is taken for it.
pub fn body_len(bytes: [u8; LENGTH_LEN]) -> Result<usize, DecodeError> {
    match usize::try_from(u64::from_be_bytes(bytes)) {
        Ok(len) if len <= BODY_MAX => Ok(len),
        _ => Err(DecodeError::Invalid("message length")),
    }
}

fn framed(message: &impl Message) -> Vec<u8> {
    let len = message.encoded_len();
    let mut frame = Vec::with_capacity(LENGTH_LEN + len);
    frame.extend_from_slice(&(len as u64).to_be_bytes());
    message.encode_raw(&mut frame);
    frame
}

impl Request {
    /// A request from a frame's body.
    pub fn read(body: &[u8]) -> Result<Request, Refusal> {
        Request::decode(body)
            .map_err(|e| Refusal::new(Code::BAD_REQUEST, format!("not a NORNS request: {e}")))
    }

    /// The request with its length, as a client sends it.
    pub fn frame(&self) -> Vec<u8> {
        framed(self)
    }
}

impl Response {
    /// A response from a frame's body.
    pub fn read(body: &[u8]) -> Result<Response, Refusal> {
        Response::decode(body)
            .map_err(|e| Refusal::new(Code::RECEIVE_FAILED, format!("not a NORNS response: {e}")))
    }

    /// The response with its length, as a server sends it.
    pub fn frame(&self) -> Vec<u8> {
        framed(self)
    }
}
