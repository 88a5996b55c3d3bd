//! What people start: `gpu-handoff-plugin node`. It does what needs privilege, and starts the processes that do the rest
//! without any.
//!
//! It takes the node's lock, makes folders and slot sockets, starts and reaps its children, and answers the broker's
//! commands. It never reads a byte that an application sent: the broker does, and what the broker may ask of it is the
//! short list in [`words`], each item checked here, because a broker that was taken over says what it likes.
//!
//! | concern | file |
//! |---|---|
//! | what node and broker say to each other | [`words`] |
//! | the lock, the state folder | [`place`] |
//! | the slots, their members and sockets | [`slots`] |
//! | which pods take part, by the kubelet's word | `membership`, `kubelet` |
//! | what their containers get when they are made: the container runtime's plugin | `nri` |
//! | what owners of pods can read | `events` |
//! | the policy, which may become another one | [`policy`] |
//! | starting children without privilege | [`children`] |
//! | being the first process of a container | [`first`] |
//! | the broker's process, from its start to its end | `broker` |
//! | whether it still does anything | `pulse` |
//! | answering its commands | `service` |
//! | how much of that it may have | `rates` |
//! | the GPU workers' processes | `workers` |
//! | which GPUs there are, and whose device nodes a process has | `gpus` |
//! | which GPUs a pod holds | `devices` |
//! | what groups share beside buffers | `groups` |
//! | what else its members' containers get | `parts` |
//! | process numbers that differ within a group | [`pids`] |
//! | what can be known of a pod's exchanges when it starts | `outlook` |
//! | looking at a process's files, which may not answer | `looks` |
//! | ending those that lease what is over for too long | `overstays` |
//! | asking the driver which of them reach each other | `survey` |
//! | whether a broker that died is started again, and when | `restarts` |
//! | telling whoever administers the node how all of this is | `admin` |
//! | the broker's side | [`client`] |

use std::io;

use anyhow::{Context as _, bail};
use gpu_handoff_kubelet::api::ApiServer;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::limits;
use crate::members::Member;

mod admin;
mod broker;
pub mod children;
pub mod client;
mod devices;
mod events;
pub mod first;
mod gpus;
mod groups;
mod kubelet;
mod looks;
mod membership;
mod nri;
mod outlook;
mod overstays;
mod parts;
pub mod pids;
pub mod place;
pub mod policy;
mod pulse;
mod rates;
mod restarts;
mod service;
pub mod slots;
mod survey;
#[cfg(test)]
mod testing;
pub mod words;
mod workers;

use broker::{Broker, Ending};
use events::Events;
use kubelet::Kubelet;
use place::Place;
use policy::Origin;
use restarts::Restarts;
use service::Service;
use slots::Slots;

/// Serves until it is told to stop by a signal; a second signal ends it at once.
///
/// # Errors
/// What kept it from starting, or the broker from serving.
pub fn run(config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { serve(config, StopSignals::new()?).await });
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

async fn serve(mut config: Config, signals: StopSignals) -> anyhow::Result<()> {
    say_what_starts(&config);
    let place = Place::prepare(&config).await?;
    // None of it is asked on the way of a member's start or of a request, for it may be away. Without it the kubelet alone is asked.
    let api_server = match config.kubelet {
        Some(_) => ApiServer::of_this_pod().context("ask the API server")?,
        None => None,
    };
    let (events, writer) = Events::new(api_server.clone(), config.node_name());
    let refused = api_server.is_some().then(|| writer.refused());
    let mut service = Service::new(&config, events.clone(), api_server.clone());
    let (mut slots, changes) = Slots::new(&config.run_dir, config.slots, config.policy.clone());
    // They end with the node.
    let mut followers = JoinSet::new();
    followers.spawn(writer.run());
    let (policy_teller, policy) = policy_told(&config)?;
    if let Some(file) = config.policy_file.take() {
        followers.spawn(policy::follow(file, changes.clone(), slots.gone_by(), policy_teller));
    }
    for member in &config.members {
        slots.join(Member::from(member))?;
        service.serve_slot(&member.slot);
    }
    let (mut kubelet, runtime) = match &config.kubelet {
        Some(kubelet) => {
            let begun =
                Kubelet::begin(kubelet, api_server, events.clone(), changes, &mut slots, &mut service);
            let mut kubelet = begun.await?;
            let (policies, root) = (slots.policies(), config.cgroup_root.clone());
            let runtime = kubelet.answer(config.runtime.clone(), policies, events, root);
            Some((kubelet, runtime))
        }
        None => None,
    }
    .unzip();
    let views = admin::Views {
        daemon: admin::still::daemon(&config),
        gpus: admin::still::gpus(&config, service.gpus()),
        driver: service.driver(),
        kernel: admin::still::kernel(),
        serving: slots.readiness(),
        broker: service.told().seen(),
        slots: slots.seen(),
        most_slots: config.slots,
        policy,
        kubelet: kubelet.as_ref().map(Kubelet::views),
        runtime,
        events: refused,
    };
    followers.spawn(admin::serve(admin::open(&config)?, views));
    let outcome = serve_members(
        &config,
        &place,
        &mut slots,
        &mut service,
        Serving { kubelet: &mut kubelet, followers: &mut followers },
        signals,
    )
    .await;
    if let Some(kubelet) = &mut kubelet {
        kubelet.stop().await;
    }
    // Before the node is given up: the next one has a socket at the same place.
    followers.shutdown().await;
    outcome
}

