//! One input may concern very many buffers, and each of them several sessions: what is said to one of them becomes one
//! command, so that no lane's queue overflows because of what somebody else does, or because somebody else has ended.

use crate::registry::{Effect, MemberId, SessionId};

/// Where an effect stands among those that it may change places with.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Note,
    Dispose,
    /// What a sidecar is to keep and to forget, in that order; before whatever is said of it.
    Sidecar(MemberId),
    Send(SessionId),
}

/// `None`: it stays between what is before and what is after it.
const fn place(effect: &Effect) -> Option<Place> {
    match effect {
        Effect::Note(_) | Effect::Overstays(_) => Some(Place::Note),
        Effect::Dispose(..) => Some(Place::Dispose),
        Effect::Keep(member, _) | Effect::Forget(member, ..) => Some(Place::Sidecar(*member)),
        Effect::Send(session, _) => Some(Place::Send(*session)),
        Effect::EndSession(_) | Effect::Offered(..) | Effect::AwaitEnd(..) | Effect::AwaitNoMore(..) => None,
    }
}

/// Brings together what is for the same session or sidecar, in its order. Nobody is promised an order among what is said to
/// different processes, or of that and what is closed.
pub(super) fn by_addressee(effects: &mut [Effect]) {
    if effects.len() < 3 {
        return; // As most are: there is nothing that would stand between.
    }
    for run in effects.chunk_by_mut(|one, next| place(one).is_some() && place(next).is_some()) {
        run.sort_by_key(place);
    }
}

#[cfg(test)]
mod tests {
    use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage};

    use super::*;

    #[test]
    fn each_hears_all_of_its_own_in_order_and_nothing_passes_what_stands_between() {
        let send = |to: u64, request| {
            Effect::Send(SessionId(to), BrokerMessage { request, body: BrokerBody::Cancelled })
        };
        let end = || Effect::EndSession(SessionId(1));
        let mut effects = vec![send(2, 1), send(1, 2), send(2, 3), end(), send(2, 4), send(1, 5)];
        by_addressee(&mut effects);
        let told: Vec<(u64, u64)> = effects
            .iter()
            .map(|effect| match effect {
                Effect::Send(to, message) => (to.0, message.request),
                _ => (0, 0),
            })
            .collect();
        assert_eq!(told, [(1, 2), (2, 1), (2, 3), (0, 0), (1, 5), (2, 4)]);
    }
}
