//! The number that the next process of a PID namespace gets: read and set from outside of it, by a process that has given
//! up everything else before.
//!
//! The kernel goes by the namespace of whoever asks, so it takes a process in there, which those in there may see, and
//! trace where one of them may trace anything. So what is in there is of no use to them: it has an empty root of its own,
//! no descriptor but of the number, of the pipe and of its own standard output and error, one capability, and a filter by
//! which it can do little but read, write and end. `/proc/sys/kernel/ns_last_pid` itself is no way out: whoever writes to
//! it sets the number of the namespace that he is in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, ThreadNameSpaceType, UnshareFlags};

mod filter;

/// Where the number is.
const FILE: &str = "/proc/sys/kernel/ns_last_pid";
/// A folder that is there wherever the number is: the empty root begins its life on it.
const ROOT: &str = "/proc";
/// Digits of a process number.
const DIGITS: usize = 10;

/// The number of the last process of a PID namespace, for a process in there.
#[derive(Debug)]
pub struct LastPid(OwnedFd);

impl LastPid {
    fn open() -> io::Result<Self> {
        Ok(Self(rustix::fs::open(FILE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// The number.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn get(&self) -> io::Result<u32> {
        let mut text = [0; DIGITS + 1];
        let length = rustix::io::pread(&self.0, &mut text, 0)?;
        let text = text.get(..length).and_then(|text| str::from_utf8(text).ok());
        text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Sets it: the next process gets the first number after it that is free.
    ///
    /// # Errors
    /// `InvalidInput`: the namespace has no number that large. What else the kernel answers.
    pub fn set(&self, number: u32) -> io::Result<()> {
        let (digits, first) = digits(number);
        rustix::io::pwrite(&self.0, &digits[first..], 0)?;
        Ok(())
    }
}

/// A number, without allocating, and where in the text it begins.
fn digits(mut number: u32) -> ([u8; DIGITS], usize) {
    let mut text = [b'0'; DIGITS];
    let mut at = DIGITS;
    loop {
        at -= 1;
        text[at] = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        if number == 0 {
            return (text, at);
        }
    }
}

/// Does `work` in the PID namespace of the process that standard input is a pidfd of, in a child of this process, and
/// says what came of it. `N` numbers come back.
///
/// It is for a process that does nothing else: there is no way back to what it was, and all that it has open is closed
/// first, but for standard input, output and error. It takes the right to make and enter namespaces (`CAP_SYS_ADMIN`),
/// and `CAP_CHECKPOINT_RESTORE`.
///
/// # Errors
/// What kept it from giving up what it has, or from entering; what `work` answers, by its number alone.
pub fn within<const N: usize>(work: impl FnOnce(&LastPid) -> io::Result<[u32; N]>) -> io::Result<[u32; N]> {
    close_all_else()?;
    let last = LastPid::open()?;
    let (from_child, to_parent) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::thread::move_into_thread_name_spaces(io::stdin().as_fd(), ThreadNameSpaceType::PROCESS_ID)?;
    give_up()?;
    match fork()? {
        Forked::Child => {
            let outcome = crate::isolate::end_with_parent(0).and_then(|()| work(&last));
            // SAFETY: ends the child at once, without running anything of the forked program.
            unsafe { libc::_exit(i32::from(tell(&to_parent, &outcome).is_err())) }
        }
        Forked::Parent => {
            drop(to_parent);
            hear(&from_child)
        }
    }
}

/// Whatever was left open for this process would be open in the namespace as well.
fn close_all_else() -> io::Result<()> {
    // SAFETY: closes descriptors above those of standard input, output and error. `within` is for a process that does
    // nothing else, so nobody in it owns one of them, or goes on to use it.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all that is not needed from here on.
fn give_up() -> io::Result<()> {
    empty_root()?;
    let none = CapabilitySet::empty();
    let one = CapabilitySet::CHECKPOINT_RESTORE;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: one, permitted: one, inheritable: none },
    )?;
    rustix::thread::set_no_new_privs(true)?;
    let nothing = || Rlimit { current: Some(0), maximum: Some(0) };
    for resource in [Resource::Core, Resource::Nofile] {
        rustix::process::setrlimit(resource, nothing())?;
    }
    // Last: it is undone by whatever changes what a process may do.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    filter::install()
}

/// Has this process see an empty folder, in which nothing can be made, in place of all files.
fn empty_root() -> io::Result<()> {
    // SAFETY: no descriptor table is unshared (`CLONE_FILES` is not passed), so no descriptor loses its meaning.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    rustix::mount::mount("tmpfs", ROOT, "tmpfs", flags, Some(c"size=4k,nr_inodes=1,mode=0500"))?;
    rustix::process::chdir(ROOT)?;
    // What was the root lies on top of the new one then, and is taken off.
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

enum Forked {
    Parent,
    Child,
}

/// An argument of a system call that is not given.
const NONE: libc::c_long = 0;

/// By the call that the filter lets pass, whichever the C library takes.
fn fork() -> io::Result<Forked> {
    // SAFETY: without `CLONE_VM` the child has memory of its own, and goes on as this thread would; of the arguments only
    // the signal for the parent is given, so the kernel reads and writes no memory of ours. What the C library remembers
    // of its own number and of other threads is not asked by the child, which makes system calls and ends. Each argument has
    // the width of a `long`, which is what a variadic `syscall` reads.
    match unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), NONE, NONE, NONE, NONE) }
    {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        _ => Ok(Forked::Parent),
    }
}

/// Writes `0` and the numbers, or else the number of an error.
fn tell<const N: usize>(to: &OwnedFd, outcome: &io::Result<[u32; N]>) -> io::Result<()> {
    let say = |number: u32| rustix::io::write(to, &number.to_ne_bytes()).map(drop).map_err(io::Error::from);
    match outcome {
        Ok(numbers) => {
            say(0)?;
            numbers.iter().try_for_each(|number| say(*number))
        }
        Err(e) => say(e.raw_os_error().map_or(libc::EIO, |code| code).unsigned_abs()),
    }
}

/// What was written. Whoever traces the child can have anything written: the numbers are those of whoever is in the namespace.
fn hear<const N: usize>(from: &OwnedFd) -> io::Result<[u32; N]> {
    let code = next(from.as_fd())?;
    if code != 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(libc::EIO)));
    }
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = next(from.as_fd())?;
    }
    Ok(numbers)
}

fn next(from: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes = [0; size_of::<u32>()];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(from, &mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => filled += length,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests;