async fn serve_members(
    config: &Config,
    place: &Place,
    slots: &mut Slots,
    service: &mut Service,
    mut serving: Serving<'_>,
    mut signals: StopSignals,
) -> anyhow::Result<()> {
    let mut restarts = Restarts::default();
    loop {
        let mut broker = Broker::start(config, place, slots, service)?;
        let ending = tokio::select! {
            ending = broker.attend(service, slots) => ending,
            broke = serving.broke() => {
                error!(error = format!("{broke:#}"), "the node cannot be served any longer");
                stop(broker, service, slots, signals).await?;
                return Err(broke);
            }
            () = signals.next() => return stop(broker, service, slots, signals).await,
        };
        service.abandon();
        let Ending { lived, was_ready, how } = ending;
        let Some(pause) = restarts.died(lived, was_ready) else {
            bail!(
                "the broker ended {} times in a row before it was ready; the last time: {how}",
                limits::BROKER_STARTS
            );
        };
        service.told().died(&how, restarts.total());
        error!(how, lived = ?lived, restarts = restarts.total(), again_in = ?pause, "the broker died; it is started again");
        tokio::select! {
            () = sleep(pause) => {}
            () = signals.next() => return Ok(()),
        }
    }
}

/// The first line of a node's log.
fn say_what_starts(config: &Config) {
    let policy = match &config.policy_origin {
        Origin::BuiltIn => "built-in".to_owned(),
        Origin::MembersFile => "the members' file".to_owned(),
        Origin::File(path) => path.display().to_string(),
    };
    let user = config.user.map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
    info!(
        version = env!("CARGO_PKG_VERSION"), run_dir = %config.run_dir.display(), state_dir = %config.state_dir.display(), members = config.members.len(),
        policy, rules = config.policy.exchange.len(), broker_user = user, descriptors = config.descriptors, awake = config.awake, "starting"
    );
}

/// What the node's status tells of the policy.
fn policy_told(config: &Config) -> anyhow::Result<(policy::Teller, watch::Receiver<policy::Seen>)> {
    let version = match &config.policy_file {
        Some(file) => file.version().to_owned(),
        None => policy::version_of(&serde_json::to_vec(&config.policy)?),
    };
    Ok(policy::Teller::new(config.policy_origin.clone(), version, &config.policy))
}

/// What serves beside the broker.
struct Serving<'a> {
    kubelet: &'a mut Option<Kubelet>,
    followers: &'a mut JoinSet<()>,
}

impl Serving<'_> {
    /// Comes back when some of it has broken; never where nothing does.
    async fn broke(&mut self) -> anyhow::Error {
        let Self { kubelet, followers } = self;
        let kubelet = async {
            match kubelet {
                Some(kubelet) => kubelet.broke().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { broke = kubelet => broke, panicked = panicked(followers) => panicked.into() }
    }
}

/// Comes back when one of these tasks has panicked. That one has nothing more to do is well.
async fn panicked(tasks: &mut JoinSet<()>) -> tokio::task::JoinError {
    loop {
        match tasks.join_next().await {
            Some(Err(e)) => return e,
            Some(Ok(())) => {}
            None => std::future::pending().await,
        }
    }
}

/// Lets the broker say farewell, but does not wait for ever.
async fn stop(
    mut broker: Broker,
    service: &mut Service,
    slots: &mut Slots,
    mut signals: StopSignals,
) -> anyhow::Result<()> {
    info!("stopping; a second signal ends the daemon at once");
    let outcome = tokio::select! {
        outcome = broker.stop(service, slots) => outcome,
        () = signals.next() => bail!("ended by a second signal"),
    };
    if !service.end_all().await {
        warn!(waited = ?limits::WORKER_END_TIME, "a gpu worker was killed and has not ended");
    }
    if outcome.is_ok() {
        info!("stopped");
    }
    outcome
}
