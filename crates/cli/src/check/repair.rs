//! Repairs that lose nothing: counts of blocks.

use super::finding::Finding;
use super::scan::unexpected;
use crate::exit::{Failure, Kind, Result};
use tidepool_client::Client;
use tidepool_types::SetAttr;
use tidepool_wire::message::{Reply, Request};

/// Adds what a file's record lacks, or takes off what it has too much; false when the finding is not about a count. The
/// change is one of the record's own kind: what writers tell of meanwhile is added to it, never overwritten.
pub fn count(client: &Client, finding: &Finding) -> Result<bool> {
    let (Some(ino), true) = (finding.subject.ino, finding.uncounted != 0) else { return Ok(false) };
    let request = Request::SetAttr { ino, set: SetAttr::default(), blocks: finding.uncounted };
    let told = client.request(ino.home(), &request).map_err(|error| {
        Failure::new(Kind::NoPool, format!("cannot repair the count of object {ino}: {error}"))
    })?;
    match told {
        Reply::Attributes { .. } => Ok(true),
        other => Err(unexpected(client, ino.home(), &other)),
    }
}
