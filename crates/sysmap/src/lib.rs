//! What the nodes of a machine are made of (paper: ADA-FS, "GekkoFS", section 4: resource and topology detection).
//!
//! An [`Extractor`] is the abstract part: what is told, in which form. Its [`Source`]s are the specialised parts: each
//! reads the same from another place. The first that this node has is taken.

#![deny(unsafe_code)]

pub mod db;
pub mod draw;
mod extract;
pub mod flow;
pub mod hostlist;
#[allow(unsafe_code)]
mod hwloc;
pub mod output;
pub mod probe;
pub mod query;
mod record;
pub mod site;
mod system;
pub mod topology;

pub use extract::{Extractor, Fabric, Link, Port, Rack, Source, Switch, all, collect, collect_with};
pub use record::{Class, Missing, Record};
pub use system::{FILE_MAX, OUTPUT_MAX, System};
pub use topology::{Topology, TopologyError};
