//! The kinds' numbers against the papers', by hand.

use tidepool_workload::{
    Application, Directory, Kind, Layout, Name, Operation, Part, Pattern, Set, SphMode, Stage, Tally,
};

fn of_stage(all: &Application, stage: Stage, does_io: bool) -> (Tally, u64) {
    let (phase, count) = all
        .kinds_of_phases()
        .into_iter()
        .find(|(phase, _)| phase.stage == stage && phase.does_io == does_io)
        .expect("the stage is there");
    (all.tally(&phase), count)
}

#[test]
fn two_applications_of_the_synthetic_benchmark_write_64_gb_a_step() {
    // S3 §IV-B1: two applications, 32 processes each, 1 GB per process and phase, 5 times.
    let all = Application::phases();
    let (tally, count) = of_stage(&all, Stage::Step, true);
    assert_eq!((2 * tally.bytes_written, count), (64_000_000_000, 5));
    assert_eq!(tally.files_made, 32);
    // 953 transfers of 1 MiB and a shorter one, open and close.
    assert_eq!(tally.operations, 32 * (954 + 2));
}

#[test]
fn openfoam_writes_half_a_million_files() {
    // S0 §5.2: 4,800 processes, 95 files each, "half a million files", 0.2 MB each.
    let all = Application::openfoam();
    let (tally, count) = of_stage(&all, Stage::Step, true);
    assert_eq!((tally.files_made, count), (456_000, 2));
    assert_eq!(tally.bytes_written, 456_000 * 200_000);
    assert_eq!(of_stage(&all, Stage::Step, false).1, 18);
    // "With 28,800 cores the number of files increases to 2.7 million."
    let larger = Application { processes: 28_800, ..all.clone() };
    assert_eq!(of_stage(&larger, Stage::Step, true).0.files_made, 2_736_000);
    // "25 MB per process, 120 GB in total" is the same with files of 0.263 MB.
    let mut as_total = all;
    as_total.kind = Kind::OpenFoam(tidepool_workload::OpenFoam { files: 95, file_bytes: 263_158 });
    let bytes = of_stage(&as_total, Stage::Step, true).0.bytes_written;
    assert!((119_900_000_000..120_100_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn nastja_writes_4800_blocks_every_20th_step() {
    // S0 §5.3: 4,800 blocks of 1 MB, every 20th of 100,000 steps.
    let all = Application::nastja();
    let (tally, count) = of_stage(&all, Stage::Step, true);
    assert_eq!((tally.files_made, tally.bytes_written, count), (4800, 4_800_000_000, 5000));
    // Open, one write, close.
    assert_eq!(tally.operations, 4800 * 3);
    assert_eq!(of_stage(&all, Stage::Step, false).1, 95_000);
    let written: Vec<u64> = all
        .phases_in_turn()
        .filter(|p| p.does_io && p.stage == Stage::Step)
        .map(|p| p.step)
        .take(3)
        .collect();
    assert_eq!(written, [20, 40, 60]);
}

#[test]
fn super_sph_gathers_what_its_5120_processes_wrote() {
    // S0 §5.1: 256 nodes of 20 cores; 10⁹ particles on 15,000 cores.
    let all = Application::sph();
    assert_eq!(all.processes, 5120);
    let (step, count) = of_stage(&all, Stage::Step, true);
    let each = 1_000_000_000_u64.div_ceil(15_000) * 64;
    assert_eq!((step.files_made, step.bytes_written, count), (5120, 5120 * each, 10));
    let (gather, once) = of_stage(&all, Stage::Gather, true);
    assert_eq!((gather.files_made, once), (10, 1));
    assert_eq!((gather.bytes_read, gather.bytes_written), (10 * 5120 * each, 10 * 5120 * each));
}

#[test]
fn super_sph_with_mpi_io_writes_one_file_a_step_and_gathers_nothing() {
    let mut all = Application::sph();
    let Kind::Sph(sph) = &mut all.kind else { panic!("it is sph") };
    sph.mode = SphMode::Direct;
    assert_eq!(of_stage(&all, Stage::Step, true).0.files_made, 1);
    assert!(all.phases_in_turn().all(|phase| phase.stage != Stage::Gather));
    assert_eq!(all.files().count(), 10);
}

#[test]
fn wrf_reads_writes_checkpoints_and_a_result() {
    // S3 §IV-C: first reads the input data, computes, periodically writes checkpoints, finally outputs.
    let all = Application::wrf();
    let stages: Vec<(Stage, u64)> =
        all.phases_in_turn().filter(|phase| phase.does_io).map(|phase| (phase.stage, phase.step)).collect();
    let steps = [5, 10, 15, 20].map(|step| (Stage::Step, step));
    let ends = [(Stage::Output, 20)];
    assert_eq!(stages, [&[(Stage::Prepare, 0), (Stage::Input, 0)][..], &steps, &ends].concat());
    let (input, _) = of_stage(&all, Stage::Input, true);
    assert_eq!((input.bytes_read, input.bytes_written, input.files_made), (32 * 16_000_000, 0, 0));
    assert_eq!(of_stage(&all, Stage::Output, true).0.bytes_written, 32 * 64_000_000);
    // "Uses all processes to simultaneously perform the I/O".
    for phase in all.phases_in_turn().filter(|phase| phase.does_io) {
        assert!((0..32).all(|rank| all.operations(&phase, rank).count() > 2), "{phase:?}");
    }
}

#[test]
fn strided_transfers_of_a_shared_file_alternate() {
    let mut all = Application { processes: 2, steps: 1, transfer: 10, ..Application::phases() };
    let Kind::Phases(of) = &mut all.kind else { panic!("it is phases") };
    (of.bytes, of.pattern, of.layout) = (25, Pattern::Strided, Layout::Shared);
    let phase = all.phase(1).unwrap();
    let spans = |rank| -> Vec<(u64, u64)> {
        let operations = all.operations(&phase, rank);
        let write = |operation| match operation {
            Operation::Write { offset, len, .. } => Some((offset, len)),
            _ => None,
        };
        operations.filter_map(write).collect()
    };
    assert_eq!(spans(0), [(0, 10), (20, 10), (40, 5)]);
    assert_eq!(spans(1), [(10, 10), (30, 10), (45, 5)]);
}

#[test]
fn names_are_pinned() {
    let first = |all: &Application| all.files().next().unwrap().name.path();
    let names = [Application::phases(), Application::wrf(), Application::openfoam(), Application::nastja()];
    let names: Vec<String> = names.iter().map(first).collect();
    assert_eq!(names, ["step0000001.p00000", "input", "processor0/0000010/field00", "step0000020.p00000"]);
    let sph = Application::sph();
    assert_eq!(Name { set: Set::Step(3), part: Part::Unfinished }.path(), "step0000003.unfinished");
    assert_eq!(sph.files().nth(5120).unwrap().name.path(), "step0000001");
    let directory = Directory::Step { process: 1, step: 20 };
    assert_eq!(
        (directory.path().as_str(), Directory::Process(7).path().as_str()),
        ("processor1/0000020", "processor7")
    );
}

#[test]
fn only_an_applications_own_names_are_its_own() {
    let (sph, foam) = (Application::sph(), Application { processes: 2, ..Application::openfoam() });
    let file = |all: &Application, path: &str| Name::parse(path).is_some_and(|name| all.makes(name));
    for path in ["step0000001.p00000", "step0000010.p05119", "step0000010", "step0000001.unfinished"] {
        assert!(file(&sph, path), "{path}");
    }
    for path in [
        "step0000011",
        "step0000000",
        "step1",
        "step00000001",
        "step0000001.p5",
        "step0000001.p05120",
        "step0000001.bak",
        "step0000001.",
        "input",
        "output",
        "",
        ".",
        "..",
        "../step0000001",
        "/step0000001",
        "step+000001",
        "step0000001.p+0001",
        "processor0/0000010/field00",
    ] {
        assert!(!file(&sph, path), "{path}");
    }
    assert!(file(&foam, "processor1/0000020/field94") && !file(&foam, "processor1/0000020/field95"));
    for path in [
        "processor2/0000020/field00",
        "processor1/0000015/field00",
        "processor1/0000020/field0",
        "step0000010",
    ] {
        assert!(!file(&foam, path), "{path}");
    }
    let directory = |path: &str| Directory::parse(path).is_some_and(|one| foam.makes_directory(one));
    assert!(directory("processor1") && directory("processor0/0000010"));
    assert!(
        ["processor2", "processor01", "processor1/0000011", "processor1/10", "processor1/", "processor", "0"]
            .iter()
            .all(|path| !directory(path))
    );
}
