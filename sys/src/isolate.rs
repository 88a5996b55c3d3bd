//! Starting a process in namespaces of its own, as a container runtime would.
//!
//! Used by the demo, the benchmark and the tests to stand for pods, and by the self-test of legacy handles, whose two
//! halves must both be PID 1 of their own PID namespaces.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::thread::{ThreadNameSpaceType, UnshareFlags};

use crate::processes::children;

/// What gives us the right to make namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// We are root: the namespaces belong to our own user namespace.
    Root,
    /// We are not: a user namespace is made first, in which we are root.
    UserNamespace,
}

/// How a process is set apart: its own PID namespace, and as a container also its own mount namespace (with its own
/// `/proc` and `/dev/shm`) and the IPC, network and UTS namespaces of its pod.
#[derive(Debug)]
pub struct Isolation {
    privilege: Privilege,
    place: Place,
    binds: Vec<(CString, CString)>,
}

/// Where a process lives.
#[derive(Debug)]
enum Place {
    /// Among the others, but for its process number.
    OwnPids,
    /// In a pod of its own.
    NewPod,
    /// In the pod of this process.
    PodOf(OwnedFd),
}

impl Isolation {
    /// A process that is PID 1 of a PID namespace of its own, with a `/proc` that shows it, and shares the rest.
    #[must_use]
    pub fn own_pids(privilege: Privilege) -> Self {
        Self { privilege, place: Place::OwnPids, binds: Vec::new() }
    }

    /// The first process of a pod.
    #[must_use]
    pub fn new_pod(privilege: Privilege) -> Self {
        Self { privilege, place: Place::NewPod, binds: Vec::new() }
    }

    /// A further process of the pod that `member` (a pidfd) is in.
    #[must_use]
    pub fn in_pod_of(privilege: Privilege, member: OwnedFd) -> Self {
        Self { privilege, place: Place::PodOf(member), binds: Vec::new() }
    }

    /// Shows the folder `source` at the existing folder `target` inside, as a mount into a container would.
    ///
    /// # Errors
    /// When a path holds a zero byte.
    pub fn bind(mut self, source: &Path, target: &Path) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let text = |p: &Path| CString::new(p.as_os_str().as_bytes()).map_err(io::Error::from);
        self.binds.push((text(source)?, text(target)?));
        Ok(self)
    }

    /// Makes `command` start set apart.
    ///
    /// The process that `spawn` returns is a keeper outside the new PID namespace: it ends with the code of the
    /// isolated process, and the isolated process dies with it. [`isolated_pid`] names the isolated one.
    pub fn apply(self, command: &mut Command) {
        // SAFETY: between fork and exec only async-signal-safe system calls are made (no allocation: every string was
        // made before); the closure's data are owned by it.
        unsafe { command.pre_exec(move || self.enter()) };
    }

    /// The steps between fork and exec.
    fn enter(&self) -> io::Result<()> {
        let of_pod = UnshareFlags::NEWIPC | UnshareFlags::NEWNET | UnshareFlags::NEWUTS;
        match &self.place {
            Place::OwnPids => self.become_able()?,
            Place::NewPod => {
                self.become_able()?;
                unshare(of_pod)?;
            }
            Place::PodOf(member) => self.join(member)?,
        }
        unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS)?;
        become_first_process()?;
        self.mounts()
    }

    fn join(&self, member: &OwnedFd) -> io::Result<()> {
        if self.privilege == Privilege::UserNamespace {
            rustix::thread::move_into_thread_name_spaces(member.as_fd(), ThreadNameSpaceType::USER)?;
        }
        let shared = ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::NETWORK
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
        rustix::thread::move_into_thread_name_spaces(member.as_fd(), shared)?;
        Ok(())
    }

    /// Makes a user namespace where that is what gives us the right to make others.
    fn become_able(&self) -> io::Result<()> {
        if self.privilege == Privilege::UserNamespace {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            unshare(UnshareFlags::NEWUSER)?;
            write_file(c"/proc/self/setgroups", b"deny")?;
            write_file(c"/proc/self/uid_map", &id_map(uid))?;
            write_file(c"/proc/self/gid_map", &id_map(gid))?;
        }
        Ok(())
    }

    fn mounts(&self) -> io::Result<()> {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
        mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        for (source, target) in &self.binds {
            mount_bind(source.as_c_str(), target.as_c_str())?;
        }
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"proc", c"/proc", c"proc", safe | MountFlags::NOEXEC, None)?;
        if !matches!(self.place, Place::OwnPids) {
            mount(c"tmpfs", c"/dev/shm", c"tmpfs", safe, None)?;
        }
        Ok(())
    }
}

fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: no descriptor table is unshared (`CLONE_FILES` is never passed), so no descriptor loses its meaning.
    unsafe { rustix::thread::unshare_unsafe(namespaces)? };
    Ok(())
}

/// Lets a program end when the thread that starts it does, however that ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec async-signal-safe system calls are made, without allocating.
    unsafe { command.pre_exec(move || end_with_parent(parent)) };
}

