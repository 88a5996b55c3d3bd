//! A filter of system calls for the process that reads strangers' bytes: whoever takes it over finds little to go on with.
//!
//! Three filters, of which the kernel takes the strictest answer to each call:
//!
//! 1. what the process needs passes, some of it only with certain arguments; anything else is answered `EPERM`, as a call
//!    that a library merely tries is not worth a life;
//! 2. what no library of ours ever tries, and an attacker does, ends the process at once: running programs, looking into
//!    other processes, signals to others, mounts, namespaces, other users, ways around this filter;
//! 3. `clone3`, whose arguments no filter can see, is answered `ENOSYS`, so that the C library takes `clone`, which passes
//!    for threads alone.
//!
//! Files are made and written only by calls that name the one folder that is given; sockets are Unix sockets. As a filter sees
//! no paths, and the kernel heeds the folder neither for an absolute path nor for one with `..`, the same is asked of the
//! kernel's Landlock (`files`), which goes by the files: there nothing is opened for writing but in the folder, and for
//! reading but there and in `/proc`. A kernel without it says so ([`Held::Not`]); then what a taken-over process can
//! reach is decided by its user, who therefore must not be root nor own anything but the folder. What descriptors
//! the process has been given it may use, which is what the filter leaves: the node that started it decides about those.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

mod calls;
mod files;

pub use files::Held;

/// Installs the filter for this thread and all that it starts from now on, and says how far the kernel holds it to its
/// files. There is no way back, and no file that is opened already is affected.
///
/// `folder` is where files may be made and written: by calls that name them relative to this very descriptor, which has to
/// stay open.
///
/// # Errors
/// What the kernel answers, or that there is no filter for this processor.
pub fn install(folder: BorrowedFd<'_>) -> io::Result<Held> {
    let held = files::hold(folder)?;
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let errno = |code: libc::c_int| SeccompAction::Errno(code.unsigned_abs());
    let filter = |rules, mismatch, matched| -> io::Result<BpfProgram> {
        let filter = SeccompFilter::new(rules, mismatch, matched, arch).map_err(io::Error::other)?;
        BpfProgram::try_from(filter).map_err(io::Error::other)
    };
    let number = u64::try_from(folder.as_raw_fd()).map_err(io::Error::other)?;
    let needed = calls::needed(number, u64::from(std::process::id())).map_err(io::Error::other)?;
    // The strictest last: it lets no further one be installed.
    let programs = [
        filter(calls::hostile(), SeccompAction::Allow, SeccompAction::KillProcess)?,
        filter(calls::unseen(), SeccompAction::Allow, errno(libc::ENOSYS))?,
        filter(needed, errno(libc::EPERM), SeccompAction::Allow)?,
    ];
    programs.iter().try_for_each(|program| seccompiler::apply_filter(program).map_err(io::Error::other))?;
    Ok(held)
}

#[cfg(test)]
mod tests;
