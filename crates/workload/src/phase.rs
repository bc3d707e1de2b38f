//! The phases of an application, in turn; between two all its processes wait for each other.
//!
//! ```text
//! Prepare ─▶ Input (wrf) ─▶ Step 1 ─▶ ... ─▶ Step n ─▶ Output (wrf) or Gather (sph)
//! ```

use crate::data::mix;
use crate::name::{Directory, Name, Part, Set};
use crate::order::Order;
use crate::piece::{Access, Content, Extent, Operation, Piece, Place, Region};
use crate::spec::{Application, Kind, Layout, Pattern, SphMode};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Makes what is there before the application starts; is not measured.
    Prepare,
    Input,
    Step,
    Output,
    Gather,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Phase {
    pub index: u64,
    pub stage: Stage,
    /// From 1; of `Input` 0, of what comes after the steps the last.
    pub step: u64,
    pub computes: bool,
    /// Whether any process has operations.
    pub does_io: bool,
}

/// A file as it is when the application has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeld {
    pub name: Name,
    pub bytes: u64,
    /// Of its first byte.
    pub place: Place,
}

type Operations<'a> = Box<dyn Iterator<Item = Operation> + 'a>;

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Prepare => "prepare",
            Stage::Input => "input",
            Stage::Step => "step",
            Stage::Output => "output",
            Stage::Gather => "gather",
        }
    }
}

