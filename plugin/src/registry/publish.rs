//! A buffer appears.

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::Usage;
use gpu_handoff_protocol::message::{BrokerBody, Carrier, EndReason, Event, PublishedAs, RequestId};
use gpu_handoff_protocol::{
    BufferFacts, BufferId, BufferInfo, BufferName, Code, GroupKey, Lifetime, PodRef, Refusal,
};

use crate::journal::Tag;
use crate::limits;

use super::given::Given;
use super::lasting::lasts;
use super::named::Named;
use super::records::name_tag;
use super::{Buffer, Effect, Member, MemberId, Note, Purpose, Registry, SessionId, Vetted};

impl Registry {
    pub(super) fn publish(
        &mut self,
        session: SessionId,
        request: RequestId,
        items: Vec<Result<Vetted, Refusal>>,
        now: Instant,
    ) {
        let mut older = Vec::new();
        let mut publish = |vetted| self.publish_one(session, vetted, &mut older);
        let outcomes = items.into_iter().map(|item| item.and_then(&mut publish)).collect();
        self.reply(session, request, BrokerBody::Published(outcomes));
        for id in older {
            self.end_buffer(id, EndReason::Superseded, None, now);
        }
        // Told after the answer, so that a publisher knows its own buffer before it hears of it.
        self.settle_stirred_waits();
    }

    /// Publishes one; `older` is what its name makes outdated.
    fn publish_one(
        &mut self,
        session: SessionId,
        vetted: Vetted,
        older: &mut Vec<BufferId>,
    ) -> Result<PublishedAs, Refusal> {
        let Some(member) = self.sessions.get(&session).map(|s| s.facts.member) else {
            return Err(Refusal::new(Code::ShuttingDown));
        };
        let outcome = self.admit(session, member, &vetted).and_then(|owner| {
            let group = self.group_of(session).cloned().ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
            if self.any_is_leaving() {
                self.unname_leaving(&group, &vetted.publication.facts.name);
            }
            self.name_is_free(&group, &vetted.publication.facts.name, member)?;
            Ok((owner, group))
        });
        let (owner, group) = match outcome {
            Ok(granted) => granted,
            Err(refusal) => {
                self.effects.push(Effect::Dispose(member, vetted.publication.carrier));
                return Err(refusal);
            }
        };
        let generation = self.next_generation(&group);
        let Vetted { id, publication, checked } = vetted;
        let (verified, facts) = (checked.is_some(), publication.facts);
        let info = Arc::new(BufferInfo { id, generation, owner, verified, facts, set: None });
        self.charge(member, &info, &publication.carrier);
        older.extend(self.lasting_before(member, &info));
        self.insert(session, member, group, info, publication.carrier);
        Ok(PublishedAs { id, generation, receipt: None, checked })
    }

    /// Whether a session may publish this, whatever its name. Gives the pod that will be its owner.
    pub(super) fn admit(
        &self,
        session: SessionId,
        member: MemberId,
        vetted: &Vetted,
    ) -> Result<PodRef, Refusal> {
        let Some(m) = self.members.get(&member) else { return Err(Refusal::new(Code::ShuttingDown)) };
        if m.is_ending {
            return Err(Refusal::new(Code::ShuttingDown).compared_with("pod", "running", "being deleted"));
        }
        let facts = &vetted.publication.facts;
        check_range(facts.offset, facts.size, facts.allocation_size)?;
        m.check_holds(facts.device, self.reachable_of(session))?;
        self.policy.may_publish(&m.facts.party(), &self.held_by(m), facts)?;
        self.check_order(session, facts)?;
        self.has_share_for(m, &vetted.publication.carrier)?;
        Ok(m.facts.pod.clone())
    }

