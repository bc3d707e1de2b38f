//! Directives, one by one. What they say of each other is in `rules.rs`.

use crate::mapping::MappingText;
use crate::model::{Directives, PERSIST_OPS, Persist, SlurmBuffer, Stage};
use crate::near::near;
use crate::place::Place;
use crate::pool::{self, Pairs};
use crate::rules;
use crate::script::{self, Line, Spoken};
use crate::told::{At, Problem, Said, Told, Warning};
use crate::values::{Refused, job, kept_for, of_table, pool_number, refuse, time, user};
use std::collections::BTreeMap;
use std::time::Duration;
use tidepool_types::{POOL_NAME_MAX, check_pool_name, show_bytes};
use tidepool_wire::stager::PersistOp;

/// Jobs that one job can depend on.
pub const DEPENDENCIES_MAX: usize = 1000;

pub(crate) const DIRECTIVES: [&str; 13] = [
    "stage_in",
    "stage_out",
    "persist",
    "workflow-start",
    "workflow-prior-dependency",
    "workflow-end",
    "workflow-same-nodes",
    "pool",
    "reserve",
    "timeout",
    "resume",
    "discard",
    "end-pool",
];
const TIMEOUT_KEYS: [&str; 2] = ["stage_in", "stage_out"];
const PERSIST_KEYS: [&str; 1] = ["expires"];
const SLURM_KEYS: [&str; 2] = ["capacity", "pool"];
/// What Slurm looks for in the lines of its burst-buffer directive, wherever in them it is.
pub(crate) const SLURM_CAPACITY: &str = "capacity=";

/// The directive of a line that only shows Slurm that there are directives.
pub const MARK: &str = "tidepool";

/// True for what can stand before `=`.
pub(crate) fn is_key(word: &str) -> bool {
    [&pool::KEYS[..], &TIMEOUT_KEYS, &PERSIST_KEYS, &SLURM_KEYS].concat().contains(&word)
}

/// Everything that is read in a script, and said of it.
#[derive(Debug, Default)]
pub struct Reading {
    /// As far as they could be read.
    pub directives: Directives,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Warning>,
}

impl Directives {
    /// The directives of a job script, or all that is wrong with them.
    pub fn parse(script: &[u8]) -> Result<(Directives, Vec<Warning>), Vec<Problem>> {
        let reading = Reading::of(script);
        match reading.problems.is_empty() {
            true => Ok((reading.directives, reading.warnings)),
            false => Err(reading.problems),
        }
    }
}

impl Reading {
    pub fn of(script: &[u8]) -> Reading {
        let mut reader = Reader::default();
        script::read(script, &mut reader);
        rules::check(&mut reader);
        reader.end()
    }
}

/// What is read so far.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub found: Directives,
    /// Where the directives are that a job has once, or whose first one matters.
    pub first: BTreeMap<&'static str, At>,
    pub problems: Told,
    pub warnings: Told,
    /// Something could not be read: what seems to be missing may have been meant by it.
    pub incomplete: bool,
}

/// Words of a directive that are not read yet.
pub(crate) struct Args<'a> {
    pub words: std::slice::Iter<'a, Spoken>,
    /// Behind the last one.
    end: &'a At,
    /// It is told already that there are too few.
    short: bool,
}

impl Reader {
    pub fn end(self) -> Reading {
        Reading {
            directives: self.found,
            problems: self.problems.in_order(),
            warnings: self.warnings.in_order(),
        }
    }

    pub fn fail(&mut self, problem: Problem) {
        self.problems.add(problem);
        self.incomplete = true;
    }

