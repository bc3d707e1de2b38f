//! Real ranks of mpirun: what they exchange arrives, and when one of them cannot go on, none is left waiting.
//!
//! Started without arguments this runs mpirun on itself, with the name of what each rank does.

use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};
use tidepool_sim::{Error, Link, Model, Options, Over, ProcessId, Scheduler, Simulation, Time, Turn};
use tidepool_sim_mpi::{PIECE, World};

/// Longest time that ranks may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a rank that found all as it should be ends with.
const FOUND: u8 = 42;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("exchange") => exchange(),
        Some("fault") => tank(false, 11),
        Some("panic") => tank(true, 11),
        Some("unlike") => tank(false, std::process::id().into()),
        Some("dropped") => dropped(),
        // Options of a test harness.
        _ => drive(),
    }
}

fn mpirun(what: &str) -> Output {
    let began = Instant::now();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &PATIENCE.as_secs().to_string()]);
    command.args(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3"]);
    command.arg(std::env::current_exe().expect("it runs")).arg(what).stdin(Stdio::null());
    let output = command.output().expect("timeout is part of coreutils");
    assert!(began.elapsed() < PATIENCE, "{what}: ranks wait for each other");
    println!("{what}: {} after {:.1} s", output.status, began.elapsed().as_secs_f64());
    output
}

fn drive() -> ExitCode {
    let text = |output: &Output| {
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
    };
    let output = mpirun("exchange");
    assert!(output.status.success(), "{}", text(&output));

    // A fault is the same at all ranks: all leave.
    let output = mpirun("fault");
    let told = text(&output);
    assert_eq!(output.status.code(), Some(FOUND.into()), "{told}");
    assert_eq!(told.matches("is empty: told by rank").count(), 3, "{told}");

    // One rank panics while others wait for it.
    let output = mpirun("panic");
    assert_eq!(output.status.code(), Some(101), "{}", text(&output));
    assert!(text(&output).contains("on purpose"), "{}", text(&output));

    let output = mpirun("unlike");
    assert_eq!(output.status.code(), Some(FOUND.into()), "{}", text(&output));
    assert!(text(&output).contains("runs something else: seed"), "{}", text(&output));

    let output = mpirun("dropped");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    ExitCode::SUCCESS
}

/// Frames around the length of a piece, of another length from each rank to each.
fn exchange() -> ExitCode {
    let mut world = World::join().unwrap();
    assert_eq!(world.ranks(), 3);
    let frame = |call: usize, from: usize, to: usize| {
        let len = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5][(call + 2 * from + 3 * to) % 7];
        (0..len).map(|at| (at * 7 + call + from * 3 + to * 5) as u8).collect::<Vec<u8>>()
    };
    let mut into = vec![Vec::new(); 3];
    for call in 0..7 {
        let me = world.rank();
        let out: Vec<Vec<u8>> = (0..3).map(|to| frame(call, me, to)).collect();
        let out: Vec<&[u8]> = out.iter().map(Vec::as_slice).collect();
        world.exchange(&out, &mut into).unwrap();
        for from in (0..3).filter(|from| *from != me) {
            assert!(into[from] == frame(call, from, me), "call {call}, from {from} to {me}");
        }
    }
    world.leave();
    ExitCode::SUCCESS
}

/// Every process takes from its tank at each message, until one is empty.
struct Tank {
    panics: bool,
}

impl Model for Tank {
    type State = u64;
    type Message = u64;
    type Undo = ();
    type Record = u64;

    fn processes(&self) -> u32 {
        30
    }

    fn lookahead(&self) -> Time {
        Time(5)
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> u64 {
        turn.send(turn.me(), Time(1), 0);
        100
    }

    fn handle(&self, state: &mut u64, _: &u64, turn: &mut Turn<'_, Self>) {
        turn.keep(|| ());
        *state = state.wrapping_sub(1);
        let (to, after) = (turn.random().below(30) as u32, turn.random().below(50));
        turn.send(ProcessId(to), Time(5 + after), *state);
        if *state == 0 && self.panics {
            panic!("on purpose");
        }
        if *state == 0 {
            turn.fail(format!("the tank of process {} is empty", turn.me().0));
        }
    }

    fn undo(&self, state: &mut u64, (): ()) {
        *state = state.wrapping_add(1);
    }
}

fn tank(panics: bool, seed: u64) -> ExitCode {
    let mut world = World::join().unwrap();
    let mut simulation = Simulation::new(Tank { panics }, seed).unwrap();
    let options = Options { scheduler: Scheduler::Conservative, threads: 2, ..Options::default() };
    let mut over = Over { link: &mut world, about: "tank" };
    match simulation.run_over(Time(1 << 40), &options, &mut over) {
        Err(error @ Error::Fault(_)) => {
            println!("{error}: told by rank {}", world.rank());
            world.leave();
            ExitCode::from(FOUND)
        }
        Err(error) => {
            println!("{error}");
            world.end_all(FOUND)
        }
        Ok(report) => panic!("it must fail: {report:?}"),
    }
}

/// Rank 1 forgets to leave while the others wait for it.
fn dropped() -> ExitCode {
    let mut world = World::join().unwrap();
    if world.rank() != 1 {
        world.exchange(&[&[], &[], &[]], &mut [Vec::new(), Vec::new(), Vec::new()]).unwrap();
    }
    if world.rank() != 1 {
        world.leave();
    }
    ExitCode::SUCCESS
}