    /// Whether the daemon may keep one more such memory of a member: no member takes more than half of what the others
    /// leave, so that there is something left for whoever comes.
    fn has_share_for(&self, member: &Member, carrier: &Carrier) -> Result<(), Refusal> {
        let all = self.descriptors_held();
        self.has_room_for(carrier, all)?;
        if matches!(carrier, Carrier::Legacy(_)) {
            return Ok(());
        }
        let own = self.descriptors_held_by(member);
        let left = self.capacity.descriptors.saturating_sub(all.saturating_sub(own));
        let (most, wanted) = (limits::DESCRIPTORS_FOR_SURE.max(left / 2), own + 1);
        if wanted <= most {
            return Ok(());
        }
        let most = format!("at most {most}, half of what others leave");
        Err(Refusal::new(Code::QuotaDescriptors).compared_with("descriptors of the pod", most, wanted))
    }

    /// Whether the daemon may keep one more such memory beside what is held.
    pub(super) fn has_room_for(&self, carrier: &Carrier, held: u64) -> Result<(), Refusal> {
        let limit = self.capacity.descriptors;
        let wanted = held + u64::from(matches!(carrier, Carrier::Descriptor(_)));
        if wanted <= limit {
            return Ok(());
        }
        let most = format!("at most {limit}");
        Err(Refusal::new(Code::QuotaDescriptors).compared_with("descriptors", most, wanted))
    }

