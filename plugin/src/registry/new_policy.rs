//! Another policy is in force: what comes is held against it from now on, and what is there is held against it once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use gpu_handoff_policy::{Held, Policy, Usage};
use gpu_handoff_protocol::message::{BrokerBody, EndReason, Event, RequestId};
use gpu_handoff_protocol::{BufferId, GroupKey, Namespace};

use super::publish::add_buffer;
use super::{Buffer, MemberId, NOTICE, Registry, SessionId};

/// What each watch was shown and is alive.
type Seen = Vec<((SessionId, RequestId), BTreeSet<BufferId>)>;

impl Registry {
    pub(super) fn new_policy(&mut self, policy: Policy, now: Instant) {
        let before = self.seen_by_watches();
        self.policy = policy;
        for id in self.not_allowed_any_more() {
            self.end_buffer(id, EndReason::NotAllowed, None, now);
        }
        self.await_all_overstays(now);
        self.tell_holders_that_may_not();
        self.tell_what_is_seen_now(before);
        self.waits.stir_all();
        self.settle_stirred_waits();
        self.set_waits.stir_all();
        self.settle_stirred_set_waits();
    }

    /// Live buffers that could not be published today, the oldest having the first claim to what a quota leaves.
    fn not_allowed_any_more(&self) -> Vec<BufferId> {
        let mut live: Vec<(u64, BufferId)> = self.live().map(|(id, b)| (b.info.generation, id)).collect();
        live.sort_unstable();
        let (mut pods, mut groups) = (HashMap::<MemberId, Usage>::new(), HashMap::<&GroupKey, Usage>::new());
        let mut refused = Vec::new();
        for (_, id) in live {
            let Some((buffer, member)) =
                self.buffers.get(&id).and_then(|b| Some((b, self.members.get(&b.member)?)))
            else {
                continue;
            };
            let facts = &buffer.info.facts;
            let pod = pods.entry(buffer.member).or_default();
            let group = groups.entry(&member.facts.group).or_default();
            let held = Held { pod: *pod, group: *group };
            if self.policy.may_publish(&member.facts.party(), &held, facts).is_err() {
                refused.push(id);
                continue;
            }
            for usage in [pod, group] {
                add_buffer(usage, facts);
                usage.descriptors += facts.kind.descriptors() as u64;
            }
        }
        refused
    }

    /// Their mappings stay, which nobody can take away: they are told that they should let go.
    fn tell_holders_that_may_not(&mut self) {
        let mut told = Vec::new();
        for (session, s) in &self.sessions {
            let buffers: HashSet<BufferId> =
                s.leases.iter().filter_map(|lease| self.leases.get(lease).copied()).collect();
            let denied = |id: &BufferId| self.buffers.get(id).is_some_and(|b| !self.sees(*session, b));
            told.extend(buffers.into_iter().filter(denied).map(|id| (*session, id)));
        }
        told.sort_unstable();
        for (session, id) in told {
            let leases = self.buffers.get(&id).map_or(0, |buffer| buffer.leases);
            let event = Event::Orphaned { id, reason: EndReason::NotAllowed, leases };
            self.reply(session, NOTICE, BrokerBody::Event(event));
        }
    }

    /// Watches of groups with pods of several namespaces: in the others everybody sees everything, whatever the policy.
    fn seen_by_watches(&self) -> Seen {
        let mixed: HashSet<&GroupKey> = self.groups.keys().filter(|group| self.is_mixed(group)).collect();
        let groups = self.groups.iter().filter(|(key, _)| mixed.contains(key));
        let mut watches: Vec<_> = groups.flat_map(|(_, group)| group.watchers.iter().copied()).collect();
        watches.sort_unstable();
        watches.into_iter().map(|watch| (watch, self.seen_by(watch.0))).collect()
    }

    fn is_mixed(&self, group: &GroupKey) -> bool {
        let of_group = self.members.values().filter(|m| m.facts.group == *group);
        let namespaces: HashSet<&Namespace> = of_group.map(|m| &m.facts.pod.namespace).collect();
        namespaces.len() > 1
    }

    fn seen_by(&self, session: SessionId) -> BTreeSet<BufferId> {
        let Some(group) = self.group_of(session) else { return BTreeSet::new() };
        let seen = self.live().filter(|(_, b)| *b.group == *group && self.sees(session, b));
        seen.map(|(id, _)| id).collect()
    }

    fn tell_what_is_seen_now(&mut self, before: Seen) {
        for ((session, request), before) in before {
            let after = self.seen_by(session);
            let gone = before
                .difference(&after)
                .filter(|id| self.buffers.get(id).is_some_and(|b| b.ending.is_none()));
            let gone = gone.map(|id| Event::Gone { id: *id, reason: EndReason::NotAllowed });
            let come = after.difference(&before).filter_map(|id| self.buffers.get(id));
            let come = come.map(|buffer| Event::Appeared(buffer.info.clone()));
            let events: Vec<Event> = gone.chain(come).collect();
            for event in events {
                self.reply(session, request, BrokerBody::Event(event));
            }
        }
    }

    fn live(&self) -> impl Iterator<Item = (BufferId, &Buffer)> {
        let live = self.buffers.iter().filter(|(_, b)| b.ending.is_none() && b.carrier.is_some());
        live.map(|(id, buffer)| (*id, &**buffer))
    }
}
