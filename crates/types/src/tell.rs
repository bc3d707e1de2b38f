//! What programs of ours say on standard error.

/// As the standard library's, but nothing happens where standard error cannot be written: that macro panics then, and a log on a full
/// disk ended a daemon's thread, or a run between its program and its stage-out. Crates that say something take it with
/// `#[macro_use(eprintln)] extern crate tidepool_types`.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use ::std::io::Write as _;
        // There is nowhere else to say it.
        let _ = ::std::writeln!(::std::io::stderr(), $($words)*);
    }};
}
