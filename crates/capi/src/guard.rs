//! What every exported function does around its work.

use crate::text;
use crate::types::norns_error_t;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidepool_stage_client::{Code, Refusal, StageError};

pub type Result<T> = std::result::Result<T, StageError>;

/// Does the work; its result as a code. Panics end here, `errno` stays as it was, and the words
/// for an error are kept for `norns_error_detail`.
pub fn guard(work: impl FnOnce() -> Result<()>) -> norns_error_t {
    let errno = errno();
    let result = catch_unwind(AssertUnwindSafe(work));
    let code = match result {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(error)) => {
            text::remember(&error);
            error.code()
        }
        Err(_) => {
            text::remember(&"an internal error of the library: please report what it printed");
            Code::INTERNAL
        }
    };
    set_errno(errno);
    code.0
}

/// A refusal of the library itself.
pub fn bad_args(detail: &str) -> StageError {
    StageError::Refused(Refusal::new(Code::BAD_ARGS, detail))
}

fn errno() -> i32 {
    // SAFETY: the pointer is to this thread's errno and always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}
