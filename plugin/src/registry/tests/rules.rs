//! What must hold whatever has happened.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::journal::AliveBuffer;

/// What must hold in every state.
pub(super) fn check(w: &World) {
    let r = &w.registry;
    let mut held: HashMap<MemberId, (u64, u64)> = HashMap::new();
    for (id, buffer) in &r.buffers {
        let awaited = r.expected.buffers.get(id).is_some_and(|alive| alive.retiring.is_none());
        assert_eq!(awaited, buffer.is_awaited(), "what has neither memory nor end is expected");
        let without = buffer.ending.is_some() || awaited;
        assert_eq!(buffer.carrier.is_none(), without, "an ending buffer has no carrier");
        assert!(buffer.ending.is_none() || buffer.leases > 0, "an ended buffer without leases is gone");
        let group = &r.groups[&buffer.group];
        let named = match &buffer.info.set {
            Some(set) => {
                group.sets.get(&set.name).is_some_and(|versions| versions.buffers().any(|b| b == *id))
            }
            None => group
                .names
                .get(&buffer.info.facts.name)
                .is_some_and(|named| named.buffers().any(|b| b == *id)),
        };
        assert_eq!(named, buffer.carrier.is_some(), "exactly the live ones are found by name");
        held.entry(buffer.member).or_default().0 += 1;
        assert_eq!(r.leases.values().filter(|b| **b == *id).count(), buffer.leases as usize);
    }
    for (id, session) in &r.sessions {
        held.entry(session.facts.member).or_default().1 += session.leases.len() as u64;
        assert!(session.leases.iter().all(|l| r.leases.contains_key(l)));
        // Who leases a buffer was given it.
        let given = |l| r.buffers[&r.leases[l]].given.iter().any(|s| s == *id);
        assert!(session.leases.iter().all(given));
        assert!(session.published.iter().all(|id| r.buffers.contains_key(id)));
    }
    for (id, member) in &r.members {
        let (mut buffers, leases) = held.get(id).copied().unwrap_or_default();
        buffers += r.staging.charged(*id).0;
        assert_eq!(
            (member.usage.buffers, member.usage.leases, member.usage.bytes),
            (buffers, leases, buffers * 100)
        );
    }
    if r.changing.next_deadline().is_none() {
        assert_eq!(r.forgotten(), [], "who waits is answered as soon as there is nothing to wait for");
    }
    check_lasting(r);
    check_overstays(r);
    check_groups(r);
    check_reserved(r);
    let live = r.buffers.values().filter(|b| b.carrier.is_some()).count();
    let staged: u64 = r.members.keys().map(|m| r.staging.charged(*m).0).sum();
    assert_eq!(r.descriptors, live as u64 + staged);
    let ordered = r.buffers.values().filter(|b| b.info.facts.order.is_some());
    assert_eq!(r.seated().count(), ordered.map(|b| b.leases as usize).sum::<usize>(), "each has one seat");
    for (buffer, seat, lease) in r.seated() {
        assert_eq!(r.leases[&lease], buffer);
        assert!(seat.0 < r.buffers[&buffer].info.facts.order.unwrap().seats);
    }
    let unclaimed = r.expected.leases.keys().filter(|lease| r.leases.contains_key(lease)).count();
    assert_eq!(r.leases.len(), r.sessions.values().map(|s| s.leases.len()).sum::<usize>() + unclaimed);
    check_journal(w);
}

/// Just those buffers are looked at that end while they are leased, and that somebody is to let go of.
fn check_overstays(r: &Registry) {
    let is_over = |b: &super::super::Buffer| b.ending.is_some_and(|e| e.reason() != EndReason::Superseded);
    let over = r.buffers.iter().filter(|(_, b)| is_over(b)).map(|(id, _)| *id);
    assert_eq!(r.overstays.ids(), over.collect());
}

