//! Where a peer is authenticated: who connected is the kernel's word, never the peer's.
//!
//! A connection that a sidecar handed on is looked at here before a byte of it is read: the process that connected
//! it (`SO_PEERPIDFD`; below Linux 6.5 `SO_PEERCRED` with `pidfd_open`), its user, its number in its own PID
//! namespace. What cannot be told beyond doubt is refused. Rights belong to that process and end with it: the pidfd
//! kept here tells of its death, even if a child still holds the connection.
//!
//! | concern | file |
//! |---|---|
//! | which container of which pod it is in | [`cgroup`] |
//! | whether that is the pod of its slot | `home` |
//! | a process by what outlives the connection: opening it again after a restart | `key` |
//! | what `/proc` says of a process | `proc_facts` |

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gpu_handoff_protocol::{Code, Refusal};
use gpu_handoff_sys::{peer, pidfs, registered};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub mod cgroup;
mod home;
mod key;
mod proc_facts;

pub use home::{Home, is_in, is_named_in};
pub(crate) use home::{place_of, pod_of};
pub use key::{ProcessKey, ReopenError, reopen};
use proc_facts::{ProcFacts, exiting};
pub(crate) use proc_facts::{start_in, started, text};

/// A live process that connected to us.
#[derive(Debug)]
pub struct Process {
    /// Which it is, among all of this boot.
    pub key: ProcessKey,
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

    /// Checks that it was this process which sent a packet, where the kernel tells. It does for all that is sent after
    /// `SeqPacket::name_senders`; a process with `CAP_SYS_ADMIN` in its pod can name another one of the pod.
    ///
    /// # Errors
    /// `FORKED`, with both processes.
    pub fn check_sender(&self, sender: Option<u32>) -> Result<(), Refusal> {
        match sender {
            Some(pid) if pid != self.key.pid => {
                let wanted = format!("{}, which connected", self.key.pid);
                Err(Refusal::new(Code::Forked).compared_with("process", wanted, pid))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is of this user and of no other, in whatever role.
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn is_wholly_of(&self, user: u32) -> std::io::Result<bool> {
        let all = proc_facts::users(self.key.pid)?;
        // What was read is of this process only if it still lives.
        Ok(all.iter().all(|one| *one == user) && !self.has_ended())
    }

    /// Kills that very process, whatever has its number by now.
    ///
    /// # Errors
    /// What the kernel answers: that it has ended, or that it may not be killed.
    pub fn kill(&self) -> std::io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(self.pidfd.get_ref(), rustix::process::Signal::KILL)?)
    }

    /// Whether it is gone: its number may be another's by now.
    fn has_ended(&self) -> bool {
        has_ended(self.pidfd.get_ref().as_fd())
    }

    /// Whether the process has ended or is on its way out. A process with much GPU memory takes long from closing its
    /// sockets to being gone, so the kernel's own mark of an exiting process is asked too.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.has_ended() || exiting(self.key.pid, self.key.started).unwrap_or(true)
    }
}

/// Whether it is certain that a process has ended, or is on its way out, of which no more is known than its number and its
/// start.
#[must_use]
pub fn has_ended_since(pid: u32, started: u64) -> bool {
    match exiting(pid, started) {
        Ok(ending) => ending,
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, of user {}", self.key, self.uid)
    }
}

/// Which users' processes may speak for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door {
    /// The member's user; `None`: any.
    pub user: Option<u32>,
    /// The user that people started the daemon as; not the one that this process may have been given instead.
    pub daemon: u32,
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
    let pidfs_inode = pidfs::inode(peer.pidfd.as_fd()).map_err(|e| unknown("a pidfd with a number", &e))?;
    let pidfd =
        registered::register(peer.pidfd, Interest::READABLE).map_err(|e| unknown("a pidfd to watch", &e))?;
    let key = ProcessKey { pid, started: facts.started, pidfs_inode };
    Ok(Process { key, own_pid: facts.own_pid, uid: peer.uid, pidfd })
}

/// The member's own user, root, and the user that started the daemon.
fn check_user(door: Door, found: u32) -> Result<(), Refusal> {
    match door.user {
        Some(wanted) if found != wanted && found != 0 && found != door.daemon => {
            Err(Refusal::new(Code::PeerUnknown).compared_with("user", wanted, found))
        }
        _ => Ok(()),
    }
}

fn unknown(wanted: &str, found: &impl fmt::Display) -> Refusal {
    Refusal::new(Code::PeerUnknown).compared_with("peer", wanted, found)
}

/// Whether the process of a pidfd is gone: its number may be another's by now.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let now = Some(std::time::Instant::now());
    gpu_handoff_protocol::socket::wait(&[(pidfd, rustix::event::PollFlags::IN)], now).unwrap_or(true)
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_of_our_own_is_ours() {
        let (a, _b) = gpu_handoff_protocol::socket::SeqPacket::pair().unwrap();
        let process = identify(a.as_fd(), Door { user: None, daemon: 0 }).unwrap();
        assert_eq!(process.key.pid, std::process::id());
        assert!(process.key.started > 0);
        assert_eq!(process.check_sender(None), Ok(()));
        assert_eq!(process.check_sender(Some(process.key.pid)), Ok(()));
        let refusal = process.check_sender(Some(process.key.pid + 1)).unwrap_err();
        assert_eq!(refusal.code(), Code::Forked);
    }

    #[test]
    fn another_user_is_refused_with_both_users() {
        let door = Door { user: Some(1_000), daemon: 1_001 };
        for good in [0, 1_000, 1_001] {
            assert_eq!(check_user(door, good), Ok(()));
        }
        let refusal = check_user(door, 65_532).unwrap_err();
        assert_eq!(refusal.code(), Code::PeerUnknown);
        assert_eq!(refusal.compared()[0].found, "65532");
    }
}
