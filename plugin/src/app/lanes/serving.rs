//! The lane of one member, and what it has been told.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::Quota;
use gpu_handoff_protocol::Refusal;
use gpu_handoff_protocol::socket::SeqListener;
use tokio::sync::{mpsc, watch};

use crate::identity::cgroup::{ContainerId, Root};
use crate::identity::{Door, Home};
use crate::lane::{self, Lane, LaneSpec, Shared};
use crate::members::{Holds, Member};
use crate::registry::{Input, MemberFacts, MemberId};

/// What is the same for all lanes.
pub(super) struct Ground {
    pub(super) shared: Shared,
    pub(super) daemon_user: u32,
    pub(super) cgroup_root: Root,
    /// Told when a lane has ended.
    pub(super) ends: mpsc::Sender<MemberId>,
}

/// A member's lane.
pub(super) struct Serving {
    pub(super) id: MemberId,
    pub(super) since: Instant,
    lane: Lane,
    leave: watch::Sender<bool>,
    pub(super) containers: Option<watch::Sender<BTreeSet<ContainerId>>>,
    pub(super) holds: watch::Sender<Holds>,
    pub(super) held_back: watch::Sender<Option<Refusal>>,
    pub(super) quota: watch::Sender<Quota>,
    pub(super) ending: Option<Instant>,
}

impl Serving {
    /// Starts it, and tells it nothing but what does not change while the member is there: the rest is for [`tell`](Self::tell).
    pub(super) fn start(
        ground: &Ground,
        id: MemberId,
        member: &Member,
        listener: &SeqListener,
        quota: Quota,
    ) -> io::Result<Self> {
        // The member's own stays here, for the lane after this one.
        let listener = SeqListener::from_own(listener.as_fd().try_clone_to_owned()?);
        let owner = &ground.shared.owner;
        owner.apply(None, Input::MemberJoined(id, facts(member))).log();
        let (containers, home) = match member.containers.clone().map(watch::channel) {
            Some((told, known)) => {
                let home = Home::new(member.uid.clone(), known, ground.cgroup_root.clone());
                (Some(told), Some(Arc::new(home)))
            }
            None => (None, None),
        };
        let (quota, may_have) = watch::channel(quota);
        let (holds, held) = watch::channel(member.holds.clone());
        let (held_back, refused_with) = watch::channel(held_back(member));
        let (leave, left) = watch::channel(false);
        let spec = LaneSpec {
            member: id,
            pod: member.pod.clone(),
            slot: member.slot.clone(),
            uid: member.uid.clone(),
            group: member.group.clone(),
            door: Door { user: member.user, daemon: ground.daemon_user },
            home,
            quota: may_have,
            held_back: refused_with,
            holds: held,
        };
        let lane = lane::start(spec, listener, ground.shared.clone(), left, ground.ends.clone())
            .inspect_err(|_| owner.apply(None, Input::MemberLeft(id)).log())?;
        let since = Instant::now();
        Ok(Self { id, since, lane, leave, containers, holds, held_back, quota, ending: None })
    }

    /// Tells the lane and the registry what they do not know yet of the member as it is now.
    pub(super) fn tell(&mut self, ground: &Ground, member: &Member, ending: Option<Instant>, quota: Quota) {
        if let (Some(told), Some(containers)) = (&self.containers, &member.containers) {
            set(told, containers);
        }
        set(&self.held_back, &held_back(member));
        set(&self.quota, &quota);
        let owner = &ground.shared.owner;
        if set(&self.holds, &member.holds) {
            owner.apply(None, Input::MemberHolds(self.id, member.holds.clone())).log();
        }
        if let Some(until) = ending.filter(|_| ending != self.ending) {
            self.ending = ending;
            owner.apply(None, Input::MemberEnding(self.id, until)).log();
        }
    }

    /// Its member is not served any more: what that held ends, and the lane by itself.
    pub(super) fn end(self, ground: &Ground) -> Lane {
        ground.shared.owner.apply(None, Input::MemberLeft(self.id)).log();
        self.leave.send_replace(true);
        self.lane
    }

    /// Its thread, for whoever waits for that.
    pub(super) fn into_lane(self) -> Lane {
        self.lane
    }
}

fn facts(member: &Member) -> MemberFacts {
    MemberFacts {
        pod: member.pod.clone(),
        slot: member.slot.clone(),
        uid: member.uid.clone(),
        group: member.group.clone(),
        service_account: member.service_account.clone(),
        holds: member.holds.clone(),
    }
}

fn held_back(member: &Member) -> Option<Refusal> {
    member.held_back.as_ref().and_then(|refused| refused.refusal())
}

/// Whether this is news to those that watch.
fn set<T: Clone + PartialEq>(told: &watch::Sender<T>, value: &T) -> bool {
    told.send_if_modified(|known| {
        let is_news = known != value;
        if is_news {
            known.clone_from(value);
        }
        is_news
    })
}
