//! What the inventory asks of the simulator of HPIS3 (rows L1 to L22): decision 33 says for each row which test shows it. Here
//! are those that have no other place, and a look whether all of them are there.

mod common;

use common::{application, class, even, fast_network, fixed, idle_server, writes};
use std::fs;
use std::path::Path;
use tidepool_sim::Options;
use tidepool_sim_models::device::{DeviceSpec, HddSpec};
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::workload::{Ior, Order, Program};
use tidepool_sim_models::{Op, Pfs, Span, State, run};

const DECISION: &str = include_str!("../../../docs/decisions/0033-storage-models.md");

/// L5: of a file, and each request goes there and back.
#[test]
fn latency_of_the_configuration_moves_results_as_expected() {
    let end = |latency: u64| {
        let text = format!(
            "[network]\nlatency = \"{latency}us\"\n[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1ms\"\n\
             [[servers]]\nname = \"s\"\ndevice = \"d\"\ncount = 2\n\
             [[workload]]\nname = \"w\"\nkind = \"ior\"\nblock = \"1MiB\"\ntransfer = \"16KiB\"\n"
        );
        let experiment = Experiment::read(&text, &|_| Err("there is no other file".into())).unwrap();
        run(experiment.system().unwrap(), 1, &Options::default()).unwrap().1.end.0
    };
    // Open, 64 writes that take their data along, close: one after the other.
    let (one, two, ten) = (end(1), end(2), end(10));
    assert_eq!((two - one, ten - one), (2 * 66 * 1_000, 9 * 2 * 66 * 1_000));
}

/// L12: what is sequential and what is random costs what was configured; the disk knows which files are open.
#[test]
fn hard_disks_know_sequential_from_random() {
    let (sequential, random) = (100_000, 1_200_000);
    let results = |order, close: bool| {
        let device = DeviceSpec::Hdd(HddSpec {
            sequential: fixed(sequential),
            random: fixed(random),
            read_rate: 0,
            write_rate: 0,
            open: Span::NONE,
            flush: Span::NONE,
        });
        let ior = Ior { op: Op::Read, order, open: close, ..writes(1, 500) };
        let classes = vec![class("s", 1, device)];
        let applications = vec![application(Program::Ior(ior))];
        let pfs = Pfs::new(fast_network(1), idle_server(1), classes, even(65_536, 1), applications).unwrap();
        let (simulation, results) = run(pfs, 1, &Options::default()).unwrap();
        let open = simulation.states().find_map(|state| match state {
            State::Device(disk) => Some(disk.device.clone()),
            _ => None,
        });
        (results.servers[0].device_busy, open)
    };
    // A disk begins at the start of file 0.
    assert_eq!(results(Order::Sequential, false).0, 500 * sequential);
    let busy = results(Order::Random(1), false).0;
    // A few follow each other by chance.
    let by_chance = (500 * random - busy) / (random - sequential);
    assert!(by_chance < 8 && busy == 500 * random - by_chance * (random - sequential), "{busy}");
    let Some(tidepool_sim_models::device::Device::Hdd(hdd)) = results(Order::Sequential, true).1 else {
        unreachable!("it is a hard disk")
    };
    assert_eq!(hdd.open_files, 0);
}

/// Names of tests in a table must not go stale: each is there, in the file that it is said to be in.
#[test]
fn every_row_of_the_inventory_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut rows = Vec::new();
    for line in DECISION.lines().filter(|line| line.starts_with("| L")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let row: u32 = cells[1][1..].parse().unwrap();
        rows.push(row);
        for test in cells[3].split("; ").filter(|cell| cell.contains(": ")) {
            let (file, name) = test.split_once(": ").unwrap();
            let file = file.trim_matches('`');
            let text =
                fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("L{row}: {file}: {error}"));
            for name in name.split(", ") {
                let function = format!("fn {}(", name.trim_matches('`'));
                assert!(text.contains(&function), "L{row}: {file} has no {name}");
            }
        }
    }
    assert_eq!(rows, (1..=22).collect::<Vec<_>>());
}
