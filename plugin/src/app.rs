//! The broker, wired together: the owner, a lane for each member, the GPU workers, and an orderly stop.
//!
//! It runs without any privilege, as a child of the node ([`crate::node`]), which tells it how to serve and does for it
//! what it may not do itself.

use std::hash::RandomState;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::socket::SeqListener;
use gpu_handoff_protocol::{BootTag, Instance};
use gpu_handoff_sys::filter::{self, Held};
use gpu_handoff_sys::random::random;
use rustix::process::{Resource, Rlimit};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tracing::{error, info, warn};

use crate::awake::Room;
use crate::closer::most_unclosed;
use crate::config::{descriptor_limit, descriptors_for_buffers};
use crate::gpu::{Gpus, Starter, Workers};
use crate::identity;
use crate::journal::{Holder, Journal, StateDir};
use crate::lane::{self, Lane, Shared};
use crate::limits;
use crate::members::{Holds, Member};
use crate::node::client::{AskError, DeviceNodes, Line, News, NodeClient, Start, take_up};
use crate::node::words::{Answer, Command, Setup};
use crate::owner::Owner;
use crate::pace::sleep_until;
use crate::receipts::Sealer;
use crate::registry::{BootClock, Capacity, Input, MemberId, Past, Registry, Topology};
use crate::tells::Tells;

mod lanes;
mod overstays;

use lanes::Lanes;

/// Serves what the node at the other end of standard input and output says, until that wants it to stop.
///
/// # Errors
/// What kept it from starting.
pub fn run() -> anyhow::Result<()> {
    let start = take_up()?;
    let descriptors = raise_descriptor_limit().context("raise the limit of open descriptors")?;
    // Before there are threads: what is started from here on has it too.
    let held = filter::install(start.state.as_fd()).context("filter our own system calls")?;
    if held != Held::Fully {
        warn!(%held, "this kernel does not hold the broker to its own files as far as is wanted");
    }
    #[cfg(feature = "taken-over")]
    crate::taken_over::begin(start.state.as_fd()).context("be taken over")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(start, descriptors))
}

