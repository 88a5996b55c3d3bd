//! Which process connected a socket: the kernel's word, never the peer's.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `SO_PEERPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PEERGROUPS` of `asm-generic/socket.h` (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// Groups that a process may be in beside its own (`NGROUPS_MAX` of `linux/limits.h`).
const MOST_GROUPS: usize = 65_536;
/// The user that the kernel gives for a socket that nobody connected.
const NOBODY: libc::uid_t = libc::uid_t::MAX;

/// The process that connected a socket, as the kernel recorded it at that moment.
#[derive(Debug)]
pub struct Peer {
    /// Process number in our own PID namespace.
    pub pid: Pid,
    /// Effective user at the moment of connecting, in our own user namespace.
    pub uid: u32,
    /// A descriptor of that very process.
    pub pidfd: OwnedFd,
    /// Whether the pidfd came with the socket (Linux 6.5) or was opened by number afterwards. In the latter case the
    /// caller must make sure that the number was not reused in between.
    pub exact: bool,
}

/// Why the process behind a socket or a pidfd cannot be named.
#[derive(Debug)]
pub enum PeerError {
    /// Nobody connected the socket.
    NotConnected,
    /// The process has no number in our PID namespace: it lives outside it.
    NotVisible,
    /// The process has ended and was reaped.
    Gone,
    /// What else the kernel answered.
    Kernel(io::Error),
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected => f.write_str("a socket that nobody connected"),
            Self::NotVisible => f.write_str("a process that is not visible from this PID namespace"),
            Self::Gone => f.write_str("a process that is gone"),
            Self::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PeerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // `Display` has said what the error says; what is behind it comes next.
            Self::Kernel(error) => error.source(),
            Self::NotConnected | Self::NotVisible | Self::Gone => None,
        }
    }
}

impl From<io::Error> for PeerError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Self::Gone,
            _ => Self::Kernel(error),
        }
    }
}

/// Names the process that connected the other end of `socket`.
///
/// # Errors
/// See [`PeerError`].
pub fn peer_of(socket: BorrowedFd<'_>) -> Result<Peer, PeerError> {
    let credentials: libc::ucred = option_of(socket, libc::SO_PEERCRED)?;
    if credentials.uid == NOBODY {
        return Err(PeerError::NotConnected);
    }
    // 0 stands for a process that has no number here.
    let named = Pid::from_raw(credentials.pid).ok_or(PeerError::NotVisible)?;
    let exact = kernel_gives_pidfds()?;
    let pidfd = if exact {
        // Before 2025 kernels answered EINVAL where the peer was reaped already. Its number may be another's by now,
        // so no error of this call may lead to opening by number.
        peer_pidfd(socket).map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => PeerError::Gone,
            _ => e.into(),
        })?
    } else {
        pidfd_open(named, PidfdFlags::empty()).map_err(io::Error::from)?
    };
    let pid = pid_of(pidfd.as_fd())?;
    if pid != named {
        return Err(PeerError::Gone);
    }
    Ok(Peer { pid, uid: credentials.uid, pidfd, exact })
}

/// Who a process was when it connected a socket, as the kernel recorded it, in our own user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// The other groups that it was in.
    pub groups: Vec<u32>,
}

/// Tells who connected the other end of `socket`.
///
/// # Errors
/// See [`PeerError`].
pub fn credentials_of(socket: BorrowedFd<'_>) -> Result<Credentials, PeerError> {
    let credentials: libc::ucred = option_of(socket, libc::SO_PEERCRED)?;
    if credentials.uid == NOBODY {
        return Err(PeerError::NotConnected);
    }
    Ok(Credentials { uid: credentials.uid, gid: credentials.gid, groups: peer_groups(socket)? })
}

fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = libc::socklen_t::try_from(size_of_val(&groups[..])).map_err(io::Error::other)?;
        // SAFETY: `socket` is open for the call; `groups` and `length` are live and aligned, and `length` states the bytes
        // that `groups` has, so the kernel writes no further.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast::<libc::c_void>(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).map_err(io::Error::other)? / size_of::<libc::gid_t>();
        if answer == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // It then says in `length` how many bytes it takes.
        let grows =
            error.raw_os_error() == Some(libc::ERANGE) && count > groups.len() && count <= MOST_GROUPS;
        if !grows {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Whether this kernel knows `SO_PEERPIDFD`: asked once, of a socket whose peer surely lives, because the answer for a
/// peer that is gone was the same as for an option that is not known.
///
/// # Errors
/// What kept it from being asked, such as no room for a descriptor.
pub fn kernel_gives_pidfds() -> io::Result<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let (one, _other) = UnixStream::pair()?;
    let known = match peer_pidfd(one.as_fd()) {
        Ok(_) => true,
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EINVAL | libc::EOPNOTSUPP)) => {
            false
        }
        // Such as no room for a descriptor: that says nothing of the kernel.
        Err(other) => return Err(other),
    };
    Ok(*KNOWN.get_or_init(|| known))
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd: libc::c_int = option_of(socket, SO_PEERPIDFD)?;
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the kernel has just put this descriptor into our table and told nobody else of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Numbers alone: every pattern of bits is a value.
trait Plain: Copy {}
impl Plain for libc::c_int {}
impl Plain for libc::ucred {}

