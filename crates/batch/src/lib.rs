//! What Tidepool's part of a batch system knows of jobs.
//!
//! | module | what |
//! |---|---|
//! | [`phase`] | how a job with directives comes and goes, as a table |
//! | [`workflow`] | jobs that belong together: what may follow what, and how the whole fares (Miranda et al. 2019, Section III) |
//! | [`book`] | all of it in a database on the controller, for hooks that are processes of their own |
//! | [`lasting`] | pools that outlive their jobs, in the same database |
//! | [`ahead`] | stagings ahead of their jobs, in the same database |
//! | [`aging`] | the clock that pools age by, in the same database |
//! | [`nodes`] | the nodes of a job, as different batch systems tell them |

#![forbid(unsafe_code)]

pub mod aging;
pub mod ahead;
pub mod book;
pub mod lasting;
pub mod nodes;
pub mod phase;
pub mod workflow;

pub use aging::Clocks;
pub use ahead::StagedAhead;
pub use book::{Book, BookError, Event, Job, Location, NewJob, Touched, Transfer};
pub use lasting::{LastingPool, NewPool, PoolState, PoolUser};
pub use phase::Phase;
pub use workflow::{Refused, State, Workflow};
