//! The broker: without privilege whoever starts the node, replaced when it dies, and not started in any other way.

use std::process::Command;

use anyhow::ensure;
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::footprint::family_in_mode;
use gpu_handoff_e2e::node::{PATIENCE, kill};
use gpu_handoff_e2e::rough::{Client, Sidecar};
use gpu_handoff_e2e::wait;
use gpu_handoff_sys::unprivileged::{User, can_become, confine};
use rustix::process::Signal;

use crate::daemon::{MEMBER, Place, Process};
use crate::scene::{Scene, wait_for_socket};

/// What `/proc` says of each thread of a process.
fn statuses(pid: u32) -> anyhow::Result<Vec<String>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    threads.map(|thread| Ok(std::fs::read_to_string(thread?.path().join("status"))?)).collect()
}

fn assert_unprivileged(pid: u32, user: u32, filtered: bool) -> anyhow::Result<()> {
    for status in statuses(pid)? {
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(field(set), Some("0000000000000000"), "{set} {status}");
        }
        assert_eq!(field("NoNewPrivs:"), Some("1"), "{status}");
        assert_eq!(field("Seccomp:"), Some(if filtered { "2" } else { "0" }), "{status}");
        let users: Vec<_> = field("Uid:").unwrap_or_default().split_whitespace().collect();
        let wanted = user.to_string();
        assert_eq!(users, [wanted.as_str(); 4], "{status}");
    }
    Ok(())
}

/// Whoever starts the node, what hears strangers has no privilege.
#[test]
fn the_broker_and_the_worker_have_no_privilege() -> anyhow::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let expected = if own == 0 { 64_532 } else { own };
    let scene = Scene::start()?;
    let stage = &scene.stage;
    assert_unprivileged(stage.node.broker_pid()?, expected, true)?;
    // The driver needs calls that nobody can list.
    assert_unprivileged(stage.worker()?, expected, false)?;
    scene.end()
}

/// A node without any privilege has a broker without any.
#[test]
fn an_unprivileged_node() -> anyhow::Result<()> {
    const USER: User = User { uid: 1_234, gid: 1_234 };
    if !can_become(USER.uid) {
        // Then all other tests are of that kind already.
        return Ok(());
    }
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    // The program may be where that user cannot go.
    let (program, own) = (place.0.path().join("plugin"), place.plugin()?);
    std::fs::copy(own.get_program(), &program)?;
    let mut command = Command::new(&program);
    command.args(own.get_args()).envs(own.get_envs().filter_map(|(k, v)| Some((k, v?))));
    std::os::unix::fs::chown(place.0.path(), Some(USER.uid), Some(USER.gid))?;
    confine(&mut command, Some(USER));
    let plugin = Process::start(&mut command)?;
    wait_for_socket(&place.slot().join("slot.sock"))?;
    let broker = || Ok(family_in_mode(plugin.0.id(), "broker")?.first().copied());
    let broker = wait::until(PATIENCE, "the broker is there", broker)?;
    drop(Sidecar::greeted(&place.slot())?);
    assert_unprivileged(broker, USER.uid, true)?;
    plugin.signal(Signal::TERM)?;
    let (status, said) = plugin.ended()?;
    assert!(status.success(), "{said}");
    Ok(())
}

/// The node starts another broker; what was said to the old one is over, who comes meanwhile waits.
#[test]
fn a_broker_that_dies_is_replaced() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let plugin = place.start_plugin()?;
    let _sidecar = place.start_sidecar()?;
    let mut last = 0;
    for round in 0..3 {
        let mut client = Client::greeted(&place.door())?;
        ensure!(client.acquire_nothing()?, "round {round}: the connection does not go on");
        let other = || Ok(family_in_mode(plugin.0.id(), "broker")?.into_iter().find(|pid| *pid != last));
        last = wait::until(PATIENCE, "another broker is there", other)?;
        kill(last)?;
        // The slot's socket is the node's: connecting never fails.
        drop(Sidecar::greeted(&place.slot())?);
        client.ended()?;
    }
    ensure!(Client::greeted(&place.door())?.acquire_nothing()?, "not served");
    plugin.signal(Signal::TERM)?;
    let (status, said) = plugin.ended()?;
    assert!(status.success() && said.matches("the broker died").count() == 3, "{said}");
    Ok(())
}

#[test]
fn a_broker_that_is_started_by_hand() -> anyhow::Result<()> {
    let mut command = Command::new(Folder::shared()?.binary("gpu-handoff-plugin")?);
    let (status, said) = Process::start(command.arg("broker"))?.ended()?;
    assert!(status.code() == Some(1) && said.contains("started by `gpu-handoff-plugin node`"), "{said}");
    Ok(())
}

#[test]
fn a_broker_user_that_cannot_be() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let mut command = place.plugin()?;
    command.arg("--broker-user").arg("nobody");
    let (status, said) = Process::start(&mut command)?.ended()?;
    assert!(status.code() == Some(2) && said.contains("--broker-user"), "{said}");
    // Of a state folder that is another user's.
    let state = place.0.path().join("state");
    std::fs::create_dir(&state)?;
    let own = rustix::process::geteuid().as_raw();
    if own == 0 {
        let mut command = place.plugin()?;
        let (status, said) = Process::start(command.arg("--state-dir").arg(&state))?.ended()?;
        assert!(status.code() == Some(1) && said.contains("belongs to user 0"), "{said}");
        let mut command = place.plugin()?;
        let (status, said) = Process::start(command.args(["--broker-user", "0"]))?.ended()?;
        assert!(status.code() == Some(1) && said.contains("may not run as root"), "{said}");
    } else {
        let mut command = place.plugin()?;
        let (status, said) = Process::start(command.args(["--broker-user", "0"]))?.ended()?;
        assert!(status.code() == Some(1) && said.contains(&format!("--broker-user {own}")), "{said}");
    }
    Ok(())
}
