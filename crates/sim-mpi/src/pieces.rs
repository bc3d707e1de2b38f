//! Long messages in pieces: MPI counts with 31 bits, and a receiver takes memory only for what has come.

use tidepool_sim::LinkError;

/// Most bytes of a message of MPI. A shorter one is the last of what belongs together; it may be empty.
pub const PIECE: usize = 1 << 20;
/// Most bytes that one rank gives another at once.
pub const FRAME_MAX: usize = 1 << 36;

/// All pieces, the last of them shorter than a whole one.
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "only MPI sends pieces"))]
pub(crate) fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = bytes.chunks_exact(PIECE);
    let rest = whole.remainder();
    whole.chain([rest])
}

/// Makes room for the next piece, whose place it gives. What comes is checked first.
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "only MPI sends pieces"))]
pub(crate) fn room(into: &mut Vec<u8>, count: usize) -> Result<&mut [u8], LinkError> {
    let begin = into.len();
    if count > PIECE || begin + count > FRAME_MAX {
        return Err(LinkError(format!("{count} bytes came behind {begin}: more than a rank sends")));
    }
    into.resize(begin + count, 0);
    Ok(&mut into[begin..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_put_together_are_what_was_there() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let (mut together, mut last) = (Vec::new(), PIECE);
            for piece in pieces(&bytes) {
                assert_eq!(last, PIECE, "a short piece is the last one");
                room(&mut together, piece.len()).unwrap().copy_from_slice(piece);
                last = piece.len();
            }
            assert!(last < PIECE && together == bytes, "{len} bytes");
        }
    }

    #[test]
    fn more_than_a_piece_is_refused_before_memory_is_taken() {
        assert!(room(&mut Vec::new(), PIECE + 1).unwrap_err().to_string().contains("more than a rank sends"));
    }
}
