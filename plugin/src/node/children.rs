//! Starting the node's children: this very program in another mode, without any privilege.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use gpu_handoff_logs::LogFormat;
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_sys::isolate::{Isolation, Privilege};
use gpu_handoff_sys::unprivileged::{User, confine};
use rustix::net::Shutdown;
use tokio::process::Child;

use super::words::pipe::Ear;

/// This program as the kernel knows it: the same file whatever was put in its place since, also where the folder that
/// it is in is closed to the user that a child runs as.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// How children are started.
#[derive(Debug, Clone, Copy)]
pub struct Programs {
    /// Whom they run as; `None`: as the node.
    pub user: Option<User>,
    /// How they log.
    pub log_format: LogFormat,
}

impl Programs {
    /// A child in this mode.
    #[must_use]
    pub fn child(&self, mode: &[&str]) -> Command {
        let mut command = self.bare(mode);
        confine(&mut command, self.user);
        command
    }

    /// A child in this mode that is PID 1 of a PID namespace of its own.
    #[must_use]
    pub fn isolated_child(&self, mode: &[&str], privilege: Privilege) -> Command {
        let mut command = self.bare(mode);
        match privilege {
            // The namespaces are made with root's right, which is given up then.
            Privilege::Root => {
                Isolation::own_pids(privilege).apply(&mut command);
                confine(&mut command, self.user);
            }
            // Whoever makes a user namespace is root in it: the user is changed before.
            Privilege::UserNamespace => {
                confine(&mut command, self.user);
                Isolation::own_pids(privilege).apply(&mut command);
            }
        }
        command
    }

    /// Nothing of a terminal reaches it: what people type there is for the node to hear. What it says goes into the node's
    /// log.
    fn bare(&self, mode: &[&str]) -> Command {
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("gpu-handoff-plugin").args(mode).arg("--log-format").arg(self.log_format.as_str());
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        command
    }
}

/// Starts a child that is ended with its handle. Its standard input is the other end of the socket that comes back.
pub(super) fn spawn_with_socket(mut command: Command) -> io::Result<(Child, SeqPacket)> {
    let (ours, theirs) = SeqPacket::pair()?;
    command.stdin(Stdio::from(theirs.into_fd()));
    let child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    Ok((child, ours))
}

/// Starts a child that is ended with its handle and is told things as [`spawn_with_socket`]'s is, but cannot say anything there: it
/// has its standard output for that, a pipe. So no descriptor of it is ever in the hands of this process.
pub(super) fn spawn_heard(mut command: Command) -> io::Result<(Child, SeqPacket, Ear)> {
    let (ours, theirs) = told_alone()?;
    command.stdin(Stdio::from(theirs.into_fd())).stdout(Stdio::piped());
    let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let said = child.stdout.take().ok_or_else(|| io::Error::other("the child has no output"))?;
    Ok((child, ours, Ear::new(said.into_owned_fd()?)?))
}

/// A socket pair over which the first can say something, and the second nothing: that would lie in the first one's queue, with the
/// descriptors that came along, and be closed with it.
pub(super) fn told_alone() -> io::Result<(SeqPacket, SeqPacket)> {
    let (ours, theirs) = SeqPacket::pair()?;
    rustix::net::shutdown(&ours, Shutdown::Read)?;
    Ok((ours, theirs))
}
