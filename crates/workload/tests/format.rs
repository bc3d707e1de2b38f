//! `docs/formats/23-workloads.md`: its example is read, its table is what is done without keys, contents are pinned.

use std::time::Duration;
use tidepool_workload::data::Maker;
use tidepool_workload::{Application, FileHeld, Kind, Pace, Part, Set, read_file};

const PAGE: &str = include_str!("../../../docs/formats/23-workloads.md");

fn example() -> &'static str {
    let (_, rest) = PAGE.split_once("```toml\n").expect("the page has an example");
    rest.split_once("```").expect("the example ends").0
}

#[test]
fn the_pages_example_is_read() {
    let all = read_file(example()).unwrap();
    let named: Vec<(&str, &str, u32)> =
        all.iter().map(|one| (one.name.as_str(), one.kind.name(), one.processes)).collect();
    let expected = [
        ("victim", "phases", 4),
        ("wrf", "wrf", 32),
        ("sph", "sph", 5120),
        ("openfoam", "openfoam", 4800),
        ("nastja", "nastja", 4800),
    ];
    assert_eq!(named, expected);
    assert_eq!(all[0].start, Duration::from_millis(2500));
    assert_eq!(all[0].pace, Pace::Ratio { io: 0.25, alone: Some(Duration::from_secs(3)) });
}

#[test]
fn the_pages_defaults_are_those_of_the_code() {
    let row = |all: &Application| {
        let seconds = match all.pace {
            Pace::Compute(each) => format!("{} s", each.as_secs_f64()),
            Pace::Ratio { io, .. } => format!("ratio {io}"),
        };
        (
            all.kind.name(),
            thousands(all.processes.into()),
            thousands(all.steps),
            all.every.to_string(),
            seconds,
        )
    };
    let all = [Application::phases(), Application::wrf(), Application::sph(), Application::openfoam()];
    for all in all.iter().chain([&Application::nastja()]) {
        let (kind, processes, steps, every, pace) = row(all);
        let line = PAGE.lines().find(|line| line.starts_with(&format!("| {kind} |"))).expect("it has a row");
        let cells: Vec<String> =
            line.split(" | ").map(|cell| cell.trim_matches(['|', ' ', '*']).to_string()).collect();
        assert_eq!(
            [&cells[1], &cells[2], &cells[3], &cells[5]],
            [&processes, &steps, &every, &pace],
            "{line}"
        );
    }
}

fn thousands(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

/// Made apart from this code, as the page says.
#[test]
fn contents_are_pinned() {
    let bytes = |file: &FileHeld, at: u64, len: usize| {
        Maker::new(len).piece(file.place.key, file.place.at + at, len).to_vec()
    };
    let find = |all: &Application, set: Set, part: Part| {
        all.files().find(|file| file.name.set == set && file.name.part == part).expect("it is there")
    };
    let phases = Application::phases();
    let first = find(&phases, Set::Step(1), Part::Process(0));
    assert_eq!(bytes(&first, 0, 10), [204, 81, 139, 70, 42, 237, 243, 145, 255, 30]);
    // 10⁹ is 2,560 bytes into a block.
    assert_eq!(bytes(&find(&phases, Set::Step(1), Part::Process(1)), 0, 4), [7, 38, 69, 100]);
    let foam = Application::openfoam();
    let field = find(&foam, Set::Field { step: 10, number: 2 }, Part::Process(1));
    let at = 4096 - 200_000 % 4096;
    assert_eq!(bytes(&field, at, 9), [195, 149, 207, 248, 117, 32, 39, 183, 255]);
    let wrf = Application::wrf();
    assert_eq!(bytes(&find(&wrf, Set::Input, Part::Whole), 0, 4), [176, 126, 103, 84]);
    assert_eq!(bytes(&find(&wrf, Set::Output, Part::Whole), 0, 4), [40, 177, 50, 2]);
    let Kind::Wrf(of) = &wrf.kind else { panic!("it is wrf") };
    assert_eq!(find(&wrf, Set::Input, Part::Whole).bytes, 32 * of.input_bytes);
}
