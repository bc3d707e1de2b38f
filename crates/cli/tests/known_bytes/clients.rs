//! Programs that do what they are told, on mounts and through the preload library, and can be killed.

use crate::common::{Mount, Sandbox};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request to a program, and how many'th of all it is.
#[derive(Debug)]
pub struct Asked {
    pub number: u64,
    pub line: String,
    pub data: Vec<u8>,
    /// Objects whose kept descriptors are to be closed first.
    pub forget: Vec<u64>,
}

#[derive(Debug)]
pub enum Answer {
    Done(Vec<u8>),
    Failed(i32, String),
    /// The program has ended.
    Died,
}

/// Where the answers of all programs arrive: number of the request, and the answer.
pub type Answers = Sender<(u64, Answer)>;

/// A program of the test's: it does one thing at a time.
pub struct Program {
    pub child: Child,
    requests: Sender<Asked>,
}

impl Program {
    fn start(mut command: Command, answers: Answers) -> Program {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (requests, taken) = channel();
        std::thread::spawn(move || serve(taken, input, output, &answers));
        Program { child, requests }
    }

    pub fn ask(&self, asked: Asked) {
        // One that has ended still has the thread that says so.
        self.requests.send(asked).expect("the thread lives as long as the sender");
    }
}

fn serve(
    requests: Receiver<Asked>,
    mut input: ChildStdin,
    mut output: BufReader<ChildStdout>,
    answers: &Answers,
) {
    for asked in requests {
        let answer = exchange(&asked, &mut input, &mut output).unwrap_or(Answer::Died);
        // Nobody listens any more when the test is over.
        let _ = answers.send((asked.number, answer));
    }
}

fn exchange(
    asked: &Asked,
    input: &mut ChildStdin,
    output: &mut BufReader<ChildStdout>,
) -> std::io::Result<Answer> {
    for key in &asked.forget {
        writeln!(input, "forget {key}")?;
        input.flush()?;
        read_answer(output)?;
    }
    writeln!(input, "{}", asked.line)?;
    input.write_all(&asked.data)?;
    input.flush()?;
    read_answer(output)
}

fn read_answer(output: &mut BufReader<ChildStdout>) -> std::io::Result<Answer> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    let ended = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (word, rest) = line.trim_end().split_once(' ').ok_or_else(ended)?;
    if word == "ok" {
        let mut bytes = vec![0; rest.parse().map_err(|_| ended())?];
        output.read_exact(&mut bytes)?;
        return Ok(Answer::Done(bytes));
    }
    let (errno, text) = rest.split_once(' ').ok_or_else(ended)?;
    Ok(Answer::Failed(errno.parse().map_err(|_| ended())?, text.into()))
}

/// A program and the way it sees the pool.
pub struct Seat {
    /// Where the pool's file is: of the node whose daemon is near.
    view: PathBuf,
    /// Where the pool shows; a mount there, unless through the preload library.
    root: PathBuf,
    mount: Option<Mount>,
    pub program: Program,
    /// What the program has kept open of objects that are no more.
    pub forget: Vec<u64>,
}

/// A door and a node.
pub struct SeatPlan<'a> {
    pub sandbox: &'a Sandbox,
    pub view: &'a Path,
    /// Name of the mount; none for the preload library.
    pub mount: Option<&'a str>,
    /// Where the pool shows through the preload library.
    pub shown: &'a Path,
}

impl Seat {
    pub fn take(plan: &SeatPlan, answers: &Answers) -> Seat {
        let mount = plan.mount.map(|name| mount(plan.sandbox, plan.view, name));
        let root = mount.as_ref().map_or(plan.shown.to_path_buf(), |mount| mount.path.clone());
        let view = plan.view.to_path_buf();
        let program = Program::start(command(&view, &root, mount.is_none()), answers.clone());
        Seat { view, root, mount, program, forget: Vec::new() }
    }

    pub fn is_mounted(&self) -> bool {
        self.mount.is_some()
    }

    /// `kill -9` of the program, and a new one in its place.
    pub fn kill_program(&mut self, answers: &Answers) {
        self.end_program();
        let command = command(&self.view, &self.root, self.mount.is_none());
        self.program = Program::start(command, answers.clone());
        self.forget.clear();
    }

    /// From now on the program leaves each `each`-th write out, and says that it was done.
    pub fn lie(&mut self, each: u64, answers: &Answers) {
        self.end_program();
        let mut command = command(&self.view, &self.root, self.mount.is_none());
        command.env("KNOWN_BYTES_LIE", each.to_string());
        self.program = Program::start(command, answers.clone());
    }

    /// `kill -9` of the mount's process; its program sees that, and both are begun anew.
    pub fn kill_mount(&mut self, sandbox: &Sandbox, answers: &Answers) {
        self.mount.take().expect("it has one").kill();
        self.end_program();
        let name = self.root.file_name().expect("it lies in the sandbox").to_string_lossy().into_owned();
        self.mount = Some(mount(sandbox, &self.view, &name));
        self.kill_program(answers);
    }

    fn end_program(&mut self) {
        let _ = self.program.child.kill();
        self.program.child.wait().expect("a killed child ends");
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.end_program();
    }
}

fn mount(sandbox: &Sandbox, view: &Path, name: &str) -> Mount {
    let path = sandbox.path(name);
    let mut command = sandbox.tidepool(&["mount"]);
    command.env("TIDEPOOL_POOL", view).arg(&path);
    Mount::by(command, path)
}

fn command(view: &Path, root: &Path, preload: bool) -> Command {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/known_bytes.py");
    let mut command = Command::new("python3");
    command.arg(program).arg(root);
    if preload {
        let library = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("libtidepool_preload.so");
        command.env("LD_PRELOAD", library).env("TIDEPOOL_DIR", root).env("TIDEPOOL_POOL", view);
    }
    command
}
