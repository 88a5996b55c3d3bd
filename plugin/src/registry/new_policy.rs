//! Another policy is in force: what comes is held against it from then on, and what is there is held against it once, piece by
//! piece, so that others' inputs get in between.
//!
//! Nothing that it forbids is given to anybody meanwhile. Who may acquire from whom goes by it at once. Where a pod, or its
//! group, has more than it may have, or of a kind that it may not have any more, those that want a buffer of it wait until
//! it is [decided](Stock) whether that one stays. And a watch sees what was there before by the policies of before, until it is its
//! turn to be told what has become otherwise: so it never hears of the end of something that it was not shown, nor loses one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::{Held, Policy, Usage};
use gpu_handoff_protocol::message::{BrokerBody, EndReason, Event, RequestId};
use gpu_handoff_protocol::{BufferId, GroupKey, Kind, LeaseId, Namespace};

use super::publish::add_buffer;
use super::{Buffer, MemberId, NOTICE, Registry, SessionId};
use crate::limits;

type Watch = (SessionId, RequestId);

/// All kinds of buffers.
const KINDS: [Kind; 3] = [Kind::Vmm, Kind::Timeline, Kind::Legacy];

/// What is left to be done since a policy came into force.
#[derive(Debug)]
pub(super) struct Changing {
    /// Since when; `None`: nothing is left.
    since: Option<Instant>,
    stock: Stock,
    /// Sessions whose turn has not come: what they lease and wait for is looked at.
    sessions: Vec<SessionId>,
    /// The last lease of the first of them that was looked at.
    looked_at: Option<LeaseId>,
    /// How many buffers have come, published or restored.
    appeared: u64,
    /// Watches whose turn has not come: by which policy each was told of the buffers of its group, up to the last that had come.
    watches: BTreeMap<Watch, Vec<(u64, Arc<Policy>)>>,
    /// The last member whose buffers the first of them was told of by the policy in force.
    shown: Option<MemberId>,
    /// Buffers, leases and what sessions wait for that a piece looks at.
    pub(super) at_a_time: usize,
}

impl Default for Changing {
    fn default() -> Self {
        Self {
            since: None,
            stock: Stock::default(),
            sessions: Vec::new(),
            looked_at: None,
            appeared: 0,
            watches: BTreeMap::new(),
            shown: None,
            at_a_time: limits::POLICY_STEPS,
        }
    }
}

/// Which buffers may stay of those that have too much, the oldest having the first claim to what a quota leaves.
#[derive(Debug, Default)]
struct Stock {
    /// Those whose pods or groups have too much, or of a kind that they may not have.
    suspects: HashSet<MemberId>,
    /// Buffers that nobody has looked at yet.
    unseen: Vec<BufferId>,
    /// Live ones of suspects that have been, oldest first.
    undecided: BTreeSet<(u64, BufferId)>,
    /// The last one that was decided.
    decided: Option<(u64, BufferId)>,
    /// What those hold together that stay.
    pods: HashMap<MemberId, Usage>,
    groups: HashMap<Arc<GroupKey>, Usage>,
}

impl Changing {
    /// When more is to be done: at once.
    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.since
    }

    /// The place of a buffer that comes now.
    pub(super) const fn next_to_appear(&mut self) -> u64 {
        self.appeared += 1;
        self.appeared
    }

    /// The watch has ended; another one may have its number.
    pub(super) fn forget(&mut self, watch: Watch) {
        if self.is_first(watch) {
            self.shown = None;
        }
        self.watches.remove(&watch);
    }

    fn is_first(&self, watch: Watch) -> bool {
        self.watches.first_key_value().is_some_and(|(first, _)| *first == watch)
    }

    /// Whether a watch was told of a member's buffers by the policy in force.
    fn is_shown(&self, watch: Watch, publisher: MemberId) -> bool {
        Some(publisher) <= self.shown && self.is_first(watch)
    }

    fn is_over(&self) -> bool {
        self.stock.is_over() && self.sessions.is_empty() && self.watches.is_empty()
    }
}