/// What outlives its process is its member's alone, and the only one of its name that does.
fn check_lasting(r: &Registry) {
    for (id, member) in &r.members {
        let of_member = r.buffers.iter().filter(|(_, b)| b.member == *id && b.lasts());
        let found: BTreeSet<BufferId> = of_member.map(|(id, _)| *id).collect();
        let (all, named) = member.lasting.parts();
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), found);
        assert!(found.iter().all(|id| r.buffers[id].owner.is_none()));
        let live =
            found.iter().map(|id| &r.buffers[id]).filter(|b| b.carrier.is_some() && b.info.set.is_none());
        let names: BTreeMap<_, _> = live.map(|b| (&b.info.facts.name, b.info.id)).collect();
        assert_eq!(named.into_iter().collect::<BTreeMap<_, _>>(), names, "one of each name");
        let (bytes, staged) = (found.len() as u64 * 100, r.staging.lasting_bytes(*id));
        assert_eq!(member.usage.pod_lifetime_bytes, bytes + staged);
    }
    assert!(r.sessions.values().all(|s| s.published.iter().all(|id| !r.buffers[id].lasts())));
}

/// A group holds what its members hold, and they all descriptors that there are.
fn check_groups(r: &Registry) {
    for (key, group) in &r.groups {
        let members = r.members.values().filter(|m| m.facts.group == *key).map(|m| m.usage);
        let all = members.fold(gpu_handoff_policy::Usage::default(), |all, one| gpu_handoff_policy::Usage {
            buffers: all.buffers + one.buffers,
            bytes: all.bytes + one.bytes,
            pod_lifetime_bytes: all.pod_lifetime_bytes + one.pod_lifetime_bytes,
            leases: all.leases + one.leases,
            descriptors: all.descriptors + one.descriptors,
        });
        assert_eq!(group.usage, all);
    }
}

/// Room is kept for just what is expected of members and not counted as theirs.
fn check_reserved(r: &Registry) {
    for member in r.members.values() {
        let is_counted = |id| r.buffers.get(id).is_some_and(|b| r.members.contains_key(&b.member));
        let of_it = r.expected.buffers.iter().filter(|(id, b)| b.member == member.tag && !is_counted(*id));
        let kept = of_it.fold((0, 0, 0), |(count, bytes, lasting), (_, b)| {
            (count + 1, bytes + b.bytes, lasting + if b.lasts { b.bytes } else { 0 })
        });
        let leases = r.expected.leases.values().filter(|l| l.holder == member.tag).count() as u64;
        let (held, has) = (r.held_by(member).pod, member.usage);
        let lasting = held.pod_lifetime_bytes - has.pod_lifetime_bytes;
        assert_eq!((held.buffers - has.buffers, held.bytes - has.bytes, lasting), kept);
        assert_eq!(held.leases - has.leases, leases);
    }
    assert!(!r.expected.buffers.is_empty() || r.expected.reserved.is_empty());
}

/// What a journal says, with deadlines that have passed like none.
fn as_told(w: &World, alive: &Alive) -> (BTreeMap<BufferId, String>, BTreeMap<LeaseId, BufferId>) {
    let now = w.registry.clock.since_boot(w.now);
    let buffer = |b: &AliveBuffer| {
        let retiring = b.retiring.map(|(reason, until)| (reason, until.filter(|at| *at > now)));
        format!("{} {:?} {:?} {retiring:?}", b.generation, b.group, b.name)
    };
    let buffers = alive.buffers.iter().map(|(id, b)| (*id, buffer(b))).collect();
    (buffers, alive.leases.iter().map(|(lease, l)| (*lease, l.buffer)).collect())
}

/// The journal tells what is alive, whether it is read as it was written or written anew.
fn check_journal(w: &World) {
    let r = &w.registry;
    let mut anew = Alive::default();
    r.alive().for_each(|record| anew.take(record));
    assert_eq!(as_told(w, &anew), as_told(w, &w.alive));
}
