//! The lanes of the members that there are: started when one comes, ended when it leaves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use gpu_handoff_policy::{Policy, Quota};
use gpu_handoff_protocol::socket::SeqListener;
use gpu_handoff_protocol::{Refusal, SlotId};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::identity::cgroup::{ContainerId, Root};
use crate::identity::{Door, Home};
use crate::lane::{self, Lane, LaneSpec, Shared};
use crate::limits;
use crate::members::{Holds, Member};
use crate::node::client::News;
use crate::node::words::{Refused, Setup};
use crate::registry::{Input, MemberFacts, MemberId};

/// The lanes, by their members.
pub(super) struct Lanes {
    shared: Shared,
    policy: Policy,
    /// Members that may not be in their groups: they wait for a policy by which they may.
    uninvited: BTreeMap<SlotId, (Member, SeqListener)>,
    daemon_user: u32,
    cgroup_root: Root,
    ends: mpsc::Sender<MemberId>,
    last: u32,
    serving: HashMap<MemberId, Serving>,
    /// The member that has the slot now: one that had it before may not have ended yet.
    of_slot: HashMap<SlotId, MemberId>,
}

struct Serving {
    lane: Lane,
    slot: SlotId,
    /// Tells it that its member is gone.
    leave: watch::Sender<bool>,
    containers: Option<watch::Sender<BTreeSet<ContainerId>>>,
    holds: watch::Sender<Holds>,
    held_back: watch::Sender<Option<Refusal>>,
    quota: watch::Sender<Quota>,
    facts: MemberFacts,
}

impl Lanes {
    /// None yet; and where the members are told whose lane has ended, however it did.
    pub(super) fn new(setup: &Setup, policy: Policy, shared: Shared) -> (Self, mpsc::Receiver<MemberId>) {
        let (ends, ended) = mpsc::channel(limits::MEMBERS);
        let lanes = Self {
            shared,
            policy,
            uninvited: BTreeMap::new(),
            daemon_user: setup.daemon_user,
            cgroup_root: setup.cgroup_root.clone(),
            ends,
            last: 0,
            serving: HashMap::new(),
            of_slot: HashMap::new(),
        };
        (lanes, ended)
    }

    pub(super) fn len(&self) -> usize {
        self.serving.len()
    }

    /// Does what the node says of members. What concerns one that is not served any more is of no interest.
    pub(super) fn hear(&mut self, news: News) {
        match news {
            News::Came(member, listener) => {
                let (slot, pod) = (member.slot.clone(), member.pod.clone());
                if let Err(e) = self.start(member, listener) {
                    error!(%slot, %pod, error = %e, "the member's lane could not be started: its slot is not served");
                }
            }
            News::Left(slot) => self.end(&slot),
            News::Containers(slot, containers) => {
                if let Some(told) = self.of_slot(&slot).and_then(|serving| serving.containers.as_ref()) {
                    told.send_replace(containers);
                }
            }
            News::HeldBack(slot, with) => self.is_held_back(&slot, with),
            News::Holds(slot, holds) => self.now_holds(&slot, holds),
            News::Policy(policy) => self.go_by(*policy),
            News::Ending(slot, until) => {
                if let Some(member) = self.of_slot.get(&slot) {
                    self.shared.owner.apply(None, Input::MemberEnding(*member, until)).log();
                }
            }
        }
    }

    /// The applications of a member's pod are not to be started yet, or may be now.
    fn is_held_back(&mut self, slot: &SlotId, with: Option<Refusal>) {
        if let Some((member, _)) = self.uninvited.get_mut(slot) {
            member.held_back = with.as_ref().map(Refused::from);
        }
        if let Some(serving) = self.of_slot(slot) {
            serving.held_back.send_replace(with);
        }
    }

    /// What GPUs a member holds has become known, or unknown.
    fn now_holds(&mut self, slot: &SlotId, holds: Holds) {
        if let Some((member, _)) = self.uninvited.get_mut(slot) {
            member.holds.clone_from(&holds);
        }
        if let Some(member) = self.of_slot.get(slot) {
            if let Some(serving) = self.serving.get(member) {
                serving.holds.send_replace(holds.clone());
            }
            self.shared.owner.apply(None, Input::MemberHolds(*member, holds)).log();
        }
    }

