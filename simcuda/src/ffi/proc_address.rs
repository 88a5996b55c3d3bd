//! `cuGetProcAddress`: the library's own symbols by their names without a version.

use std::ffi::{CStr, CString, c_char, c_void};

use super::{In, Out, calls};
use crate::error::CuResult;

const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;

calls! {
    fn cuGetProcAddress_v2(symbol: In<c_char>, function: Out<*mut c_void>, _version: i32, _flags: u64, status: Out<u32>) {
        let out = function.check()?;
        let found = find(symbol.text()?);
        status.set_if_wanted(if found.is_some() { FOUND } else { NOT_FOUND });
        out.set(found.unwrap_or(std::ptr::null_mut()))?;
        found.map(drop).ok_or(CuResult::ERROR_NOT_FOUND)
    }
}

/// The newest version of a call that this library exports.
fn find(name: &CStr) -> Option<*mut c_void> {
    let library = own_library()?;
    ["_v2", ""].iter().find_map(|suffix| {
        let name = CString::new([name.to_bytes(), suffix.as_bytes()].concat()).ok()?;
        // SAFETY: `library` is a handle that is never closed, `name` a C string that outlives the call.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    })
}

/// A handle of the file that this code was loaded from.
fn own_library() -> Option<*mut c_void> {
    let here: *const c_void = (find as fn(&CStr) -> Option<*mut c_void>) as *const c_void;
    // SAFETY: `Dl_info` is plain data for which all zero is a value; `dladdr` fills it for any address, and its name is a C string
    // that lives as long as the library, which is never unloaded.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(here, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let handle = libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        (!handle.is_null()).then_some(handle)
    }
}
