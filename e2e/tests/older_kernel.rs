//! The daemon on a kernel that gives no pidfd with a socket (`SO_PEERPIDFD`, Linux 6.5): it opens one by number.
//!
//! A filter of system calls answers the question for it as such a kernel does. It is on the thread that starts the real plugin,
//! and so on all of the plugin's processes.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{Member, Node, PATIENCE};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_e2e::rough::Sidecar;
use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::socket::{SeqListener, SeqPacket, wait};
use gpu_handoff_sys::peer::peer_of;
use rustix::event::PollFlags;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::Eq;
use seccompiler::{BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch};

/// `SO_PEERPIDFD` of `asm-generic/socket.h`.
const SO_PEERPIDFD: u64 = 77;
const BYTES: u64 = 2 << 20;
const WORD: u32 = 0x0BAD_CAFE;

/// Where the kernel counts processes, and takes a number to go on from.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// How often a number is tried to be had again: others start processes meanwhile.
const TRIES: usize = 200;
/// Whose process gets the number: neither root's nor the daemon's.
const SUCCESSOR: u32 = 65_533;

/// Does something in a thread in which, and in whose children, the kernel is an older one.
fn before_6_5(deed: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    let thread = std::thread::spawn(|| {
        let condition = |argument, value| SeccompCondition::new(argument, Dword, Eq, value);
        let level = u64::from(libc::SOL_SOCKET.unsigned_abs());
        let asked = SeccompRule::new(vec![condition(1, level)?, condition(2, SO_PEERPIDFD)?])?;
        let rules = BTreeMap::from([(libc::SYS_getsockopt, vec![asked])]);
        let unknown = SeccompAction::Errno(libc::ENOPROTOOPT.unsigned_abs());
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, unknown, arch)?;
        seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
        let (one, _other) = SeqPacket::pair()?;
        ensure!(!peer_of(one.as_fd())?.exact, "the filter has no effect");
        deed()
    });
    thread.join().map_err(|_| anyhow::anyhow!("the thread broke off"))?
}

fn node() -> anyhow::Result<Node> {
    let folder = Folder::shared()?;
    let member = |pod| Member { pod, group: "group" };
    let node = Node::start(&folder, Arc::new(Gpu::simulated(&folder)?), &[member("one"), member("other")])?;
    // The broker's own filters are three.
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.broker_pid()?))?;
    ensure!(status.contains("Seccomp_filters:\t4"), "the daemon is on another kernel: {status}");
    Ok(node)
}

#[test]
fn memory_is_handed_over() -> anyhow::Result<()> {
    before_6_5(|| {
        let (node, walls) = (node()?, Walls::available().0);
        let pods = [Pod::start(&node, "one", walls)?, Pod::start(&node, "other", walls)?];
        let (mut producer, mut consumer) = (pods[0].connected(&node)?, pods[1].connected(&node)?);
        let memory = "m".to_owned();
        producer.done(&Command::Fill {
            memory: memory.clone(),
            bytes: BYTES,
            kind: MemoryKind::Vmm,
            word: WORD,
        })?;
        let publish = Command::Publish { memory, name: "w".to_owned() };
        producer.expect(&publish, |answer| match answer {
            Answer::Published { .. } => Ok(()),
            other => Err(other),
        })?;
        let (name, lease) = (Some("w".to_owned()), "l".to_owned());
        let wait_ms = u64::try_from(PATIENCE.as_millis())?;
        let acquire = Command::Acquire { name, id: None, newer_than: 0, wait_ms, lease, announce: false };
        consumer.expect(&acquire, |answer| match answer {
            Answer::Acquired { .. } => Ok(()),
            other => Err(other),
        })?;
        consumer.expect(&Command::Verify { lease: "l".to_owned(), word: WORD }, |answer| match answer {
            Answer::Verified { wrong: 0, words } if words == BYTES / 4 => Ok(()),
            other => Err(other),
        })?;
        // Its death is seen, as on any kernel: what it published ends.
        producer.kill()?;
        let gone = Command::Acquire {
            name: Some("w".to_owned()),
            id: None,
            newer_than: 0,
            wait_ms: 0,
            lease: "again".to_owned(),
            announce: false,
        };
        gpu_handoff_e2e::wait::until(PATIENCE, "the dead one's buffer is gone", || {
            Ok(match consumer.ask(&gone)? {
                Answer::Refused { code, .. } if code == "NOT_FOUND" => Some(()),
                Answer::Acquired { .. } => {
                    consumer.done(&Command::Release { lease: "again".to_owned() })?;
                    None
                }
                _ => None,
            })
        })?;
        consumer.finish()?;
        producer.reap()?;
        pods.into_iter().try_for_each(Pod::stop)?;
        node.stop()
    })
}

/// Who connected is gone, and its number is another's.
#[test]
fn a_number_that_is_used_again_is_nobodys() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        let why = "only root may say which number comes next";
        ensure!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{why}");
        let line = format!("SKIPPED: a_number_that_is_used_again_is_nobodys: {why}\n");
        return Ok(std::io::stderr().write_all(line.as_bytes())?);
    }
    before_6_5(|| {
        let node = node()?;
        let mut sidecar = Sidecar::greeted(&node.slot("one"))?;
        // While nobody has the number, and then while another process has it.
        let (connection, _) = of_the_dead(&node)?;
        let refusal = sidecar.hand_on(connection)?.err().context("the dead were let in")?;
        ensure!(refusal.code() == Code::PeerUnknown, "{refusal}");
        let (connection, successor) = succeeded(&node)?;
        let refusal = sidecar.hand_on(connection)?.err().context("the successor was let in")?;
        drop(successor);
        ensure!(refusal.code() == Code::PeerUnknown, "{refusal}");
        let compared =
            refusal.compared().iter().any(|one| one.what == "user" && one.found == SUCCESSOR.to_string());
        ensure!(compared, "another user has the number now: {refusal}");
        drop(sidecar);
        node.stop()
    })
}

/// A process, killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already where the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection whose process has ended, and the number that this had.
fn of_the_dead(node: &Node) -> anyhow::Result<(std::os::fd::OwnedFd, u32)> {
    let at = node.dir().join("door");
    let listener = SeqListener::bind(&at)?;
    let mut program = Program::new(node.folder.binary("intruder")?);
    program.arg("hello").arg("--socket").arg(&at).stdout(Stdio::null()).stderr(Stdio::null());
    let program = Running(program.spawn().context("start who connects")?);
    let number = program.0.id();
    ensure!(wait(&[(listener.as_fd(), PollFlags::IN)], Some(Instant::now() + PATIENCE))?, "nobody connected");
    let connection = listener.try_accept()?.context("nobody connected")?;
    drop(program);
    Ok((connection, number))
}

/// The same, and a process of another user that has got the number since.
fn succeeded(node: &Node) -> anyhow::Result<(std::os::fd::OwnedFd, Running)> {
    for _ in 0..TRIES {
        let (connection, number) = of_the_dead(node)?;
        std::fs::write(LAST_PID, (number - 1).to_string())?;
        let mut program = Program::new("sleep");
        let program = Running(program.arg("60").uid(SUCCESSOR).spawn().context("start a successor")?);
        if program.0.id() == number {
            return Ok((connection, program));
        }
    }
    anyhow::bail!("in {TRIES} tries no process got the number of one that had just ended")
}
