//! The Rust API of the stager (Miranda et al. 2019, section IV-C): submit, watch and administer
//! staging tasks over the stager's native socket (`docs/formats/11-stager.md`), or from another node.
//!
//! ```no_run
//! use tidepool_stage_client::{Op, Resource, Stager, TaskSpec};
//! let stager = Stager::connect(tidepool_stage_client::user_socket())?;
//! let copy = TaskSpec::new(Op::Copy, Resource::local("lustre://", b"in"), Some(Resource::local("nvme0://", b"in")));
//! let id = stager.submit(&copy)?;
//! for task in stager.wait(&[id], false, None)? {
//!     println!("{} of {} bytes", task.bytes_done, task.bytes_total);
//! }
//! # Ok::<(), tidepool_stage_client::StageError>(())
//! ```
//!
//! A [`Stager`] may be shared by threads: each waits for the reply to its own request only, and a
//! long wait holds nobody up. There is no thread behind it: one of the threads that wait for replies
//! reads for all of them, so that a single caller pays one write and one read for a request.

#![forbid(unsafe_code)]

mod at;
mod connection;
mod error;
pub mod json;
mod locate;
mod requests;
pub mod show;
mod stager;
pub mod words;

pub use at::StagerAt;
pub use error::StageError;
pub use locate::{CONTROL_SOCKET_VARIABLE, USER_SOCKET_VARIABLE, control_socket, user_socket};
pub use requests::{FIRST_WAIT, Name, SubmitManyError, Submitted};
pub use stager::{HELLO_MS_MAX, RECONNECT_MS_MAX, Stager};
pub use tidepool_directives::{
    Mapping, MappingError, MappingLine, MappingNode, PlaceError, env_name, parse_place, show_place,
};
pub use tidepool_transport::Secret;
pub use tidepool_wire::stager::{
    Access, Cleaning, Code, Command, DataspaceInfo, DataspaceKind, DataspaceSpec, Fate, JobLimit, JobReport,
    JobSpec, Leftover, OnBehalf, Op, Owner, PairReport, PersistOp, Persisted, Plan, Policy, ProcessSpec,
    Refusal, Resource, StagerStatus, TaskPhase, TaskSpec, TaskState, TaskStatus, Verify,
};
