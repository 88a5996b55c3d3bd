use gpu_handoff_protocol::socket::SeqPacket;

use super::*;
use crate::closer::testing::{LINGER, is_closed, send_late};

fn member(slot: &str, uid: &str) -> Member {
    let text = format!(
        r#"{{"slot":"{slot}","pod":{{"namespace":"n","name":"p"}},"uid":"{uid}","group":{{"namespace":"n","name":"g"}},"containers":[]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn join(slots: &mut Slots, member: Member) -> (bool, Result<PathBuf, JoinError>) {
    let (asker, answer) = oneshot::channel();
    let word = slots.apply(Change::Join(member, asker));
    (word.is_some(), answer.blocking_recv().unwrap())
}

#[test]
fn a_slot_comes_once_and_goes_with_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), limits::MEMBERS, Policy::default());
    let (told, made) = join(&mut slots, member("p-1", "u"));
    let socket = made.unwrap().join("slot.sock");
    assert!(told && socket.exists());
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    // Asked again, it is there; another pod does not get it.
    assert!(matches!(join(&mut slots, member("p-1", "u")), (false, Ok(_))));
    assert!(matches!(join(&mut slots, member("p-1", "other")), (false, Err(JoinError::Taken { .. }))));
    let (asker, answer) = oneshot::channel();
    assert!(slots.apply(Change::Leave("p-1".parse().unwrap(), asker)).is_some());
    answer.blocking_recv().unwrap();
    assert!(!socket.exists() && !folder.path().join("slots/p-1").exists());
    // One that is not there can leave as often as it likes.
    let (asker, answer) = oneshot::channel();
    assert!(slots.apply(Change::Leave("p-1".parse().unwrap(), asker)).is_none());
    answer.blocking_recv().unwrap();
}

#[test]
fn a_full_node_takes_nobody_more_until_one_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), 2, Policy::default());
    for slot in ["p-1", "p-2"] {
        assert!(join(&mut slots, member(slot, slot)).1.is_ok());
    }
    let (told, refused) = join(&mut slots, member("p-3", "p-3"));
    let why = refused.unwrap_err().to_string();
    assert!(!told && why.starts_with("all 2 slots of this node are taken"), "{why}");
    assert!(!folder.path().join("slots/p-3").exists());
    // Who has one keeps it.
    assert!(matches!(join(&mut slots, member("p-1", "p-1")), (false, Ok(_))));
    let (asker, _answer) = oneshot::channel();
    slots.apply(Change::Leave("p-1".parse().unwrap(), asker));
    assert!(matches!(join(&mut slots, member("p-3", "p-3")), (true, Ok(_))));
}

#[test]
fn a_broker_that_begins_later_is_told_what_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), limits::MEMBERS, Policy::default());
    assert!(join(&mut slots, member("p-1", "u")).1.is_ok());
    let id: ContainerId = "a".repeat(64).parse().unwrap();
    let slot: SlotId = "p-1".parse().unwrap();
    let now = Instant::now();
    assert!(slots.apply(Change::Containers(slot.clone(), BTreeSet::from([id.clone()]))).is_some());
    assert!(slots.apply(Change::Ending(slot, now + std::time::Duration::from_secs(30))).is_some());
    let (members, beside) = slots.first_words(now);
    let [(FromNode::Member(told), sockets)] = &members[..] else { panic!("{members:?}") };
    assert_eq!((told.containers.as_ref().map(BTreeSet::len), sockets.len()), (Some(1), 1));
    assert!(matches!(&beside[..], [(FromNode::Ending { within_ms: 30_000, .. }, _)]), "{beside:?}");
    assert!(slots.apply(Change::Containers("p-2".parse().unwrap(), BTreeSet::new())).is_none());
}

#[test]
fn what_a_broker_says_it_does_not_serve_is_seen_until_it_does_or_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), limits::MEMBERS, Policy::default());
    let seen = slots.seen();
    let why = |slot: &str| seen.borrow()[&slot.parse().unwrap()].unserved.clone();
    let [one, other] = ["p-1", "p-2"].map(|slot| slot.parse::<SlotId>().unwrap());
    for slot in ["p-1", "p-2"] {
        assert!(join(&mut slots, member(slot, slot)).1.is_ok());
    }
    slots.are_served(true);
    let refusal = Refusal::new(gpu_handoff_protocol::Code::BrokerUnavailable);
    slots.is_unserved(&one, Some(refusal.clone()));
    slots.is_unserved(&other, Some(refusal.clone()));
    slots.is_unserved(&"p-3".parse().unwrap(), Some(refusal.clone()));
    assert_eq!(
        (why("p-1"), why("p-2"), seen.borrow().len()),
        (Some(refusal.clone()), Some(refusal.clone()), 2)
    );
    slots.is_unserved(&one, None);
    assert_eq!((why("p-1"), why("p-2")), (None, Some(refusal)));
    // The next one may serve it.
    slots.are_served(false);
    assert_eq!(why("p-2"), None);
}

fn leave(slots: &mut Slots, slot: &str) {
    let begin = Instant::now();
    let (asker, answer) = oneshot::channel();
    assert!(slots.apply(Change::Leave(slot.parse().unwrap(), asker)).is_some());
    answer.blocking_recv().unwrap();
    assert!(begin.elapsed() < LINGER / 2, "{:?}", begin.elapsed());
}

#[test]
fn what_was_sent_to_a_slot_that_goes_is_closed_and_nobody_waits_for_that() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), limits::MEMBERS, Policy::default());
    for slot in ["p-0", "p-1", "p-2"] {
        let socket = join(&mut slots, member(slot, "u")).1.unwrap().join("slot.sock");
        let silent = send_late(&socket);
        leave(&mut slots, slot);
        assert!(SeqPacket::connect(&socket).is_err());
        is_closed(&silent);
    }
}

#[test]
fn slots_of_one_namespace_that_do_not_close_keep_no_other_open() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), limits::MEMBERS, Policy::default());
    let mut silent = Vec::new();
    for i in 0..limits::CLOSERS_OF_NAMESPACE + limits::UNCLOSED_OF_NAMESPACE {
        let slot = format!("p-{i}");
        let socket = join(&mut slots, member(&slot, "u")).1.unwrap().join("slot.sock");
        silent.push(send_late(&socket));
        leave(&mut slots, &slot);
    }
    let deadline = Instant::now() + LINGER / 2;
    while slots.closer.waiting_of(&"n".parse().unwrap()) < limits::UNCLOSED_OF_NAMESPACE {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let refused = join(&mut slots, member("p", "u")).1;
    assert!(matches!(refused, Err(JoinError::Unclosed { .. })), "{refused:?}");
    let mut other = member("other", "u");
    other.pod.namespace = "other".parse().unwrap();
    let socket = join(&mut slots, other).1.unwrap().join("slot.sock");
    let others = send_late(&socket);
    leave(&mut slots, "other");
    is_closed(&others);
    // What waits is closed when others are.
    silent.iter().for_each(is_closed);
    assert!(join(&mut slots, member("p", "u")).1.is_ok());
}

#[test]
fn slots_that_end_with_the_node_close_nothing_and_nobody_can_connect_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let (mut slots, _changes) = Slots::new(folder.path(), limits::MEMBERS, Policy::default());
    let socket = join(&mut slots, member("p-1", "u")).1.unwrap().join("slot.sock");
    let _silent = send_late(&socket);
    let begin = Instant::now();
    drop(slots);
    assert!(begin.elapsed() < LINGER / 2, "{:?}", begin.elapsed());
    assert!(SeqPacket::connect(&socket).is_err());
}