/// Reads an option of `SOL_SOCKET`.
fn option_of<T: Plain>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: `socket` is open for the call; `value` and `length` are live, properly aligned, and `length` states the
    // size of `value`, so the kernel writes no further.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast::<libc::c_void>(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every byte was zeroed or written by the kernel, and any bytes make a `Plain`.
    Ok(unsafe { value.assume_init() })
}

/// The process number of a pidfd, in our own PID namespace.
///
/// # Errors
/// See [`PeerError`].
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Result<Pid, PeerError> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = info.lines().find_map(|l| l.strip_prefix("Pid:")).and_then(|n| n.trim().parse::<i32>().ok());
    match number {
        Some(0) => Err(PeerError::NotVisible),
        Some(number) if number > 0 => Pid::from_raw(number).ok_or(PeerError::NotVisible),
        Some(_) => Err(PeerError::Gone),
        None => {
            Err(PeerError::Kernel(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor of no process")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolate::{Isolation, available_or_skip};
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Output, Stdio};

    /// Tells this program, started again as a test's other process, what to be.
    const ROLE: &str = "GPU_HANDOFF_PEER_TEST";

    /// This program again, to run the one test `name`.
    fn again(name: &str, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("peer::tests::{name}"), "--nocapture"]).env(ROLE, role);
        command
    }

    fn assert_passed(output: &Output) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
    }

    #[test]
    fn a_socket_pair_was_connected_by_ourselves() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = peer_of(a.as_fd()).unwrap();
        assert_eq!(peer.pid, rustix::process::getpid());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(pid_of(peer.pidfd.as_fd()).unwrap(), peer.pid);
    }

    #[test]
    fn a_peer_comes_with_all_its_groups() {
        let name = "a_peer_comes_with_all_its_groups";
        let many: Vec<u32> = (1..=1_000).collect();
        if std::env::var_os(ROLE).is_some() {
            rustix::thread::set_thread_groups(
                &many.iter().map(|&n| rustix::process::Gid::from_raw(n)).collect::<Vec<_>>(),
            )
            .unwrap();
            let (a, _b) = UnixStream::pair().unwrap();
            assert_eq!(credentials_of(a.as_fd()).unwrap().groups, many);
            return;
        }
        let (a, _b) = UnixStream::pair().unwrap();
        let own = credentials_of(a.as_fd()).unwrap();
        assert_eq!(
            (own.uid, own.gid),
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
        );
        let groups: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|g| g.as_raw()).collect();
        assert_eq!(own.groups, groups);
        if own.uid == 0 {
            assert_passed(&again(name, "many").output().unwrap());
        }
    }

    #[test]
    fn something_other_than_a_connected_socket_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(peer_of(file.as_fd()), Err(PeerError::Kernel(_))));
        assert!(matches!(pid_of(file.as_fd()), Err(PeerError::Kernel(_))));
        let unconnected = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert!(matches!(peer_of(unconnected.as_fd()), Err(PeerError::NotConnected)));
    }

    #[test]
    fn a_process_that_was_reaped_is_gone() {
        let name = "a_process_that_was_reaped_is_gone";
        if let Some(path) = std::env::var_os(ROLE) {
            UnixStream::connect(path).unwrap();
            return;
        }
        let path = std::env::temp_dir().join(format!("gpu-handoff-peer-test-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        assert_passed(&again(name, path.to_str().unwrap()).output().unwrap());
        std::fs::remove_file(path).unwrap();
        let (connection, _) = listener.accept().unwrap();
        let found = peer_of(connection.as_fd());
        assert!(matches!(found, Err(PeerError::Gone)), "{found:?}");
    }

    #[test]
    fn a_process_outside_our_pid_namespace_is_not_visible() {
        let name = "a_process_outside_our_pid_namespace_is_not_visible";
        if std::env::var_os(ROLE).is_some() {
            let found = peer_of(std::io::stdin().as_fd());
            assert!(matches!(found, Err(PeerError::NotVisible)), "{found:?}");
            return;
        }
        let Some(privilege) = available_or_skip(name) else { return };
        let (inside, _outside) = UnixStream::pair().unwrap();
        let mut command = again(name, "inside");
        command.stdin(Stdio::from(OwnedFd::from(inside)));
        Isolation::own_pids(privilege).apply(&mut command);
        assert_passed(&command.output().unwrap());
    }
}
