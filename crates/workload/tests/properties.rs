//! What holds of every application, checked by doing what it says with bytes in memory.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidepool_workload::{
    Access, Application, Content, Directory, Kind, Layout, Name, Nastja, OpenFoam, Operation, Pace, Pattern,
    Phases, Place, Sph, SphMode, Stage, Tally, Wrf,
};

fn kinds() -> impl Strategy<Value = Kind> {
    let pattern = prop_oneof![Just(Pattern::Sequential), Just(Pattern::Strided), Just(Pattern::Random)];
    let layout = || prop_oneof![Just(Layout::PerProcess), Just(Layout::Shared)];
    let mode = prop_oneof![Just(SphMode::Gather), Just(SphMode::Direct)];
    prop_oneof![
        (1_u64..200, pattern, layout(), 1_u64..9).prop_map(|(bytes, pattern, layout, stride)| Kind::Phases(
            Phases { bytes, pattern, layout, stride }
        )),
        (1_u64..100, 1_u64..100, 1_u64..100, layout()).prop_map(
            |(input_bytes, checkpoint_bytes, output_bytes, layout)| {
                Kind::Wrf(Wrf { input_bytes, checkpoint_bytes, output_bytes, layout })
            }
        ),
        (1_u64..100, mode).prop_map(|(bytes, mode)| Kind::Sph(Sph { bytes, mode, gatherers: 1 })),
        (1_u32..4, 1_u64..50).prop_map(|(files, file_bytes)| Kind::OpenFoam(OpenFoam { files, file_bytes })),
        (1_u64..100).prop_map(|block_bytes| Kind::Nastja(Nastja { block_bytes })),
    ]
}

fn applications() -> impl Strategy<Value = Application> {
    (kinds(), 1_u32..6, 1_u64..7, 1_u64..4, 1_u64..40, any::<(bool, u64)>()).prop_map(
        |(kind, processes, steps, every, transfer, (fsync, seed))| {
            let (mut kind, every) = (kind, every.min(steps));
            if let Kind::Sph(sph) = &mut kind {
                sph.gatherers = 1 + (seed % u64::from(processes)) as u32;
            }
            let pace = Pace::Compute(Duration::ZERO);
            let (name, start) = ("a".to_string(), Duration::ZERO);
            Application { name, start, processes, steps, every, transfer, fsync, seed, pace, kind }
        },
    )
}

/// Files in memory: for each byte the data and place it is of.
#[derive(Default)]
struct Disk {
    files: BTreeMap<Name, BTreeMap<u64, (u64, u64)>>,
    directories: BTreeSet<String>,
    read: Vec<(u64, u64)>,
    tally: Tally,
}

impl Disk {
    fn perform(&mut self, all: &Application, operation: Operation, open: &mut BTreeSet<Name>) {
        self.tally.operations += 1;
        match operation {
            Operation::MakeDirectory { directory } => {
                assert!(
                    all.makes_directory(directory) && Directory::parse(&directory.path()) == Some(directory)
                );
                assert!(self.directories.insert(directory.path()), "it is made once");
            }
            Operation::Open { file, access } => self.open(all, file, access, open),
            Operation::Write { file, offset, len, place, content } => {
                assert!(open.contains(&file) && len > 0);
                let made = (0..len).map(|byte| (place.key, place.at + byte)).collect::<Vec<_>>();
                if content == Content::Read {
                    assert_eq!(self.read, made, "what was read is what is written");
                }
                self.tally.bytes_written += len;
                let held = self.files.get_mut(&file).expect("it was opened");
                for (at, byte) in (offset..).zip(made) {
                    assert!(held.insert(at, byte).is_none(), "byte {at} of {} is written twice", file.path());
                }
            }
            Operation::Read { file, offset, len, place } => {
                assert!(open.contains(&file) && len > 0);
                self.tally.bytes_read += len;
                self.read = (offset..offset + len).map(|at| self.files[&file][&at]).collect();
                assert_eq!(self.read[0], (place.key, place.at));
            }
            Operation::Sync { file } => assert!(open.contains(&file)),
            Operation::Close { file } => assert!(open.remove(&file)),
            Operation::Rename { from, to } => {
                assert!(!open.contains(&from));
                assert!(all.makes(to));
                let held = self.files.remove(&from).expect("it is there");
                assert!(self.files.insert(to, held).is_none());
            }
        }
    }

