//! Random histories with restarts: the daemon is killed at any moment, and sidecars and processes come back in any order,
//! in part, or never.

use std::collections::{BTreeSet, HashMap};

use gpu_handoff_protocol::receipt::{ReceiptBody, Subject};
use proptest::prelude::*;

use super::histories::{Seen, Step, granting, lasting, pick, play, step};
use super::restarts::{bare, buffer_receipt, lease_receipt, with_memory};
use super::rules::check;
use super::*;
use crate::limits;

#[derive(Debug, Clone)]
enum Event {
    /// Something ordinary.
    Usual(Step),
    Kill,
    /// The same, and one process dies before the next daemon is there.
    KillBoth {
        who: usize,
    },
    /// The memory of a buffer has come, said to be a member's, and is being checked.
    Check {
        member: u32,
        which: usize,
    },
    /// A sidecar offers what it keeps, from the `from`-th on, and says so.
    Offer {
        member: u32,
        from: usize,
    },
    /// A process that was connected before comes back and claims from its `from`-th receipt on, last first if `back`.
    Return {
        who: usize,
        from: usize,
        back: bool,
    },
    /// A process that is waited for dies.
    Die {
        who: usize,
    },
    /// A process shows a receipt, most likely one that is not its own or of something that has ended.
    Show {
        who: usize,
        which: usize,
    },
    /// So does a sidecar.
    ShowOffer {
        member: u32,
        which: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let (member, which) = (0_u32..3, 0_usize..32);
    prop_oneof![
        12 => step().prop_map(Event::Usual),
        2 => Just(Event::Kill),
        1 => (0_usize..8).prop_map(|who| Event::KillBoth { who }),
        2 => (member.clone(), which.clone()).prop_map(|(member, which)| Event::Check { member, which }),
        3 => (member.clone(), 0_usize..3).prop_map(|(member, from)| Event::Offer { member, from }),
        4 => (0_usize..8, 0_usize..3, any::<bool>()).prop_map(|(who, from, back)| Event::Return { who, from, back }),
        1 => (0_usize..8).prop_map(|who| Event::Die { who }),
        2 => (0_usize..8, which.clone()).prop_map(|(who, which)| Event::Show { who, which }),
        1 => (member, which).prop_map(|(member, which)| Event::ShowOffer { member, which }),
    ]
}

/// A process, as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Person {
    member: u32,
    key: ProcessKey,
}

/// What happens, and what everybody has in hand.
struct Play {
    w: World,
    seen: Seen,
    /// Every receipt that was ever given to a process.
    given: HashMap<Person, Vec<ReceiptBody>>,
    /// Who is connected.
    connected: HashMap<SessionId, Person>,
    /// Who was when the daemon was killed.
    away: Vec<Person>,
    /// What was alive after the last event, and what ever was.
    alive: BTreeSet<String>,
    ever: BTreeSet<String>,
}

impl Play {
    fn new() -> Self {
        Self {
            w: World::new(granting()),
            seen: Seen::default(),
            given: HashMap::new(),
            connected: HashMap::new(),
            away: Vec::new(),
            alive: BTreeSet::new(),
            ever: BTreeSet::new(),
        }
    }

    fn play(&mut self, event: &Event) {
        match event {
            Event::Usual(step) => play(&mut self.w, &mut self.seen, step),
            Event::Kill => self.kill(),
            Event::KillBoth { who } => self.kill_both(*who),
            Event::Check { member, which } => {
                let Some(receipt) = self.any_receipt(*which) else { return };
                if let Subject::Buffer(buffer) = receipt.subject {
                    self.w.tell(Input::Checking(MemberId(*member), vec![buffer.info.id]));
                }
            }
            Event::Offer { member, from } => self.offer(*member, *from),
            Event::Return { who, from, back } => {
                if let Some(person) = pick(&self.away, *who) {
                    self.away.retain(|p| *p != person);
                    self.come_back(person, *from, *back);
                }
            }
            Event::Die { who } => {
                let holders: BTreeSet<SessionId> = self.w.told.awaited.keys().copied().collect();
                let Some(holder) = pick(&holders.into_iter().collect::<Vec<_>>(), *who) else { return };
                let key = self.w.told.awaited[&holder];
                self.away.retain(|p| p.key != key);
                let sent = self.w.tell(Input::SessionEnded(holder, EndReason::OwnerDied));
                self.seen.observe(&sent);
            }
            Event::Show { who, which } => self.show(*who, *which),
            Event::ShowOffer { member, which } => {
                let Some(receipt) = self.any_receipt(*which) else { return };
                self.tell_offer(*member, vec![receipt.clone()]);
                self.nothing_dead_came_back(&receipt);
            }
        }
        self.collect();
        check(&self.w);
        self.alive = self.live();
        self.ever.extend(self.alive.iter().cloned());
    }

