//! The exported calls, named and typed as the vendor's header has them, grouped by area.
//!
//! Each is a thin line from C to a method of `Driver`. Pointer arguments arrive as `In` and `Out`, so that reading and writing
//! through them is checked for null and the only `unsafe` on this border is in this file.

mod context;
mod device;
mod error;
mod event;
mod ipc;
mod memory;
mod pointer;
mod pool;
mod proc_address;
mod stream;
mod vmm;

use std::cell::Cell;
use std::os::fd::{BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::{Driver, driver};
use crate::error::{CuResult, Result};
use crate::faults;
use crate::measured;

/// Defines exported calls: `fn name(arguments) { body }`, where the body's `Result` becomes the result code and a panic becomes
/// `CUDA_ERROR_UNKNOWN` instead of crossing into C.
macro_rules! calls {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$attribute])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the vendor's name")]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> $crate::error::CuResult {
                $crate::ffi::guard(stringify!($name), move || $body)
            }
        )*
    };
}
pub(crate) use calls;

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of a stream, which may call nothing here.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

pub(crate) fn guard(name: &str, call: impl FnOnce() -> Result<()>) -> CuResult {
    if IN_HOST_FUNCTION.get() {
        return measured::CALL_IN_HOST_FUNCTION;
    }
    match catch_unwind(AssertUnwindSafe(|| faults::strike(name).and_then(|()| call()))) {
        Ok(Ok(())) => CuResult::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CuResult::ERROR_UNKNOWN,
    }
}

/// The driver and the GPU of the thread's context, for calls that need one.
pub(crate) fn with_context() -> Result<(&'static Driver, usize)> {
    let driver = driver()?;
    Ok((driver, driver.current_gpu()?))
}

/// A pointer that the call writes one value through. Only C makes one, and the vendor's contract is that it is null or valid.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Fails for null; called before anything is done that could not be undone.
    pub(crate) fn check(self) -> Result<Self> {
        if self.0.is_null() { Err(CuResult::ERROR_INVALID_VALUE) } else { Ok(self) }
    }

    pub(crate) fn set(self, value: T) -> Result<()> {
        let to = self.check()?.0;
        // SAFETY: not null, so by the contract of the call valid for a write of a `T`; C promises no alignment for `void *`.
        unsafe { to.write_unaligned(value) };
        Ok(())
    }

    /// Sets the value if the caller wants it.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // Cannot fail: not null.
            let _set = self.set(value);
        }
    }

    pub(crate) const fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<u8> {
    /// Writes a C string, cut to `length` bytes with its end.
    pub(crate) fn set_text(self, text: &str, length: i32) -> Result<()> {
        let to = self.check()?.0;
        let room = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_sub(1))
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let kept = text.len().min(room);
        // SAFETY: by the contract of the call `to` is valid for `length` bytes, and `kept + 1` is at most that.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to, kept);
            to.add(kept).write(0);
        }
        Ok(())
    }
}

/// A pointer that the call reads values through; null or valid, as for `Out`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T> {
        self.get_nth(0)
    }

    fn get_nth(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so by the contract of the call valid for reads of as many `T` as the caller said.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The values of an array whose length the caller gave.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>> {
        (0..count).map(|index| self.get_nth(index)).collect()
    }
}

impl In<std::ffi::c_char> {
    pub(crate) fn text(self) -> Result<&'static std::ffi::CStr> {
        if self.0.is_null() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so by the contract of the call a C string; it is used within the call only.
        Ok(unsafe { std::ffi::CStr::from_ptr(self.0) })
    }
}

/// Lends out a descriptor number that C passed, if it is open.
pub(crate) fn descriptor(number: usize) -> Option<BorrowedFd<'static>> {
    let number = RawFd::try_from(number).ok().filter(|&number| number >= 0)?;
    // SAFETY: the number is not -1. Whether it is open is checked by the first call that uses it, and the program must not
    // close it during this call, as with the real driver.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
}
