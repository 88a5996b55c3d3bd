//! Sets: buffers that are published as one version of a name, all or nothing.
//!
//! A set comes in parts ([`staging`]). What has come of it is charged to its member, but seen by nobody, until the part
//! that makes it whole; then all of it appears at once, and the version before it is superseded. Each buffer of a set is
//! a buffer like any other, except that it is not found by its own name. A version with a buffer that has ended is no
//! longer whole, so it is not found any more either.

use std::collections::BTreeMap;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, EndReason, Grant, RequestId};
use gpu_handoff_protocol::{BufferId, BufferName, Code, DeviceUuid, GroupKey, Refusal, SetInfo, SetRef};

use super::records::set_tag;
use super::{Importer, MemberId, Registry, SessionId};
use crate::limits;

mod staging;
mod waits;

pub(super) use staging::{StagedItem, Staging};
use waits::Waiting;
pub(super) use waits::Waits;

/// A set that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedSet {
    /// Its name.
    pub name: BufferName,
    /// Only a generation above this one will do; 0: any.
    pub newer_than: u64,
    /// The GPU that its buffers are to be mapped on; `None`: any that the pod holds.
    pub device: Option<DeviceUuid>,
}

/// The live buffers of one name of a set, by generation.
#[derive(Debug, Default)]
pub(super) struct Versions(BTreeMap<u64, Version>);

#[derive(Debug)]
struct Version {
    total: u32,
    /// Its live buffers, by their index.
    buffers: BTreeMap<u32, BufferId>,
}

impl Version {
    fn is_whole(&self) -> bool {
        self.buffers.len() == self.total as usize
    }
}

impl Versions {
    pub(super) fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.0.values().flat_map(|version| version.buffers.values().copied())
    }

    /// The whole versions above a generation, newest first. There are few: a new one supersedes the others.
    fn newest(&self, above: u64) -> impl Iterator<Item = (u64, &Version)> {
        let newer = self.0.iter().rev().take_while(move |(generation, _)| **generation > above);
        newer.filter(|(_, version)| version.is_whole()).map(|(generation, version)| (*generation, version))
    }
}

impl Registry {
    /// Makes a live buffer a part of its set.
    pub(super) fn enlist(&mut self, group: &GroupKey, set: &SetRef, generation: u64, id: BufferId) {
        let Some(group) = self.groups.get_mut(group) else { return };
        let versions = group.sets.entry(set.name.clone()).or_default();
        let fresh = || Version { total: set.total, buffers: BTreeMap::new() };
        versions.0.entry(generation).or_insert_with(fresh).buffers.insert(set.index, id);
    }

    /// Takes an ended buffer out of its set.
    pub(super) fn discharge(&mut self, group: &GroupKey, set: &SetRef, generation: u64) {
        let Some(group) = self.groups.get_mut(group) else { return };
        let Some(versions) = group.sets.get_mut(&set.name) else { return };
        if let Some(version) = versions.0.get_mut(&generation) {
            version.buffers.remove(&set.index);
            if version.buffers.is_empty() {
                versions.0.remove(&generation);
            }
        }
        if versions.0.is_empty() {
            group.sets.remove(&set.name);
        }
    }

    /// Whether there is a whole version of the set after this one.
    pub(super) fn is_superseded(&self, group: &GroupKey, set: &SetRef, generation: u64) -> bool {
        self.newest_version(group, &set.name, generation).is_some()
    }

    /// The name of a set belongs to the pod that holds live buffers of it, or has begun to publish it.
    fn set_name_is_free(&self, group: &GroupKey, name: &BufferName, member: MemberId) -> Result<(), Refusal> {
        let live = self.groups.get(group).and_then(|g| g.sets.get(name));
        let live = live.and_then(|versions| versions.buffers().find(|id| !self.is_leaving(*id)));
        let live = live.and_then(|id| self.buffers.get(&id));
        self.is_not_expected(group, set_tag(name), name, member)?;
        let holder = live.map(|b| b.member).into_iter().chain(self.staging.publisher(group, name));
        match holder.into_iter().find(|holder| *holder != member) {
            None => Ok(()),
            Some(holder) => {
                let wanted = format!("{name} free, or held by the publishing pod");
                let pod = self.members.get(&holder).map(|m| &m.facts.pod);
                let found = pod.map_or_else(String::new, |pod| self.holder_for(member, holder, pod));
                Err(Refusal::new(Code::NameTaken).compared_with("set", wanted, found))
            }
        }
    }