    /// Whom the registry knows, and the receipts that they have been given by now.
    fn collect(&mut self) {
        for session in &self.seen.sessions {
            if let Some(s) = self.w.registry.sessions.get(session) {
                let person = Person { member: s.facts.member.0, key: s.facts.process };
                self.connected.insert(*session, person);
            }
        }
        let sessions = &self.w.registry.sessions;
        self.connected.retain(|session, _| sessions.contains_key(session));
        for (session, person) in &self.connected {
            let s = &sessions[session];
            let kept = |id: &&BufferId| self.w.told.kept[&MemberId(person.member)].contains_key(id);
            let lasting = &self.w.registry.members[&MemberId(person.member)].lasting;
            let of_it = |id: &BufferId| lasting.publisher(*id).is_some_and(|p| p.process == person.key);
            let lasting: Vec<BufferId> = lasting.ids().filter(of_it).collect();
            let buffers: Vec<_> = s
                .published
                .iter()
                .chain(&lasting)
                .filter(kept)
                .map(|id| buffer_receipt(&self.w, person.member, *id))
                .collect();
            let leases = s.leases.iter().map(|lease| {
                let info = Arc::clone(&self.w.registry.buffers[&self.w.registry.leases[lease]].info);
                let carrier = Carrier::Legacy([0; 64]);
                let (receipt, seat) = (None, None);
                let grant =
                    Grant { lease: *lease, buffer: info, carrier, rewrite_pid_word: false, receipt, seat };
                lease_receipt(&self.w, person.member, person.key, &grant)
            });
            let mine = self.given.entry(*person).or_default();
            for receipt in buffers.into_iter().chain(leases) {
                if !mine.iter().any(|known| known.subject == receipt.subject) {
                    mine.push(receipt);
                }
            }
        }
    }

    fn kill(&mut self) {
        let before = self.w.alive.clone();
        self.kill_with(&[]);
        assert_eq!(self.w.alive.leases, before.leases, "a restart alone ends nothing");
    }

    /// Leases of the process that died are over at once, all others' are not.
    fn kill_both(&mut self, who: usize) {
        let everybody: Vec<Person> = self.connected.values().chain(&self.away).copied().collect();
        let everybody: BTreeSet<_> = everybody.into_iter().map(|p| (p.key.pid, p.key.started)).collect();
        let Some(dead) = pick(&everybody.into_iter().collect::<Vec<_>>(), who) else { return self.kill() };
        let mut left = self.w.alive.leases.clone();
        left.retain(|_, lease| (lease.process.pid, lease.process.started) != dead);
        let (pid, started) = dead;
        self.kill_with(&[ProcessKey { pid, started, pidfs_inode: None }]);
        self.away.retain(|p| (p.key.pid, p.key.started) != dead);
        assert_eq!(self.w.alive.leases, left);
    }

    fn kill_with(&mut self, dead: &[ProcessKey]) {
        self.away.extend(self.connected.drain().map(|(_, person)| person));
        self.seen.sessions.clear();
        self.seen.leases.clear();
        self.seen.unanswered.clear();
        self.seen.watches.clear();
        self.seen.brought = 0;
        let policy = self.w.registry.policy.clone();
        self.w.restart_without(policy, dead);
        assert_eq!(self.w.registry.counts(), (0, 0, 0), "nor does it bring anything back");
    }

    fn offer(&mut self, member: u32, from: usize) {
        if !self.w.registry.members.contains_key(&MemberId(member)) {
            return;
        }
        let kept = self.w.told.kept.get(&MemberId(member));
        let ids: BTreeSet<BufferId> = kept.iter().flat_map(|k| k.keys().copied()).collect();
        let receipts = ids.iter().skip(from).map(|id| buffer_receipt(&self.w, member, *id)).collect();
        self.tell_offer(member, receipts);
        let sent = self.w.tell(Input::OfferDone(MemberId(member)));
        self.seen.observe(&sent);
    }

    fn tell_offer(&mut self, member: u32, receipts: Vec<ReceiptBody>) {
        self.seen.brought += receipts.len();
        let items = receipts.iter().map(|r| Ok(with_memory(r))).collect();
        let sent = self.w.tell(Input::Offered(MemberId(member), 0, items));
        self.seen.observe(&sent);
    }

    /// A process connects again and claims what it had.
    fn come_back(&mut self, person: Person, from: usize, back: bool) -> Option<SessionId> {
        if !self.w.registry.members.contains_key(&MemberId(person.member)) {
            return None;
        }
        let session = self.w.open_as(person.member, 1, person.key);
        self.seen.sessions.push(session);
        self.seen.member.insert(session, person.member);
        self.connected.insert(session, person);
        let mut receipts: Vec<_> =
            self.given.get(&person).into_iter().flatten().skip(from).cloned().collect();
        if back {
            receipts.reverse();
        }
        for receipt in receipts {
            self.claim(session, &receipt);
        }
        Some(session)
    }

