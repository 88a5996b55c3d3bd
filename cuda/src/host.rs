//! Functions of the host that a stream comes to: [`call_on`].
//!
//! The driver is given a number and no pointer. What it may do with a function that it was given (call it once, never
//! after an error of the context, or again and again if the call came to lie in a graph) then makes no difference to memory:
//! a number whose function has been called, or was taken back, names nothing.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::calls::call;
use crate::load::Driver;
use crate::status::{CudaError, Status, note_drop};
use crate::stream::{StreamRef, is_capturing};

type HostFunction = Box<dyn FnOnce() + Send>;

/// Functions that were given to a stream and not called yet, by number.
static WAITING: LazyLock<Mutex<HashMap<usize, HostFunction>>> = LazyLock::new(Mutex::default);
/// 0 is never used, so that no number looks like a null pointer.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Has `function` called on a thread of the driver when the stream has done what was queued on it before; what is queued after
/// waits for its end.
///
/// `function` must not call CUDA, directly or by waiting for somebody who does: the driver's threads stand still meanwhile, and a
/// call may answer `CUDA_ERROR_NOT_PERMITTED` or never return. It should be short. If it panics, the panic ends there and counts as
/// an error of a drop ([`drop_errors`](crate::status::drop_errors)).
///
/// It is called at most once. It is not called, and not dropped before the process ends, if the context meets an error or is
/// destroyed before the stream comes to it. A stream that is being captured is refused (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`): the
/// function would belong to a graph that runs any number of times.
pub fn call_on(
    driver: Driver,
    stream: StreamRef<'_>,
    function: impl FnOnce() + Send + 'static,
) -> Result<(), CudaError> {
    let call = "cuLaunchHostFunc";
    if is_capturing(driver, stream)? {
        return Err(CudaError { call, status: Status::STREAM_CAPTURE_UNSUPPORTED });
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    waiting().insert(number, Box::new(function));
    // SAFETY: `run` takes any number, as often as the driver likes and on any thread; the stream is alive, as its maker said.
    let outcome = unsafe {
        call!(driver, cuLaunchHostFunc(stream.handle(), Some(run), std::ptr::without_provenance_mut(number)))
    };
    if outcome.is_err() {
        // The driver may have meant an earlier error and call it all the same: it will find nothing.
        drop(take(number));
    }
    outcome
}

fn waiting() -> MutexGuard<'static, HashMap<usize, HostFunction>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a function out, without holding the lock while it is called or dropped.
fn take(number: usize) -> Option<HostFunction> {
    waiting().remove(&number)
}

/// What the driver calls.
unsafe extern "C" fn run(number: *mut c_void) {
    let Some(function) = take(number.addr()) else { return };
    if catch_unwind(AssertUnwindSafe(function)).is_err() {
        note_drop(Err(CudaError { call: "a host function of a stream", status: Status::LAUNCH_FAILED }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::drop_errors;
    use std::sync::Arc;

    fn give(function: impl FnOnce() + Send + 'static) -> *mut c_void {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        waiting().insert(number, Box::new(function));
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn a_function_is_called_once_however_often_the_driver_calls() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let number = give(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..3 {
            // SAFETY: any number will do.
            unsafe { run(number) };
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&count), 1, "the function is gone");
    }

    #[test]
    fn a_panic_goes_no_further_and_is_counted() {
        let before = drop_errors();
        // SAFETY: any number will do.
        unsafe { run(give(|| std::panic::resume_unwind(Box::new(())))) };
        assert!(drop_errors() > before);
    }
}
