//! Where a peer is authenticated: who connected is the kernel's word, never the peer's.
//!
//! A connection that a sidecar handed on is looked at here before a byte of it is read: the process that connected
//! it (`SO_PEERPIDFD`; below Linux 6.5 `SO_PEERCRED` with `pidfd_open`), its user, its number in its own PID
//! namespace. What cannot be told beyond doubt is refused. Rights belong to that process and end with it: the pidfd
//! kept here tells of its death, even if a child still holds the connection.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gpu_handoff_protocol::{Code, Refusal};
use gpu_handoff_sys::{peer, registered};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A live process that connected to us.
#[derive(Debug)]
pub struct Process {
    /// Its number on the node.
    pub pid: u32,
    /// When it started, in clock ticks after boot: tells processes of equal numbers apart.
    pub started: u64,
    /// Its number in its own, innermost PID namespace.
    pub own_pid: u32,
    /// Its user.
    pub uid: u32,
    pidfd: AsyncFd<OwnedFd>,
}

impl Process {
    /// Comes back when the process has ended.
    pub async fn died(&self) {
        // An error here means that the runtime stops: nobody needs the answer then.
        let _ = self.pidfd.readable().await;
    }

    /// Whether the process has ended or is on its way out. A process with much GPU memory takes long from closing its
    /// sockets to being gone, so the kernel's own mark of an exiting process is asked too.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        has_ended(self.pidfd.get_ref().as_fd()) || exiting(self.pid, self.started).unwrap_or(true)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} (started at tick {}, uid {})", self.pid, self.started, self.uid)
    }
}

/// Which users' processes may speak for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door {
    /// The member's user; `None`: any.
    pub user: Option<u32>,
}

/// Names the process that connected `connection`, if it may speak for the member behind `door`.
///
/// # Errors
/// `PEER_UNKNOWN`, with what was seen: the process is gone, is not visible from here, or is of another user.
pub fn identify(connection: BorrowedFd<'_>, door: Door) -> Result<Process, Refusal> {
    let peer = peer::peer_of(connection).map_err(|e| unknown("a process visible to the node daemon", &e))?;
    let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
    check_user(door, peer.uid)?;
    let facts = ProcFacts::read(pid).map_err(|e| unknown("a live process", &e))?;
    if !peer.exact && facts.uid != peer.uid {
        // Without SO_PEERPIDFD the number may have been reused since: the user then most likely differs.
        return Err(Refusal::new(Code::PeerUnknown).compared_with("user", peer.uid, facts.uid));
    }
    if has_ended(peer.pidfd.as_fd()) {
        // What was read of /proc may then be of a successor with the same number.
        return Err(Refusal::new(Code::PeerUnknown).compared_with(
            "process",
            "alive",
            format!("pid {pid} has ended"),
        ));
    }
    let pidfd =
        registered::register(peer.pidfd, Interest::READABLE).map_err(|e| unknown("a pidfd to watch", &e))?;
    Ok(Process { pid, started: facts.started, own_pid: facts.own_pid, uid: peer.uid, pidfd })
}

/// Checks that the process behind a sidecar's own connection to its slot is of the member's user.
///
/// # Errors
/// `PEER_UNKNOWN`, with the users.
pub fn identify_sidecar(connection: BorrowedFd<'_>, door: Door) -> Result<(), Refusal> {
    let peer = peer::peer_of(connection).map_err(|e| unknown("a process visible to the node daemon", &e))?;
    check_user(door, peer.uid)
}

/// The member's own user, root, and the user that the daemon itself runs as.
fn check_user(door: Door, found: u32) -> Result<(), Refusal> {
    match door.user {
        Some(wanted) if found != wanted && found != 0 && found != rustix::process::geteuid().as_raw() => {
            Err(Refusal::new(Code::PeerUnknown).compared_with("user", wanted, found))
        }
        _ => Ok(()),
    }
}

fn unknown(wanted: &str, found: &impl fmt::Display) -> Refusal {
    Refusal::new(Code::PeerUnknown).compared_with("peer", wanted, found)
}

fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let now = Some(std::time::Instant::now());
    gpu_handoff_protocol::socket::wait(&[(pidfd, rustix::event::PollFlags::IN)], now).unwrap_or(true)
}

/// `PF_EXITING` of the kernel's process flags.
const EXITING: u64 = 0x4;

/// Whether the process is exiting, by the flags in `/proc/PID/stat`; an error means that it is gone.
fn exiting(pid: u32, started: u64) -> io::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let field =
        |n| stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(n)?.parse::<u64>().ok());
    Ok(field(19) != Some(started) || field(6).is_none_or(|flags| flags & EXITING != 0))
}

/// What `/proc` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct ProcFacts {
    started: u64,
    own_pid: u32,
    uid: u32,
}

impl ProcFacts {
    fn read(pid: u32) -> io::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        Self::parse(&stat, &status)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid} reads strangely")))
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The command name may hold blanks and parentheses: fields are counted after the last one.
        let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
        let own_pid = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
        let uid = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self { started, own_pid, uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_past_strange_command_names() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9876 20 21";
        let status = "Name:\ta\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t42\t7\t1\n";
        let facts = ProcFacts::parse(stat, status).unwrap();
        assert_eq!(facts, ProcFacts { started: 9876, own_pid: 1, uid: 1001 });
        assert_eq!(ProcFacts::parse("garbage", status), None);
        assert_eq!(ProcFacts::parse(stat, ""), None);
    }

    #[tokio::test]
    async fn a_connection_of_our_own_is_ours() {
        let (a, _b) = gpu_handoff_protocol::socket::SeqPacket::pair().unwrap();
        let process = identify(a.as_fd(), Door { user: None }).unwrap();
        assert_eq!(process.pid, std::process::id());
        assert!(process.started > 0);
    }

    #[test]
    fn another_user_is_refused_with_both_users() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(check_user(Door { user: Some(own) }, own), Ok(()));
        let refusal = check_user(Door { user: Some(own + 1) }, own + 2).unwrap_err();
        assert_eq!(refusal.code(), Code::PeerUnknown);
        assert_eq!(refusal.compared()[0].found, (own + 2).to_string());
    }
}
