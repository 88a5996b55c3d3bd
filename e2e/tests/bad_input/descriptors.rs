//! Descriptors that are not what they should be, or not as many.

use gpu_handoff_e2e::folder::Folder;
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpu_handoff_e2e::gpu::{Gpu, Settings};
use gpu_handoff_e2e::rough::{Client, Shared, Sidecar, hello, legacy, vmm};
use gpu_handoff_protocol::codec::{encode_client, encode_sidecar};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{Carrier, ClientBody, ClientMessage, Grant, SidecarBody, SidecarMessage};
use gpu_handoff_protocol::{Code, DeviceUuid, PROTOCOL_VERSION};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit};

use crate::scene::{
    self, BYTES, Scene, Stage, descriptor_numbers, device, eventually, expect_code, refused_with,
};

/// The kernel's most descriptors of one packet.
const KERNEL_MOST: usize = 253;

fn null() -> anyhow::Result<Shared> {
    Ok(Arc::new(File::open("/dev/null")?.into()))
}

fn memory_of(grant: &Grant) -> anyhow::Result<(DeviceUuid, Shared)> {
    match &grant.carrier {
        Carrier::Descriptor(fd) => Ok((grant.buffer.facts.device, fd.clone())),
        Carrier::Legacy(_) => anyhow::bail!("a legacy buffer"),
    }
}

/// The bytes of a publish of so many vmm buffers.
pub(crate) fn publish_bytes(items: usize) -> anyhow::Result<Vec<u8>> {
    let item = |i| vmm(&format!("b{i}"), DeviceUuid::from_bytes([1; 16]), BYTES, null()?);
    let body = ClientBody::Publish((0..items).map(item).collect::<Result<_, _>>()?);
    Ok(encode_client(&ClientMessage { request: 2, body }).bytes)
}

/// The limit that leaves a process so many more descriptors.
fn limit_for(pid: u32, more: usize) -> anyhow::Result<u64> {
    // One that is open for a moment would be counted, and leave room when it is closed: what stays is open in each look.
    let mut open = descriptor_numbers(pid)?;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        let now = descriptor_numbers(pid)?;
        open.retain(|number| now.contains(number));
    }
    // New ones get the lowest free numbers below the limit; what is open above it stays open.
    (0..).filter(|number| !open.contains(number)).nth(more).context("a free number")
}

/// A process that may open only so many more descriptors, until this is dropped.
pub(crate) struct FewDescriptors {
    pid: Pid,
    before: Rlimit,
}

impl FewDescriptors {
    pub(crate) fn of(pid: u32, more: usize) -> anyhow::Result<Self> {
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let process = Pid::from_raw(i32::try_from(pid)?).context("a process number")?;
        let set = |current| set_limit(process, Rlimit { current: Some(current), maximum });
        let mut current = limit_for(pid, more)?;
        let few = Self { pid: process, before: set(current)? };
        // What was closed since the look before left room.
        eventually("the limit fits what is open", || {
            let last = std::mem::replace(&mut current, limit_for(pid, more)?);
            set(current)?;
            Ok(current == last)
        })?;
        Ok(few)
    }
}

impl Drop for FewDescriptors {
    fn drop(&mut self) {
        // The process may be gone.
        let _ = set_limit(self.pid, self.before);
    }
}

/// Sets the limit as the user of that process: root may do so for others only with a capability of its own. The user is
/// changed for one thread alone, which ends then.
pub(crate) fn set_limit(process: Pid, limit: Rlimit) -> anyhow::Result<Rlimit> {
    use rustix::process::{Gid, Uid};
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(format!("/proc/{}", process.as_raw_nonzero()))?;
    let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    let set = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        Ok(rustix::process::prlimit(Some(process), Resource::Nofile, limit)?)
    });
    set.join().map_err(|_| anyhow::anyhow!("the thread broke off"))?
}

fn refused_packet(stage: &Stage, bytes: Vec<u8>, attached: usize, code: Code) -> anyhow::Result<()> {
    let client = Client::greeted(stage.rough.socket())?;
    client.wire.send(bytes, vec![null()?; attached])?;
    expect_code(&client.refused()?, code);
    Ok(())
}

