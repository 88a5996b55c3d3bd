//! What is announced to a lane: it stays awake for that, for a moment, instead of sleeping until it comes. One thread serves all of
//! the member's sessions, so they take one place among those that are awake. And it may stay awake again only when something
//! has come that was announced: whatever else its processes ask for keeps no processor busy.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gpu_handoff_protocol::BufferName;
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, Publication, RequestId};
use tokio::sync::Notify;

use crate::awake::{self, Awake, Room};

/// Whether the lane's thread sleeps.
#[derive(Debug)]
pub(super) struct Vigil {
    awake: Awake,
    begun: Notify,
}

impl Vigil {
    /// It does.
    pub(super) fn new(room: Room) -> Self {
        Self { awake: Awake::new(room), begun: Notify::new() }
    }

    fn begin(&self) {
        self.awake.begin();
        self.begun.notify_one();
    }

    /// Keeps the thread from sleeping while it is to be awake.
    pub(super) async fn keep(&self) {
        loop {
            while self.awake.is_on() {
                tokio::task::yield_now().await;
                awake::give_way();
            }
            self.begun.notified().await;
        }
    }
}

/// What was announced to the lane by one session, or to the session, last.
#[derive(Debug)]
pub(super) struct Announced {
    vigil: Rc<Vigil>,
    /// What its process is about to publish.
    names: RefCell<Vec<BufferName>>,
    /// The request that publishes some of it; 0: none.
    publish: Cell<RequestId>,
    /// The request that waits for what another is about to publish; 0: none.
    acquire: Cell<RequestId>,
}

impl Announced {
    pub(super) fn new(vigil: Rc<Vigil>) -> Self {
        Self { vigil, names: RefCell::default(), publish: Cell::new(0), acquire: Cell::new(0) }
    }

    /// The process says that it is about to publish under these names.
    pub(super) fn by_process(&self, names: &[BufferName]) {
        self.names.replace(names.to_vec());
        self.vigil.begin();
    }

    /// The process publishes.
    pub(super) fn publishes(&self, request: RequestId, items: &[Publication]) {
        let mut names = self.names.borrow_mut();
        if items.iter().any(|item| names.contains(&item.facts.name)) {
            names.clear();
            self.publish.set(request);
        }
    }

    /// The process is told something.
    pub(super) fn tells(&self, message: &BrokerMessage) {
        let has_come = match &message.body {
            BrokerBody::Announced => {
                self.acquire.set(message.request);
                return self.vigil.begin();
            }
            BrokerBody::Published(outcomes) => {
                is_answered(&self.publish, message.request) && outcomes.iter().any(Result::is_ok)
            }
            BrokerBody::Acquired(outcomes) => {
                is_answered(&self.acquire, message.request) && outcomes.iter().any(Result::is_ok)
            }
            _ => false,
        };
        if has_come {
            self.vigil.awake.end();
        }
    }
}

