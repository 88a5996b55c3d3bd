//! Sets that have not come whole.
//!
//! Bounded: one a session, at most [`SET_BUFFERS`](gpu_handoff_protocol::limits::SET_BUFFERS) buffers each, all of them
//! within the member's quota, and each part has [`SET_PART_TIME`](crate::limits::SET_PART_TIME) after the one before it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, Carrier, PublishedAs, RequestId};
use gpu_handoff_protocol::{BufferInfo, BufferName, Code, GroupKey, Lifetime, Refusal, SetPart};

use super::set_ref;
use crate::limits;
#[cfg(test)]
use crate::registry::lasting::lasts;
use crate::registry::{Effect, MemberId, Registry, SessionId, Vetted};

type Outcomes = Vec<Result<PublishedAs, Refusal>>;
/// A buffer of a set that has not come whole.
pub(in crate::registry) type StagedItem = (Arc<BufferInfo>, Carrier);

#[derive(Debug)]
struct Staged {
    name: BufferName,
    total: u32,
    generation: u64,
    group: GroupKey,
    member: MemberId,
    /// What has come so far, in order.
    items: Vec<StagedItem>,
    /// When the next part must have come.
    until: Instant,
}

impl Staged {
    /// Whether this part is the next one.
    fn is_followed_by(&self, part: &SetPart) -> bool {
        self.name == part.name && self.total == part.total && self.items.len() == part.first as usize
    }

    fn is_whole(&self) -> bool {
        self.items.len() == self.total as usize
    }
}

/// What each session has begun to publish.
#[derive(Debug, Default)]
pub(in crate::registry) struct Staging {
    of: HashMap<SessionId, Staged>,
    by_name: HashMap<(GroupKey, BufferName), SessionId>,
    by_time: BTreeSet<(Instant, SessionId)>,
}

impl Staging {
    pub(in crate::registry) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Who has begun to publish a set of this name.
    pub(super) fn publisher(&self, group: &GroupKey, name: &BufferName) -> Option<MemberId> {
        let session = self.by_name.get(&(group.clone(), name.clone()))?;
        self.of.get(session).map(|staged| staged.member)
    }

    fn begin(&mut self, session: SessionId, staged: Staged) {
        self.by_name.insert((staged.group.clone(), staged.name.clone()), session);
        self.by_time.insert((staged.until, session));
        self.of.insert(session, staged);
    }

    fn take(&mut self, session: SessionId) -> Option<Staged> {
        let staged = self.of.remove(&session)?;
        self.by_name.remove(&(staged.group.clone(), staged.name.clone()));
        self.by_time.remove(&(staged.until, session));
        Some(staged)
    }

    /// What has come of the set of a session that has ended, to be given up.
    pub(in crate::registry) fn take_items(&mut self, session: SessionId) -> Vec<StagedItem> {
        self.take(session).map(|staged| staged.items).unwrap_or_default()
    }

    fn prolong(&mut self, session: SessionId, until: Instant) {
        let Some(staged) = self.of.get_mut(&session) else { return };
        self.by_time.remove(&(staged.until, session));
        staged.until = until;
        self.by_time.insert((until, session));
    }

    /// Bytes of these in buffers that outlive their processes.
    #[cfg(test)]
    pub(in crate::registry) fn lasting_bytes(&self, member: MemberId) -> u64 {
        let items = self.of.values().filter(|s| s.member == member).flat_map(|s| &s.items);
        items.filter(|(info, _)| lasts(info)).map(|(info, _)| info.facts.allocation_size).sum()
    }

    /// Buffers and bytes that are charged to a member for sets that have not come whole, and descriptors.
    #[cfg(test)]
    pub(in crate::registry) fn charged(&self, member: MemberId) -> (u64, u64) {
        let items = self.of.values().filter(|s| s.member == member).flat_map(|s| &s.items);
        items.fold((0, 0), |(count, bytes), (info, _)| (count + 1, bytes + info.facts.allocation_size))
    }
}

