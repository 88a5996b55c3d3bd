//! What is done to those that lease a buffer whose time is over, for longer than they may: by the policy of its namespace a
//! process is killed, or its pod evicted.
//!
//! The broker names them, and is not believed: whether the policy says so is looked up here, and so is whether the process is
//! of that member. Of a pod it is when the kernel has it in one of the pod's containers; where there are no containers, when it is
//! wholly the member's user's, and that is neither root nor the daemon's. What is signalled is the pidfd that was looked at.

use std::collections::HashMap;
use std::fmt;

use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_kubelet::csi::PodName;
use gpu_handoff_policy::{Orphans, Policy};
use gpu_handoff_protocol::SlotId;
use tokio::task::{self, JoinSet};
use tokio::time::timeout;
use tracing::warn;

use super::events::{self, Events};
use crate::identity::cgroup::Root;
use crate::identity::{self, Process, ProcessKey};
use crate::limits;
use crate::members::Member;

/// The number of a command, and what came of it.
pub(super) type Done = (u64, Result<(), String>);

/// What it takes to see to them.
pub(super) struct Overstays {
    cgroup_root: Root,
    /// The user that the daemon was started as.
    daemon_user: u32,
    api_server: Option<ApiServer>,
    /// Where those whose pods they are read of it.
    events: Events,
    evicting: JoinSet<Result<(), String>>,
    /// The slots whose pods those evict, one request each at a time; and the commands that wait for them, where any do.
    asked: HashMap<task::Id, (SlotId, Option<u64>)>,
}

impl fmt::Debug for Overstays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overstays").field("evicting", &self.asked).finish_non_exhaustive()
    }
}

impl Overstays {
    pub(super) fn new(cgroup_root: Root, api_server: Option<ApiServer>, events: Events) -> Self {
        let daemon_user = rustix::process::geteuid().as_raw();
        Self { cgroup_root, daemon_user, api_server, events, evicting: JoinSet::new(), asked: HashMap::new() }
    }

    /// Kills a process of a member.
    pub(super) fn kill(
        &self,
        member: Option<&Member>,
        policy: &Policy,
        key: ProcessKey,
    ) -> Result<(), String> {
        let member = is_for(member, policy, Orphans::Kill)?;
        let process = identity::reopen(key).map_err(|e| e.to_string())?;
        self.is_of(member, &process)?;
        warn!(slot = %member.slot, pod = %member.pod, %process, "killed: it leases a buffer whose time is over, and the policy says so");
        process.kill().map_err(|e| e.to_string())?;
        self.events.tell(events::killed(member.into(), &process));
        Ok(())
    }

    fn is_of(&self, member: &Member, process: &Process) -> Result<(), String> {
        match (&member.containers, member.user) {
            (Some(containers), _) => {
                let pod = &member.uid;
                identity::is_in(process, pod, containers, &self.cgroup_root).map_err(|refusal| refusal.to_string())
            }
            (None, Some(user)) if user != 0 && user != self.daemon_user => {
                if process.is_wholly_of(user).map_err(|e| e.to_string())? {
                    return Ok(());
                }
                Err(format!("the process is not wholly of user {user}, who speaks for the member"))
            }
            (None, _) => Err("which processes are the member's cannot be told: it has neither containers nor a user of its own".to_owned()),
        }
    }

    /// Begins to evict the pod of a member, for the command `id`. Gives the answer where there will be no other.
    pub(super) fn evict(&mut self, id: u64, member: Option<&Member>, policy: &Policy) -> Option<Done> {
        let refused = |why: String| Some((id, Err(why)));
        let member = match is_for(member, policy, Orphans::Evict) {
            Ok(member) => member,
            Err(why) => return refused(why),
        };
        let Some(api_server) = self.api_server.clone() else {
            return refused("there is no API server to evict it by".to_owned());
        };
        if self.asked.values().any(|(slot, _)| *slot == member.slot) {
            return refused("it is being evicted".to_owned());
        }
        let (member, told) = (member.clone(), self.events.clone());
        let slot = member.slot.clone();
        let task = self.evicting.spawn(async move {
            let outcome = match timeout(limits::EVICTION_TIME, api_server.evict(&name_of(&member))).await {
                Ok(answered) => answered.map_err(|e| e.to_string()),
                Err(_elapsed) => {
                    Err(format!("the API server has not answered within {:?}", limits::EVICTION_TIME))
                }
            };
            if outcome == Ok(true) {
                warn!(slot = %member.slot, pod = %member.pod, "evicted: it leases a buffer whose time is over, and the policy says so");
                told.tell(events::evicted((&member).into()));
            }
            outcome.map(drop)
        });
        self.asked.insert(task.id(), (slot, Some(id)));
        None
    }

    /// The next eviction that was asked for and answered. Never, where there is none. Safe to cancel.
    pub(super) async fn next(&mut self) -> Done {
        loop {
            if let Some(done) = self.next_ended().await {
                return done;
            }
        }
    }

    /// The next that was answered; `None`: nobody waits for that any more.
    async fn next_ended(&mut self) -> Option<Done> {
        let (task, outcome) = match self.evicting.join_next_with_id().await {
            Some(Ok(ended)) => ended,
            Some(Err(e)) => {
                warn!(error = %e, "an eviction broke off");
                (e.id(), Err("it broke off".to_owned()))
            }
            None => std::future::pending().await,
        };
        let (_slot, waits) = self.asked.remove(&task)?;
        waits.map(|id| (id, outcome))
    }

    /// Answers nobody any more. What was asked for goes on: the pod's owner is to be told what came of it.
    pub(super) fn abandon(&mut self) {
        self.asked.values_mut().for_each(|(_, id)| *id = None);
    }
}

/// The member, where the policy says this of its namespace.
fn is_for<'a>(member: Option<&'a Member>, policy: &Policy, wanted: Orphans) -> Result<&'a Member, String> {
    let member = member.ok_or("no pod has this slot")?;
    let found = policy.orphans_of(&member.pod.namespace);
    if found == wanted {
        return Ok(member);
    }
    Err(format!("the policy says {found} of namespace {}, not {wanted}", member.pod.namespace))
}

fn name_of(member: &Member) -> PodName {
    let (namespace, name) = (member.pod.namespace.to_string(), member.pod.name.to_string());
    PodName { namespace, name, uid: member.uid.to_string() }
}

#[cfg(test)]
mod tests;
