//! How fast a copy goes, and so how long the rest will take. Pure: it is told the time.
//!
//! A copy's time goes into bytes copied, bytes read back, and files. What each costs is fitted to the whole
//! copy so far by least squares, and scaled by how the last part of it went: so a mixture of small
//! and large files is foreseen, and a link that became slower is noticed (INVENTORY I19).

/// Pieces of the past that are kept; more are merged in pairs.
const PIECES_MAX: usize = 256;
/// Shortest piece, in seconds.
const PIECE_SECONDS: f64 = 0.02;
/// Parts that costs are fitted to: longer than what the engine does at a time, so that its batches are
/// not taken for costs.
const PARTS_MAX: usize = 24;
/// As long as so few files are done, all time is taken to go into bytes rather than files.
const FILES_DOUBTED: f64 = 20.0;
/// Share of the time so far that counts as the last part, and its least length in seconds.
const RECENT_SHARE: f64 = 0.15;
const RECENT_SECONDS: f64 = 1.0;
/// Seconds that reading a byte back is taken to cost until it has been seen: as from a page cache or a very
/// fast disk. Never more than this share of what copying one costs.
const READ_BACK_BYTE: f64 = 5e-10;
const READ_BACK_SHARE_MAX: f64 = 0.5;
/// The last part is not believed to be more often faster or slower than the whole.
const SCALE_MAX: f64 = 20.0;

/// What is done at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Done {
    /// Bytes that have been put at the destination, or were there.
    pub copied: f64,
    /// Bytes that are verified.
    pub verified: f64,
    pub files: f64,
}

/// What was done in a piece of time.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    seconds: f64,
    done: Done,
}

impl Piece {
    fn join(self, other: Piece) -> Piece {
        let done = Done {
            copied: self.done.copied + other.done.copied,
            verified: self.done.verified + other.done.verified,
            files: self.done.files + other.done.files,
        };
        Piece { seconds: self.seconds + other.seconds, done }
    }
}

/// Seconds per byte copied, byte read back, and file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Costs {
    byte: f64,
    read_back: f64,
    file: f64,
}

impl Costs {
    fn of(&self, done: &Done) -> f64 {
        self.byte * done.copied + self.read_back * done.verified + self.file * done.files
    }
}

/// The past of one copy.
#[derive(Debug)]
pub(crate) struct Pace {
    pieces: Vec<Piece>,
    /// Shortest piece now.
    step: f64,
    at: f64,
    last: Done,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { pieces: Vec::new(), step: PIECE_SECONDS, at: 0.0, last: Done::default() }
    }
}

impl Pace {
    /// When there is something to be told again, in seconds since the start.
    pub fn next(&self) -> f64 {
        self.at + self.step
    }

    /// What is done `at` seconds after the start.
    pub fn tell(&mut self, at: f64, done: Done) {
        if at < self.next() {
            return;
        }
        let more = |now: f64, before: f64| (now - before).max(0.0);
        let done_now = Done {
            copied: more(done.copied, self.last.copied),
            verified: more(done.verified, self.last.verified),
            files: more(done.files, self.last.files),
        };
        self.pieces.push(Piece { seconds: at - self.at, done: done_now });
        (self.at, self.last) = (at, done);
        if self.pieces.len() >= PIECES_MAX {
            self.pieces = self
                .pieces
                .chunks(2)
                .map(|two| two.iter().fold(Piece::default(), |a, b| a.join(*b)))
                .collect();
            self.step *= 2.0;
        }
    }

    /// Bytes per second lately.
    pub fn rate(&self) -> f64 {
        let recent = self.recent();
        if recent.seconds > 0.0 { recent.done.copied / recent.seconds } else { 0.0 }
    }

    /// Seconds that `left` will take; none while nothing has been done.
    pub fn left(&self, left: &Done) -> Option<f64> {
        let costs = self.costs()?;
        let recent = self.recent();
        let expected = costs.of(&recent.done);
        // Nothing done lately: it stands still, and nobody knows for how long.
        let scale = if expected > 0.0 { recent.seconds / expected } else { SCALE_MAX };
        Some(costs.of(left) * scale.clamp(1.0 / SCALE_MAX, SCALE_MAX))
    }

    fn recent(&self) -> Piece {
        let wanted = (self.at * RECENT_SHARE).max(RECENT_SECONDS);
        let mut recent = Piece::default();
        for piece in self.pieces.iter().rev() {
            recent = recent.join(*piece);
            if recent.seconds >= wanted {
                break;
            }
        }
        recent
    }

    fn costs(&self) -> Option<Costs> {
        let share = self.read_back_share();
        // Bytes copied and read back as one quantity: they mostly go together.
        let quantities = |piece: &Piece| {
            (piece.seconds, piece.done.copied + share * piece.done.verified, piece.done.files)
        };
        let size = self.pieces.len().div_ceil(PARTS_MAX).max(1);
        let join = |pieces: &[Piece]| pieces.iter().fold(Piece::default(), |a, b| a.join(*b));
        let parts: Vec<_> = self.pieces.chunks(size).map(|pieces| quantities(&join(pieces))).collect();
        let (byte, file) = fit(&parts)?;
        Some(Costs { byte, read_back: share * byte, file })
    }

    /// What reading back costs, as a share of copying: from pieces that did only the one or the other.
    fn read_back_share(&self) -> f64 {
        let (mut copying, mut reading) = (Piece::default(), Piece::default());
        for piece in &self.pieces {
            if piece.done.verified <= 0.0 {
                copying = copying.join(*piece);
            } else if piece.done.copied <= 0.0 {
                reading = reading.join(*piece);
            }
        }
        let whole = self.pieces.iter().fold(Piece::default(), |a, b| a.join(*b));
        let copying = if copying.done.copied > 0.0 { copying } else { whole };
        if copying.done.copied <= 0.0 {
            return READ_BACK_SHARE_MAX;
        }
        let byte = copying.seconds / copying.done.copied;
        if reading.done.verified > 0.0 {
            return reading.seconds / reading.done.verified / byte;
        }
        (READ_BACK_BYTE / byte).min(READ_BACK_SHARE_MAX)
    }
}

/// Costs of a byte and of a file from parts of (seconds, bytes, files). Together they always explain the
/// whole time; how it is divided between them, least squares decide. None when nothing was done.
fn fit(parts: &[(f64, f64, f64)]) -> Option<(f64, f64)> {
    let sum = |of: fn(&(f64, f64, f64)) -> f64| parts.iter().map(of).sum::<f64>();
    let (seconds, bytes, files) = (sum(|p| p.0), sum(|p| p.1), sum(|p| p.2));
    if bytes <= 0.0 {
        return (files > 0.0).then(|| (0.0, seconds / files));
    }
    if files <= 0.0 {
        return Some((seconds / bytes, 0.0));
    }
    // If it were all bytes, or all files.
    let (byte, file) = (seconds / bytes, seconds / files);
    let (mut xx, mut xy) = (0.0, 0.0);
    for (t, b, f) in parts {
        let (x, y) = (byte * b - file * f, t - file * f);
        xx += x * x;
        xy += x * y;
    }
    // A few files tell little about what files cost, and there may be many more of them.
    let doubt = xx * FILES_DOUBTED / files;
    let share = if xx > 0.0 { ((xy + doubt) / (xx + doubt)).clamp(0.0, 1.0) } else { 1.0 };
    Some((share * byte, (1.0 - share) * file))
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