    /// All live buffers of these names end: a later version is there.
    fn supersede(&mut self, older: Vec<BufferId>, now: Instant) {
        for id in older {
            self.end_buffer(id, EndReason::Superseded, None, now);
        }
    }

    pub(super) fn acquire_set(
        &mut self,
        session: SessionId,
        request: RequestId,
        wanted: WantedSet,
        until: Option<Instant>,
        now: Instant,
    ) {
        let Some(group) = self.group_of(session).cloned() else { return };
        let (for_missing, until) = (until.is_some(), until.unwrap_or(now + limits::RESTORING_PATIENCE));
        if !self.must_wait(session, &group, &wanted, for_missing) {
            self.settle_set(session, request, &wanted, Code::NotFound);
            return;
        }
        if let Err(refusal) = self.open_request(session, request, 1) {
            self.reply(session, request, BrokerBody::Refused(refusal));
            return;
        }
        let restoring = self.must_wait(session, &group, &wanted, false);
        let waiting = Waiting { group, wanted, until, for_missing };
        self.set_waits.add((session, request), waiting, restoring);
    }

    /// Whether the set may still come: it is waited for, or being restored, or to be decided about.
    fn must_wait(&self, session: SessionId, group: &GroupKey, wanted: &WantedSet, for_missing: bool) -> bool {
        match self.find_set(session, group, wanted) {
            Some((set, ids)) => {
                let is_undecided = |id| self.buffers.get(id).is_some_and(|buffer| self.is_undecided(buffer));
                ids.iter().any(is_undecided) || self.expects_newer_set(group, &wanted.name, set.generation)
            }
            None => for_missing || self.expects_newer_set(group, &wanted.name, wanted.newer_than),
        }
    }

    /// Whether a part of a version of a set above this one is being restored.
    fn expects_newer_set(&self, group: &GroupKey, name: &BufferName, known: u64) -> bool {
        // A name's tag is a hash: not where there is nothing to look for.
        !self.expected.is_over() && self.expects_newer(group, set_tag(name), known)
    }

    /// The newest whole version above a generation, none of which is about to end.
    fn newest_version(&self, group: &GroupKey, name: &BufferName, above: u64) -> Option<(u64, &Version)> {
        let versions = self.groups.get(group)?.sets.get(name)?;
        let stays = |version: &Version| !version.buffers.values().any(|id| self.is_leaving(*id));
        versions.newest(above).find(|(_, version)| stays(version))
    }

    /// The newest version, if the session may know of it: all of a set is one pod's.
    fn find_set(
        &self,
        session: SessionId,
        group: &GroupKey,
        wanted: &WantedSet,
    ) -> Option<(SetInfo, Vec<BufferId>)> {
        let (generation, version) = self.newest_version(group, &wanted.name, wanted.newer_than)?;
        let sees = |id| self.buffers.get(id).is_some_and(|buffer| self.sees(session, buffer));
        if !version.buffers.values().all(sees) {
            return None;
        }
        let info = SetInfo { name: wanted.name.clone(), generation, total: version.total };
        Some((info, version.buffers.values().copied().collect()))
    }

    /// Answers with leases of all buffers of the set, or with one refusal and none.
    fn settle_set(&mut self, session: SessionId, request: RequestId, wanted: &WantedSet, missing: Code) {
        let body = match self.lease_set(session, wanted, missing) {
            Ok((set, grants)) => BrokerBody::AcquiredSet { set, grants },
            Err(refusal) => BrokerBody::Refused(refusal),
        };
        self.reply(session, request, body);
    }

