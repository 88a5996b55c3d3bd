//! The registry held against its rules: single stories, then random histories.

use std::collections::HashMap;
use std::hash::RandomState;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_policy::{LegacyRule, Policy, Quota};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, EndReason, Event, Grant, Publication, PublishedAs, RequestId,
    SeatEnd, Target, Wanted,
};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferName, Code, DeviceUuid, GroupKey, Kind, LeaseId, Lifetime,
    Metadata, Order, PodRef, Refusal, Seat, SetInfo, SetPart, SlotId,
};

use super::{
    Ask, BootClock, Capacity, Counters, Effect, Input, Keepable, MemberFacts, MemberId, Overstay, Past,
    Purpose, Registry, SessionFacts, SessionId, Vetted, WantedSet,
};
use crate::journal::{Alive, Found, Holder};
use crate::members::Holds;

mod devices;
mod endings;
mod histories;
mod lasting;
mod load;
mod memory;
mod new_policies;
mod new_sights;
mod orders;
mod overstays;
mod restart_histories;
mod restart_sets;
mod restart_times;
mod restart_today;
mod restarts;
mod rules;
mod sets;
mod sight;
mod stories;
mod things;

use things::*;

const BOOT: BootTag = BootTag(7);

/// What is to be sent, and to whom.
type Sent = Vec<(SessionId, BrokerMessage)>;

/// A registry with two members of group `n/g` (0 and 1) and one of `n/other` (2), at a time of its own.
struct World {
    registry: Registry,
    now: Instant,
    next: u64,
    /// What the lanes were told to close.
    disposed: usize,
    /// What the journal would tell.
    alive: Alive,
    told: Told,
    /// When the machine was started, as far as the journal goes.
    boot: Instant,
    life: u32,
}

/// What sidecars and processes were given, and what is watched.
#[derive(Default)]
struct Told {
    /// What each member's sidecar keeps.
    kept: HashMap<MemberId, HashMap<BufferId, Keepable>>,
    /// Receipts that are for an answer alone.
    receipts: usize,
    /// Answers to offers, by their number.
    offered: HashMap<u64, Vec<Result<(), Refusal>>>,
    /// Processes that have not reattached, by the session that stands for each.
    awaited: HashMap<SessionId, ProcessKey>,
    /// Who was named as leasing what is over.
    overstays: Vec<Overstay>,
    /// All that was said, where somebody wants to know.
    said: Option<Sent>,
}

impl World {
    fn new(policy: Policy) -> Self {
        let now = Instant::now();
        let registry =
            Registry::new(policy, Capacity { descriptors: 100 }, BOOT, RandomState::new(), Past::none(now));
        let told = Told::default();
        let mut world =
            Self { registry, now, next: 0, disposed: 0, alive: Alive::default(), told, boot: now, life: 1 };
        world.join();
        world
    }

    fn join(&mut self) {
        self.join_some(&[0, 1, 2]);
    }

    fn join_some(&mut self, members: &[u32]) {
        for member in members.iter().copied() {
            let group = if member < 2 { "g" } else { "other" };
            self.tell(Input::MemberJoined(MemberId(member), member_facts(member, group)));
        }
    }

    fn allowing_legacy() -> Self {
        Self::new(Policy { legacy: LegacyRule::WithinNamespace, ..Policy::default() })
    }

    fn with_quota(quota: Quota) -> Self {
        Self::new(Policy { quota, ..Policy::default() })
    }

    /// Tells the registry something and gives back what is to be sent.
    fn tell(&mut self, input: Input) -> Vec<(SessionId, BrokerMessage)> {
        let mut sent = Vec::new();
        let effects = self.registry.apply(input, self.now);
        let mut records = Vec::new();
        self.registry.take_records(&mut records);
        records.into_iter().for_each(|r| self.alive.take(r));
        for effect in effects {
            match effect {
                Effect::Send(session, message) => sent.push((session, message)),
                Effect::Dispose(..) => self.disposed += 1,
                Effect::Keep(_, kept) if kept.purpose == Purpose::Answer => self.told.receipts += 1,
                Effect::Keep(member, kept) => {
                    self.told.kept.entry(member).or_default().insert(kept.info.id, *kept);
                }
                Effect::Forget(member, id, _) => {
                    self.disposed += 1;
                    self.told.kept.entry(member).or_default().remove(&id);
                }
                Effect::Offered(_, token, outcomes) => {
                    self.told.offered.insert(token, outcomes);
                }
                Effect::AwaitEnd(_, holder, process) => {
                    self.told.awaited.insert(holder, process);
                }
                Effect::AwaitNoMore(_, holder) => {
                    assert!(self.told.awaited.remove(&holder).is_some(), "watched before");
                }
                Effect::Overstays(one) => self.told.overstays.push(*one),
                Effect::EndSession(_) | Effect::Note(_) => {}
            }
        }
        if let Some(said) = &mut self.told.said {
            said.extend(sent.iter().cloned());
        }
        sent
    }

    /// The daemon is killed, and another one reads the journal.
    fn restart(&mut self) {
        self.restart_with(self.registry.policy.clone());
    }

    /// The same, and the policy is another one.
    fn restart_with(&mut self, policy: Policy) {
        self.restart_without(policy, &[]);
    }

