//! The members that there are, and the lanes of those that are served: started when one comes, ended when it leaves.
//!
//! Whatever the node says of a member is written into what is known of it first, and its lane is told from there, when there
//! is one: one that starts late, or once more, knows all that was said before.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::socket::SeqListener;
use gpu_handoff_protocol::{Code, Refusal, SlotId};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::closer::{Closer, Unclosed};
use crate::lane::{Lane, Shared};
use crate::limits;
use crate::members::Member;
use crate::node::client::News;
use crate::node::words::{Refused, Setup};
use crate::pace;
use crate::registry::{Input, MemberId};

mod serving;

use serving::{Ground, Serving};

/// Why the broker ends then.
const TOO_MANY_UNCLOSED: &str =
    "too many slots that are gone do not close, for what was sent to them: the next broker is without them";

/// The members, by their slots.
pub(super) struct Lanes {
    ground: Ground,
    policy: Policy,
    last: u32,
    members: BTreeMap<SlotId, Here>,
    /// Lanes that were told to end, and have not yet.
    ending: HashMap<MemberId, Lane>,
    /// Closes the listeners of those that are gone, with what was sent there: this thread has all the others to see to.
    closer: Closer,
    /// How many of those may stay open.
    unclosed: usize,
}

/// A member that there is.
struct Here {
    member: Member,
    /// When its pod will be gone, where that is known.
    ending: Option<Instant>,
    listener: SeqListener,
    state: State,
    /// Lanes in a row that could not be started, or soon broke off.
    failures: u32,
    /// The node was told that it is not served.
    is_reported: bool,
}

enum State {
    Served(Serving),
    /// Not in its group by this policy: it waits for another one.
    Uninvited,
    /// Its lane could not be started, or broke off: it is tried again then.
    Failed(Instant),
}

impl Lanes {
    /// None yet; and where the members are told whose lane has ended, however it did. So many of their slots may stay open
    /// when they are gone.
    pub(super) fn new(
        setup: &Setup,
        policy: Policy,
        shared: Shared,
        unclosed: u64,
    ) -> (Self, mpsc::Receiver<MemberId>) {
        let (ends, ended) = mpsc::channel(limits::MEMBERS);
        let (daemon_user, cgroup_root) = (setup.daemon_user, setup.cgroup_root.clone());
        let ground = Ground { shared, daemon_user, cgroup_root, ends };
        let (members, ending, closer) = (BTreeMap::new(), HashMap::new(), Closer::default());
        let unclosed = usize::try_from(unclosed).unwrap_or(limits::MEMBERS);
        (Self { ground, policy, last: 0, members, ending, closer, unclosed }, ended)
    }

    /// How many members are served.
    pub(super) fn len(&self) -> usize {
        self.members.values().filter(|here| matches!(here.state, State::Served(_))).count()
    }