#[test]
fn too_many_or_too_few_for_a_publish() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        for (items, attached) in
            [(1, 0), (1, 2), (3, 2), (3, 4), (64, 63), (64, 65), (1, 64), (1, KERNEL_MOST)]
        {
            refused_packet(stage, publish_bytes(items)?, attached, Code::DescriptorCount)?;
        }
        refused_packet(stage, publish_bytes(MESSAGE_ITEMS + 1)?, MESSAGE_ITEMS, Code::TooLarge)?;
        // A legacy buffer brings none.
        let body = ClientBody::Publish(vec![legacy("handle", DeviceUuid::from_bytes([1; 16]), BYTES)?]);
        let bytes = encode_client(&ClientMessage { request: 2, body }).bytes;
        refused_packet(stage, bytes, 1, Code::DescriptorCount)
    })
}

#[test]
fn messages_that_take_none() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let watch = encode_client(&ClientMessage { request: 2, body: ClientBody::Watch }).bytes;
        let greeting = encode_client(&ClientMessage { request: 1, body: hello(PROTOCOL_VERSION) }).bytes;
        for attached in [1, 64, KERNEL_MOST] {
            refused_packet(stage, watch.clone(), attached, Code::DescriptorCount)?;
            let client = Client::connect(stage.rough.socket())?;
            client.wire.send(greeting.clone(), vec![null()?; attached])?;
            expect_code(&client.refused()?, Code::DescriptorCount);
        }
        refused_packet(stage, b"garbage".to_vec(), 64, Code::Malformed)
    })
}

#[test]
fn a_sidecar_hands_on_exactly_one() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let null_device = || File::open("/dev/null").map(OwnedFd::from);
        let one =
            encode_sidecar(SidecarMessage { request: 2, body: SidecarBody::HandOn(null_device()?) }).bytes;
        for attached in [0, 2, 64, 65, KERNEL_MOST] {
            let sidecar = stage.rough_sidecar()?;
            sidecar.wire.send(one.clone(), vec![null()?; attached])?;
            expect_code(&sidecar.refused()?, Code::DescriptorCount);
        }
        Ok(())
    })
}

/// A packet whose descriptors the plugin's table has no room for.
#[test]
fn control_data_that_the_kernel_cut() -> anyhow::Result<()> {
    let mut scene = Scene::start()?;
    // The pair would not get descriptors either while the table is full, so it rests.
    let stage = &scene.stage;
    let client = Client::greeted(stage.rough.socket())?;
    stage.settled()?;
    let refused = {
        let _few = FewDescriptors::of(stage.node.broker_pid()?, 8)?;
        client.wire.send(publish_bytes(MESSAGE_ITEMS)?, vec![null()?; MESSAGE_ITEMS])?;
        client.refused()
    };
    let refused = refused.with_context(|| stage.node.log())?;
    expect_code(&refused, Code::TruncatedControl);
    // Whoever comes next is served as ever.
    scene.act(|_| Ok(()))?;
    scene.end()
}

/// A plugin or a sidecar without a free descriptor neither spins nor gives up.
#[test]
fn a_table_that_is_full() -> anyhow::Result<()> {
    let mut scene = Scene::start()?;
    let stage = &scene.stage;
    let complaints = |log: String| log.matches("could not be accepted").count();
    let (plugin, sidecar) = (|| complaints(stage.node.log()), || complaints(stage.rough_log()));
    stage.settled()?;
    let (mut waiting, mut client) = {
        let _few = FewDescriptors::of(stage.node.broker_pid()?, 0)?;
        let _few_too = FewDescriptors::of(stage.rough.sidecar_pid()?, 0)?;
        let waiting = Sidecar::connect(&stage.slot())?;
        let client = Client::connect(stage.rough.socket())?;
        eventually("both have tried thrice", || Ok(plugin() >= 3 && sidecar() >= 3))?;
        (waiting, client)
    };
    assert!(plugin() < 100 && sidecar() < 100, "plugin {} times, sidecar {} times", plugin(), sidecar());
    // Both are served as soon as there is room.
    client.greet()?;
    waiting.greet()?;
    drop((waiting, client));
    scene.act(|_| Ok(()))?;
    scene.end()
}

