//! The node's side towards the container runtime: members' containers get what their pods were granted beside a slot.
//!
//! The runtime asks before it makes a container, holds a lock of the whole node until it is answered, and goes on
//! without an answer after two seconds. So this is a thread of its own, which waits for nothing of the node's, and
//! reads the plans alone. It is connected only while a member has what it is for: nodes that do not use it carry none of its
//! risk. What a policy grants does not count: pods that ask for it are refused as long as this version cannot do all of it.
//!
//! | concern | file |
//! |---|---|
//! | what is answered | [`handler`] |
//! | what a container's process got | [`look`] |
//! | what was there already | [`found`] |
//! | what a device node is | [`device`] |
//! | what is told of all this | [`seen`] |

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use gpu_handoff_inject::{Ipc, Shm};
use gpu_handoff_nri::{Settings, State, serve};
use gpu_handoff_policy::Policy;
use tokio::sync::{mpsc, oneshot, watch};

use super::events::Events;
use super::parts::{Plan, Plans};
use crate::identity::cgroup::Root;
use crate::limits;

mod device;
mod found;
mod handler;
mod look;
mod seen;

use found::{Found, Killer};
use handler::Answers;
use seen::Counts;
pub(super) use seen::Views;

/// What it takes.
#[derive(Debug, Clone)]
pub(super) struct Inputs {
    pub(super) settings: Settings,
    pub(super) plans: watch::Receiver<Arc<Plans>>,
    pub(super) policies: watch::Receiver<Arc<Policy>>,
    pub(super) events: Events,
    pub(super) cgroup_root: Root,
    pub(super) seen: Seen,
}

/// Where it tells how it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    state: watch::Sender<State>,
    counts: watch::Sender<Counts>,
}

impl Seen {
    /// For the node's status.
    pub(super) fn views(&self, settings: &Settings) -> Views {
        let socket = settings.socket().to_owned();
        Views { socket, state: self.state.subscribe(), counts: self.counts.subscribe() }
    }
}

/// The thread. It ends, and is waited for, when this is dropped; it answers in milliseconds.
#[derive(Debug)]
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    handle: Option<JoinHandle<io::Result<()>>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(handle) = self.handle.take() {
            // What it has to say of its end, who waits for it in `run` has heard.
            drop(handle.join());
        }
    }
}

/// Answers the runtime until this is dropped. The thread's panic is this one's: the node ends, and starts again.
///
/// # Errors
/// When there can be no thread.
pub(super) async fn run(inputs: Inputs) -> io::Result<()> {
    let (stop, stopped) = oneshot::channel();
    let (ending, ended) = oneshot::channel::<()>();
    let work = move || {
        let _ending = ending;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            tokio::select! { _ = stopped => {}, () = answer(inputs) => {} }
        });
        Ok(())
    };
    let handle = std::thread::Builder::new().name("nri".to_owned()).spawn(work)?;
    let mut thread = Thread { stop: Some(stop), handle: Some(handle) };
    // Nothing is ever sent.
    let _ = ended.await;
    match thread.handle.take().map(JoinHandle::join) {
        Some(Ok(outcome)) => outcome,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => Ok(()),
    }
}

/// Serves while it is needed.
async fn answer(inputs: Inputs) {
    let Inputs { settings, plans, policies, events, cgroup_root, seen } = inputs;
    let Seen { state, counts } = seen;
    let killer = Killer {
        root: cgroup_root,
        events: events.clone(),
        policies: policies.clone(),
        counts: counts.clone(),
    };
    let (tell, found) = mpsc::channel(limits::FOUND_LISTS);
    let served = async {
        loop {
            needed(plans.clone(), true).await;
            let handler =
                Answers::new(plans.clone(), events.clone(), tell.clone(), policies.clone(), counts.clone());
            let unneeded = needed(plans.clone(), false);
            serve(settings.clone(), handler, state.clone(), unneeded).await;
            state.send_replace(State::default());
        }
    };
    tokio::select! { () = served => {}, () = see_to(found, &killer) => {} }
}

/// Waits until a member has something that is put into its containers, or none has any more.
async fn needed(mut plans: watch::Receiver<Arc<Plans>>, whether: bool) {
    let has = |plans: &Arc<Plans>| plans.values().any(|plan| changes_containers(plan));
    if plans.wait_for(|plans| has(plans) == whether).await.is_err() {
        // Nobody writes them any more: the node is about to end.
        std::future::pending().await
    }
}

/// Whether a member's containers differ from others.
fn changes_containers(plan: &Plan) -> bool {
    let Plan { parts, refused, devices, env, .. } = plan;
    // These are told before they are there.
    let shares = parts.shm == Shm::Group || parts.ipc == Ipc::Group;
    shares || refused.is_some() || !devices.is_empty() || !env.is_empty()
}

/// Sees to containers that were there, one at a time: the runtime is answered between.
async fn see_to(mut lists: mpsc::Receiver<Vec<Found>>, killer: &Killer) {
    while let Some(list) = lists.recv().await {
        for found in list {
            killer.see_to(&found);
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests;
