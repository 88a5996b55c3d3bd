//! What a stranger may send, and what the node is told to do.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use gpu_handoff_protocol::BootTag;

use super::policy::Origin;
use crate::config::Config;
use crate::identity::cgroup::Root;

/// How long the close of [`closes_late`] takes.
pub(super) const LINGER: Duration = Duration::from_secs(20);

/// A TCP socket whose close waits for somebody who does not read.
pub(super) fn closes_late() -> OwnedFd {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let silent = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 64 << 10]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    // It lives for as long as the test, and reads nothing.
    std::mem::forget(silent);
    socket.into()
}

/// A node without anything.
pub(super) fn config() -> Config {
    Config {
        awake: 0,
        run_dir: "/nowhere".into(),
        policy: serde_json::from_str("{}").unwrap(),
        kubelet: None,
        policy_file: None,
        policy_origin: Origin::BuiltIn,
        admin_group: None,
        cgroup_root: Root::default(),
        members: Vec::new(),
        boot: BootTag(7),
        state_dir: "/nowhere".into(),
        user: None,
        nvidia_proc_root: "/nowhere".into(),
        nvidia_dev_root: "/nowhere".into(),
        descriptors: 1_024,
        log_format: gpu_handoff_logs::LogFormat::Text,
    }
}
