//! The checksum file's header, and the codec shared with direct readers.

use crate::error::{StoreError, StoreErrorKind};
pub(super) use tidepool_blocks::{
    BLOCK, Cover, ENTRY_LEN, Entry, HEADER_LEN, HOLE, MAGIC, Sums, Unfit, VERSION, covers, entry_at, header,
    padded_sum, prepare,
};
use tidepool_types::BLOCK_SIZE;

pub(super) fn check_header(bytes: &[u8]) -> Result<(), StoreError> {
    if bytes == header() {
        return Ok(());
    }
    let operation = "open the checksums";
    if bytes.len() < HEADER_LEN as usize || &bytes[..8] != MAGIC {
        let detail = "the file does not start as a checksum file does";
        return Err(StoreError::new(StoreErrorKind::Corrupt, operation, detail).at(0));
    }
    let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let detail = format!(
        "the file has format version {} with blocks of {} bytes, this program reads version {VERSION} with {BLOCK_SIZE}",
        field(8),
        field(12)
    );
    Err(StoreError::new(StoreErrorKind::Version, operation, detail).at(0))
}