impl Application {
    /// All phases, in turn.
    pub fn phases_in_turn(&self) -> impl Iterator<Item = Phase> + '_ {
        (0..).map_while(|index| self.phase(index))
    }

    pub fn phase(&self, index: u64) -> Option<Phase> {
        let before = 1 + u64::from(matches!(self.kind, Kind::Wrf(_)));
        let phase = |stage, step, computes, does_io| Some(Phase { index, stage, step, computes, does_io });
        match index {
            0 => phase(Stage::Prepare, 0, false, matches!(self.kind, Kind::Wrf(_) | Kind::OpenFoam(_))),
            _ if index < before => phase(Stage::Input, 0, false, true),
            _ if index < before + self.steps => {
                let step = index - before + 1;
                phase(Stage::Step, step, true, step.is_multiple_of(self.every))
            }
            _ if index == before + self.steps => {
                let stage = self.last_stage()?;
                phase(stage, self.steps, false, true)
            }
            _ => None,
        }
    }

    fn last_stage(&self) -> Option<Stage> {
        match &self.kind {
            Kind::Wrf(_) => Some(Stage::Output),
            Kind::Sph(sph) if sph.mode == SphMode::Gather => Some(Stage::Gather),
            _ => None,
        }
    }

    /// What a process does in a phase, after the barrier.
    pub fn operations(&self, phase: &Phase, rank: u32) -> Operations<'_> {
        if !phase.does_io {
            return Box::new(std::iter::empty());
        }
        if phase.stage == Stage::Gather {
            return self.gathering(rank);
        }
        let directory = self.directory_made(phase, rank);
        let made = directory.map(|directory| Operation::MakeDirectory { directory });
        Box::new(made.into_iter().chain(self.pieces(phase, rank).flat_map(Piece::operations)))
    }

    pub(crate) fn directory_made(&self, phase: &Phase, process: u32) -> Option<Directory> {
        match (&self.kind, phase.stage) {
            (Kind::OpenFoam(_), Stage::Prepare) => Some(Directory::Process(process)),
            (Kind::OpenFoam(_), Stage::Step) => Some(Directory::Step { process, step: phase.step }),
            _ => None,
        }
    }

    /// Parts of files, of all phases but `Gather`.
    pub(crate) fn pieces<'a>(&'a self, phase: &Phase, rank: u32) -> Box<dyn Iterator<Item = Piece> + 'a> {
        let (step, stage) = (phase.step, phase.stage);
        let one = |set, bytes, layout| self.piece(set, bytes, layout, rank);
        let piece = match (&self.kind, stage) {
            (Kind::OpenFoam(_), Stage::Prepare) => None,
            (Kind::OpenFoam(foam), _) => {
                let field = move |number| Set::Field { step, number };
                let bytes = foam.file_bytes;
                let each = move |n| self.piece(field(n), bytes, Layout::PerProcess, rank);
                return Box::new((0..foam.files).map(each));
            }
            (Kind::Wrf(wrf), Stage::Prepare) => Some(one(Set::Input, wrf.input_bytes, wrf.layout)),
            (Kind::Wrf(wrf), Stage::Input) => {
                let read = one(Set::Input, wrf.input_bytes, wrf.layout);
                Some(Piece { access: Access::Read, fsync: false, ..read })
            }
            (Kind::Wrf(wrf), Stage::Output) => Some(one(Set::Output, wrf.output_bytes, wrf.layout)),
            (Kind::Wrf(wrf), _) => Some(one(Set::Step(step), wrf.checkpoint_bytes, wrf.layout)),
            (Kind::Phases(phases), _) => Some(one(Set::Step(step), phases.bytes, phases.layout)),
            (Kind::Sph(sph), _) => Some(one(Set::Step(step), sph.bytes, sph.layout())),
            (Kind::Nastja(nastja), _) => Some(one(Set::Step(step), nastja.block_bytes, Layout::PerProcess)),
        };
        Box::new(piece.into_iter())
    }

    /// A process's part of a set of data.
    fn piece(&self, set: Set, bytes: u64, layout: Layout, rank: u32) -> Piece {
        let base = u64::from(rank) * bytes;
        let (part, access, shift) = match layout {
            Layout::PerProcess => (Part::Process(rank), Access::Create, base),
            Layout::Shared => (Part::Whole, Access::CreateShared, 0),
        };
        let region = match (layout, self.pattern()) {
            (Layout::Shared, Pattern::Strided) => {
                Region::Interleaved { rank: rank.into(), processes: self.processes.into() }
            }
            (Layout::Shared, _) => Region::From(base),
            (Layout::PerProcess, _) => Region::From(0),
        };
        let order = self.order(set, layout, rank);
        let extent = Extent { region, bytes, transfer: self.transfer, order };
        Piece { file: Name { set, part }, access, extent, key: self.key(set), shift, fsync: self.fsync }
    }

    fn pattern(&self) -> Pattern {
        match &self.kind {
            Kind::Phases(phases) => phases.pattern,
            _ => Pattern::Sequential,
        }
    }

    fn order(&self, set: Set, layout: Layout, rank: u32) -> Order {
        match (&self.kind, self.pattern(), layout) {
            (Kind::Phases(phases), Pattern::Strided, Layout::PerProcess) => {
                Order::Strided { stride: phases.stride }
            }
            (_, Pattern::Random, _) => Order::Random { seed: mix(self.key(set) ^ u64::from(rank)) },
            _ => Order::Sequential,
        }
    }

    /// Of a set's data. Applications of one seed have different data by their names.
    fn key(&self, set: Set) -> u64 {
        let (code, step) = match set {
            Set::Input => (0, 0),
            Set::Step(step) => (1, step),
            Set::Output => (2, 0),
            Set::Field { step, number } => (3 + u64::from(number), step),
        };
        let name = self.name.bytes().fold(self.seed, |key, byte| mix(key ^ u64::from(byte)));
        mix(mix(name ^ code) ^ step)
    }

    /// Puts the files of all processes together, one step after the other.
    fn gathering(&self, rank: u32) -> Operations<'_> {
        let Kind::Sph(sph) = &self.kind else { return Box::new(std::iter::empty()) };
        let gatherers = u64::from(sph.gatherers);
        let own =
            move |number: &u64| (number - 1) % gatherers == u64::from(rank) && u64::from(rank) < gatherers;
        let steps = (1..=self.written_steps()).filter(own).map(|number| number * self.every);
        Box::new(steps.flat_map(move |step| self.gathered(step, sph.bytes)))
    }

    /// One step's: a file that has its name has all.
    fn gathered(&self, step: u64, bytes: u64) -> impl Iterator<Item = Operation> + '_ {
        let set = Set::Step(step);
        let (file, whole) = (Name { set, part: Part::Unfinished }, Name { set, part: Part::Whole });
        let copies = (0..self.processes).flat_map(move |rank| {
            let source = Piece {
                access: Access::Read,
                fsync: false,
                ..self.piece(set, bytes, Layout::PerProcess, rank)
            };
            source.operations().flat_map(move |read| std::iter::once(read).chain(written(file, read)))
        });
        let sync = self.fsync.then_some(Operation::Sync { file });
        std::iter::once(Operation::Open { file, access: Access::Create })
            .chain(copies)
            .chain(sync)
            .chain([Operation::Close { file }, Operation::Rename { from: file, to: whole }])
    }

    /// What is there at the end.
    pub fn files(&self) -> Box<dyn Iterator<Item = FileHeld> + '_> {
        let each = move |set, bytes, layout| self.held(set, bytes, layout);
        let steps = (1..=self.written_steps()).map(|number| number * self.every);
        match &self.kind {
            Kind::Phases(of) => {
                Box::new(steps.flat_map(move |step| each(Set::Step(step), of.bytes, of.layout)))
            }
            Kind::Nastja(of) => Box::new(
                steps.flat_map(move |step| each(Set::Step(step), of.block_bytes, Layout::PerProcess)),
            ),
            Kind::OpenFoam(of) => Box::new(steps.flat_map(move |step| {
                let field = move |number| Set::Field { step, number };
                (0..of.files).flat_map(move |n| each(field(n), of.file_bytes, Layout::PerProcess))
            })),
            Kind::Wrf(of) => {
                let checkpoint = move |step| each(Set::Step(step), of.checkpoint_bytes, of.layout);
                let ends = [(Set::Input, of.input_bytes), (Set::Output, of.output_bytes)];
                let ends = ends.into_iter().flat_map(move |(set, bytes)| each(set, bytes, of.layout));
                Box::new(ends.chain(steps.flat_map(checkpoint)))
            }
            Kind::Sph(of) => Box::new(steps.flat_map(move |step| {
                let set = Set::Step(step);
                let gathered = (of.mode == SphMode::Gather).then(|| each(set, of.bytes, Layout::Shared));
                each(set, of.bytes, of.layout()).chain(gathered.into_iter().flatten())
            })),
        }
    }

    /// The files of one set of data.
    fn held(&self, set: Set, bytes: u64, layout: Layout) -> impl Iterator<Item = FileHeld> + '_ {
        let key = self.key(set);
        let (count, len) = match layout {
            Layout::PerProcess => (self.processes, bytes),
            Layout::Shared => (1, bytes * u64::from(self.processes)),
        };
        (0..count).map(move |rank| {
            let part = if layout == Layout::Shared { Part::Whole } else { Part::Process(rank) };
            let place = Place { key, at: u64::from(rank) * bytes };
            FileHeld { name: Name { set, part }, bytes: len, place }
        })
    }

    /// Whether it makes this file at any time. For what is found in a directory: going through all that a run may make
    /// takes long where it has made little.
    pub fn makes(&self, name: Name) -> bool {
        let (set, layout) = match (&self.kind, name.set) {
            (Kind::OpenFoam(of), Set::Field { step, number }) if number < of.files => {
                (self.is_written(step), Layout::PerProcess)
            }
            (Kind::Wrf(of), Set::Input | Set::Output) => (true, of.layout),
            (Kind::Wrf(of), Set::Step(step)) => (self.is_written(step), of.layout),
            (Kind::Phases(of), Set::Step(step)) => (self.is_written(step), of.layout),
            (Kind::Nastja(_), Set::Step(step)) => (self.is_written(step), Layout::PerProcess),
            (Kind::Sph(of), Set::Step(step)) => (self.is_written(step), of.layout()),
            _ => return false,
        };
        let gathers = self.last_stage() == Some(Stage::Gather);
        set && match name.part {
            Part::Process(rank) => layout == Layout::PerProcess && rank < self.processes,
            Part::Whole => layout == Layout::Shared || gathers,
            Part::Unfinished => gathers,
        }
    }

    pub fn makes_directory(&self, directory: Directory) -> bool {
        let (process, step) = match directory {
            Directory::Process(process) => (process, true),
            Directory::Step { process, step } => (process, self.is_written(step)),
        };
        matches!(self.kind, Kind::OpenFoam(_)) && process < self.processes && step
    }

    fn is_written(&self, step: u64) -> bool {
        (1..=self.steps).contains(&step) && step.is_multiple_of(self.every)
    }
}

impl crate::spec::Sph {
    /// Of what the steps write.
    fn layout(&self) -> Layout {
        match self.mode {
            SphMode::Gather => Layout::PerProcess,
            SphMode::Direct => Layout::Shared,
        }
    }
}

/// The write of what a read has read, in the gathered file.
fn written(file: Name, read: Operation) -> Option<Operation> {
    let Operation::Read { len, place, .. } = read else { return None };
    Some(Operation::Write { file, offset: place.at, len, place, content: Content::Read })
}