#[test]
fn whatever_is_no_gpu_memory() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut client = Client::greeted(stage.rough.socket())?;
        let device = device(0);
        let mut file = tempfile::tempfile()?;
        file.write_all(&vec![0; usize::try_from(BYTES)?])?;
        let memory = rustix::fs::memfd_create("not-gpu-memory", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, BYTES)?;
        let (reader, writer) = rustix::pipe::pipe()?;
        let (stream, other_end) = UnixStream::pair()?;
        let myself = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let path = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())?;
        let candidates: Vec<(&str, OwnedFd)> = vec![
            ("pipe", reader),
            ("pipe's other end", writer),
            ("memfd", memory),
            ("regular file", file.into()),
            ("/dev/null", File::open("/dev/null")?.into()),
            ("/dev/zero", File::open("/dev/zero")?.into()),
            ("folder", File::open("/")?.into()),
            ("O_PATH", path),
            ("socket", stream.into()),
            ("socket's other end", other_end.into()),
            ("datagram socket", UnixDatagram::unbound()?.into()),
            ("tcp socket", TcpListener::bind("127.0.0.1:0")?.into()),
            ("pidfd", myself),
            ("eventfd", rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?),
            ("its own connection", rustix::io::fcntl_dupfd_cloexec(client.wire.socket(), 0)?),
        ];
        let shared: Vec<(&str, Shared)> =
            candidates.into_iter().map(|(what, fd)| (what, Arc::new(fd))).collect();
        for (what, fd) in &shared {
            let outcome = client.publish_one(vmm("no-memory", device, BYTES, fd.clone())?)?;
            assert_eq!(
                outcome.as_ref().map_err(|r| r.code()),
                Err(Code::NotGpuMemory),
                "{what}: {outcome:?}"
            );
            let refusal = outcome.unwrap_err();
            let compared = &refusal.compared()[0];
            assert!(compared.wanted.starts_with("regular file of mode 101"), "{what}: {refusal}");
            assert!(!compared.found.contains("cuMem"), "the driver was asked about a {what}: {refusal}");
        }
        // What looks alike is refused by the driver.
        let folder = stage.node.gpu.device_folder().context("a simulated device")?;
        let alike = tempfile::tempfile_in(folder)?;
        let mode = |path: &std::path::Path| anyhow::Ok(std::fs::metadata(path)?.permissions());
        alike.set_permissions(mode(&memory_file(folder)?)?)?;
        let alike = Arc::new(OwnedFd::from(alike));
        let refusal = client.publish_one(vmm("no-memory", device, BYTES, alike)?)?.unwrap_err();
        expect_code(&refusal, Code::NotGpuMemory);
        assert!(refusal.compared()[0].found.contains("cuMem"), "{refusal}");
        // All in one packet, and the connection still goes on.
        let all = shared
            .iter()
            .map(|(_, fd)| vmm("no-memory", device, BYTES, fd.clone()))
            .collect::<Result<_, _>>()?;
        for outcome in client.publish(all)? {
            refused_with(outcome, Code::NotGpuMemory);
        }
        Ok(())
    })
}

/// A file of simulated memory.
fn memory_file(device: &std::path::Path) -> anyhow::Result<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let mut folders = vec![device.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let (path, kind) =
                (entry.as_ref().map(|e| e.path()), entry.as_ref().map(std::fs::DirEntry::file_type));
            let (Ok(path), Ok(Ok(kind))) = (path, kind) else { continue };
            match kind {
                kind if kind.is_dir() => folders.push(path),
                // The pair makes and frees memory all the while.
                kind if kind.is_file() => match std::fs::metadata(&path) {
                    Ok(found) if found.permissions().mode() & 0o1000 != 0 => return Ok(path),
                    _ => {}
                },
                _ => {}
            }
        }
    }
    anyhow::bail!("no memory in {}", device.display())
}