impl Stock {
    fn is_over(&self) -> bool {
        self.unseen.is_empty() && self.undecided.is_empty()
    }
}

impl Registry {
    /// Replaces the policy, and begins with what is to be done for that.
    pub(super) fn new_policy(&mut self, policy: Policy, now: Instant) {
        // One that was told of some of it by the policy of until now is told of all of it by that.
        if self.changing.shown.is_some()
            && let Some((watch, _)) = self.changing.watches.first_key_value()
        {
            self.show_to(*watch, &mut usize::MAX.clone());
        }
        let before = Arc::new(std::mem::replace(&mut self.policy, policy));
        let suspects = self.suspects(&before);
        let is_otherwise = before.exchange != self.policy.exchange;
        if is_otherwise || !suspects.is_empty() || !self.changing.sessions.is_empty() {
            self.changing.sessions = self.sessions.keys().copied().collect();
            self.changing.sessions.sort_unstable();
            self.changing.looked_at = None;
        }
        if is_otherwise {
            self.watches_see_by(&before);
        }
        // Others may be held against it that were not against the one before.
        let looks = !suspects.is_empty() || self.policy.ends_orphans();
        let unseen = if looks { self.buffers.keys().copied().collect() } else { Vec::new() };
        self.changing.stock = Stock { suspects, unseen, ..Stock::default() };
        self.changing.since = Some(now);
        self.go_by_policy(now);
    }

    /// Does some of what is to be done since the policy became another one: so much that nobody has to wait for long.
    pub(super) fn go_by_policy(&mut self, now: Instant) {
        if self.changing.since.is_none() {
            return;
        }
        let mut steps = self.changing.at_a_time;
        self.take_stock(&mut steps, now);
        self.decide(&mut steps, now);
        if self.changing.stock.is_over() {
            if !std::mem::take(&mut self.changing.stock).suspects.is_empty() {
                self.waits.stir_restoring();
                self.set_waits.stir_restoring();
            }
            self.look_at_sessions(&mut steps);
            self.settle_stirred_waits();
            self.show_to_watches(&mut steps);
        }
        if self.changing.is_over() {
            self.changing.since = None;
        }
    }

    /// Those of whom something may not stay; of all others everything may. What is decided of nobody yet is looked at again.
    fn suspects(&self, before: &Policy) -> HashSet<MemberId> {
        let is_one = |(id, m): (&MemberId, &super::Member)| {
            let party = m.facts.party();
            let may_not = |kind| self.policy.may_publish_kind(&party, kind).is_err();
            let may_not_any_more = |kind| may_not(kind) && before.may_publish_kind(&party, kind).is_ok();
            let is_one = self.changing.stock.suspects.contains(id)
                || !self.policy.is_within(&party, &self.has(m))
                || KINDS.into_iter().any(may_not_any_more);
            is_one.then_some(*id)
        };
        self.members.iter().filter_map(is_one).collect()
    }

    /// Whether it is still to be decided if a buffer may stay. Until then it is given to nobody.
    pub(super) fn is_undecided(&self, buffer: &Buffer) -> bool {
        let stock = &self.changing.stock;
        stock.suspects.contains(&buffer.member) && Some(place(buffer)) > stock.decided
    }

    fn take_stock(&mut self, steps: &mut usize, now: Instant) {
        while *steps > 0
            && let Some(id) = self.changing.stock.unseen.pop()
        {
            *steps -= 1;
            let Some(buffer) = self.buffers.get(&id) else { continue };
            if buffer.ending.is_some() {
                // What is said of those that lease what is over holds for this one, too, from now on.
                self.await_overstay(id, now);
            } else if buffer.carrier.is_some() && self.changing.stock.suspects.contains(&buffer.member) {
                self.changing.stock.undecided.insert(place(buffer));
            }
        }
    }

