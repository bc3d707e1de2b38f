//! What job scripts say to Tidepool: `#NORNS` and `#TIDEPOOL` lines (`docs/formats/21-directives.md`), after the extensions of
//! Slurm that Miranda et al. 2019 propose in Section III.
//!
//! ```
//! use tidepool_directives::Directives;
//! let script = b"#!/bin/sh\n#NORNS stage_inn lustre://in nvme0://in\n./solver\n";
//! let problems = Directives::parse(script).expect_err("there is no such directive");
//! assert_eq!(problems[0].to_string(), "line 2, column 8: unknown directive 'stage_inn'; did you mean 'stage_in'?");
//! ```
//!
//! Pure: scripts and what a site has come in, directives, problems and warnings go out.

#![forbid(unsafe_code)]

mod mapping;
mod model;
mod near;
mod options;
mod parse;
mod place;
mod pool;
mod rules;
mod script;
mod show;
mod site;
mod tiers;
mod told;
mod values;
mod words;

pub use mapping::{Line as MappingLine, Mapping, MappingError, MappingText, Node as MappingNode};
pub use model::{
    Client, Directives, Flush, Fs, Lifetime, Mode, POOL, Persist, PoolRequest, SlurmBuffer, Stage,
    TierRequest, Timeouts, Workflow,
};
pub use near::near;
pub use options::{OPTIONS, lines_of_options, with_lines};
pub use parse::{DEPENDENCIES_MAX, MARK, Reading};
pub use place::{NoPlace, Place, PlaceError, env_name, parse_place, show_place};
pub use pool::NODES_MAX;
pub use script::{DIRECTIVES_MAX, KEYWORDS, LINE_BYTES_MAX, SCRIPT_BYTES_MAX, WORDS_MAX};
pub use site::{Site, SiteDataspace, check};
pub use told::{At, MESSAGE_MAX, PROBLEMS_MAX, Problem, Said, Warning};
pub use values::{KEPT_MAX, TIME_MAX, USER_BYTES_MAX, show_kept_for};
pub use words::{Word, Wrong, show_word, words};
// What directives are made of elsewhere.
pub use tidepool_plan::Deploy;
pub use tidepool_types::{ChunkSize, Encryption, Placement};
pub use tidepool_wire::stager::{DataspaceKind, PersistOp};