#[test]
fn memory_of_another_size_or_another_gpu() -> anyhow::Result<()> {
    let (gpu, _) = Gpu::machine(&Folder::shared()?, 2, Settings::new())?;
    Scene::on(gpu, &serde_json::json!({}))?.run(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let (device, memory) = memory_of(&grant)?;
        for wrong in [BYTES * 2, BYTES / 2, BYTES - 1, BYTES + 1, 1, 0, 1 << 42] {
            let outcome = client.publish_one(vmm("wrong-size", device, wrong, memory.clone())?)?;
            assert_eq!(
                outcome.as_ref().map_err(|r| r.code()),
                Err(Code::SizeMismatch),
                "{wrong}: {outcome:?}"
            );
        }
        // More than the pod may publish at all: no worker is asked, whatever comes along.
        for (size, fd) in
            [((1 << 42) + BYTES, memory.clone()), (1 << 44, null()?), (u64::MAX, memory.clone())]
        {
            let refusal = client.publish_one(vmm("too-large", device, size, fd)?)?.unwrap_err();
            expect_code(&refusal, Code::QuotaBytes);
            assert_eq!(refusal.compared()[0].found, format!("{size} in one buffer"), "{refusal}");
        }
        for (offset, size) in [(0, 0), (0, BYTES + 1), (BYTES, 1), (1, BYTES), (u64::MAX, 2)] {
            let mut beyond = vmm("beyond", device, BYTES, memory.clone())?;
            (beyond.facts.offset, beyond.facts.size) = (offset, size);
            refused_with(client.publish_one(beyond)?, Code::SizeMismatch);
        }
        // The other GPU of this node, and one that it does not have: the driver may know of others, such as MIG instances.
        let of_none = DeviceUuid::from_bytes([9; 16]);
        let node = format!("a node with {device}, {}", scene::device(1));
        let asked = || stage.node.log().matches("the driver has named its GPUs").count();
        assert_eq!(asked(), 0, "the node knows its GPUs");
        let wrong = [(scene::device(1), "memory of another GPU"), (of_none, &*node), (of_none, &*node)];
        for (claimed, found) in wrong {
            let refusal = client.publish_one(vmm("wrong-gpu", claimed, BYTES, memory.clone())?)?.unwrap_err();
            expect_code(&refusal, Code::DeviceMismatch);
            assert_eq!(refusal.compared()[0].found, found);
        }
        assert_eq!(asked(), 1, "and asks the driver once for others");
        // Good and bad in one packet are told apart, in order.
        let items = vec![
            vmm("good-one", device, BYTES, memory.clone())?,
            vmm("bad-one", device, BYTES, null()?)?,
            vmm("good-too", device, BYTES, memory.clone())?,
        ];
        let outcomes = client.publish(items)?;
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
        refused_with(outcomes.into_iter().nth(1).context("three outcomes")?, Code::NotGpuMemory);
        drop((client, grant, memory));
        source.finish()
    })
}

/// Closing a TCP socket with `SO_LINGER` and unsent data blocks for as long as its sender likes.
#[test]
fn a_descriptor_that_blocks_its_closer_hurts_only_its_sender() -> anyhow::Result<()> {
    const LINGER: Duration = Duration::from_secs(3);
    Scene::start()?.run(|stage| {
        let mut client = Client::greeted(stage.rough.socket())?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let _never_reads = listener.accept()?;
        sender.set_nonblocking(true)?;
        let chunk = vec![0; 1 << 20];
        while sender.write(&chunk).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&sender, Some(LINGER))?;
        let (begin, rounds) = (Instant::now(), stage.rounds());
        let item = vmm("lingering", device(0), BYTES, Arc::new(OwnedFd::from(sender)))?;
        // The message takes the last copy of this side with it.
        let outcome = client.publish_one(item)?;
        refused_with(outcome, Code::NotGpuMemory);
        let (waited, meanwhile) = (begin.elapsed(), stage.rounds() - rounds);
        assert!(
            waited >= LINGER - Duration::from_millis(500),
            "the plugin's close did not block: {waited:?}"
        );
        assert!(meanwhile > 10, "the pair handed its buffer over only {meanwhile} times in {waited:?}");
        // And the sender's own pod is served again.
        assert!(Client::greeted(stage.rough.socket())?.acquire_nothing()?);
        Ok(())
    })
}
