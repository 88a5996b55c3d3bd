//! Sockets against each other and against the limits of the kernel.

use std::sync::Arc;

use super::*;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(10))
}

fn packet(bytes: usize, descriptors: usize) -> Outgoing {
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let shared = Arc::new(null);
    Outgoing { bytes: vec![7; bytes], descriptors: vec![shared; descriptors] }
}

#[test]
fn bytes_and_descriptors_arrive_together() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(&packet(5, 3), soon()).unwrap();
    let frame = b.recv(&mut RecvBuffer::new(), soon()).unwrap().unwrap();
    assert_eq!((frame.bytes.len(), frame.descriptors.len()), (5, 3));
    assert!(!frame.control_truncated && !frame.bytes_truncated);
}

#[test]
fn the_kernels_most_descriptors_are_received_and_owned() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(&packet(1, KERNEL_DESCRIPTORS), soon()).unwrap();
    let frame = b.recv(&mut RecvBuffer::new(), soon()).unwrap().unwrap();
    assert_eq!(frame.descriptors.len(), KERNEL_DESCRIPTORS);
    assert!(!frame.control_truncated);
}

#[test]
fn an_oversized_packet_is_marked() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(&packet(limits::MESSAGE_BYTES + 10, 0), soon()).unwrap();
    let frame = b.recv(&mut RecvBuffer::new(), soon()).unwrap().unwrap();
    assert!(frame.bytes_truncated);
}

#[test]
fn an_end_reaches_the_peer_though_copies_live() {
    let (a, b) = SeqPacket::pair().unwrap();
    let _copy = a.0.try_clone().unwrap();
    a.end();
    assert!(b.recv(&mut RecvBuffer::new(), soon()).unwrap().is_none());
}

#[test]
fn what_was_said_before_the_end_is_heard_though_our_own_words_were_not() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(&packet(5, 0), soon()).unwrap();
    b.send(&packet(7, 1), soon()).unwrap();
    b.end();
    drop(b);
    let mut buffer = RecvBuffer::new();
    let frame = a.recv(&mut buffer, soon()).unwrap().unwrap();
    assert_eq!((frame.bytes.len(), frame.descriptors.len()), (7, 1));
    assert!(a.recv(&mut buffer, soon()).unwrap().is_none());
}

#[test]
fn only_connected_seqpacket_sockets_pass_for_connections() {
    let (a, _b) = SeqPacket::pair().unwrap();
    assert!(SeqPacket::from_stranger(a.into_fd()).is_ok());
    let found = |fd: OwnedFd| SeqPacket::from_stranger(fd).unwrap_err().compared()[0].found.clone();
    assert_eq!(found(std::fs::File::open("/dev/null").unwrap().into()), "no socket");
    assert_eq!(
        found(std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        "a Unix socket of another type"
    );
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(found(tcp.into()), "a socket of another family");
    assert_eq!(found(new_socket().unwrap()), "a socket that is not connected");
    let dir = std::env::temp_dir().join(format!("gpu-handoff-socket-test-{}", std::process::id()));
    let listener = SeqListener::bind(&dir).unwrap();
    assert_eq!(found(listener.into_fd()), "a listening socket");
    std::fs::remove_file(dir).unwrap();
}

#[test]
fn waiting_ends_at_the_deadline() {
    let (_a, b) = SeqPacket::pair().unwrap();
    let error = b.recv(&mut RecvBuffer::new(), Some(Instant::now())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn a_socket_that_somebody_serves_is_not_taken_over() {
    let folder = std::env::temp_dir().join(format!("gpu-handoff-takeover-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("s");
    let kind = |bound: io::Result<SeqListener>| bound.map(drop).map_err(|e| e.kind());
    let listener = SeqListener::bind(&path).unwrap();
    assert_eq!(kind(SeqListener::bind(&path)), Err(io::ErrorKind::AddrInUse));
    drop(listener);
    assert_eq!(kind(SeqListener::bind(&path)), Ok(()), "a leftover is");
    std::fs::remove_file(&path).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_eq!(
        kind(SeqListener::bind(&path)),
        Err(io::ErrorKind::AddrInUse),
        "another type of socket is not"
    );
    drop(other);
    std::fs::remove_dir_all(folder).unwrap();
}
