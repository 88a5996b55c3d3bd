//! The node's side of a connection, played by the test itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, Event, Grant, RequestId, Welcome,
};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket};
use gpu_handoff_protocol::{
    BootTag, BufferInfo, GroupKey, Instance, LeaseId, PROTOCOL_VERSION, PodRef, Refusal, codec,
};
use rustix::event::PollFlags;
use std::os::fd::AsFd;

use super::{DEVICE, Pretender};
use crate::{Client, ClientBuilder, ClientError};

/// Longer than anything here takes; only a broken test waits so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn patience() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

pub(super) struct Fake {
    socket: SeqPacket,
    buffer: RecvBuffer,
}

impl Fake {
    /// What the client says next; `None`: it has ended the connection.
    pub(super) fn heard(&mut self) -> Option<ClientMessage> {
        let frame = self.socket.recv(&mut self.buffer, patience()).unwrap()?;
        Some(codec::decode_client(frame).unwrap())
    }

    /// Whether the client has said nothing more.
    pub(super) fn is_quiet(&mut self) -> bool {
        matches!(self.socket.try_recv(&mut self.buffer), Ok(gpu_handoff_protocol::socket::Received::Nothing))
    }

    pub(super) fn expect(&mut self) -> (RequestId, ClientBody) {
        let message = self.heard().expect("the client ended the connection");
        (message.request, message.body)
    }

    pub(super) fn say(&self, request: RequestId, body: BrokerBody) {
        for packet in codec::encode_broker(&BrokerMessage { request, body }) {
            match self.socket.send(&packet, patience()) {
                // The client has ended the connection and does not want to know.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return,
                sent => sent.unwrap(),
            }
        }
    }

    /// Says the first packet of an answer that takes several.
    pub(super) fn say_first_part(&self, request: RequestId, body: BrokerBody) {
        let packets = codec::encode_broker(&BrokerMessage { request, body });
        assert!(packets.len() > 1);
        self.socket.send(&packets[0], patience()).unwrap();
    }

    pub(super) fn notice(&self, event: Event) {
        self.say(0, BrokerBody::Event(event));
    }

    /// Sends bytes that are no message.
    pub(super) fn babble(&self) {
        let packet = codec::Outgoing { bytes: vec![0xff; 9], descriptors: Vec::new() };
        self.socket.send(&packet, patience()).unwrap();
    }

    pub(super) fn hang_up(&self) {
        self.socket.end();
    }

    /// Hears an acquire and gives these leases.
    pub(super) fn grant(&mut self, items: Vec<Result<Grant, Refusal>>) {
        let (request, body) = self.expect();
        assert!(matches!(body, ClientBody::Acquire { device: Some(DEVICE), .. }), "{body:?}");
        self.say(request, BrokerBody::Acquired(items));
    }

    /// Hears a release, says that it is well, and gives its leases.
    pub(super) fn hear_release(&mut self) -> Vec<u64> {
        let (request, body) = self.expect();
        let ClientBody::Release(leases) = body else { panic!("no release: {body:?}") };
        self.say(request, BrokerBody::Released(vec![Ok(()); leases.len()]));
        leases.into_iter().map(|lease| lease.0).collect()
    }
}

/// A listening socket in a folder of its own.
pub(super) struct Door {
    listener: SeqListener,
    pub(super) path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Door {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.sock");
        Self { listener: SeqListener::bind(&path).unwrap(), path, _folder: folder }
    }

    /// A client that does not connect again.
    pub(super) fn builder(&self) -> ClientBuilder {
        Client::builder().socket(&self.path).program("test").reconnect(Duration::ZERO)
    }

    pub(super) fn accept(&self) -> Fake {
        assert!(
            gpu_handoff_protocol::socket::wait(&[(self.listener.as_fd(), PollFlags::IN)], patience())
                .unwrap()
        );
        let socket = SeqPacket::from_own(self.listener.try_accept().unwrap().unwrap());
        Fake { socket, buffer: RecvBuffer::new() }
    }

    /// Connects a client, and answers its hello with what `answer` makes of the request's number.
    pub(super) fn greet(
        &self,
        answer: impl FnOnce(&Fake, RequestId),
    ) -> (Result<Client, ClientError>, Fake, Pretender) {
        self.greet_as(self.builder(), answer)
    }

    /// The same with settings of its own.
    pub(super) fn greet_as(
        &self,
        builder: ClientBuilder,
        answer: impl FnOnce(&Fake, RequestId),
    ) -> (Result<Client, ClientError>, Fake, Pretender) {
        let pretender = Pretender::default();
        let importer = Box::new(pretender.clone());
        std::thread::scope(|scope| {
            let client = scope.spawn(move || builder.connect_with(importer));
            let mut fake = self.accept();
            let (request, body) = fake.expect();
            assert!(
                matches!(&body, ClientBody::Hello { version: PROTOCOL_VERSION, program } if program == "test")
            );
            answer(&fake, request);
            (client.join().unwrap(), fake, pretender)
        })
    }
}

pub(super) fn welcome() -> Welcome {
    Welcome {
        version: PROTOCOL_VERSION,
        pod: PodRef { namespace: "ml".parse().unwrap(), name: "server-1".parse().unwrap() },
        group: GroupKey { namespace: "ml".parse().unwrap(), name: "llama".parse().unwrap() },
        boot: BootTag(7),
        legacy_pid_word_proven: false,
        instance: Instance::from_bytes([3; 16]),
    }
}

/// A client with the node's side of its connection, and what maps its memory.
pub(super) fn connected() -> (Client, Fake, Pretender) {
    let (client, fake, pretender) =
        Door::new().greet(|fake, request| fake.say(request, BrokerBody::Welcome(welcome())));
    (client.unwrap(), fake, pretender)
}

/// A grant whose descriptor is this file.
pub(super) fn grant_of(lease: u64, buffer: BufferInfo, file: &std::fs::File) -> Result<Grant, Refusal> {
    let carrier = Carrier::Descriptor(Arc::new(file.try_clone().unwrap().into()));
    Ok(Grant {
        lease: LeaseId(lease),
        buffer: Arc::new(buffer),
        carrier,
        rewrite_pid_word: false,
        receipt: None,
        seat: None,
    })
}

pub(super) fn grant(lease: u64, buffer: BufferInfo) -> Result<Grant, Refusal> {
    grant_of(lease, buffer, &std::fs::File::open("/dev/null").unwrap())
}

/// Waits until something is so.
pub(super) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "{what} never came true");
        std::thread::yield_now();
    }
}
