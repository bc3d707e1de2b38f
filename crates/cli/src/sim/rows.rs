//! Lines of CSV for requests and sub-requests, written while the simulation goes on ([format 28](docs/formats/28-experiments.md)).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tidepool_sim_models::{Pfs, PieceResult, RequestResult, Role};

const REQUESTS: &str = "workload,rank,number,op,file,offset,length,begin_ns,end_ns";
const PIECES: &str =
    "workload,rank,number,type,file_id,file_offset,length,sender,receiver,server,start_ns,end_ns,answer";

/// A file, and the first thing that went wrong with it.
pub struct Rows {
    path: PathBuf,
    out: BufWriter<File>,
    wrong: Option<io::Error>,
}

impl Rows {
    pub fn requests(path: &Path) -> io::Result<Rows> {
        Rows::begin(path, REQUESTS)
    }

    pub fn pieces(path: &Path) -> io::Result<Rows> {
        Rows::begin(path, PIECES)
    }

    fn begin(path: &Path, head: &str) -> io::Result<Rows> {
        let mut out = BufWriter::new(File::create(path)?);
        writeln!(out, "{head}")?;
        Ok(Rows { path: path.into(), out, wrong: None })
    }

    fn line(&mut self, line: &str) {
        if self.wrong.is_none() {
            self.wrong = writeln!(self.out, "{line}").err();
        }
    }

    pub fn is_broken(&self) -> bool {
        self.wrong.is_some()
    }

    /// Names need no quotes: they are letters, digits, dashes and underscores.
    pub fn request(&mut self, names: &[String], r: &RequestResult) {
        let name = &names[r.application as usize];
        let numbers = [u64::from(r.file), r.offset, r.length, r.begin, r.end].map(|n| n.to_string());
        self.line(&format!("{name},{},{},{},{}", r.rank, r.number, r.op, numbers.join(",")));
    }

    pub fn piece(&mut self, names: &[String], roles: &[Role], p: &PieceResult) {
        let role = |process: u32| roles.get(process as usize).copied();
        // What servers move among themselves is of no workload; what nodes ask for is of several.
        let who = match role(p.sender) {
            Some(Role::Client(application, rank)) => {
                format!("{},{rank},{}", names[application as usize], p.request)
            }
            _ => ",,".to_string(),
        };
        let server = match role(p.receiver) {
            Some(Role::Server(number)) => number.to_string(),
            _ => String::new(),
        };
        let answer = if p.redirected { "redirect" } else { "done" };
        self.line(&format!(
            "{who},{},{},{},{},{},{},{server},{},{},{answer}",
            p.op, p.file, p.offset, p.length, p.sender, p.receiver, p.start, p.end
        ));
    }

    /// All of it is in the file.
    pub fn end(mut self) -> Result<(), (PathBuf, io::Error)> {
        let done = match self.wrong.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        };
        done.map_err(|error| (self.path, error))
    }
}

pub fn names(pfs: &Pfs) -> Vec<String> {
    pfs.applications.iter().map(|all| all.name.clone()).collect()
}