    fn open(&mut self, all: &Application, file: Name, access: Access, open: &mut BTreeSet<Name>) {
        assert!(open.insert(file));
        assert!(all.makes(file) && Name::parse(&file.path()) == Some(file), "{file:?}");
        let is_there = self.files.contains_key(&file);
        match access {
            Access::Create => assert!(!is_there),
            Access::CreateShared => {}
            Access::Read => assert!(is_there),
        }
        if !is_there {
            self.tally.files_made += 1;
            self.files.insert(file, BTreeMap::new());
        }
        let path = file.path();
        if let Some((directory, _)) = path.rsplit_once('/') {
            assert!(self.directories.contains(directory), "{directory} was made before {path}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Of any processes no two write the same byte; files are whole at the end, with the data that are told; tallies
    /// are what is counted; what is opened is closed; each phase of the list is told.
    #[test]
    fn doing_it_leaves_what_is_told(all in applications()) {
        let mut disk = Disk::default();
        let mut sum = Tally::default();
        for phase in all.phases_in_turn() {
            disk.tally = Tally::default();
            for rank in 0..all.processes {
                let mut open = BTreeSet::new();
                all.operations(&phase, rank).for_each(|operation| disk.perform(&all, operation, &mut open));
                prop_assert!(open.is_empty(), "{open:?} stay open");
            }
            prop_assert_eq!(disk.tally, all.tally(&phase), "{:?}", phase);
            prop_assert_eq!(disk.tally.operations > 0, phase.does_io, "{:?}", phase);
            sum += disk.tally;
        }
        prop_assert_eq!(sum, all.tally_of_all());
        let told: BTreeMap<Name, (u64, Place)> = all.files().map(|file| (file.name, (file.bytes, file.place))).collect();
        prop_assert_eq!(told.keys().collect::<Vec<_>>(), disk.files.keys().collect::<Vec<_>>());
        for (name, held) in &disk.files {
            let (bytes, Place { key, at }) = told[name];
            let wanted = (0..bytes).map(|byte| (byte, (key, at + byte)));
            prop_assert!(held.iter().map(|(at, byte)| (*at, *byte)).eq(wanted), "{}", name.path());
        }
        let paths: BTreeSet<String> = disk.files.keys().map(Name::path).collect();
        prop_assert_eq!(paths.len(), disk.files.len(), "each file has a path of its own");
    }

    #[test]
    fn the_same_description_does_the_same(all in applications(), index in 0_u64..8, rank in 0_u32..6) {
        let Some(phase) = all.phase(index) else { return Ok(()) };
        let again = all.clone();
        prop_assert!(all.operations(&phase, rank).eq(again.operations(&phase, rank)));
    }

    /// Kinds of phases are counted without going through the steps.
    #[test]
    fn kinds_of_phases_are_all_phases(all in applications()) {
        let counted: u64 = all.kinds_of_phases().iter().map(|(_, count)| count).sum();
        let phases = all.phases_in_turn().filter(|phase| phase.computes || phase.does_io).count();
        prop_assert_eq!(counted, phases as u64);
        let steps = all.phases_in_turn().filter(|phase| phase.stage == Stage::Step).count();
        prop_assert_eq!(steps as u64, all.steps);
    }
}

/// A run of a petabyte is begun without listing it.
#[test]
fn large_runs_are_lazy() {
    let mut all = Application { processes: 1 << 20, steps: 1000, transfer: 4096, ..Application::phases() };
    let Kind::Phases(of) = &mut all.kind else { panic!("it is phases") };
    (of.bytes, of.pattern) = (1_000_000_000, Pattern::Random);
    let phase = all.phase(1000).unwrap();
    assert_eq!(all.operations(&phase, 1_048_575).take(3).count(), 3);
    assert_eq!(all.tally_of_all().bytes_written, (1 << 20) * 1000 * 1_000_000_000);
    assert_eq!(all.files().take(2).count(), 2);
}
