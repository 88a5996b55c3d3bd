//! Everything wired together: the owner, a lane for each member, the GPU workers, and an orderly stop.

use std::hash::RandomState;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, bail};
use gpu_handoff_logs::chain;
use gpu_handoff_policy::LegacyRule;
use gpu_handoff_protocol::Instance;
use rustix::fs::FlockOperation;
use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::config::{Config, slot_socket};
use crate::gpu::self_test;
use crate::gpu::supervisor::Supervisor;
use crate::identity::Door;
use crate::lane::{self, Lane, LaneSpec, Shared};
use crate::limits;
use crate::members::StaticMember;
use crate::owner::Owner;
use crate::registry::{Capacity, Input, MemberFacts, MemberId, Registry};

/// Most descriptors that the daemon asks for, however many it may have.
const WANTED_DESCRIPTORS: u64 = 65_536;

/// Serves until it is told to stop by a signal; a second signal ends it at once.
///
/// # Errors
/// What kept it from starting.
pub fn run(config: Config) -> anyhow::Result<()> {
    let descriptors = raise_descriptor_limit().context("raise the limit of open descriptors")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { serve(config, descriptors, StopSignals::new()?).await });
    // A self-test that is still running is not waited for: its children end with its pipes.
    runtime.shutdown_background();
    outcome
}

/// The signals that ask the daemon to stop.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}

async fn serve(config: Config, descriptors: u64, mut signals: StopSignals) -> anyhow::Result<()> {
    info!(run_dir = %config.run_dir.display(), members = config.members.len(), policy = ?config.policy, descriptors, "starting");
    let _lock = own_the_node(&config.run_dir)?;
    let (stopping, stopped) = watch::channel(false);
    let (supervisor, inspector) = Supervisor::new(config.program.clone());
    let capacity = Capacity { descriptors: descriptors.saturating_sub(limits::RESERVED_DESCRIPTORS) };
    let owner = Owner::new(Registry::new(config.policy.clone(), capacity, config.boot, RandomState::new()));
    let shared = Shared {
        owner: Arc::clone(&owner),
        inspector,
        boot: config.boot,
        instance: draw_instance()?,
        next_session: Arc::new(AtomicU64::new(1)),
        pid_word_proven: Arc::new(AtomicBool::new(false)),
        stop: stopped.clone(),
    };
    let (ends, mut ended) = mpsc::channel(config.members.len().max(1));
    let lanes = start_lanes(&config, &shared, &ends)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&owner).keep_time(stopped.clone()));
    tasks.spawn(supervisor.run(stopped));
    let mut self_test = JoinSet::new();
    if config.policy.legacy != LegacyRule::Deny {
        self_test.spawn(prove_pid_word(config.program.clone(), shared.clone()));
    }
    drop(shared);
    info!(members = lanes.len(), "ready");
    let broken = loop {
        tokio::select! {
            () = signals.next() => break false,
            // Without one of these the daemon would go on and answer nobody: it ends, to be started again.
            _ = tasks.join_next() => break true,
            Some(member) = ended.recv() => lost_member(member, &lanes, &owner),
        }
    };
    info!("stopping; a second signal ends the daemon at once");
    stopping.send_replace(true);
    let orderly = tokio::select! {
        outcome = wind_down(tasks, lanes) => outcome,
        () = signals.next() => bail!("ended by a second signal"),
    };
    if broken {
        bail!("the registry or the supervisor of the gpu worker has broken off; the log says more");
    }
    orderly
}

fn draw_instance() -> anyhow::Result<Instance> {
    let mut random = [0; Instance::BYTES];
    getrandom::fill(&mut random).context("the kernel gives no random numbers")?;
    Ok(Instance::from_bytes(random))
}

/// A member without its lane can neither be heard nor told anything: what it held ends, the others go on.
fn lost_member(member: MemberId, lanes: &[(MemberId, Lane)], owner: &Owner) {
    let pod = lanes.iter().find(|(id, _)| *id == member).map(|(_, lane)| lane.pod.to_string());
    error!(
        pod,
        "the member's lane has broken off: its buffers and leases end, its slot is not served any more"
    );
    owner.apply(None, Input::MemberLeft(member)).log();
}

