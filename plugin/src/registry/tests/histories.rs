//! Random histories: whatever happens in whatever order, the rules hold.

use std::collections::{BTreeSet, HashMap, HashSet};

use gpu_handoff_policy::Orphans;
use proptest::prelude::*;

use super::rules::check;
use super::*;

#[derive(Debug, Clone)]
pub(super) enum Step {
    Open { member: u32 },
    Publish { who: usize, name: u8, lasts: bool },
    PublishPart { who: usize, name: u8, total: u32, follow: bool, refused: bool, lasts: bool },
    AcquireSet { who: usize, name: u8, wait: bool },
    Timeline { who: usize },
    Ordered { who: usize, which: usize, seats: u32 },
    Acquire { who: usize, name: u8, wait: bool },
    AcquireId { who: usize, which: usize, wait: bool },
    Release { who: usize, which: usize },
    Retire { who: usize, which: usize, wait: bool },
    Watch { who: usize },
    Cancel { who: usize, which: usize },
    End { who: usize, died: bool },
    Pass { millis: u64 },
    Leave { member: u32 },
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let (who, which) = (0_usize..8, 0_usize..8);
    prop_oneof![
        2 => (0_u32..3).prop_map(|member| Step::Open { member }),
        4 => (who.clone(), 0_u8..3, prop::bool::weighted(0.4)).prop_map(|(who, name, lasts)| Step::Publish { who, name, lasts }),
        4 => (who.clone(), 0_u8..2, 1_u32..4, prop::bool::weighted(0.8), prop::bool::weighted(0.1), prop::bool::weighted(0.3)).prop_map(|(who, name, total, follow, refused, lasts)| Step::PublishPart { who, name, total, follow, refused, lasts }),
        2 => (who.clone(), 0_u8..2, any::<bool>()).prop_map(|(who, name, wait)| Step::AcquireSet { who, name, wait }),
        1 => who.clone().prop_map(|who| Step::Timeline { who }),
        2 => (who.clone(), which.clone(), 0_u32..3).prop_map(|(who, which, seats)| Step::Ordered { who, which, seats }),
        4 => (who.clone(), 0_u8..3, any::<bool>()).prop_map(|(who, name, wait)| Step::Acquire { who, name, wait }),
        2 => (who.clone(), which.clone(), any::<bool>()).prop_map(|(who, which, wait)| Step::AcquireId { who, which, wait }),
        3 => (who.clone(), which.clone()).prop_map(|(who, which)| Step::Release { who, which }),
        2 => (who.clone(), which.clone(), any::<bool>()).prop_map(|(who, which, wait)| Step::Retire { who, which, wait }),
        1 => who.clone().prop_map(|who| Step::Watch { who }),
        1 => (who.clone(), which).prop_map(|(who, which)| Step::Cancel { who, which }),
        1 => (who, any::<bool>()).prop_map(|(who, died)| Step::End { who, died }),
        2 => (1_u64..400).prop_map(|millis| Step::Pass { millis }),
        1 => (0_u32..3).prop_map(|member| Step::Leave { member }),
    ]
}

/// What an outside observer has seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) sessions: Vec<SessionId>,
    pub(super) member: HashMap<SessionId, u32>,
    pub(super) buffers: Vec<BufferId>,
    /// What each session has begun to publish: name, total and how much has come.
    parts: HashMap<SessionId, (u8, u32, u32)>,
    group: HashMap<BufferId, &'static str>,
    pub(super) leases: Vec<(SessionId, LeaseId)>,
    pub(super) unanswered: HashSet<(SessionId, RequestId)>,
    pub(super) watches: HashSet<(SessionId, RequestId)>,
    /// Descriptors that the registry of the moment was given.
    pub(super) brought: usize,
}

fn group_of(member: u32) -> &'static str {
    if member == 2 { "other" } else { "g" }
}

