//! How much a phase is, counted and not listed.

use crate::phase::{Phase, Stage};
use crate::spec::{Application, Kind};
use serde::Serialize;
use std::ops::AddAssign;

/// Of all processes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Tally {
    pub files_made: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub operations: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.files_made += other.files_made;
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
        self.operations += other.operations;
    }
}

impl Tally {
    pub fn times(self, count: u64) -> Tally {
        Tally {
            files_made: self.files_made * count,
            bytes_written: self.bytes_written * count,
            bytes_read: self.bytes_read * count,
            operations: self.operations * count,
        }
    }
}

impl Application {
    pub fn tally(&self, phase: &Phase) -> Tally {
        match phase.stage {
            _ if !phase.does_io => Tally::default(),
            Stage::Gather => self.gathering_tally(),
            _ => self.tally_of_pieces(phase),
        }
    }

    /// All processes do as much as the first.
    fn tally_of_pieces(&self, phase: &Phase) -> Tally {
        let mut all = Tally::default();
        if self.directory_made(phase, 0).is_some() {
            all.operations += u64::from(self.processes);
        }
        // Pieces of a phase are alike, and there may be many.
        let count = match (&self.kind, phase.stage) {
            (Kind::OpenFoam(_), Stage::Prepare) => 0,
            (Kind::OpenFoam(foam), _) => u64::from(foam.files),
            _ => 1,
        };
        let Some(piece) = self.pieces(phase, 0).next() else { return all };
        let parts = count * u64::from(self.processes);
        let bytes = piece.extent.bytes * parts;
        let is_read = piece.access == crate::Access::Read;
        let is_shared = piece.file.part == crate::Part::Whole;
        all += Tally {
            files_made: if is_read {
                0
            } else if is_shared {
                count
            } else {
                parts
            },
            bytes_written: if is_read { 0 } else { bytes },
            bytes_read: if is_read { bytes } else { 0 },
            operations: piece.count() * parts,
        };
        all
    }

    fn gathering_tally(&self) -> Tally {
        let Kind::Sph(sph) = &self.kind else { return Tally::default() };
        let processes = u64::from(self.processes);
        let bytes = sph.bytes * processes;
        let each = sph.bytes.div_ceil(self.transfer);
        // Of each source: open, close, reads and writes. Of the whole: open, close, rename.
        let operations = processes * (2 + 2 * each) + 3 + u64::from(self.fsync);
        Tally { files_made: 1, bytes_written: bytes, bytes_read: bytes, operations }
            .times(self.written_steps())
    }

    /// Phases of one kind, with how many there are, without going through all steps.
    pub fn kinds_of_phases(&self) -> Vec<(Phase, u64)> {
        let written = self.written_steps();
        let first = 1 + u64::from(matches!(self.kind, Kind::Wrf(_)));
        let mut kinds = Vec::new();
        let mut add = |index: u64, count: u64| {
            if let Some(phase) =
                self.phase(index).filter(|phase| count > 0 && (phase.computes || phase.does_io))
            {
                kinds.push((phase, count));
            }
        };
        (0..first).for_each(|index| add(index, 1));
        // With every step written there is none that only computes.
        if self.every > 1 {
            add(first, self.steps - written);
        }
        add(first + self.every - 1, written);
        add(first + self.steps, 1);
        kinds
    }

    /// Of all phases, `Prepare` among them.
    pub fn tally_of_all(&self) -> Tally {
        let mut all = Tally::default();
        for (phase, count) in self.kinds_of_phases() {
            all += self.tally(&phase).times(count);
        }
        all
    }
}
