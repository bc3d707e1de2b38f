//! The C libraries `libnorns` and `libnornsctl`: the published NORNS interfaces over the stager's own
//! protocol. `include/` declares what is exported here; `docs/decisions/0016-c-libraries.md` says why it is so.
//!
//! Nothing runs when the library is loaded. The first call connects; every call may come from any thread;
//! none panics into C, ends the process, or changes `errno`.

#![allow(non_camel_case_types, non_snake_case, reason = "the published names")]
// What callers owe is the same for all functions and stands in the headers: pointers are NULL, or
// valid for the call; strings end with a zero byte.
#![allow(clippy::missing_safety_doc, reason = "said once, above and in the headers")]

mod config;
mod convert;
mod door;
mod guard;
mod nornsctl;
mod plain;
mod tasks;
mod text;
pub mod types;
mod user;