    fn decide(&mut self, steps: &mut usize, now: Instant) {
        while *steps > 0
            && self.changing.stock.unseen.is_empty()
            && let Some(next) = self.changing.stock.undecided.pop_first()
        {
            *steps -= 1;
            if !self.may_stay(next.1) {
                let before = self.effects.len();
                self.end_buffer(next.1, EndReason::NotAllowed, None, now);
                // Whoever watches is told of each.
                *steps = steps.saturating_sub(self.effects.len().saturating_sub(before));
            }
            self.changing.stock.decided = Some(next);
        }
    }

    /// Whether a live buffer could be published today beside the older ones that stay, among which it counts then.
    fn may_stay(&mut self, id: BufferId) -> bool {
        let Some(buffer) = self.buffers.get(&id).filter(|b| b.ending.is_none()) else { return true };
        let Some(member) = self.members.get(&buffer.member) else { return true };
        let (facts, stock) = (&buffer.info.facts, &mut self.changing.stock);
        let pod = stock.pods.entry(buffer.member).or_default();
        let group = stock.groups.entry(Arc::clone(&member.group)).or_default();
        let held = Held { pod: *pod, group: *group };
        if self.policy.may_publish(&member.facts.party(), &held, facts).is_err() {
            return false;
        }
        for usage in [pod, group] {
            add_buffer(usage, facts);
            usage.descriptors += facts.kind.descriptors() as u64;
        }
        true
    }

    fn look_at_sessions(&mut self, steps: &mut usize) {
        while *steps > 0
            && let Some(session) = self.changing.sessions.last().copied()
        {
            *steps -= 1;
            let from = self.changing.looked_at.take();
            if let Some(last) = self.tell_holder(session, from, steps) {
                self.changing.looked_at = Some(last);
                return;
            }
            self.changing.sessions.pop();
            let Some(s) = self.sessions.get(&session) else { continue };
            for (request, items) in &s.open {
                *steps = steps.saturating_sub(usize::try_from(*items).unwrap_or(usize::MAX));
                self.waits.stir((session, *request));
                self.set_waits.stir_one((session, *request));
            }
        }
    }

    /// Tells a session which of its leases it could not have any more: its mappings stay, which nobody can take away, and it
    /// should let go. Gives the last lease that was looked at where there are more.
    fn tell_holder(
        &mut self,
        session: SessionId,
        from: Option<LeaseId>,
        steps: &mut usize,
    ) -> Option<LeaseId> {
        let s = self.sessions.get(&session)?;
        let after = from.map_or(Bound::Unbounded, Bound::Excluded);
        let most = (*steps).max(1);
        let leases: Vec<LeaseId> = s.leases.range((after, Bound::Unbounded)).take(most).copied().collect();
        *steps = steps.saturating_sub(leases.len());
        let buffers: BTreeSet<BufferId> = leases.iter().filter_map(|l| self.leases.get(l)).copied().collect();
        for id in buffers {
            let Some(buffer) = self.buffers.get(&id).filter(|b| !self.sees(session, b)) else { continue };
            let (reason, leases) = (EndReason::NotAllowed, buffer.leases);
            self.reply(session, NOTICE, BrokerBody::Event(Event::Orphaned { id, reason, leases }));
        }
        leases.last().copied().filter(|_| leases.len() == most)
    }

    /// The watches that there are see what there is by this policy for now, where that may be another thing than by the one in
    /// force: in groups with pods of several namespaces. In the others everybody sees everything.
    fn watches_see_by(&mut self, before: &Arc<Policy>) {
        let mut namespaces = HashMap::<&GroupKey, &Namespace>::new();
        let mut mixed = HashSet::new();
        for m in self.members.values() {
            let (group, own) = (&m.facts.group, &m.facts.pod.namespace);
            if *namespaces.entry(group).or_insert(own) != own {
                mixed.insert(group);
            }
        }
        for group in mixed.into_iter().filter_map(|group| self.groups.get(group)) {
            for watch in &group.watchers {
                let told = self.changing.watches.entry(*watch).or_default();
                told.push((self.changing.appeared, Arc::clone(before)));
            }
        }
    }

