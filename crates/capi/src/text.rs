//! Words for codes.

use crate::types::norns_error_t;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::sync::OnceLock;
use tidepool_norns::numbers::*;
use tidepool_stage_client::Code;

const UNKNOWN: &CStr = c"Unknown error";

/// States are no errors, but `norns_strerror` is asked for them as well.
const STATES: &[(i32, &CStr)] = &[
    (EUNDEFINED, c"Task state is undefined"),
    (EPENDING, c"Task is pending"),
    (EINPROGRESS, c"Task is in progress"),
    (EFINISHED, c"Task has finished"),
    (EFINISHEDWERROR, c"Task has finished with an error"),
];

thread_local! {
    static DETAIL: RefCell<CString> = RefCell::default();
}

/// Keeps the words for the calling thread's last error.
pub fn remember(error: &dyn Display) {
    // No zero byte inside, so the conversion always succeeds.
    let text = CString::new(error.to_string().replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = DETAIL.try_with(|detail| detail.replace(text));
}

/// Words for any number, never NULL. They live for ever.
pub fn strerror(code: norns_error_t) -> *mut c_char {
    static TEXTS: OnceLock<HashMap<i32, CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let codes = Code::ALL.iter().map(|(code, _, text)| (*code, CString::new(*text).unwrap_or_default()));
        codes.chain(STATES.iter().map(|(code, text)| (*code, (*text).to_owned()))).collect()
    });
    texts.get(&code).map_or(UNKNOWN, CString::as_c_str).as_ptr().cast_mut()
}

/// What went wrong in the calling thread's last call that failed, with what to do about it. Valid until
/// this thread's next call; empty before the first error.
#[unsafe(no_mangle)]
pub extern "C" fn norns_error_detail() -> *const c_char {
    DETAIL.try_with(|detail| detail.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