/// Asks the kernel to end this process with its parent, which has this number, unless it has a PID namespace of its own.
pub(crate) fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A parent that ended before that sends nothing any more. One outside of our namespace has no number here.
    match rustix::process::getppid().map(|found| found.as_raw_nonzero().get().unsigned_abs()) {
        Some(found) if found != parent => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Ok(()),
    }
}

/// The isolated process that a keeper made by [`Isolation::apply`] looks after, by its number outside.
///
/// # Errors
/// `NotFound` when the keeper has no child (any more); what [`children`] gives.
pub fn isolated_pid(keeper: u32) -> io::Result<u32> {
    children(keeper)?.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Forks; the child, PID 1 of the namespace made just before, goes on, the parent stays behind as its keeper.
fn become_first_process() -> io::Result<()> {
    // SAFETY: we are between fork and exec, single-threaded; the child goes on exactly as we would.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // The first process of its namespace: its parent has no number there.
        0 => end_with_parent(0),
        child => keep(child),
    }
}

/// Waits for the child and ends with its code. Never returns.
fn keep(child: libc::pid_t) -> ! {
    // SAFETY: no descriptor above 2 is used by this process any more; it makes only the calls below. Among those
    // closed is the pipe by which `spawn` learns that exec has happened, so that it need not wait for us.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let mut status = 0;
    loop {
        // SAFETY: `status` is live; the child is ours.
        let answer = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if answer == child {
            break;
        }
        if answer < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
    }
    let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
    // SAFETY: ends the process at once, without running anything of the forked program.
    unsafe { libc::_exit(code) }
}

/// `0 <id> 1`, without allocating.
fn id_map(id: u32) -> ([u8; 32], usize) {
    let mut line = [0; 32];
    line[..2].copy_from_slice(b"0 ");
    let mut digits = [0; 10];
    let (mut at, mut rest) = (digits.len(), id);
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let used = digits.len() - at;
    line[2..2 + used].copy_from_slice(&digits[at..]);
    line[2 + used..4 + used].copy_from_slice(b" 1");
    (line, 4 + used)
}

/// Bytes to write in one call.
trait Bytes {
    fn bytes(&self) -> &[u8];
}

impl Bytes for [u8; 4] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for ([u8; 32], usize) {
    fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

fn write_file(path: &std::ffi::CStr, content: &impl Bytes) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, content.bytes())?;
    Ok(())
}

/// What this user may make, found out by trying; the error says what stands in the way.
///
/// # Errors
/// What `unshare` or `mount` answered, when neither way works.
pub fn available() -> io::Result<Privilege> {
    let first = if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::UserNamespace };
    match works(first) {
        Ok(()) => Ok(first),
        Err(_) if first == Privilege::Root => {
            works(Privilege::UserNamespace).map(|()| Privilege::UserNamespace)
        }
        Err(e) => Err(e),
    }
}

/// Tries it with a process that ends instead of becoming a program: an image need not have one for this.
fn works(privilege: Privilege) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    Isolation::new_pod(privilege).apply(&mut command);
    // SAFETY: between fork and exec, one async-signal-safe system call, which ends the process at once, without running anything of
    // the forked program. The pipe by which `status` learns of the exec closes with it.
    unsafe { command.pre_exec(|| libc::_exit(0)) };
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the trial process ended with {status}")))
    }
}

/// What [`available`] says, or after a word on standard error that `test` is skipped, nothing.
#[cfg(test)]
pub(crate) fn available_or_skip(test: &str) -> Option<Privilege> {
    match available() {
        Ok(privilege) => Some(privilege),
        Err(e) => {
            assert!(
                std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"),
                "cannot make namespaces: {e}"
            );
            // Not by a macro: the harness hides what those print in a test that passes.
            let line = format!("SKIPPED: {test}: this user cannot make namespaces ({e})\n");
            let _unheard = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_map_is_written_without_allocating() {
        assert_eq!(id_map(0).bytes(), b"0 0 1");
        assert_eq!(id_map(u32::MAX).bytes(), b"0 4294967295 1");
    }

    #[test]
    fn a_process_whose_parent_has_ended_already_does_not_start() {
        let start = |parent: u32| {
            let mut command = Command::new("true");
            // SAFETY: as in `die_with_parent`.
            unsafe { command.pre_exec(move || end_with_parent(parent)) };
            command.status()
        };
        assert!(start(std::process::id()).unwrap().success());
        assert_eq!(start(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn an_isolated_process_is_pid_1_with_an_ipc_namespace_of_its_own() {
        let Some(privilege) =
            available_or_skip("an_isolated_process_is_pid_1_with_an_ipc_namespace_of_its_own")
        else {
            return;
        };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$; readlink /proc/self/ns/ipc; ls /dev/shm; exit 7"]);
        Isolation::new_pod(privilege).apply(&mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines();
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(lines.next(), Some("1"));
        assert_ne!(lines.next().unwrap(), std::fs::read_link("/proc/self/ns/ipc").unwrap().to_str().unwrap());
        assert_eq!(lines.next(), None, "/dev/shm is empty");
    }
}
