//! `cuGetErrorName`, `cuGetErrorString`.

use std::ffi::{CStr, c_char};

use super::{Out, calls};
use crate::error::{CuResult, Result};

calls! {
    fn cuGetErrorName(error: CuResult, text: Out<*const c_char>) {
        give(error.name(), text)
    }

    fn cuGetErrorString(error: CuResult, text: Out<*const c_char>) {
        give(error.text(), text)
    }
}

fn give(known: Option<&'static CStr>, text: Out<*const c_char>) -> Result<()> {
    text.set(known.map_or(std::ptr::null(), CStr::as_ptr))?;
    known.map(drop).ok_or(CuResult::ERROR_INVALID_VALUE)
}