    /// A name belongs to the pod that holds live buffers under it, or whose buffers of that name are expected back.
    fn name_is_free(&self, group: &GroupKey, name: &BufferName, member: MemberId) -> Result<(), Refusal> {
        self.is_not_expected(group, name_tag(name), name, member)?;
        let newest = self.groups.get(group).and_then(|g| g.names.get(name)).map(Named::newest);
        match newest.and_then(|id| self.buffers.get(&id)) {
            Some(other) if other.member != member => {
                let wanted = format!("{name} free, or held by the publishing pod");
                let found = self.holder_for(member, other.member, &other.info.owner);
                Err(Refusal::new(Code::NameTaken).compared_with("name", wanted, found))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn next_generation(&mut self, group: &GroupKey) -> u64 {
        let group = self.groups.entry(group.clone()).or_default();
        group.last_generation += 1;
        group.last_generation
    }

    /// Counts a buffer as its member's, whether anybody sees it yet or not.
    pub(super) fn charge(&mut self, member: MemberId, info: &BufferInfo, carrier: &Carrier) {
        self.account(member, |usage| add_buffer(usage, &info.facts));
        self.take_up(member, carrier);
    }

    /// Counts memory that is kept from now on.
    pub(super) fn take_up(&mut self, member: MemberId, carrier: &Carrier) {
        let descriptors = u64::from(matches!(carrier, Carrier::Descriptor(_)));
        self.descriptors += descriptors;
        self.account(member, |usage| usage.descriptors += descriptors);
    }

    /// Counts it no longer.
    pub(super) fn let_go(&mut self, member: MemberId, carrier: &Carrier) {
        let descriptors = u64::from(matches!(carrier, Carrier::Descriptor(_)));
        self.descriptors -= descriptors;
        self.account(member, |usage| usage.descriptors -= descriptors);
    }

    /// Counts it no longer. Its descriptor is counted until it is [given up](Self::give_up).
    pub(super) fn uncharge(&mut self, member: MemberId, info: &BufferInfo) {
        self.account(member, |usage| remove_buffer(usage, &info.facts));
    }

    /// Lets a buffer appear that is charged already.
    pub(super) fn insert(
        &mut self,
        owner: SessionId,
        member: MemberId,
        group: GroupKey,
        info: Arc<BufferInfo>,
        carrier: Carrier,
    ) {
        let id = info.id;
        let publisher = self.as_publisher(owner);
        self.make_last(member, &info, publisher);
        let owned_by = (!lasts(&info)).then_some(owner);
        if let Some(session) = owned_by.and_then(|owner| self.sessions.get_mut(&owner)) {
            session.published.insert(id);
        }
        self.name(&group, &info);
        self.record_published(&info, &group, member);
        self.effects.push(Effect::Note(Note::Published(Arc::clone(&info))));
        // The receipt of a set's buffer was given with the part that brought it.
        let purpose = if info.set.is_some() { Purpose::Keep } else { Purpose::AnswerAndKeep };
        let carrier = Some(carrier);
        let (leases, given, appeared) = (0, Given::default(), self.changing.next_to_appear());
        let group = self.shared_group(member, group);
        let event = Event::Appeared(Arc::clone(&info));
        let buffer =
            Buffer { info, group, owner: owned_by, member, carrier, ending: None, leases, given, appeared };
        self.buffers.insert(id, Box::new(buffer));
        if owned_by.is_none() {
            // It hears of it as its owner would.
            self.give(id, owner);
        }
        self.tell_watchers(id, &event);
        self.keep(id, purpose);
    }

    /// What another pod's buffers are called stays theirs while they are being restored.
    pub(super) fn is_not_expected(
        &self,
        group: &GroupKey,
        tag: Tag,
        name: &BufferName,
        member: MemberId,
    ) -> Result<(), Refusal> {
        if !self.expected.is_over()
            && let Some((_, other)) = self.expected.newest(Tag::of_group(group), tag)
            && other.member != self.member_tag(member)
        {
            let wanted = format!("{name} free, or held by the publishing pod");
            let found = "held by a pod whose buffers are being restored";
            return Err(Refusal::new(Code::NameTaken).compared_with("name", wanted, found));
        }
        Ok(())
    }

    /// The name of a group, which all of its members' buffers share.
    pub(super) fn shared_group(&self, member: MemberId, group: GroupKey) -> Arc<GroupKey> {
        let of_member = self.members.get(&member).map(|m| &m.group).filter(|own| ***own == group);
        of_member.map_or_else(|| Arc::new(group), Arc::clone)
    }

    /// Lets a live buffer be found: by its name, or as a part of its set.
    pub(super) fn name(&mut self, group: &GroupKey, info: &BufferInfo) {
        if let Some(set) = &info.set {
            return self.enlist(group, set, info.generation, info.id);
        }
        if let Some(g) = self.groups.get_mut(group) {
            let (generation, id) = (info.generation, info.id);
            g.names
                .entry(info.facts.name.clone())
                .and_modify(|named| named.add(generation, id))
                .or_insert_with(|| Named::new(generation, id));
        }
        self.waits.name_stirred(group, &info.facts.name, info.generation);
    }

    /// Takes an ended buffer out of its group's names, or out of its set.
    pub(super) fn unname(&mut self, group: &GroupKey, info: &BufferInfo) {
        if let Some(set) = &info.set {
            return self.discharge(group, set, info.generation);
        }
        let Some(group) = self.groups.get_mut(group) else { return };
        let named = group.names.get_mut(&info.facts.name);
        if named.is_some_and(|named| !named.keeps_without(info.generation)) {
            group.names.remove(&info.facts.name);
        }
    }
}

/// Counts a buffer.
pub(super) fn add_buffer(usage: &mut Usage, facts: &BufferFacts) {
    usage.buffers += 1;
    usage.bytes += facts.allocation_size;
    usage.pod_lifetime_bytes += lasting_bytes(facts);
}

/// Counts it no longer.
pub(super) fn remove_buffer(usage: &mut Usage, facts: &BufferFacts) {
    usage.buffers -= 1;
    usage.bytes -= facts.allocation_size;
    usage.pod_lifetime_bytes -= lasting_bytes(facts);
}

fn lasting_bytes(facts: &BufferFacts) -> u64 {
    if facts.lifetime == Lifetime::Pod { facts.allocation_size } else { 0 }
}

/// A buffer is a part of its allocation, and not an empty one.
pub(crate) fn check_range(offset: u64, size: u64, allocation: u64) -> Result<(), Refusal> {
    match offset.checked_add(size) {
        Some(end) if end <= allocation && size > 0 => Ok(()),
        _ => {
            let wanted = format!("a range within 0..{allocation}");
            let found = format!("{size} bytes from {offset} on");
            Err(Refusal::new(Code::SizeMismatch).compared_with("bytes", wanted, found))
        }
    }
}

/// Device UUIDs as a list for people.
pub(crate) fn list(devices: &[gpu_handoff_protocol::DeviceUuid]) -> String {
    if devices.is_empty() {
        return "none".to_owned();
    }
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