async fn serve(start: Start, descriptors: u64) -> anyhow::Result<()> {
    let Start { setup, policy, members, state, lock: _lock, socket, words } = start;
    let tells = Arc::new(Tells::default());
    let (mut line, node) =
        Line::new(socket, words, Arc::clone(&tells)).context("take up the line to the node")?;
    let boot = BootTag(setup.boot);
    let state = StateDir::open(state, boot).context("open the state directory")?;
    let (stopping, stopped) = watch::channel(false);
    let (workers, reach) = Workers::new(Starter::new(node.clone()), known_gpus(&setup, &members));
    let capacity = Capacity { descriptors: descriptors_for_buffers(descriptors) };
    let (journal, found) = Journal::open(state.clone()).context("begin the journal")?;
    let has_ended = |holder: Holder| identity::has_ended_since(holder.pid, holder.started);
    let past = Past { found: found.without_those_that_have_ended(has_ended), clock: boot_clock() };
    let registry = Registry::new(policy.clone(), capacity, boot, RandomState::new(), past);
    let owner = Owner::new(registry, Some(journal));
    let shared = Shared {
        owner: Arc::clone(&owner),
        workers: reach,
        boot,
        sealer: Arc::new(Sealer::new(state.key(), boot)),
        instance: draw_instance()?,
        next_session: Arc::new(AtomicU64::new(1)),
        in_flight: lane::in_flight::limit(descriptors),
        awake: Room::new(setup.awake),
        tells,
        pid_word_proven: Arc::new(AtomicBool::new(false)),
        device_nodes: DeviceNodes::new(node.clone(), &setup.gpus),
        stop: stopped.clone(),
    };
    // Without members nobody else could ever ask for a worker, and their supervisor would end.
    let _asks_for_workers = shared.workers.clone();
    let (mut lanes, mut ended) =
        Lanes::new(&setup, policy.clone(), shared.clone(), most_unclosed(descriptors));
    for (member, listener) in members {
        lanes.come(member, listener);
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&owner).keep_time(stopped.clone()));
    tasks.spawn(workers.run(stopped.clone()));
    let (overstays, named) = mpsc::channel(limits::OVERSTAYS);
    owner.tell_overstays(overstays);
    tasks.spawn(overstays::run(node.clone(), named, stopped));
    let mut in_background = JoinSet::new();
    // Of a single one, too: whether the driver answers at all, the node's status tells by this.
    if !setup.gpus.is_empty() {
        in_background.spawn(survey(node.clone(), shared.clone()));
    }
    let mut unproven = Some((node, shared));
    prove_if_needed(&policy, &mut unproven, &mut in_background);
    line.say_ready().context("tell the node")?;
    let (stop, mut stop_asked) = oneshot::channel();
    let (news, mut told) = mpsc::channel(limits::NODE_NEWS);
    // Carries commands to the last: it ends with the process.
    let mut lines = JoinSet::new();
    let (alive, beats) = watch::channel(0);
    lines.spawn(line.run(stop, news, beats));
    // From here, where all that the node says ends up: who does not get to that any more is of no use.
    let mut beat = interval(limits::BROKER_BEAT);
    info!(members = lanes.len(), descriptors, "the broker serves");
    let broken = loop {
        tokio::select! {
            asked = &mut stop_asked => match asked {
                Ok(()) => break None,
                Err(_) => break Some("the node is gone"),
            },
            // Without one of these the broker would go on and answer nobody: it ends, to be started again.
            _ = tasks.join_next() => break Some("the registry's clock or the supervisor of the gpu worker has broken off; the log says more"),
            Some(member) = ended.recv() => lanes.has_ended(member),
            () = sleep_until(lanes.next_try()) => lanes.try_again(Instant::now()),
            _ = beat.tick() => alive.send_modify(|_| ()),
            Some(news) = told.recv() => {
                let is_policy = matches!(news, News::Policy(_));
                if let News::Policy(policy) = &news {
                    prove_if_needed(policy, &mut unproven, &mut in_background);
                }
                if let Err(why) = lanes.hear(news) {
                    break Some(why);
                }
                if is_policy {
                    alive.send_modify(|taken| *taken += 1);
                }
            }
        }
    };
    // What is alive now stays alive for the next broker, however the connections end from here on.
    owner.stop();
    drop(unproven);
    stopping.send_replace(true);
    if let Some(why) = broken {
        // The node may not wait for the rest.
        error!(why, "the broker ends");
    }
    outcome(broken, wind_down(tasks, lanes.into_threads()).await)
}

/// What is said of the end in the end: what broke first, and with it what else did not come to its end.
fn outcome(broken: Option<&'static str>, wound_down: anyhow::Result<()>) -> anyhow::Result<()> {
    match broken {
        Some(why) => wound_down.context(why).and_then(|()| bail!(why)),
        None => wound_down,
    }
}

/// The GPUs that are known without asking the driver: the node's, and those that its members were given, such as MIG instances.
fn known_gpus(setup: &Setup, members: &[(Member, SeqListener)]) -> Gpus {
    let given = members.iter().flat_map(|(member, _)| match &member.holds {
        Holds::These(held) => held.as_slice(),
        Holds::All | Holds::WhatItReaches => &[],
    });
    Gpus::new(setup.gpus.iter().copied(), given.copied())
}

/// What o'clock it is on the clock that goes on when the daemon does not.
fn boot_clock() -> BootClock {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or_default();
    let since_boot = Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec));
    BootClock { instant: Instant::now(), since_boot }
}

fn draw_instance() -> anyhow::Result<Instance> {
    Ok(Instance::from_bytes(random().context("the kernel gives no random numbers")?))
}

/// Waits for tasks and threads, but not for ever: a lane may be stuck in a stranger's descriptor.
async fn wind_down(mut tasks: JoinSet<()>, lanes: Vec<(MemberId, Lane)>) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + limits::STOP_TIME;
    let ended = async {
        while tasks.join_next().await.is_some() {}
        for (_, lane) in &lanes {
            while !lane.thread.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
        }
    };
    if tokio::time::timeout_at(deadline, ended).await.is_err() {
        bail!("a member's lane did not end within {:?}", limits::STOP_TIME);
    }
    for (member, lane) in lanes {
        if lane.thread.join().is_err() {
            warn!(member = member.0, "a member's lane had broken off");
        }
    }
    Ok(())
}