impl Registry {
    pub(in crate::registry) fn publish_set(
        &mut self,
        session: SessionId,
        request: RequestId,
        part: &SetPart,
        items: Vec<Result<Vetted, Refusal>>,
        now: Instant,
    ) {
        let outcomes = self.take_part(session, part, items, now);
        let whole = self.staging.of.get(&session).is_some_and(Staged::is_whole);
        self.reply(session, request, BrokerBody::Published(outcomes));
        // After the answer, so that a publisher knows its own buffers before it hears of them.
        if whole && let Some(staged) = self.staging.take(session) {
            self.set_is_whole(session, staged, now);
        }
    }

    /// Takes a part that follows what has come before. Where it or one of its items is refused, nothing is left of the set.
    fn take_part(
        &mut self,
        session: SessionId,
        part: &SetPart,
        items: Vec<Result<Vetted, Refusal>>,
        now: Instant,
    ) -> Outcomes {
        let Some(member) = self.sessions.get(&session).map(|s| s.facts.member) else {
            return items.into_iter().map(|_| Err(Refusal::new(Code::ShuttingDown))).collect();
        };
        if let Err(refusal) = self.follow(session, member, part, now) {
            self.drop_staged(session);
            return items.into_iter().map(|item| Err(self.turn_away(member, item, &refusal))).collect();
        }
        let outcomes: Outcomes =
            items.into_iter().map(|item| item.and_then(|vetted| self.stage(session, vetted))).collect();
        let is_refused = outcomes.iter().any(Result::is_err);
        if !is_refused && self.is_allowed_still(session) {
            self.staging.prolong(session, now + limits::SET_PART_TIME);
            self.receipts_for_part(session, outcomes.len());
            return outcomes;
        }
        self.drop_staged(session);
        let found =
            if is_refused { "one that was refused" } else { "one that the policy does not allow any more" };
        let broken = broken(part, found);
        outcomes.into_iter().map(|outcome| outcome.and(Err(broken.clone()))).collect()
    }

    /// Whether a set that has come whole may appear: another policy may be in force than when its first parts came.
    fn is_allowed_still(&self, session: SessionId) -> bool {
        let Some(staged) = self.staging.of.get(&session).filter(|staged| staged.is_whole()) else {
            return true;
        };
        let Some(member) = self.members.get(&staged.member) else { return true };
        let party = member.facts.party();
        staged.items.iter().all(|(info, _)| self.policy.may_publish_kind(&party, info.facts.kind).is_ok())
    }

    /// Whether the part is the first of a set or follows the one before it. A first part begins its set anew.
    fn follow(
        &mut self,
        session: SessionId,
        member: MemberId,
        part: &SetPart,
        now: Instant,
    ) -> Result<(), Refusal> {
        let group = self.group_of(session).cloned().ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
        if part.first > 0 {
            let follows = self.staging.of.get(&session).is_some_and(|staged| staged.is_followed_by(part));
            if !follows {
                return Err(broken(part, "a part that does not follow"));
            }
            return self.set_name_is_free(&group, &part.name, member);
        }
        self.drop_staged(session);
        self.set_name_is_free(&group, &part.name, member)?;
        // Of two processes of a pod that publish one name the later takes it over.
        if let Some(other) = self.staging.by_name.get(&(group.clone(), part.name.clone())).copied() {
            self.drop_staged(other);
        }
        if let Some(m) = self.members.get(&member) {
            self.policy.may_hold(&m.facts.party(), &self.held_by(m), u64::from(part.total))?;
        }
        let generation = self.next_generation(&group);
        let (name, until) = (part.name.clone(), now + limits::SET_PART_TIME);
        let staged = Staged { name, total: part.total, generation, group, member, items: Vec::new(), until };
        self.staging.begin(session, staged);
        Ok(())
    }