    pub fn line(&mut self, line: &Line) {
        if self.problems.is_full() {
            return;
        }
        let Some((name, words)) = line.words.split_first() else {
            let text =
                format!("no directive follows '#{}'; there are {}", line.keyword, DIRECTIVES.join(", "));
            return self.fail(Problem::new(&line.at, text));
        };
        let mut args = Args { words: words.iter(), end: &line.end, short: false };
        // The submission marks scripts by it; it says nothing.
        if name.text == MARK.as_bytes() && words.is_empty() {
            return;
        }
        if name.key().is_some_and(|key| SLURM_KEYS.contains(&key)) {
            return self.slurm(line);
        }
        if line.keyword == script::KEYWORDS[0] {
            self.hidden_capacity(&line.words);
        }
        let known = self.directive(name, &mut args);
        if !known {
            self.fail(unknown(name));
        } else if let Some(word) = args.words.next() {
            let text = format!("'{}' is one word too many", show_bytes(&word.text));
            self.fail(Problem::new(&word.at, text));
        }
    }

    /// False for one that there is not.
    fn directive(&mut self, name: &Spoken, args: &mut Args<'_>) -> bool {
        let at = &name.at;
        match name.text.as_slice() {
            b"stage_in" => {
                let stage = self.stage(args);
                self.found.stage_in.extend(stage.map(|stage| Said::new(stage, at)));
            }
            b"stage_out" => {
                let stage = self.stage(args);
                self.found.stage_out.extend(stage.map(|stage| Said::new(stage, at)));
            }
            b"persist" => {
                let persist = self.persist(args);
                self.found.persist.extend(persist.map(|persist| Said::new(persist, at)));
            }
            b"workflow-start" => self.workflow_start(at, args),
            b"workflow-prior-dependency" => self.prior(at, args),
            b"workflow-end" => self.found.workflow.end = self.once("workflow-end", at),
            b"workflow-same-nodes" => self.found.workflow.same_nodes = self.once("workflow-same-nodes", at),
            b"pool" => {
                let pool = self.pool(args);
                self.found.pools.push(Said::new(pool, at));
            }
            b"reserve" => self.found.reserve = self.once("reserve", at),
            b"timeout" => self.timeout(at, args),
            b"resume" => self.resume(at, args),
            b"discard" => self.discard(at, args),
            b"end-pool" => self.end_pool(at, args),
            _ => return false,
        }
        true
    }

    /// Tells of a directive that is there twice. True, so that the directive counts in any case.
    fn once(&mut self, name: &'static str, at: &At) -> bool {
        match self.first.get(name) {
            Some(first) => {
                let text = format!("'{name}' is there twice; the first is in {first}");
                self.fail(Problem::new(at, text));
            }
            None => {
                self.first.insert(name, at.clone());
            }
        }
        true
    }