/// Waits for tasks and threads, but not for ever: a lane may be stuck in a stranger's descriptor.
async fn wind_down(mut tasks: JoinSet<()>, lanes: Vec<(MemberId, Lane)>) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + limits::STOP_TIME;
    let ended = async {
        while tasks.join_next().await.is_some() {}
        for (_, lane) in &lanes {
            while !lane.thread.is_finished() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
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
    info!("stopped");
    Ok(())
}

fn start_lanes(
    config: &Config,
    shared: &Shared,
    ends: &mpsc::Sender<MemberId>,
) -> anyhow::Result<Vec<(MemberId, Lane)>> {
    let mut lanes = Vec::with_capacity(config.members.len());
    for (number, member) in (0..).zip(&config.members) {
        let id = MemberId(number);
        make_slot(&config.run_dir, member)
            .with_context(|| format!("make the folder of slot {}", member.slot))?;
        let (pod, group) = (member.pod(), member.group());
        let facts = MemberFacts { pod: pod.clone(), group: group.clone(), devices: member.devices.clone() };
        shared.owner.apply(None, Input::MemberJoined(id, facts)).log();
        let spec = LaneSpec {
            member: id,
            pod,
            group,
            door: Door { user: member.user },
            socket: slot_socket(&config.run_dir, &member.slot),
            socket_user: member.user,
            quota: config.policy.quota,
        };
        let lane = lane::start(spec, shared.clone(), ends.clone())
            .with_context(|| format!("serve slot {}", member.slot))?;
        lanes.push((id, lane));
    }
    Ok(lanes)
}

/// Makes the folder that is mounted into the member's sidecar. It is the daemon's own: if the member could write there,
/// it could put something else in the place of the socket, and have that given to it.
fn make_slot(run_dir: &Path, member: &StaticMember) -> io::Result<()> {
    let folder = run_dir.join("slots").join(member.slot.as_str());
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&folder)?;
    std::os::unix::fs::chown(&folder, Some(rustix::process::geteuid().as_raw()), None)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711))
}

/// One daemon owns a node: two would give the same slots to different members.
fn own_the_node(run_dir: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::create_dir_all(run_dir)
        .with_context(|| format!("make the run directory {}", run_dir.display()))?;
    let path = run_dir.join("lock");
    let file = std::fs::File::create(&path).with_context(|| format!("open {}", path.display()))?;
    rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("another daemon owns {}: stop it first", run_dir.display()))?;
    Ok(file)
}

/// Raises the soft limit and lets the descriptor table grow to it now: growing it later, with threads running, would
/// stall them for milliseconds.
fn raise_descriptor_limit() -> io::Result<u64> {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let wanted = now.maximum.unwrap_or(WANTED_DESCRIPTORS).min(WANTED_DESCRIPTORS);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: now.maximum })?;
    let last = i32::try_from(wanted.saturating_sub(1)).unwrap_or(i32::MAX);
    drop(rustix::io::fcntl_dupfd_cloexec(io::stderr().as_fd(), last)?);
    Ok(wanted)
}

/// Tries once, in the background, whether legacy handles may be cured on this driver.
async fn prove_pid_word(program: PathBuf, shared: Shared) {
    let mut stop = shared.stop.clone();
    let test = tokio::task::spawn_blocking(move || self_test::run(&program));
    let outcome = tokio::select! {
        outcome = test => outcome,
        _ = stop.wait_for(|stopping| *stopping) => return,
    };
    let proven = match outcome {
        Ok(Ok(proven)) => {
            info!(proven, "self-test of legacy handles done");
            proven
        }
        Ok(Err(e)) => {
            warn!(
                error = chain(&e),
                "self-test of legacy handles not run: equal process numbers will be refused"
            );
            false
        }
        Err(e) => {
            warn!(error = %e, "self-test of legacy handles broke off");
            false
        }
    };
    shared.pid_word_proven.store(proven, Ordering::Relaxed);
    shared.owner.apply(None, Input::PidWordProven(proven)).log();
}
