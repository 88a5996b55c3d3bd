use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::socket::SeqPacket;
use tokio::time::timeout;

use super::*;

const LIMIT: usize = 64;

fn packet(descriptors: usize) -> Outgoing {
    let null: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
    Outgoing { bytes: vec![7; 300], descriptors: vec![null; descriptors] }
}

fn line(of_member: &Rc<InFlight>) -> (Rc<Line>, SeqPacket) {
    let (ours, theirs) = SeqPacket::pair().unwrap();
    (Line::new(AsyncSeqPacket::new(ours).unwrap(), of_member), theirs)
}

fn read(peer: &SeqPacket) {
    assert!(matches!(
        peer.try_recv(&mut RecvBuffer::new()).unwrap(),
        gpu_handoff_protocol::socket::Received::Frame(_)
    ));
}

#[test]
fn the_limit_follows_what_the_daemon_may_have_open() {
    assert_eq!(limit(65_536), 1_024);
    assert_eq!(limit(4_096), 256);
    assert_eq!(limit(256), MESSAGE_DESCRIPTORS);
}

#[tokio::test]
async fn a_process_that_does_not_read_fills_its_members_share_and_no_more() {
    let of_member = InFlight::new(LIMIT);
    let (deaf, deaf_peer) = line(&of_member);
    let (good, good_peer) = line(&of_member);
    for sent in 0..LIMIT {
        assert!(of_member.check(0).is_ok(), "{sent}");
        assert!(deaf.try_send(&packet(1)).unwrap(), "{sent}");
    }
    assert!(!deaf.try_send(&packet(1)).unwrap());
    assert!(!good.try_send(&packet(1)).unwrap());
    assert!(good.try_send(&packet(0)).unwrap(), "what has no descriptors passes");
    let refusal = of_member.check(0).unwrap_err();
    assert_eq!(refusal.code(), Code::QuotaInFlight);
    assert_eq!(refusal.compared()[0].found, LIMIT.to_string());
    // Another member is not concerned.
    let (other, _other_peer) = line(&InFlight::new(LIMIT));
    assert!(other.try_send(&packet(1)).unwrap());
    // Half of it is read: at least an eighth is seen to be, and all of it when all is.
    (0..LIMIT / 2).for_each(|_| read(&deaf_peer));
    assert!(good.try_send(&packet(LIMIT / 8)).unwrap());
    (0..LIMIT / 2).for_each(|_| read(&deaf_peer));
    (0..2).for_each(|_| read(&good_peer));
    assert!(good.try_send(&packet(LIMIT)).unwrap());
    // What waits counts as well.
    read(&good_peer);
    assert!(of_member.check(LIMIT - 1).is_ok());
    assert_eq!(of_member.check(LIMIT).unwrap_err().code(), Code::QuotaInFlight);
}

#[tokio::test]
async fn whoever_waits_for_room_gets_it_and_who_gives_up_leaves_none_taken() {
    let of_member = InFlight::new(LIMIT);
    let (first, first_peer) = line(&of_member);
    let (second, second_peer) = line(&of_member);
    assert!(first.try_send(&packet(LIMIT)).unwrap());
    let given_up = timeout(limits::IN_FLIGHT_PAUSE * 2, second.send(&packet(LIMIT))).await;
    assert!(given_up.is_err(), "it was sent");
    let (large, freeing) = (packet(LIMIT), async { read(&first_peer) });
    let (sent, ()) = tokio::join!(second.send(&large), freeing);
    sent.unwrap();
    read(&second_peer);
    assert!(first.try_send(&large).unwrap());
}

#[tokio::test]
async fn what_is_unread_on_a_connection_that_is_over_counts_until_its_other_end_is_gone() {
    let of_member = InFlight::new(LIMIT);
    let (over, over_peer) = line(&of_member);
    let (other, _other_peer) = line(&of_member);
    assert!(over.try_send(&packet(LIMIT)).unwrap());
    over.end();
    assert!(!other.try_send(&packet(1)).unwrap());
    assert!(timeout(limits::IN_FLIGHT_PAUSE * 2, over.is_read()).await.is_err());
    drop(over_peer);
    over.is_read().await;
    assert!(other.try_send(&packet(LIMIT)).unwrap());
    // One that is dropped counts no more.
    drop(other);
    let (another, _another_peer) = line(&of_member);
    assert!(another.try_send(&packet(LIMIT)).unwrap());
}