    /// The next word, which has to be there.
    fn need<'a>(&mut self, args: &mut Args<'a>, what: &str) -> Option<&'a Spoken> {
        let word = args.words.next();
        if word.is_none() && !std::mem::replace(&mut args.short, true) {
            self.fail(Problem::new(args.end, format!("{what} is missing")));
        }
        word
    }

    /// What a word means, if it means anything.
    pub fn value<T>(
        &mut self,
        word: &Spoken,
        parse: impl FnOnce(&str) -> Result<T, Refused>,
    ) -> Option<Said<T>> {
        let read = match std::str::from_utf8(&word.text) {
            Ok(text) => parse(text),
            Err(_) => refuse(format!("'{}' is no UTF-8 text", show_bytes(&word.text))),
        };
        match read {
            Ok(value) => Some(Said::new(value, &word.at)),
            Err((why, meant)) => {
                self.fail(Problem::new(&word.at, why).meant(meant));
                None
            }
        }
    }

    fn place(&mut self, args: &mut Args<'_>, what: &str) -> Option<Said<Place>> {
        let word = self.need(args, what)?;
        match Place::parse(&word.text) {
            Ok(place) => {
                self.variables(word);
                Some(Said::new(place, &word.at))
            }
            Err(error) => {
                self.fail(Problem::new(&word.at, error.why).meant(error.meant));
                None
            }
        }
    }

    /// `/scratch/$USER/in` is a directory called `$USER`, which is hardly ever what was meant.
    fn variables(&mut self, word: &Spoken) {
        let is_start = |b: u8| b.is_ascii_alphabetic() || b"_{(".contains(&b);
        if word.text.windows(2).any(|two| two[0] == b'$' && is_start(two[1])) {
            let text =
                format!("no variable is expanded here: '{}' is taken as it stands", show_bytes(&word.text));
            self.warnings.add(Problem::new(&word.at, text));
        }
    }

    fn stage(&mut self, args: &mut Args<'_>) -> Option<Stage> {
        let origin = self.place(args, "the origin");
        let destination = self.place(args, "the destination");
        let mapping = match args.words.next() {
            None => None,
            Some(word) => Some(self.value(word, mapping)?),
        };
        Some(Stage { origin: origin?, destination: destination?, mapping })
    }

    fn persist(&mut self, args: &mut Args<'_>) -> Option<Persist> {
        let op = self.need(args, "store, delete, share or unshare");
        let op = op.and_then(|word| self.value(word, |text| of_table(&PERSIST_OPS, text)));
        let location = self.place(args, "the location");
        if let Some(whole) = location.as_ref().filter(|location| location.names().next().is_none()) {
            let text = format!("'{whole}' is all of it; name what is kept there");
            self.fail(Problem::new(&whole.at, text));
        }
        let needs_user =
            op.as_ref().is_some_and(|op| matches!(op.value, PersistOp::Share | PersistOp::Unshare));
        let is_user =
            args.words.as_slice().first().is_some_and(|word| word.quoted || word.halves().is_none());
        let word = match needs_user {
            true => self.need(args, "the user"),
            false => is_user.then(|| args.words.next()).flatten(),
        };
        let user = match word {
            None => None,
            Some(word) => Some(self.value(word, user)?),
        };
        let expires = self.expires(args, op.as_ref().map(|op| op.value));
        Some(Persist { op: op?.value, location: location?, user, expires })
    }

    fn expires(&mut self, args: &mut Args<'_>, op: Option<PersistOp>) -> Option<Duration> {
        let (mut pairs, mut expires) = (Pairs::new(&PERSIST_KEYS), None);
        while args.words.as_slice().first().is_some_and(|word| word.halves().is_some()) {
            let word = args.words.next()?;
            let Some((_, value)) = self.pair(&mut pairs, word) else { continue };
            if op.is_some_and(|op| op != PersistOp::Store) {
                self.fail(Problem::new(&word.at, "'expires=' is for 'persist store'"));
                continue;
            }
            expires = self.bare(&value, kept_for);
        }
        expires
    }

    fn workflow_start(&mut self, at: &At, args: &mut Args<'_>) {
        self.found.workflow.start = self.once("workflow-start", at);
        let name = args.words.next().and_then(|word| self.value(word, workflow_name));
        self.found.workflow.name = name.map(|name| name.value);
    }

    fn prior(&mut self, at: &At, args: &mut Args<'_>) {
        self.first.entry("workflow-prior-dependency").or_insert_with(|| at.clone());
        let mut any = false;
        let parts = args.words.by_ref().flat_map(|word| {
            let parts = word.text.split(|b| *b == b',').filter(|part| !part.is_empty());
            parts.map(|part| Spoken { text: part.to_vec(), ..word.clone() })
        });
        for part in parts {
            any = true;
            // One too many is told by the rules; what is told already is enough.
            if self.found.workflow.prior.len() > DEPENDENCIES_MAX || self.problems.is_full() {
                args.words = [].iter();
                return;
            }
            let known = self.value(&part, job);
            self.found.workflow.prior.extend(known);
        }
        if !any {
            self.fail(Problem::new(args.end, "the number of a job is missing"));
        }
    }

    fn timeout(&mut self, at: &At, args: &mut Args<'_>) {
        self.once("timeout", at);
        if args.words.as_slice().is_empty() {
            self.fail(Problem::new(args.end, "stage_in=TIME or stage_out=TIME is missing"));
        }
        let mut pairs = Pairs::new(&TIMEOUT_KEYS);
        for word in args.words.by_ref() {
            let Some((key, value)) = self.pair(&mut pairs, word) else { continue };
            let Some(time) = self.value(&value, time) else { continue };
            match key {
                "stage_in" => self.found.timeouts.stage_in = Some(time.value),
                _ => self.found.timeouts.stage_out = Some(time.value),
            }
        }
    }

    fn resume(&mut self, at: &At, args: &mut Args<'_>) {
        self.once("resume", at);
        let word = self.need(args, "the number of a job");
        let job = word.and_then(|word| self.value(word, job));
        self.found.resume = self.found.resume.take().or(job);
    }

    fn discard(&mut self, at: &At, args: &mut Args<'_>) {
        self.once("discard", at);
        let word = self.need(args, "the number of a job");
        let job = word.and_then(|word| self.value(word, job));
        self.found.discard = self.found.discard.take().or(job);
    }

    fn end_pool(&mut self, at: &At, args: &mut Args<'_>) {
        self.once("end-pool", at);
        let word = self.need(args, "the number of a pool");
        let pool = word.and_then(|word| self.value(word, pool_number));
        self.found.end_pool = self.found.end_pool.take().or(pool);
    }

    /// `capacity=10GB pool=nvme`: Slurm takes what stands behind each `=` up to a blank, and nothing without both.
    fn slurm(&mut self, line: &Line) {
        let mut pairs = Pairs::new(&SLURM_KEYS);
        let (mut capacity, mut pool) = (None, None);
        for word in &line.words {
            if word.quoted {
                return self
                    .fail(Problem::new(&word.at, "this is for Slurm, which knows no quotation marks"));
            }
            let Some((key, value)) = self.pair(&mut pairs, word) else { continue };
            let value = self.value(&value, |text| Ok(text.to_string()));
            let place = if key == "capacity" { &mut capacity } else { &mut pool };
            *place = value.map(|value| value.value);
        }
        match (capacity, pool) {
            (Some(capacity), Some(pool)) => {
                let at = &line.words[0].at;
                self.found.slurm.push(Said::new(SlurmBuffer { capacity, pool }, at));
            }
            _ if !pairs.is_whole() => {
                let text = format!("Slurm needs {} as well", pairs.missing());
                self.fail(Problem::new(&line.end, text));
            }
            _ => {}
        }
    }

    /// Slurm would count what stands behind `capacity=` in a path.
    fn hidden_capacity(&mut self, words: &[Spoken]) {
        let hides =
            |text: &[u8]| text.windows(SLURM_CAPACITY.len()).any(|part| part == SLURM_CAPACITY.as_bytes());
        for word in words.iter().filter(|word| hides(&word.text)) {
            let text = format!(
                "Slurm takes '{SLURM_CAPACITY}' for its own, wherever it stands; write it as \"capacity\\x3D\", in quotation marks"
            );
            self.warnings.add(Problem::new(&word.at, text));
        }
    }
}

