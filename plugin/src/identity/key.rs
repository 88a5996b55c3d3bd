//! A process by what outlives a connection: enough to find it again after a restart of the daemon, and never to take
//! another one for it.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use gpu_handoff_sys::{pidfs, registered};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use super::proc_facts::ProcFacts;
use super::{Process, has_ended};

/// Which process, among all of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessKey {
    /// Its number on the node. Numbers are used again.
    pub pid: u32,
    /// When it started, in clock ticks after boot: tells processes of equal numbers apart, unless both started within
    /// one tick (10 ms).
    pub started: u64,
    /// The number that its pidfd has as a file, which no other process of this boot has; `None` before Linux 6.9.
    pub pidfs_inode: Option<u64>,
}

impl From<ProcessKey> for gpu_handoff_protocol::receipt::ProcessKey {
    fn from(key: ProcessKey) -> Self {
        let ProcessKey { pid, started, pidfs_inode } = key;
        Self { pid, started, pidfs_inode }
    }
}

impl From<gpu_handoff_protocol::receipt::ProcessKey> for ProcessKey {
    fn from(key: gpu_handoff_protocol::receipt::ProcessKey) -> Self {
        let gpu_handoff_protocol::receipt::ProcessKey { pid, started, pidfs_inode } = key;
        Self { pid, started, pidfs_inode }
    }
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} (started at tick {}", self.pid, self.started)?;
        match self.pidfs_inode {
            Some(number) => write!(f, ", number {number})"),
            None => f.write_str(")"),
        }
    }
}

/// Why a process cannot be opened again.
#[derive(Debug, thiserror::Error)]
pub enum ReopenError {
    /// It has ended. Another one may have its number.
    #[error("{wanted} has ended: {found}")]
    Gone {
        /// Which process was looked for.
        wanted: ProcessKey,
        /// What is there instead.
        found: String,
    },
    /// It could not be found out.
    #[error("{wanted} cannot be looked at")]
    Unknown {
        /// Which process was looked for.
        wanted: ProcessKey,
        /// What the system answered.
        source: io::Error,
    },
}

/// Opens the very process that the key names. The current runtime watches it from then on.
///
/// # Errors
/// [`ReopenError::Gone`] when it has ended, whatever has its number now; [`ReopenError::Unknown`] when that could not be
/// told, such as for want of descriptors.
pub fn reopen(key: ProcessKey) -> Result<Process, ReopenError> {
    let gone = |found: String| ReopenError::Gone { wanted: key, found };
    let unknown = |source: io::Error| ReopenError::Unknown { wanted: key, source };
    let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| gone("no process can have that number".to_owned()))?;
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Err(gone("no process has its number".to_owned())),
        // A number that is only a thread's by now.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
            return Err(gone("its number is a thread's".to_owned()));
        }
        Err(other) => return Err(unknown(other.into())),
    };
    let pidfs_inode = pidfs::inode(pidfd.as_fd()).map_err(unknown)?;
    if pidfs_inode != key.pidfs_inode {
        return Err(gone(format!("its number is that of another ({pidfs_inode:?})")));
    }
    let facts = ProcFacts::read(key.pid);
    // Only now: what was read is of this process if it lives on after the reading.
    if has_ended(pidfd.as_fd()) {
        return Err(gone("it is not reaped yet".to_owned()));
    }
    let facts = facts.map_err(unknown)?;
    if facts.started != key.started {
        return Err(gone(format!("its number is that of one started at tick {}", facts.started)));
    }
    let pidfd = registered::register(pidfd, Interest::READABLE).map_err(unknown)?;
    Ok(Process { key, own_pid: facts.own_pid, uid: facts.uid, pidfd })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Door, identify};
    use gpu_handoff_protocol::socket::SeqPacket;
    use std::process::{Child, Command};

    fn own_key() -> ProcessKey {
        let (a, _b) = SeqPacket::pair().unwrap();
        identify(a.as_fd(), Door { user: None, daemon: 0 }).unwrap().key
    }

    fn key_of(child: &Child) -> ProcessKey {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        let pidfs_inode = pidfs::inode(pidfd.as_fd()).unwrap();
        ProcessKey { pid: child.id(), started: ProcFacts::read(child.id()).unwrap().started, pidfs_inode }
    }

    #[tokio::test]
    async fn a_process_that_lives_is_found_again_as_it_was() {
        let key = own_key();
        let process = reopen(key).unwrap();
        assert_eq!((process.key, process.own_pid), (key, std::process::id()));
        assert_eq!(process.uid, rustix::process::geteuid().as_raw());
        assert!(!process.is_ending());
    }

    #[tokio::test]
    async fn one_that_has_ended_is_gone_and_one_that_ends_later_is_seen_to() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let key = key_of(&child);
        let process = reopen(key).unwrap();
        child.kill().unwrap();
        process.died().await;
        // Not reaped yet: it still has its number.
        assert!(matches!(reopen(key), Err(ReopenError::Gone { .. })));
        child.wait().unwrap();
        assert!(matches!(reopen(key), Err(ReopenError::Gone { .. })));
    }

    #[tokio::test]
    async fn another_process_with_the_same_number_is_not_taken_for_it() {
        let key = own_key();
        let later = ProcessKey { started: key.started + 1, ..key };
        let error = reopen(later).unwrap_err().to_string();
        assert!(error.contains(&format!("started at tick {}", key.started)), "{error}");
        let numbered = ProcessKey { pidfs_inode: Some(key.pidfs_inode.unwrap_or(0) + 1), ..key };
        assert!(matches!(reopen(numbered), Err(ReopenError::Gone { .. })));
        for pid in [0, u32::MAX] {
            assert!(matches!(reopen(ProcessKey { pid, ..key }), Err(ReopenError::Gone { .. })));
        }
    }

    #[test]
    fn a_process_is_known_to_have_ended_by_number_and_start() {
        use crate::identity::has_ended_since;
        let own = ProcFacts::read(std::process::id()).unwrap();
        assert!(!has_ended_since(std::process::id(), own.started));
        assert!(has_ended_since(std::process::id(), own.started + 1), "another one has its number");
        let mut child = Command::new("true").spawn().unwrap();
        let (pid, started) = (child.id(), ProcFacts::read(child.id()).unwrap().started);
        child.wait().unwrap();
        assert!(has_ended_since(pid, started));
    }
}