/// Whether this is the request that is looked out for, which it is no more then.
fn is_answered(request: &Cell<RequestId>, answered: RequestId) -> bool {
    let is_it = request.get() == answered && answered != 0;
    if is_it {
        request.set(0);
    }
    is_it
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpu_handoff_protocol::message::{Carrier, Grant, PublishedAs};
    use gpu_handoff_protocol::{
        Access, BootTag, BufferFacts, BufferId, BufferInfo, Code, DeviceUuid, Kind, LeaseId, Lifetime,
        Metadata, PodRef, Refusal,
    };

    use super::*;

    fn session(vigil: &Rc<Vigil>) -> Announced {
        Announced::new(Rc::clone(vigil))
    }

    fn vigil(room: &Room) -> Rc<Vigil> {
        Rc::new(Vigil::new(room.clone()))
    }

    fn name(text: &str) -> BufferName {
        text.parse().unwrap()
    }

    fn publication(named: &str) -> Publication {
        let facts = BufferFacts {
            name: name(named),
            kind: Kind::Legacy,
            device: DeviceUuid::from_bytes([1; 16]),
            offset: 0,
            size: 1,
            allocation_size: 1,
            access: Access::ReadWrite,
            lifetime: Lifetime::Process,
            metadata: Metadata::default(),
            order: None,
        };
        Publication { facts, carrier: Carrier::Legacy([0; 64]) }
    }

    fn grant() -> Grant {
        let id = BufferId { boot: BootTag(1), random: 1 };
        let owner = PodRef { namespace: "ml".parse().unwrap(), name: "pod".parse().unwrap() };
        let Publication { facts, carrier } = publication("weights");
        let buffer = Arc::new(BufferInfo { id, generation: 1, owner, verified: false, facts, set: None });
        Grant { lease: LeaseId(1), buffer, carrier, rewrite_pid_word: false, receipt: None, seat: None }
    }

    fn published(request: RequestId) -> BrokerMessage {
        let id = BufferId { boot: BootTag(1), random: 1 };
        let outcome = PublishedAs { id, generation: 1, receipt: None, checked: None };
        BrokerMessage { request, body: BrokerBody::Published(vec![Ok(outcome)]) }
    }

    fn refused(request: RequestId, body: fn(Refusal) -> BrokerBody) -> BrokerMessage {
        BrokerMessage { request, body: body(Refusal::new(Code::NotFound)) }
    }

    /// Its time is over.
    fn sleeps(vigil: &Vigil) {
        while vigil.awake.is_on() {
            awake::give_way();
        }
    }

    #[test]
    fn only_what_was_announced_lets_a_lane_be_awake_again() {
        let vigil = vigil(&Room::new(1));
        let (publisher, waiter) = (session(&vigil), session(&vigil));
        let is_awake_again = || {
            publisher.by_process(&[name("other"), name("weights")]);
            vigil.awake.is_on()
        };
        assert!(is_awake_again());
        sleeps(&vigil);
        assert!(!is_awake_again());
        // What anybody can have answered as often as he likes.
        waiter.tells(&published(1));
        waiter.tells(&refused(2, |refusal| BrokerBody::Acquired(vec![Err(refusal)])));
        publisher.publishes(3, &[publication("never-announced")]);
        publisher.tells(&published(3));
        publisher.publishes(4, &[publication("weights")]);
        publisher.tells(&refused(4, |refusal| BrokerBody::Published(vec![Err(refusal)])));
        publisher.tells(&published(4));
        assert!(!is_awake_again());
        // What was announced has come.
        publisher.publishes(5, &[publication("never-announced"), publication("weights")]);
        publisher.tells(&published(5));
        assert!(!vigil.awake.is_on());
        assert!(is_awake_again());
    }

    #[test]
    fn an_announced_wait_lets_a_lane_be_awake_again_when_it_is_granted_alone() {
        let vigil = vigil(&Room::new(1));
        let waiter = session(&vigil);
        let announced = |request| {
            waiter.tells(&BrokerMessage { request, body: BrokerBody::Announced });
            vigil.awake.is_on()
        };
        let acquired = |request, outcomes| {
            waiter.tells(&BrokerMessage { request, body: BrokerBody::Acquired(outcomes) });
        };
        let granted = || Ok(grant());
        assert!(announced(7));
        sleeps(&vigil);
        acquired(6, vec![granted()]);
        acquired(7, vec![Err(Refusal::new(Code::WaitTimeout))]);
        assert!(!announced(8));
        acquired(8, vec![Err(Refusal::new(Code::NoSeat)), granted()]);
        assert!(announced(9));
    }

    #[test]
    fn all_sessions_of_a_lane_take_one_place() {
        let room = Room::new(2);
        let [one, another, third] = [(); 3].map(|()| vigil(&room));
        for session in [session(&one), session(&one), session(&one)] {
            session.by_process(&[name("weights")]);
            session.tells(&BrokerMessage { request: 1, body: BrokerBody::Announced });
        }
        assert!(one.awake.is_on());
        session(&another).by_process(&[name("weights")]);
        session(&third).by_process(&[name("weights")]);
        assert_eq!((another.awake.is_on(), third.awake.is_on()), (true, false));
    }
}