fn mapping(text: &str) -> Result<MappingText, Refused> {
    let mapping: MappingText = text.parse().map_err(|error| (format!("{error}"), None))?;
    match &mapping {
        MappingText::File(path) if !path.starts_with('/') => {
            refuse(format!("'{text}' is no mapping here: the file's path has to start with '/'"))
        }
        _ => Ok(mapping),
    }
}

fn workflow_name(text: &str) -> Result<String, Refused> {
    let rule = format!("up to {POOL_NAME_MAX} letters, digits, '-', '_' and '.'");
    let named = check_pool_name(text).map(|()| text.to_string());
    named.map_err(|_| (format!("'{text}' is no name of a workflow: use {rule}"), None))
}

/// A word that is no directive.
fn unknown(name: &Spoken) -> Problem {
    let shown = show_bytes(&name.text);
    let problem = Problem::new(&name.at, format!("unknown directive '{shown}'"));
    if name.key().is_some_and(|key| pool::KEYS.contains(&key)) {
        return problem.meant(Some(format!("pool {shown}")));
    }
    if name.key().is_some_and(|key| TIMEOUT_KEYS.contains(&key)) {
        return problem.meant(Some(format!("timeout {shown}")));
    }
    match near(&shown, DIRECTIVES) {
        Some(meant) => problem.meant(Some(meant)),
        None => Problem::new(&name.at, format!("{}; there are {}", problem.message, DIRECTIVES.join(", "))),
    }
}
