//! Clearing the ends of files: dropping what was stored behind them, here and at all peers, and nobody was told of
//! (`docs/formats/01-protocol.md`, "Behind the end").

use crate::background::Peers;
use crate::serve::Service;
use std::time::Duration;
use tidepool_types::{Ino, Layout};
use tidepool_wire::message::{Member, Request};

/// How long a loan that is just being granted is waited for.
const GRANTING: Duration = Duration::from_millis(1);

/// Clears all files that somebody waits for.
pub fn clear(service: &Service, peers: &mut Peers) {
    let objects = service.state().take_clearings();
    if objects.is_empty() {
        return;
    }
    let members = service.members();
    if members.is_empty() {
        // Whom to ask is told in a moment.
        return service.state().put_clearings_back(objects);
    }
    for ino in objects {
        let result = clear_one(service, peers, &members, ino);
        let now = service.monotonic();
        let mut state = service.state();
        // The store's own error is kept for `status`; there is nobody to tell here.
        let _ = state.cleared(ino, result, now);
        service.publish_epoch(&state);
    }
}

/// How many blocks are left. Nothing makes the file longer meanwhile.
fn clear_one(service: &Service, peers: &mut Peers, members: &[Member], ino: Ino) -> Result<u64, String> {
    // Before its end is looked up: borrowers move it.
    while service.state().is_lent(ino) {
        service.call_in(ino).map_err(|error| error.to_string())?;
        std::thread::sleep(GRANTING);
    }
    let Some(attr) = service.state().attr_of(ino) else { return Ok(0) };
    let mut left = service.cut(ino, attr.size).map_err(|error| error.to_string())?;
    if attr.layout != Some(Layout::LOCAL) {
        let others = members.iter().filter(|m| m.index != service.index());
        left += peers.blocks_left(others, &Request::Cut { ino, size: attr.size })?;
    }
    Ok(left)
}
