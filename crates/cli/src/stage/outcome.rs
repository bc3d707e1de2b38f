//! What a command of `tidepool stage` ends with: text and JSON, and errors with their exit codes.

use crate::exit::{Failure, Kind};
use serde_json::{Value, json};
use tidepool_stage_client::json::code_name;
use tidepool_stage_client::{Code, Refusal, StageError, TaskState, TaskStatus, show};

/// What is printed, one way or the other, and what went wrong nevertheless.
pub struct Done {
    pub text: String,
    pub json: Value,
    pub failure: Option<Failure>,
}

impl Done {
    pub fn new(text: String, json: Value) -> Done {
        Done { text, json, failure: None }
    }

    /// For what has no result.
    pub fn told(text: String) -> Done {
        Done::new(format!("{text}\n"), json!({ "done": true }))
    }
}

/// Why there is no result.
#[derive(Debug)]
pub enum Trouble {
    Stage(StageError),
    Own(Failure),
}

impl From<StageError> for Trouble {
    fn from(error: StageError) -> Trouble {
        Trouble::Stage(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Own(failure)
    }
}

pub type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// For people: with the stager's node, where one was reached.
    pub fn failure(self, node: Option<&str>) -> Failure {
        match self {
            Trouble::Own(failure) => failure,
            Trouble::Stage(StageError::Refused(refusal)) => {
                Failure::new(kind_of(refusal.code), refused(&refusal, node))
            }
            Trouble::Stage(error) => Failure::new(kind_of_error(&error), error.to_string()),
        }
    }

    pub fn json(&self, node: Option<&str>) -> Value {
        let (code, kind, detail) = match self {
            Trouble::Own(failure) => (own_code(failure.kind), failure.kind, failure.to_string()),
            Trouble::Stage(error) => (error.code(), kind_of_error(error), error.to_string()),
        };
        json!({ "error": {
            "code": code.0, "name": code_name(code), "exit": kind.code(), "node": node, "detail": detail,
        } })
    }
}

/// For what never reached a stager.
fn own_code(kind: Kind) -> Code {
    if kind == Kind::Usage { Code::BAD_ARGS } else { Code::SYSTEM_ERROR }
}

/// The message of a refusal: where, what, and what to do.
pub fn refused(refusal: &Refusal, node: Option<&str>) -> String {
    let node = node.map(|node| format!("the stager of {node}: ")).unwrap_or_default();
    format!("{node}{refusal}{}", advice(refusal.code))
}

fn advice(code: Code) -> &'static str {
    match code {
        Code::PAUSED => "; 'tidepool stage unpause' lets it take them again",
        Code::NO_SUCH_TASK => "; 'tidepool stage list' shows yours, with --control those of all users",
        Code::TIMEOUT => "; they go on: wait again, or look with 'tidepool stage status'",
        Code::JOB_BUSY | Code::TASKS_PENDING | Code::DATASPACE_BUSY => {
            "; 'tidepool stage list --control' shows them: wait for them or cancel them"
        }
        Code::NO_SUCH_JOB => "; 'tidepool stage job list' shows the jobs",
        Code::JOB_EXISTS | Code::DATASPACE_EXISTS => "; 'update' in place of 'register' changes it",
        Code::TOO_MANY_TASKS => "; submit again when some have ended",
        Code::NO_SUCH_RESOURCE => "; 'tidepool stage persist list' shows what there is",
        Code::NOT_PERMITTED => "; administrators use --control",
        _ => "",
    }
}

pub fn kind_of(code: Code) -> Kind {
    match code {
        Code::NOT_PERMITTED => Kind::NotPermitted,
        Code::TIMEOUT => Kind::TaskTimeout,
        _ => Kind::Refused,
    }
}

fn kind_of_error(error: &StageError) -> Kind {
    match error {
        StageError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Kind::NotPermitted
        }
        StageError::Refused(refusal) => kind_of(refusal.code),
        StageError::TooLong { .. } => Kind::Refused,
        StageError::Connect { .. }
        | StageError::Version { .. }
        | StageError::Protocol { .. }
        | StageError::Lost { .. } => Kind::NoStager,
    }
}

/// The failure that tasks which have ended mean: that of the first that failed, else of the first cancelled.
pub fn failure_of(tasks: &[TaskStatus], node: &str) -> Option<Failure> {
    let in_state = |state| tasks.iter().filter(move |task| task.state == state);
    let (failed, cancelled) = (in_state(TaskState::Failed).count(), in_state(TaskState::Cancelled).count());
    let first = in_state(TaskState::Failed).chain(in_state(TaskState::Cancelled)).next()?;
    let (kind, count) =
        if failed > 0 { (Kind::TaskFailed, failed) } else { (Kind::TaskCancelled, cancelled) };
    let others = if count > 1 { format!(" (the first of {count})") } else { String::new() };
    let (id, state) = (first.id, show::state(first.state));
    let arrow = if first.dst.is_empty() { "" } else { " -> " };
    let what = format!("{} {}{arrow}{}", show::op(first.op), first.src, first.dst);
    let text = format!(
        "task {id} at {node} ({what}) {state}{others}: {}; 'tidepool stage resume {id}' goes on where it stopped",
        show::reason(first)
    );
    Some(Failure::new(kind, tidepool_types::show_bytes(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tidepool_stage_client::StagerAt;

    #[test]
    fn every_kind_of_trouble_has_a_code_of_its_own() {
        let refusal = |code| StageError::Refused(Refusal::new(code, "no"));
        let at = || StagerAt::Socket("/s".into());
        let connect = |kind: io::ErrorKind| StageError::Connect { at: at(), source: kind.into() };
        let cases = [
            (refusal(Code::NO_SUCH_TASK), 120),
            (refusal(Code::NOT_PERMITTED), 122),
            (refusal(Code::TIMEOUT), 119),
            (StageError::TooLong { request: "Submit" }, 120),
            (connect(io::ErrorKind::NotFound), 121),
            (connect(io::ErrorKind::PermissionDenied), 122),
            (StageError::Version { at: at(), theirs: 9 }, 121),
        ];
        for (error, code) in cases {
            let trouble = Trouble::Stage(error);
            assert_eq!(trouble.json(None)["error"]["exit"], code, "{trouble:?}");
            assert_eq!(trouble.failure(Some("n0")).code(), code);
        }
    }

    #[test]
    fn a_refusal_says_where_and_what_to_do() {
        let text = refused(&Refusal::new(Code::PAUSED, "no new tasks"), Some("n0"));
        assert_eq!(text, "the stager of n0: no new tasks; 'tidepool stage unpause' lets it take them again");
    }
}
