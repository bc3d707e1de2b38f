use super::*;
use proptest::prelude::*;

fn said(text: &str) -> String {
    let problems = read_file(text).expect_err(text);
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_keys_of_all_kinds_are_read() {
    let text = r#"
        [[application]]
        kind = "phases"
        name = "victim"
        start-seconds = 2.5
        processes = 4
        steps = 8
        every = 2
        transfer = "64KiB"
        fsync = true
        seed = 7
        io-ratio = 0.25
        alone-seconds = 3
        bytes = "10MB"
        pattern = "strided"
        layout = "shared"
        stride = 3
        [[application]]
        kind = "wrf"
        compute-seconds = 0.1
        input-bytes = 1
        checkpoint-bytes = 2
        output-bytes = "3"
        layout = "per-process"
        [[application]]
        kind = "sph"
        bytes = "1MiB"
        mode = "direct"
        gatherers = 2
        [[application]]
        kind = "openfoam"
        files = 5
        file-bytes = 1000
        [[application]]
        kind = "nastja"
        block-bytes = "2MB""#;
    let all = read_file(text).unwrap();
    let phases = &all[0];
    assert_eq!((phases.name.as_str(), phases.start), ("victim", Duration::from_millis(2500)));
    assert_eq!((phases.processes, phases.steps, phases.every), (4, 8, 2));
    assert_eq!((phases.transfer, phases.fsync, phases.seed), (65_536, true, 7));
    assert_eq!(phases.pace, Pace::Ratio { io: 0.25, alone: Some(Duration::from_secs(3)) });
    let Kind::Phases(of) = &phases.kind else { panic!("{phases:?}") };
    assert_eq!(
        (of.bytes, of.pattern, of.layout, of.stride),
        (10_000_000, Pattern::Strided, Layout::Shared, 3)
    );
    let Kind::Wrf(of) = &all[1].kind else { panic!("{all:?}") };
    assert_eq!((of.input_bytes, of.checkpoint_bytes, of.output_bytes), (1, 2, 3));
    assert_eq!((of.layout, all[1].pace), (Layout::PerProcess, Pace::Compute(Duration::from_millis(100))));
    let Kind::Sph(of) = &all[2].kind else { panic!("{all:?}") };
    assert_eq!((of.bytes, of.mode, of.gatherers), (1 << 20, SphMode::Direct, 2));
    let Kind::OpenFoam(of) = &all[3].kind else { panic!("{all:?}") };
    assert_eq!((of.files, of.file_bytes), (5, 1000));
    let Kind::Nastja(of) = &all[4].kind else { panic!("{all:?}") };
    assert_eq!((of.block_bytes, all[4].name.as_str()), (2_000_000, "nastja"));
}

#[test]
fn what_is_not_said_is_the_papers() {
    for (kind, _) in KINDS {
        let all = read_file(&format!("[[application]]\nkind = \"{kind}\"\n")).unwrap();
        assert_eq!(all, [with_defaults(kind)]);
        assert_eq!((all[0].kind.name(), all[0].name.as_str()), (kind, kind));
    }
}

#[test]
fn what_is_wrong_in_a_file_is_said() {
    for (text, why) in [
        ("", "describes no application"),
        ("application = 3", "'application' takes tables"),
        ("application = [3]", "application number 1: 'application' takes tables"),
        ("x = ", "TOML parse error"),
        (
            "applications = 1\n[[application]]\nkind = \"wrf\"",
            "no key 'applications'; did you mean 'application'?",
        ),
        ("[[application]]\nname = \"a\"", "application 'a': 'kind' is missing"),
        ("[[application]]\nkind = 1", "number 1: 'kind' takes a word"),
        ("[[application]]\nkind = \"nastya\"", "kind 'nastya' is not known; did you mean 'nastja'?"),
        ("[[application]]\nkind = \"xyz\"", "one of phases, wrf, sph, openfoam, nastja"),
    ] {
        assert!(said(text).contains(why), "{text}: {}", said(text));
    }
}

#[test]
fn what_is_wrong_in_an_application_is_said() {
    for (kind, line, why) in [
        ("phases", "byte = 1", "no key 'byte'; did you mean 'bytes'?"),
        ("phases", "compute_seconds = 1", "did you mean 'compute-seconds'?"),
        ("phases", "colour = 1", "no key 'colour'; the keys are name, start-seconds"),
        ("phases", "block-bytes = 1", "'block-bytes' is for the kind nastja, not for phases"),
        ("phases", "pattern = \"randon\"", "pattern 'randon' is not known; did you mean 'random'?"),
        ("phases", "bytes = 0", "'bytes' is out of range: 1 byte to"),
        ("phases", "bytes = 1.5", "'bytes' takes a size"),
        ("phases", "bytes = \"1.5GB\"", "'bytes': "),
        ("phases", "transfer = \"2GiB\"", "'transfer' is out of range: 1 byte to 1.0 GiB"),
        ("phases", "processes = 0", "'processes' is out of range: 1 to 1048576"),
        ("phases", "processes = \"4\"", "'processes' takes a whole number"),
        ("phases", "fsync = 1", "'fsync' takes true or false"),
        ("phases", "io-ratio = 0", "'io-ratio' is out of range: 0.01 to 1"),
        ("phases", "io-ratio = nan", "out of range"),
        ("phases", "start-seconds = -1", "'start-seconds' is out of range: 0 to 604800 seconds"),
        (
            "phases",
            "io-ratio = 0.5\ncompute-seconds = 1",
            "'compute-seconds' and 'io-ratio' exclude each other",
        ),
        ("wrf", "alone-seconds = 1", "'alone-seconds' is of use with 'io-ratio' only"),
        ("wrf", "name = \"../x\"", "name '../x': 1 to 64"),
        ("wrf", "name = \".x\"", "name '.x'"),
        ("wrf", "every = 21", "with 20 steps and I/O at every 21th there is never any"),
        ("sph", "gatherers = 3\nprocesses = 2", "3 gatherers are more than the 2 processes"),
        ("phases", "bytes = \"1024TiB\"\nprocesses = 1048576", "bytes in all; at most"),
        (
            "openfoam",
            "files = 65536\nprocesses = 1048576\nsteps = 1000\nfile-bytes = 1",
            "files in all; at most",
        ),
    ] {
        let said = said(&format!("[[application]]\nkind = \"{kind}\"\n{line}"));
        assert!(said.contains(why), "{line}: {said}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let said =
        said("[[application]]\nkind = \"wrf\"\nstep = 1\nprocesses = 0\n[[application]]\nkind = \"nope\"\n");
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn names_are_unlike() {
    let text = "[[application]]\nkind = \"wrf\"\n[[application]]\nkind = \"wrf\"\n";
    assert!(said(text).contains("two applications are called 'wrf'"));
    let many = "[[application]]\nkind = \"wrf\"\n".repeat(APPLICATIONS_MAX + 1);
    assert!(said(&many).contains("65 applications; at most 64"));
}

proptest! {
    /// Whatever a file holds is read or refused.
    #[test]
    fn garbage_never_panics(text in "(\\[\\[application\\]\\]\\n|kind = \"(phases|sph)\"\\n|(bytes|steps|io-ratio|every) = [0-9.\"a-z-]{1,20}\\n|\\PC{0,9}\\n){0,8}") {
        if let Ok(all) = read_file(&text) {
            prop_assert!(all.iter().all(|one| one.tally_of_all().bytes_written <= 2 * BYTES_ALL_MAX));
        }
    }
}