    /// Whether a watch sees a buffer of its group, by the policy that it was told by.
    pub(super) fn is_seen_by(&self, watch: Watch, buffer: &Buffer) -> bool {
        let told =
            self.changing.watches.get(&watch).filter(|_| !self.changing.is_shown(watch, buffer.member));
        let by = told.into_iter().flatten().find(|(upto, _)| buffer.appeared <= *upto);
        by.map_or_else(|| self.sees(watch.0, buffer), |(_, policy)| self.sees_by(policy, watch.0, buffer))
    }

    /// Tells the watches what has become otherwise.
    fn show_to_watches(&mut self, steps: &mut usize) {
        while *steps > 0
            && self.changing.sessions.is_empty()
            && let Some((watch, _)) = self.changing.watches.first_key_value()
        {
            self.show_to(*watch, steps);
        }
    }

    /// Tells the first of them, of one publisher after the other, until there were steps enough.
    fn show_to(&mut self, watch: Watch, steps: &mut usize) {
        for (n, publisher) in self.publishers_after(watch, self.changing.shown).into_iter().enumerate() {
            if n > 0 && *steps == 0 {
                return;
            }
            let (events, looked_at) = self.changes_for(watch, publisher);
            *steps = steps.saturating_sub(looked_at.max(1));
            self.changing.shown = Some(publisher);
            for event in events {
                self.reply(watch.0, watch.1, BrokerBody::Event(event));
            }
        }
        *steps = steps.saturating_sub(1);
        self.changing.forget(watch);
    }

    /// The members of the group of a watch that is there still, after this one.
    fn publishers_after(&self, watch: Watch, shown: Option<MemberId>) -> Vec<MemberId> {
        let group = self.group_of(watch.0);
        let is_there = group.and_then(|g| self.groups.get(g)).is_some_and(|g| g.watchers.contains(&watch));
        let Some(group) = group.filter(|_| is_there) else { return Vec::new() };
        let members = self.members.iter().filter(|(id, m)| Some(**id) > shown && m.facts.group == *group);
        let mut members: Vec<MemberId> = members.map(|(id, _)| *id).collect();
        members.sort_unstable();
        members
    }

    /// What a watch sees otherwise now of what a member publishes, and how many buffers were looked at for that.
    fn changes_for(&self, watch: Watch, publisher: MemberId) -> (Vec<Event>, usize) {
        let none = (Vec::new(), 0);
        let Some((told, m)) = self.changing.watches.get(&watch).zip(self.members.get(&publisher)) else {
            return none;
        };
        let (theirs, Some(own)) = (m.facts.party(), self.party_of(watch.0)) else { return none };
        let is_otherwise = |before: &Policy, kind| {
            before.may_acquire(&theirs, &own, kind) != self.policy.may_acquire(&theirs, &own, kind)
        };
        if !told.iter().any(|(_, before)| KINDS.into_iter().any(|kind| is_otherwise(before, kind))) {
            return none;
        }
        let (mut events, mut looked_at) = (Vec::new(), 0);
        let of_sessions = m.sessions.iter().filter_map(|s| self.sessions.get(s)).flat_map(|s| &s.published);
        let all = of_sessions.copied().chain(m.lasting.ids());
        // Of what nobody has brought back no watch was told, nor is it now.
        for buffer in all.filter_map(|id| self.buffers.get(&id)).filter(|b| b.carrier.is_some()) {
            looked_at += 1;
            let id = buffer.info.id;
            match (self.is_seen_by(watch, buffer), self.sees(watch.0, buffer)) {
                (true, false) => events.push(Event::Gone { id, reason: EndReason::NotAllowed }),
                (false, true) => events.push(Event::Appeared(Arc::clone(&buffer.info))),
                _ => {}
            }
        }
        (events, looked_at)
    }
}

fn place(buffer: &Buffer) -> (u64, BufferId) {
    (buffer.info.generation, buffer.info.id)
}