    /// Does what the node says of members. What concerns one that is not there any more is of no interest.
    ///
    /// # Errors
    /// Why the broker is to end.
    pub(super) fn hear(&mut self, news: News) -> Result<(), &'static str> {
        match news {
            News::Came(member, listener) => self.come(member, listener),
            News::Left(slot) => self.leave(&slot),
            News::Containers(slot, containers) => {
                self.learn(&slot, |here| here.member.containers = Some(containers));
            }
            News::HeldBack(slot, with) => {
                self.learn(&slot, |here| here.member.held_back = with.as_ref().map(Refused::from));
            }
            News::Holds(slot, holds) => self.learn(&slot, |here| here.member.holds = holds),
            News::Ending(slot, until) => self.learn(&slot, |here| here.ending = Some(until)),
            News::Policy(policy) => self.go_by(*policy),
        }
        if self.has_too_many_unclosed() { Err(TOO_MANY_UNCLOSED) } else { Ok(()) }
    }

    /// A member has come: it is served, or what keeps it from that is told.
    pub(super) fn come(&mut self, member: Member, listener: SeqListener) {
        let slot = member.slot.clone();
        self.leave(&slot);
        let (ending, state, failures, is_reported) = (None, State::Uninvited, 0, false);
        self.members.insert(slot.clone(), Here { member, ending, listener, state, failures, is_reported });
        self.serve(&slot);
    }

    /// Something has become known of a member.
    fn learn(&mut self, slot: &SlotId, what: impl FnOnce(&mut Here)) {
        if let Some(here) = self.members.get_mut(slot) {
            what(here);
            here.tell(&self.ground, &self.policy);
        }
    }

    /// Another policy is in force.
    fn go_by(&mut self, policy: Policy) {
        self.policy = policy;
        let mut invited = Vec::new();
        for (slot, here) in &mut self.members {
            match self.policy.may_be_member(&here.member.party()) {
                Ok(()) if matches!(here.state, State::Uninvited) => invited.push(slot.clone()),
                Ok(()) => here.tell(&self.ground, &self.policy),
                Err(refusal) => {
                    if let State::Served(serving) = here.is_uninvited(&self.ground, &refusal) {
                        self.ending.insert(serving.id, serving.end(&self.ground));
                    }
                }
            }
        }
        self.ground.shared.owner.apply(None, Input::NewPolicy(Box::new(self.policy.clone()))).log();
        invited.iter().for_each(|slot| self.serve(slot));
    }

    /// When it is to be [tried again](Self::try_again) to serve a member.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.members.values().filter_map(|here| here.state.again()).min()
    }

    /// Tries again to serve those that could not be served before, where it is time.
    pub(super) fn try_again(&mut self, now: Instant) {
        let those = self.members.iter().filter(|(_, here)| here.state.again().is_some_and(|at| at <= now));
        for slot in those.map(|(slot, _)| slot.clone()).collect::<Vec<_>>() {
            self.serve(&slot);
        }
    }

    /// Starts the lane of a member that has none, if it may be in its group.
    fn serve(&mut self, slot: &SlotId) {
        let lanes = self.len() + self.ending.len();
        let Some(here) = self.members.get_mut(slot) else { return };
        if let Err(refusal) = self.policy.may_be_member(&here.member.party()) {
            here.is_uninvited(&self.ground, &refusal);
            return;
        }
        if lanes >= limits::MEMBERS {
            let why = format!("there are {lanes} lanes already, of members that left before too");
            return here.fail(&self.ground, &why);
        }
        let (id, quota) = (MemberId(self.last), self.policy.quota_of(&here.member.party()));
        self.last += 1;
        match Serving::start(&self.ground, id, &here.member, &here.listener, quota) {
            Ok(serving) => {
                here.state = State::Served(serving);
                here.tell(&self.ground, &self.policy);
                here.is_over(&self.ground);
            }
            Err(e) => here.fail(&self.ground, &e.to_string()),
        }
    }

    /// A member is gone.
    fn leave(&mut self, slot: &SlotId) {
        let Some(mut here) = self.members.remove(slot) else { return };
        // Whoever has the slot next is another one.
        here.is_over(&self.ground);
        if let State::Served(serving) = here.state {
            info!(%slot, pod = %here.member.pod, "the member has left");
            self.ending.insert(serving.id, serving.end(&self.ground));
        }
        self.closer.close(&here.member.pod.namespace, Unclosed::new(here.listener.into_fd()));
    }

    /// Whether more slots of members that left stay open than may. Each takes a descriptor that a buffer could have, and nobody here can
    /// make the close of one come back; the end of the process does.
    fn has_too_many_unclosed(&self) -> bool {
        self.closer.waiting() > self.unclosed
    }

    /// A lane has ended. Without it a member can neither be heard nor told anything: where it was not to end, what it held
    /// ends, the others go on, and it gets another one.
    pub(super) fn has_ended(&mut self, id: MemberId) {
        let lane = self.ending.remove(&id).or_else(|| {
            let here = self.members.values_mut().find(|here| here.is_served_as(id))?;
            here.break_off(&self.ground)
        });
        // It has said that it ends: there is nothing to wait for but the thread's own end.
        if lane.is_some_and(|lane| lane.thread.join().is_err()) {
            warn!(member = id.0, "a member's lane had broken off");
        }
    }

    /// The threads, for whoever waits for all of them before the process ends.
    pub(super) fn into_threads(self) -> Vec<(MemberId, Lane)> {
        let served = self.members.into_values().filter_map(|here| {
            // The node may be gone, and this be the last of it: the end of the process closes it, and waits for nobody.
            std::mem::forget(here.listener);
            match here.state {
                State::Served(serving) => Some((serving.id, serving.into_lane())),
                State::Uninvited | State::Failed(_) => None,
            }
        });
        served.chain(self.ending).collect()
    }
}

impl Here {
    fn is_served_as(&self, id: MemberId) -> bool {
        matches!(&self.state, State::Served(serving) if serving.id == id)
    }

    /// Its lane, where it has one, is told what it does not know yet.
    fn tell(&mut self, ground: &Ground, policy: &Policy) {
        if let State::Served(serving) = &mut self.state {
            serving.tell(ground, &self.member, self.ending, policy.quota_of(&self.member.party()));
        }
    }

    /// Its lane has ended by itself.
    fn break_off(&mut self, ground: &Ground) -> Option<Lane> {
        let State::Served(serving) = std::mem::replace(&mut self.state, State::Uninvited) else {
            return None;
        };
        if serving.since.elapsed() > limits::LANE_GOOD_LIFE {
            self.failures = 0;
        }
        let lane = serving.end(ground);
        self.fail(ground, "its lane has broken off: what it held has ended");
        Some(lane)
    }

    /// It has no lane; later it may get one.
    fn fail(&mut self, ground: &Ground, why: &str) {
        let (slot, pod) = (&self.member.slot, &self.member.pod);
        let pause = pace::doubled(limits::LANE_PAUSE, self.failures, limits::LANE_LONGEST_PAUSE);
        error!(%slot, %pod, why, again_in = ?pause, "a member cannot be served");
        self.failures = self.failures.saturating_add(1);
        self.state = State::Failed(Instant::now() + pause);
        let refusal = Refusal::new(Code::BrokerUnavailable)
            .compared_with("slot", "served", why)
            .with_remedy("wait, it is tried again by itself; if it stays, the node daemon's log says more");
        self.is_not_served(ground, &refusal);
    }

    /// It may not be in its group by the policy in force. Gives how it was served until now.
    fn is_uninvited(&mut self, ground: &Ground, refusal: &Refusal) -> State {
        let (slot, pod) = (&self.member.slot, &self.member.pod);
        error!(%slot, %pod, %refusal, "the pod may not be in its group: its slot is not served");
        self.is_not_served(ground, refusal);
        std::mem::replace(&mut self.state, State::Uninvited)
    }

    fn is_not_served(&mut self, ground: &Ground, refusal: &Refusal) {
        self.is_reported = true;
        ground.shared.tells.not_served(&self.member.slot, refusal);
    }

    /// What the node was told of it is not so any more.
    fn is_over(&mut self, ground: &Ground) {
        if std::mem::take(&mut self.is_reported) {
            ground.shared.tells.served(&self.member.slot);
        }
    }
}

impl State {
    const fn again(&self) -> Option<Instant> {
        match self {
            Self::Failed(at) => Some(*at),
            Self::Served(_) | Self::Uninvited => None,
        }
    }
}

#[cfg(test)]
mod tests;
