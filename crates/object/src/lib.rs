//! Object stores (S3 and what speaks its protocol) as ends of a copy.
//!
//! ```no_run
//! use tidepool_object::{ObjectEnd, ObjectUrl};
//! use tidepool_stage::{Control, LocalEnd, StageOptions, What, stage};
//!
//! let url: ObjectUrl = "s3://results/run-7?endpoint=https://s3.example.org".parse()?;
//! let source = LocalEnd::open("/scratch/out".as_ref())?;
//! let target = ObjectEnd::open(&url, b"", true)?;
//! let report = stage(&source, &target, &What::Tree, &StageOptions::default(), &Control::default());
//! assert!(report.complete, "{:?}", report.errors);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What becomes of directories, attributes and links, `docs/guide/objects.md` tells users,
//! `docs/decisions/0018-object-stores.md` why, and `docs/formats/16-objects.md` how it is written.
//!
//! Threads: each end has [`THREADS`] of its own for its connections. They are started by the
//! thread that opens the end and act as the user it acts as.

#![forbid(unsafe_code)]

mod attrs;
mod credentials;
mod end;
mod keys;
mod multipart;
mod patience;
mod refusal;
mod store;
mod upload;
mod url;
mod wire;
mod xml;

pub use credentials::{Credentials, CredentialsError};
pub use end::ObjectEnd;
pub use url::{ObjectUrl, UrlError};

/// Threads that drive the connections of one end.
pub const THREADS: usize = 2;
/// Bytes of user metadata that S3 takes per object, names and values.
pub const METADATA_BYTES_MAX: usize = 2048;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of an answer that is no object's data: a page of a listing has fewer.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Parts of one upload.
pub const PARTS_MAX: u64 = 10_000;
/// Bytes of a part of an upload, where the object is not too large for that.
pub const PART_BYTES: u64 = 8 << 20;
/// Parts of one object that are on their way at a time.
pub const PARTS_AT_ONCE: usize = 4;
/// Objects up to this size can be given other attributes, which means writing them again.
pub const REWRITE_BYTES_MAX: u64 = 16 << 20;