    fn lease_set(
        &mut self,
        session: SessionId,
        wanted: &WantedSet,
        missing: Code,
    ) -> Result<(SetInfo, Vec<Grant>), Refusal> {
        let group = self.group_of(session).cloned().ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
        let (set, ids) =
            self.find_set(session, &group, wanted).ok_or_else(|| no_set(&group, wanted, missing))?;
        let importer = Importer { session, device: wanted.device };
        self.may_lease_all(importer, &ids)?;
        let mut grants = Vec::with_capacity(ids.len());
        for id in ids {
            match self.grant(importer, id) {
                Ok(grant) => grants.push(grant),
                Err(refusal) => {
                    // Looked at before, so this does not happen; if it did, none must be left.
                    for grant in grants {
                        let _ = self.release_one(session, grant.lease);
                    }
                    return Err(refusal);
                }
            }
        }
        Ok((set, grants))
    }

    /// Whether the session may lease all of these, so that no lease is given where one would be refused.
    fn may_lease_all(&self, importer: Importer, ids: &[BufferId]) -> Result<(), Refusal> {
        let member = self.sessions.get(&importer.session).and_then(|s| self.members.get(&s.facts.member));
        let member = member.ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
        self.policy.may_lease(&member.facts.party(), &self.held_by(member), ids.len() as u64)?;
        ids.iter().try_for_each(|id| {
            self.may_import(importer, *id)?;
            self.has_seat(*id)
        })
    }

    /// A part of a set is there again: those that wait for it are to be looked at if it is whole now, or if nothing more of
    /// it will come.
    pub(super) fn set_part_restored(&mut self, group: &GroupKey, set: &SetRef, generation: u64) {
        let versions = self.groups.get(group).and_then(|g| g.sets.get(&set.name));
        let is_whole = versions.and_then(|v| v.0.get(&generation)).is_some_and(Version::is_whole);
        if is_whole || !self.expects_newer_set(group, &set.name, generation.saturating_sub(1)) {
            self.set_waits.stir(group, &set.name, generation);
        }
    }

    /// Looks again at those that wait for sets which have been stirred.
    pub(super) fn settle_stirred_set_waits(&mut self) {
        for key in self.set_waits.take_stirred() {
            let Some(Waiting { group, wanted, for_missing, .. }) = self.set_waits.get(key) else { continue };
            if self.must_wait(key.0, group, wanted, false) {
                self.set_waits.waiters.waits_for_restoring(key);
            } else if !self.must_wait(key.0, group, wanted, *for_missing) {
                self.end_set_wait(key, Code::NotFound);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn forgotten_set_waits(&self) -> impl Iterator<Item = (SessionId, RequestId)> {
        let waits_for = |(session, _): (SessionId, RequestId), waiting: &Waiting| {
            self.must_wait(session, &waiting.group, &waiting.wanted, waiting.for_missing)
        };
        self.set_waits.all().filter(move |(key, waiting)| !waits_for(*key, waiting)).map(|(key, _)| key)
    }

    pub(super) fn expire_set_waits(&mut self, now: Instant) {
        while let Some(key) = self.set_waits.expired(now) {
            self.end_set_wait(key, Code::WaitTimeout);
        }
    }

    /// Ends a wait for a set; whether there was one.
    pub(super) fn end_set_wait(&mut self, key: (SessionId, RequestId), missing: Code) -> bool {
        let (session, request) = key;
        let Some(wanted) = self.set_waits.remove(key) else { return false };
        self.close_request(session, request);
        self.settle_set(session, request, &wanted, missing);
        true
    }
}

fn no_set(group: &GroupKey, wanted: &WantedSet, code: Code) -> Refusal {
    let what = match wanted.newer_than {
        0 => wanted.name.to_string(),
        above => format!("{} newer than generation {above}", wanted.name),
    };
    Refusal::new(code).compared_with("set", what, format!("none such, whole, in group {group}"))
}

/// What a buffer is within the set that it is published with.
fn set_ref(name: &BufferName, index: usize, total: u32) -> Option<SetRef> {
    Some(SetRef { name: name.clone(), index: u32::try_from(index).ok()?, total })
}