    fn stage(&mut self, session: SessionId, vetted: Vetted) -> Result<PublishedAs, Refusal> {
        let Some(staged) = self.staging.of.get(&session) else {
            return Err(Refusal::new(Code::ShuttingDown));
        };
        let (member, generation) = (staged.member, staged.generation);
        let lifetime = staged.items.first().map(|(info, _)| info.facts.lifetime);
        let set = set_ref(&staged.name, staged.items.len(), staged.total);
        let admitted = self.admit(session, member, &vetted);
        let info = match admitted.and_then(|owner| has_lifetime(&vetted, lifetime).map(|()| owner)) {
            Ok(owner) => {
                let Vetted { id, checked, ref publication } = vetted;
                let (verified, facts) = (checked.is_some(), publication.facts.clone());
                Arc::new(BufferInfo { id, generation, owner, verified, facts, set })
            }
            Err(refusal) => {
                self.effects.push(Effect::Dispose(member, vetted.publication.carrier));
                return Err(refusal);
            }
        };
        self.charge(member, &info, &vetted.publication.carrier);
        let receipt = PublishedAs { id: info.id, generation, receipt: None, checked: vetted.checked };
        if let Some(staged) = self.staging.of.get_mut(&session) {
            staged.items.push((info, vetted.publication.carrier));
        }
        Ok(receipt)
    }

    /// Receipts of the part that came last, which is good: nobody would take out those of a part that is refused.
    fn receipts_for_part(&mut self, session: SessionId, count: usize) {
        let Some(staged) = self.staging.of.get(&session) else { return };
        let before = staged.items.len().saturating_sub(count);
        let part: Vec<_> = staged.items.iter().skip(before).cloned().collect();
        for (info, carrier) in part {
            self.receipt_for_publisher(session, &info, &carrier);
        }
    }

    /// Closes what came with an item of a part that is refused; an item that was refused before keeps its reason.
    fn turn_away(&mut self, member: MemberId, item: Result<Vetted, Refusal>, refusal: &Refusal) -> Refusal {
        match item {
            Ok(vetted) => {
                self.effects.push(Effect::Dispose(member, vetted.publication.carrier));
                refusal.clone()
            }
            Err(own) => own,
        }
    }

    /// Everybody sees the set now, and the version before it takes no new leases.
    fn set_is_whole(&mut self, session: SessionId, staged: Staged, now: Instant) {
        let Staged { name, group, generation, member, items, .. } = staged;
        let older = self.groups.get(&group).and_then(|g| g.sets.get(&name));
        let older = older.map(|versions| versions.buffers().collect()).unwrap_or_default();
        for (info, carrier) in items {
            self.insert(session, member, group.clone(), info, carrier);
        }
        self.supersede(older, now);
        self.set_waits.stir(&group, &name, generation);
        self.settle_stirred_set_waits();
    }

    /// Gives up what has come of a set.
    pub(in crate::registry) fn drop_staged(&mut self, session: SessionId) {
        let Some(staged) = self.staging.take(session) else { return };
        for item in staged.items {
            self.give_up_staged(staged.member, item);
        }
    }

    /// Gives up a buffer that nobody has seen.
    pub(in crate::registry) fn give_up_staged(&mut self, member: MemberId, (info, carrier): StagedItem) {
        self.uncharge(member, &info);
        self.give_up(member, carrier);
    }

    pub(in crate::registry) fn expire_staged(&mut self, now: Instant) {
        while let Some((_, session)) = self.staging.by_time.first().filter(|(at, _)| *at <= now).copied() {
            self.drop_staged(session);
        }
    }
}

/// Buffers of a set end together.
fn has_lifetime(vetted: &Vetted, wanted: Option<Lifetime>) -> Result<(), Refusal> {
    let found = vetted.publication.facts.lifetime;
    match wanted {
        Some(wanted) if wanted != found => {
            let text = |lifetime| if lifetime == Lifetime::Pod { "pod" } else { "process" };
            let refusal = Refusal::new(Code::SetBroken);
            Err(refusal.compared_with("lifetime of the set's buffers", text(wanted), text(found)))
        }
        _ => Ok(()),
    }
}

fn broken(part: &SetPart, found: &str) -> Refusal {
    let SetPart { name, total, first } = part;
    let wanted = format!("all {total} buffers of {name}, each part after the one before");
    Refusal::new(Code::SetBroken).compared_with("set", wanted, format!("{found}, from buffer {first} on"))
}