impl Seen {
    pub(super) fn observe(&mut self, sent: &[(SessionId, BrokerMessage)]) {
        for (session, message) in sent {
            assert!(self.sessions.contains(session), "nothing is said to a session that has ended");
            let key = (*session, message.request);
            match &message.body {
                BrokerBody::Event(_) if message.request == 0 => {}
                BrokerBody::Event(_) => assert!(self.watches.contains(&key), "events go to watches"),
                _ => {
                    let watched = self.watches.remove(&key);
                    assert!(self.unanswered.remove(&key) || watched, "one answer to each request: {key:?}");
                }
            }
            let none = Vec::new();
            let (items, whole) = match &message.body {
                BrokerBody::Acquired(items) => (items, &none),
                BrokerBody::AcquiredSet { set, grants } => {
                    assert_eq!(grants.len(), set.total as usize, "all of a set or nothing");
                    assert!(grants.iter().all(|g| g.buffer.generation == set.generation));
                    (&Vec::new(), grants)
                }
                _ => (&Vec::new(), &none),
            };
            {
                for grant in items.iter().flatten().chain(whole) {
                    let own = group_of(self.member[session]);
                    assert_eq!(self.group[&grant.buffer.id], own, "never another group's buffer");
                    self.leases.push((*session, grant.lease));
                }
            }
        }
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.sessions.retain(|s| *s != session);
        self.unanswered.retain(|(s, _)| *s != session);
        self.watches.retain(|(s, _)| *s != session);
        self.leases.retain(|(s, _)| *s != session);
    }
}

pub(super) fn pick<T: Copy>(from: &[T], at: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[at % from.len()])
}

pub(super) fn play(w: &mut World, seen: &mut Seen, step: &Step) {
    let until = |w: &World, wait: bool| wait.then(|| w.now + Duration::from_millis(300));
    match *step {
        Step::Open { member } => {
            let session = w.open(member, 1);
            if !w.registry.sessions.contains_key(&session) {
                return; // Its member has left: the lane was told to end the connection.
            }
            seen.sessions.push(session);
            seen.member.insert(session, member);
        }
        Step::Publish { who, name, lasts } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            let mut vetted = published(w, seen, session);
            vetted.publication.facts.name = format!("name-{name}").parse().unwrap();
            vetted.publication.facts.lifetime = lifetime(lasts);
            request(w, seen, session, Ask::Publish(vec![Ok(vetted)]));
        }
        Step::PublishPart { who, name, total, follow, refused, lasts } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            let begun = seen.parts.get(&session).copied().filter(|_| follow);
            let (name, total, first) = begun.filter(|(_, t, f)| f < t).unwrap_or((name, total, 0));
            seen.parts.insert(session, (name, total, first + 1));
            let part = part(&format!("set-{name}"), total, first);
            let item = match refused {
                true => Err(Refusal::new(Code::NotGpuMemory)),
                false => {
                    let mut vetted = published(w, seen, session);
                    // One that differs from the part before it is refused.
                    vetted.publication.facts.lifetime = lifetime(lasts);
                    Ok(vetted)
                }
            };
            request(w, seen, session, Ask::PublishSet(part, vec![item]));
        }
        Step::AcquireSet { who, name, wait } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            let (wanted, until) = (wanted_set(&format!("set-{name}"), 0), until(w, wait));
            request(w, seen, session, Ask::AcquireSet { wanted, until });
        }
        Step::Timeline { who } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            let mut vetted = published(w, seen, session);
            vetted.publication.facts.kind = Kind::Timeline;
            request(w, seen, session, Ask::Publish(vec![Ok(vetted)]));
        }
        Step::Ordered { who, which, seats } => {
            let (Some(session), Some(timeline)) = (pick(&seen.sessions, who), pick(&seen.buffers, which))
            else {
                return;
            };
            let mut vetted = published(w, seen, session);
            vetted.publication.facts.order =
                Some(Order { timeline, ready_word: 0, value: 1, first_seat_word: 1, seats });
            request(w, seen, session, Ask::Publish(vec![Ok(vetted)]));
        }
        Step::Acquire { who, name, wait } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            let items = vec![named(&format!("name-{name}"), 0), named("name-0", 0)];
            let until = until(w, wait);
            request(w, seen, session, Ask::Acquire { items, until, device: None });
        }
        Step::AcquireId { who, which, wait } => {
            let (Some(session), Some(id)) = (pick(&seen.sessions, who), pick(&seen.buffers, which)) else {
                return;
            };
            let until = until(w, wait);
            request(w, seen, session, Ask::Acquire { items: vec![by_id(id)], until, device: None });
        }
        Step::Release { who, which } => {
            let (Some(session), Some((_, lease))) = (pick(&seen.sessions, who), pick(&seen.leases, which))
            else {
                return;
            };
            request(w, seen, session, Ask::Release(vec![lease]));
        }
        Step::Retire { who, which, wait } => {
            let (Some(session), Some(id)) = (pick(&seen.sessions, who), pick(&seen.buffers, which)) else {
                return;
            };
            let until = until(w, wait);
            request(w, seen, session, Ask::Retire { id, until });
        }
        Step::Watch { who } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            seen.watches.insert((session, w.next + 1));
            let (_, sent) = w.ask(session, Ask::Watch);
            seen.observe(&sent);
        }
        Step::Cancel { who, which } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            let open: Vec<RequestId> = seen.unanswered.union(&seen.watches).map(|(_, r)| *r).collect();
            let Some(target) = pick(&open, which) else { return };
            let (_, sent) = w.ask(session, Ask::Cancel(target));
            seen.observe(&sent);
        }
        Step::End { who, died } => {
            let Some(session) = pick(&seen.sessions, who) else { return };
            seen.forget(session);
            let reason = if died { EndReason::OwnerDied } else { EndReason::OwnerClosed };
            let lasting = lasting(w);
            let sent = w.tell(Input::SessionEnded(session, reason));
            seen.observe(&sent);
            assert_eq!(self::lasting(w), lasting, "what outlives a process does");
        }
        Step::Pass { millis } => {
            let sent = w.pass(Duration::from_millis(millis));
            seen.observe(&sent);
        }
        Step::Leave { member } => {
            for session in seen.sessions.clone() {
                if seen.member[&session] == member {
                    seen.forget(session);
                }
            }
            let sent = w.tell(Input::MemberLeft(MemberId(member)));
            // Sessions of the member that had not been ended yet hear of each other's end.
            let rest: Vec<_> = sent.into_iter().filter(|(s, _)| seen.member[s] != member).collect();
            seen.observe(&rest);
        }
    }
}