/// Raises the soft limit and lets the descriptor table grow to it now: growing it later, with threads running, would
/// stall them for milliseconds.
fn raise_descriptor_limit() -> io::Result<u64> {
    let (wanted, maximum) = (descriptor_limit(), rustix::process::getrlimit(Resource::Nofile).maximum);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    let last = i32::try_from(wanted.saturating_sub(1)).unwrap_or(i32::MAX);
    drop(rustix::io::fcntl_dupfd_cloexec(io::stderr().as_fd(), last)?);
    Ok(wanted)
}

/// Has the node ask the driver, in the background, which GPUs reach each other. Until then none does.
async fn survey(node: NodeClient, shared: Shared) {
    if let Some(topology) = surveyed(&node).await {
        info!(gpus = topology.gpus.len(), peers = topology.peers.len(), "surveyed the GPUs");
        shared.owner.apply(None, Input::Surveyed(topology)).log();
    }
}

/// What the driver says, however often it has to be asked; `None`: the node is gone.
async fn surveyed(node: &NodeClient) -> Option<Topology> {
    let mut pause = limits::SURVEY_PAUSE;
    loop {
        match node.ask(Command::Survey).await {
            Ok((Answer::Surveyed(topology), _)) => return Some(topology),
            Ok(_) | Err(AskError::Gone) => return None,
            Err(e) => {
                warn!(error = %e, again_in = ?pause, "no survey of the GPUs: until there is one, what another GPU holds is refused");
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(limits::SURVEY_LONGEST_PAUSE);
    }
}

/// Begins the self-test of legacy handles as soon as a policy allows some.
fn prove_if_needed(
    policy: &Policy,
    unproven: &mut Option<(NodeClient, Shared)>,
    in_background: &mut JoinSet<()>,
) {
    if policy.has_legacy()
        && let Some((node, shared)) = unproven.take()
    {
        in_background.spawn(prove_pid_word(node, shared));
    }
}

/// Has the node try once, in the background, whether legacy handles may be cured on this driver.
async fn prove_pid_word(node: NodeClient, shared: Shared) {
    let mut stop = shared.stop.clone();
    let outcome = tokio::select! {
        outcome = node.ask(Command::ProveLegacy) => outcome,
        _ = stop.wait_for(|stopping| *stopping) => return,
    };
    let proven = match outcome {
        Ok((Answer::Proven(proven), _)) => proven,
        Ok(_) | Err(AskError::Gone) => false,
        Err(e) => {
            warn!(error = %e, "self-test of legacy handles not run: equal process numbers will be refused");
            false
        }
    };
    shared.pid_word_proven.store(proven, Ordering::Relaxed);
    shared.owner.apply(None, Input::PidWordProven(proven)).log();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::client::testing;
    use crate::node::words::FromNode;

    #[tokio::test]
    async fn a_survey_that_failed_is_asked_for_again() {
        let (line, client, node) = testing::line(Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(line.run(oneshot::channel().0, mpsc::channel(1).0, watch::channel(0).1));
        let answers = async {
            for outcome in [Err("the driver is busy".to_owned()), Ok(Answer::Surveyed(Topology::default()))] {
                let (id, command) = node.asked().await;
                assert_eq!(command, Command::Survey);
                node.say(&FromNode::Answer { id, outcome }).await;
            }
        };
        let (topology, ()) = tokio::join!(surveyed(&client), answers);
        assert_eq!(topology, Some(Topology::default()));
    }

    #[test]
    fn why_the_broker_ends_is_said_whatever_else_does_not_end() {
        let said = |broken, wound_down| outcome(broken, wound_down).map_err(|e| format!("{e:#}"));
        let stuck = || Err(anyhow::anyhow!("a lane is stuck"));
        assert_eq!(said(None, Ok(())), Ok(()));
        assert_eq!(said(None, stuck()), Err("a lane is stuck".to_owned()));
        assert_eq!(said(Some("the node is gone"), Ok(())), Err("the node is gone".to_owned()));
        assert_eq!(
            said(Some("the node is gone"), stuck()),
            Err("the node is gone: a lane is stuck".to_owned())
        );
    }
}