    /// The same, and these processes have ended meanwhile.
    fn restart_without(&mut self, policy: Policy, ended: &[ProcessKey]) {
        self.begin_anew(policy, ended);
        self.join();
    }

    /// The same, and no member has joined yet.
    fn begin_anew(&mut self, policy: Policy, ended: &[ProcessKey]) {
        self.life += 1;
        let found = Found { alive: self.alive.clone(), life: self.life, left: Vec::new() };
        let has_ended =
            |holder: Holder| ended.iter().any(|p| (p.pid, p.started) == (holder.pid, holder.started));
        let found = found.without_those_that_have_ended(has_ended);
        let clock = BootClock { instant: self.now, since_boot: self.now - self.boot };
        let capacity = self.registry.capacity;
        self.registry = Registry::new(policy, capacity, BOOT, RandomState::new(), Past { found, clock });
        self.told.awaited.clear();
        self.disposed = 0;
    }

    fn open(&mut self, member: u32, own_pid: u32) -> SessionId {
        self.next += 1;
        let of_its_own = process(SessionId(self.next));
        self.open_as(member, own_pid, of_its_own)
    }

    /// A connection of this very process.
    fn open_as(&mut self, member: u32, own_pid: u32, process: ProcessKey) -> SessionId {
        self.open_with(member, own_pid, process, None)
    }

    /// A process that has the device nodes of these GPUs.
    fn open_reaching(&mut self, member: u32, own_pid: u32, reachable: Option<Vec<DeviceUuid>>) -> SessionId {
        self.next += 1;
        let of_its_own = process(SessionId(self.next));
        self.open_with(member, own_pid, of_its_own, reachable)
    }

    fn open_with(
        &mut self,
        member: u32,
        own_pid: u32,
        process: ProcessKey,
        reachable: Option<Vec<DeviceUuid>>,
    ) -> SessionId {
        self.next += 1;
        let session = SessionId(self.next);
        let facts =
            SessionFacts { member: MemberId(member), own_pid, process, hears_announcements: true, reachable };
        self.tell(Input::SessionOpened(session, facts));
        session
    }

    fn ask(&mut self, session: SessionId, ask: Ask) -> (RequestId, Vec<(SessionId, BrokerMessage)>) {
        self.next += 1;
        let request = self.next;
        (request, self.tell(Input::Ask(session, request, ask)))
    }

    fn vetted(&mut self, name: &str, carrier: Carrier) -> Vetted {
        self.next += 1;
        let kind = match carrier {
            Carrier::Legacy(_) => Kind::Legacy,
            Carrier::Descriptor(_) => Kind::Vmm,
        };
        let checked = (kind == Kind::Vmm).then_some(Duration::from_micros(50));
        let id = BufferId { boot: BOOT, random: u128::from(self.next) };
        Vetted { id, publication: Publication { facts: facts(name, kind), carrier }, checked }
    }

    fn publish(&mut self, session: SessionId, name: &str, carrier: Carrier) -> Result<PublishedAs, Refusal> {
        let vetted = self.vetted(name, carrier);
        let (request, sent) = self.ask(session, Ask::Publish(vec![Ok(vetted)]));
        match answer(&sent, session, request) {
            BrokerBody::Published(mut items) => items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Publishes what outlives its process.
    fn publish_lasting(&mut self, session: SessionId, name: &str) -> Result<PublishedAs, Refusal> {
        let mut vetted = self.vetted(name, descriptor());
        vetted.publication.facts.lifetime = Lifetime::Pod;
        let (request, sent) = self.ask(session, Ask::Publish(vec![Ok(vetted)]));
        match answer(&sent, session, request) {
            BrokerBody::Published(mut items) => items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn retire(&mut self, session: SessionId, id: BufferId, within: Option<Duration>) -> Result<u32, Refusal> {
        let until = within.map(|time| self.now + time);
        let (request, sent) = self.ask(session, Ask::Retire { id, until });
        match answer(&sent, session, request) {
            BrokerBody::Retired(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    fn publish_part(
        &mut self,
        session: SessionId,
        part: SetPart,
        items: Vec<Result<Vetted, Refusal>>,
    ) -> (Vec<Result<PublishedAs, Refusal>>, Sent) {
        let (request, sent) = self.ask(session, Ask::PublishSet(part, items));
        match answer(&sent, session, request) {
            BrokerBody::Published(items) => (items, sent),
            other => panic!("{other:?}"),
        }
    }

    fn acquire_set(
        &mut self,
        session: SessionId,
        wanted: WantedSet,
    ) -> Result<(SetInfo, Vec<Grant>), Refusal> {
        let (request, sent) = self.ask(session, Ask::AcquireSet { wanted, until: None });
        acquired_set(answer(&sent, session, request))
    }

    fn acquire(&mut self, session: SessionId, wanted: Wanted) -> Result<Grant, Refusal> {
        let (request, sent) =
            self.ask(session, Ask::Acquire { items: vec![wanted], until: None, device: None });
        acquired(answer(&sent, session, request))
    }

    fn release(&mut self, session: SessionId, lease: LeaseId) -> Result<(), Refusal> {
        let (request, sent) = self.ask(session, Ask::Release(vec![lease]));
        match answer(&sent, session, request) {
            BrokerBody::Released(mut items) => items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, time: Duration) -> Vec<(SessionId, BrokerMessage)> {
        self.now += time;
        self.tell(Input::Tick)
    }
}