const fn lifetime(lasts: bool) -> Lifetime {
    if lasts { Lifetime::Pod } else { Lifetime::Process }
}

/// What takes leases and outlives its process.
pub(super) fn lasting(w: &World) -> BTreeSet<BufferId> {
    let live = w.registry.buffers.iter().filter(|(_, b)| b.lasts() && b.carrier.is_some());
    live.map(|(id, _)| *id).collect()
}

/// Something to publish, of which the observer knows.
fn published(w: &mut World, seen: &mut Seen, session: SessionId) -> Vetted {
    let vetted = w.vetted("name-0", descriptor());
    seen.group.insert(vetted.id, group_of(seen.member[&session]));
    seen.buffers.push(vetted.id);
    seen.brought += 1;
    vetted
}

pub(super) fn request(w: &mut World, seen: &mut Seen, session: SessionId, ask: Ask) {
    seen.unanswered.insert((session, w.next + 1));
    let (_, sent) = w.ask(session, ask);
    seen.observe(&sent);
}

/// A policy by which buffers may outlive their processes, and those that lease what is over are killed.
pub(super) fn granting() -> Policy {
    Policy { pod_lifetime_bytes: 1_000, orphans: Orphans::Kill, ..Policy::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_rules(steps in prop::collection::vec(step(), 1..60)) {
        let mut w = World::new(granting());
        let mut seen = Seen::default();
        for step in &steps {
            play(&mut w, &mut seen, step);
            check(&w);
        }
        // Time passes: every wait is answered.
        let sent = w.pass(Duration::from_secs(3600));
        seen.observe(&sent);
        prop_assert!(seen.unanswered.is_empty(), "{:?}", seen.unanswered);
        // Everybody goes: nothing is left, and everything was closed exactly once.
        for member in 0..3 {
            play(&mut w, &mut seen, &Step::Leave { member });
        }
        check(&w);
        prop_assert_eq!(w.registry.counts(), (0, 0, 0));
        prop_assert_eq!(w.disposed, seen.brought);
        prop_assert!(w.registry.groups.is_empty() && w.registry.deadlines.is_empty());
        prop_assert_eq!(w.registry.seated().count(), 0);
        prop_assert_eq!(w.registry.next_deadline(), None);
    }
}