    /// Another policy is in force.
    fn go_by(&mut self, policy: Policy) {
        self.policy = policy;
        let mut strangers = Vec::new();
        for serving in self.serving.values() {
            match self.policy.may_be_member(&serving.facts.party()) {
                Ok(()) => drop(serving.quota.send_replace(self.policy.quota_of(&serving.facts.party()))),
                Err(refusal) => strangers.push((serving.slot.clone(), refusal)),
            }
        }
        for (slot, refusal) in strangers {
            error!(%slot, %refusal, "the pod may not be in its group any more");
            self.shared.tells.refused(&slot, &refusal);
            self.end(&slot);
        }
        self.shared.owner.apply(None, Input::NewPolicy(Box::new(self.policy.clone()))).log();
        for (slot, (member, listener)) in std::mem::take(&mut self.uninvited) {
            if let Err(e) = self.start(member, listener) {
                error!(%slot, error = %e, "the member's lane could not be started: its slot is not served");
            }
        }
    }

    fn of_slot(&self, slot: &SlotId) -> Option<&Serving> {
        self.serving.get(self.of_slot.get(slot)?)
    }

    /// Starts the lane of a member.
    pub(super) fn start(&mut self, member: Member, listener: SeqListener) -> io::Result<()> {
        if self.serving.len() >= limits::MEMBERS {
            return Err(io::Error::other(format!("there are {} members already", limits::MEMBERS)));
        }
        let id = MemberId(self.last);
        self.last += 1;
        if let Err(refusal) = self.policy.may_be_member(&member.party()) {
            error!(slot = %member.slot, pod = %member.pod, %refusal, "the pod may not be in its group: its slot is not served");
            self.shared.tells.refused(&member.slot, &refusal);
            self.uninvited.insert(member.slot.clone(), (member, listener));
            return Ok(());
        }
        let (quota, may_have) = watch::channel(self.policy.quota_of(&member.party()));
        let Member { slot, pod, uid, group, service_account, user, holds, held_back, containers } = member;
        let facts = MemberFacts {
            pod: pod.clone(),
            slot: slot.clone(),
            uid: uid.clone(),
            group: group.clone(),
            service_account,
            holds: holds.clone(),
        };
        self.shared.owner.apply(None, Input::MemberJoined(id, facts.clone())).log();
        let (containers, home) = match containers.map(watch::channel) {
            Some((told, known)) => {
                (Some(told), Some(Arc::new(Home::new(uid.clone(), known, self.cgroup_root.clone()))))
            }
            None => (None, None),
        };
        let (holds, held) = watch::channel(holds);
        let (held_back, refused_with) = watch::channel(held_back.and_then(|refused| refused.refusal()));
        let door = Door { user, daemon: self.daemon_user };
        let spec = LaneSpec {
            member: id,
            pod,
            slot: slot.clone(),
            uid,
            group,
            door,
            home,
            quota: may_have,
            held_back: refused_with,
            holds: held,
        };
        let (leave, left) = watch::channel(false);
        let started = lane::start(spec, listener, self.shared.clone(), left, self.ends.clone());
        let lane = started.inspect_err(|_| self.shared.owner.apply(None, Input::MemberLeft(id)).log())?;
        self.of_slot.insert(slot.clone(), id);
        self.serving.insert(id, Serving { lane, slot, leave, containers, holds, held_back, quota, facts });
        Ok(())
    }

    /// Its member is gone: what that held ends, and its lane with it.
    fn end(&mut self, slot: &SlotId) {
        self.uninvited.remove(slot);
        let Some(id) = self.of_slot.remove(slot) else { return };
        self.shared.owner.apply(None, Input::MemberLeft(id)).log();
        if let Some(serving) = self.serving.get(&id) {
            info!(%slot, pod = %serving.lane.pod, "the member has left");
            serving.leave.send_replace(true);
        }
    }

    /// A lane has ended. Without it a member can neither be heard nor told anything: where it was not to end, what it held
    /// ends, and the others go on.
    pub(super) fn has_ended(&mut self, member: MemberId) {
        let Some(Serving { lane, slot, leave, .. }) = self.serving.remove(&member) else { return };
        if !*leave.borrow() {
            let pod = lane.pod.to_string();
            error!(
                pod,
                "the member's lane has broken off: its buffers and leases end, its slot is not served any more"
            );
            self.shared.owner.apply(None, Input::MemberLeft(member)).log();
            self.of_slot.remove(&slot);
        }
        // It has said that it ends: there is nothing to wait for but the thread's own end.
        if lane.thread.join().is_err() {
            warn!(member = member.0, "a member's lane had broken off");
        }
    }

    /// The threads, for whoever waits for all of them.
    pub(super) fn into_threads(self) -> Vec<(MemberId, Lane)> {
        self.serving.into_iter().map(|(id, serving)| (id, serving.lane)).collect()
    }
}
