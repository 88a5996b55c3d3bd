//! A node in a few lines for tests that need two real processes: it hands on what is published and grants it by name.
//! It checks nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, EndReason, Event, Grant, Publication, PublishedAs,
    RequestId, Target, Wanted, Welcome,
};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket, wait};
use gpu_handoff_protocol::{
    BootTag, BufferId, BufferInfo, Code, GroupKey, Instance, LeaseId, PROTOCOL_VERSION, PodRef, Refusal,
    codec,
};
use rustix::event::PollFlags;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn patience() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

#[derive(Default)]
struct Group {
    buffers: Mutex<Vec<(BufferInfo, Carrier)>>,
    importers: Mutex<Vec<Arc<SeqPacket>>>,
    leases: AtomicU64,
    stop: AtomicBool,
}

/// The node; stops when dropped.
pub(crate) struct Node {
    pub(crate) socket: PathBuf,
    folder: tempfile::TempDir,
    group: Arc<Group>,
}

impl Node {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("app.sock");
        let listener = SeqListener::bind(&socket).unwrap();
        let group = Arc::new(Group::default());
        let serving = Arc::clone(&group);
        std::thread::spawn(move || {
            while wait(&[(listener.as_fd(), PollFlags::IN)], patience()).unwrap() {
                let Some(fd) = listener.try_accept().unwrap() else { continue };
                if serving.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (socket, group) = (Arc::new(SeqPacket::from_own(fd)), Arc::clone(&serving));
                std::thread::spawn(move || group.serve(&socket));
            }
        });
        Self { socket, folder, group }
    }

    /// Leases that nobody has released.
    pub(crate) fn leases(&self) -> u64 {
        self.group.leases.load(Ordering::SeqCst)
    }

    /// Runs an ignored test of this binary in a process of its own, with the simulated driver and this node.
    pub(crate) fn role(&self, name: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", name, "--nocapture", "--test-threads=1"]);
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("GPU_HANDOFF_SOCKET", &self.socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Puts the simulated driver where roles find it; false, with a word about it, if it is not built.
    pub(crate) fn has_simulator(&self) -> bool {
        let folder = std::env::current_exe().unwrap();
        // Beside this test, and above it if the library was asked for by name.
        let mut built = folder.parent().unwrap().join("libgpu_handoff_simcuda.so");
        if !built.exists() {
            built = folder.parent().and_then(Path::parent).unwrap().join("libgpu_handoff_simcuda.so");
        }
        if !built.exists() {
            let how =
                format!("{} is missing: run `cargo build -p gpu-handoff-simcuda` first", built.display());
            assert!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{how}");
            eprintln!("SKIPPED: {how}");
            return false;
        }
        std::fs::copy(built, self.folder.path().join("libcuda.so.1")).unwrap();
        true
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.group.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = SeqPacket::connect(&self.socket);
    }
}

fn pod() -> PodRef {
    PodRef { namespace: "ml".parse().unwrap(), name: "pod".parse().unwrap() }
}

fn say(socket: &SeqPacket, request: RequestId, body: BrokerBody) {
    for packet in codec::encode_broker(&BrokerMessage { request, body }) {
        // The client may have gone.
        let _ = socket.send(&packet, patience());
    }
}

impl Group {
    fn serve(&self, socket: &Arc<SeqPacket>) {
        let mut buffer = RecvBuffer::new();
        while let Ok(Some(frame)) = socket.recv(&mut buffer, patience()) {
            let message = codec::decode_client(frame).unwrap();
            if let Some(answer) = self.answer(socket, message.body) {
                say(socket, message.request, answer);
            }
        }
    }

    fn answer(&self, socket: &Arc<SeqPacket>, body: ClientBody) -> Option<BrokerBody> {
        Some(match body {
            ClientBody::Hello { .. } => BrokerBody::Welcome(Welcome {
                version: PROTOCOL_VERSION,
                pod: pod(),
                group: GroupKey { namespace: "ml".parse().unwrap(), name: "group".parse().unwrap() },
                boot: BootTag(1),
                legacy_pid_word_proven: true,
                instance: Instance::from_bytes([3; 16]),
            }),
            ClientBody::Publish(items) => {
                BrokerBody::Published(items.into_iter().map(|item| Ok(self.publish(item))).collect())
            }
            ClientBody::Acquire { items, .. } => {
                self.importers.lock().unwrap().push(Arc::clone(socket));
                BrokerBody::Acquired(items.iter().map(|item| self.acquire(item)).collect())
            }
            ClientBody::Release(leases) => {
                self.leases.fetch_sub(leases.len() as u64, Ordering::SeqCst);
                BrokerBody::Released(vec![Ok(()); leases.len()])
            }
            ClientBody::Retire { id, deadline } => {
                self.retire(id, deadline);
                BrokerBody::Retired(Ok(u32::try_from(self.leases.load(Ordering::SeqCst)).unwrap()))
            }
            _ => return None,
        })
    }

    fn publish(&self, Publication { facts, carrier }: Publication) -> PublishedAs {
        let mut buffers = self.buffers.lock().unwrap();
        let id = BufferId { boot: BootTag(1), random: buffers.len() as u128 };
        buffers.push((
            BufferInfo { id, generation: 1, owner: pod(), verified: false, facts, set: None },
            carrier,
        ));
        PublishedAs { id, generation: 1, receipt: None, checked: None }
    }

    fn acquire(&self, wanted: &Wanted) -> Result<Grant, Refusal> {
        let Target::Name(name) = &wanted.target else { panic!("by name only") };
        let buffers = self.buffers.lock().unwrap();
        let found = buffers.iter().find(|(buffer, _)| buffer.facts.name == *name);
        let (buffer, carrier) = found.cloned().ok_or(Refusal::new(Code::NotFound))?;
        let lease = LeaseId(self.leases.fetch_add(1, Ordering::SeqCst));
        Ok(Grant {
            lease,
            buffer: Arc::new(buffer),
            carrier,
            rewrite_pid_word: false,
            receipt: None,
            seat: None,
        })
    }

    fn retire(&self, id: BufferId, deadline: Duration) {
        self.buffers.lock().unwrap().retain(|(buffer, _)| buffer.id != id);
        for importer in &*self.importers.lock().unwrap() {
            say(importer, 0, BrokerBody::Event(Event::Retiring { id, deadline }));
            say(importer, 0, BrokerBody::Event(Event::Gone { id, reason: EndReason::Retired }));
        }
    }
}