    fn claim(&mut self, session: SessionId, receipt: &ReceiptBody) {
        let memory = matches!(receipt.subject, Subject::Buffer(_));
        self.seen.brought += usize::from(memory);
        let shown = if memory { with_memory(receipt) } else { bare(receipt) };
        self.seen.unanswered.insert((session, self.w.next + 1));
        let (_, sent) = self.w.ask(session, Ask::Reattach(vec![Ok(shown)]));
        for (to, message) in &sent {
            if let (true, BrokerBody::Reattached(items)) = (*to == session, &message.body) {
                let own = self.w.registry.sessions[&session].facts.process == receipt.process;
                assert!(own || items[0].is_err(), "rights belong to their process");
            }
        }
        self.seen.observe(&sent);
        self.nothing_dead_came_back(receipt);
    }

    fn show(&mut self, who: usize, which: usize) {
        let (Some(session), Some(receipt)) = (pick(&self.seen.sessions, who), self.any_receipt(which)) else {
            return;
        };
        self.claim(session, &receipt);
    }

    fn any_receipt(&self, which: usize) -> Option<ReceiptBody> {
        let mut all: Vec<&ReceiptBody> = self.given.values().flatten().collect();
        all.sort_by_key(|r| format!("{:?}", r.subject));
        (!all.is_empty()).then(|| all[which % all.len()].clone())
    }

    /// Everything that the journal holds alive, buffers and leases.
    fn live(&self) -> BTreeSet<String> {
        let buffers = self.w.alive.buffers.keys().map(ToString::to_string);
        buffers.chain(self.w.alive.leases.keys().map(ToString::to_string)).collect()
    }

    /// What is alive now was so before, or never was: leases may be given to those that waited.
    fn nothing_dead_came_back(&self, shown: &ReceiptBody) {
        let came: Vec<String> = self.live().difference(&self.alive).cloned().collect();
        assert!(came.iter().all(|one| !self.ever.contains(one)), "{came:?} came back by {shown:?}");
    }

    /// What each process has, as the registry sees it.
    fn belongings(&self) -> HashMap<ProcessKey, BTreeSet<String>> {
        let mut all: HashMap<ProcessKey, BTreeSet<String>> = HashMap::new();
        for s in self.w.registry.sessions.values() {
            let live = s.published.iter().filter(|id| self.w.registry.buffers[*id].carrier.is_some());
            let mine = live.map(ToString::to_string).chain(s.leases.iter().map(ToString::to_string));
            all.entry(s.facts.process).or_default().extend(mine);
        }
        all.retain(|_, mine| !mine.is_empty());
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whoever comes back, in part, late or never, and whatever they show: the rules hold, and nothing dead comes back.
    #[test]
    fn the_rules_hold_through_restarts(events in prop::collection::vec(event(), 1..70)) {
        let mut p = Play::new();
        for event in &events {
            p.play(event);
        }
        let sent = p.w.pass(Duration::from_secs(3600));
        p.seen.observe(&sent);
        check(&p.w);
        prop_assert!(p.seen.unanswered.is_empty(), "{:?}", p.seen.unanswered);
        prop_assert!(p.w.registry.expected.is_over() && p.w.told.awaited.is_empty());
        for member in 0..3 {
            p.play(&Event::Usual(Step::Leave { member }));
        }
        prop_assert_eq!(p.w.registry.counts(), (0, 0, 0));
        prop_assert_eq!(p.w.disposed, p.seen.brought, "each descriptor is closed once");
        prop_assert!(p.w.alive.buffers.is_empty() && p.w.alive.leases.is_empty());
        prop_assert_eq!(p.w.registry.next_deadline(), None);
    }

    /// Everybody comes back in time, in any order, and strangers try their luck: all is as before.
    #[test]
    fn nothing_alive_is_lost_when_everybody_comes_back(
        history in prop::collection::vec(step(), 1..60),
        kills in 1_usize..4,
        order in any::<prop::sample::Index>(),
        sidecars_first in any::<bool>(),
        attempts in prop::collection::vec((0_usize..8, 0_usize..32), 0..4),
    ) {
        let mut p = Play::new();
        for step in &history {
            p.play(&Event::Usual(step.clone()));
        }
        let (before, lasted) = (p.belongings(), lasting(&p.w));
        for _ in 0..kills {
            p.play(&Event::Kill);
        }
        p.w.pass(limits::REATTACH_TIME - Duration::from_millis(1));
        if sidecars_first {
            (0..3).for_each(|member| p.play(&Event::Offer { member, from: 0 }));
        }
        let first = order.index(8);
        for n in 0.. {
            let Some(person) = pick(&p.away, first + n) else { break };
            p.away.retain(|other| *other != person);
            p.come_back(person, 0, n % 2 == 0);
            p.collect();
            check(&p.w);
            for (who, which) in &attempts {
                p.play(&Event::Show { who: *who, which: *which });
            }
        }
        (0..3).for_each(|member| p.play(&Event::Offer { member, from: 0 }));
        prop_assert_eq!(&before, &p.belongings());
        let sent = p.w.pass(Duration::from_secs(3600));
        p.seen.observe(&sent);
        check(&p.w);
        prop_assert_eq!(before, p.belongings(), "and it stays");
        prop_assert_eq!(lasted, lasting(&p.w), "whoever published it");
    }
}
