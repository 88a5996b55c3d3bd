//! What a program has done at its end.

/// Has the process call this when it ends in order, before what was registered earlier: C's `atexit`. A handler that was
/// registered before the driver was initialised comes when the driver has taken itself apart. False: there is no room for it.
pub fn at_exit(handler: extern "C" fn()) -> bool {
    // SAFETY: the handler takes and gives nothing, and is a function of this program, which is there for as long as the process:
    // one that unwinds ends it, as its ABI says.
    unsafe { libc::atexit(handler) == 0 }
}
