//! The puppet: a child process that does to the driver what it is told and answers with what came of it.

mod devices;
mod said;
mod streams;
mod timed;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context as _;
use gpu_handoff_cuda::raw::{Answer, Raw};
use gpu_handoff_cuda::{Access, Driver, LegacyHandle, SizeProof, Status, classify, inspect};
use gpu_handoff_protocol::socket::{SeqListener, wait};
use rustix::event::PollFlags;

use super::wire::{self, Request, Response};
use said::{described, forked, pointer_attribute, sum};

/// An answer on its way: numbers, handle bytes, words, a descriptor.
#[derive(Debug, Default)]
struct Given {
    words: Vec<u64>,
    bytes: Vec<u8>,
    text: String,
    fd: Option<OwnedFd>,
}

impl From<()> for Given {
    fn from((): ()) -> Given {
        Given::default()
    }
}

impl From<u64> for Given {
    fn from(word: u64) -> Given {
        Given { words: vec![word], ..Given::default() }
    }
}

impl From<(u64, u64)> for Given {
    fn from((first, second): (u64, u64)) -> Given {
        Given { words: vec![first, second], ..Given::default() }
    }
}

impl From<OwnedFd> for Given {
    fn from(fd: OwnedFd) -> Given {
        Given { fd: Some(fd), ..Given::default() }
    }
}

impl From<&[u8; 64]> for Given {
    fn from(handle: &[u8; 64]) -> Given {
        Given { bytes: handle.to_vec(), ..Given::default() }
    }
}

impl From<String> for Given {
    fn from(text: String) -> Given {
        Given { text, ..Given::default() }
    }
}

/// Waits for the first who connects there.
pub(crate) fn first_at(path: &Path) -> anyhow::Result<OwnedFd> {
    let listener = SeqListener::bind(path).with_context(|| format!("listen at {}", path.display()))?;
    loop {
        wait(&[(listener.as_fd(), PollFlags::IN)], None)?;
        if let Some(connection) = listener.try_accept()? {
            rustix::io::ioctl_fionbio(&connection, false)?;
            return Ok(connection);
        }
    }
}

/// Serves this socket until it ends.
pub(crate) fn serve(socket: BorrowedFd<'_>) -> anyhow::Result<()> {
    let mut puppet = Puppet { raw: Raw::load().context("load the driver")?, device: 0 };
    while let Some((request, fd)) = wire::receive::<Request>(socket)? {
        let (response, fd) = match puppet.act(request, fd) {
            Ok(Given { words, bytes, text, fd }) => (Response { status: 0, words, bytes, text }, fd),
            Err(status) => (Response { status: status.0, ..Response::default() }, None),
        };
        wire::send(socket, &response, fd.as_ref().map(AsFd::as_fd))?;
    }
    Ok(())
}

/// What a puppet knows: the library, and the device that it last retained a context of.
struct Puppet {
    raw: Raw,
    device: i32,
}

fn done(status: Status) -> Answer<Given> {
    status.ok("").map(Given::from).map_err(|error| error.status)
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A handle of 64 bytes from any bytes.
fn sixty_four(bytes: &[u8]) -> [u8; 64] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}

impl Puppet {
    fn act(&mut self, request: Request, fd: Option<OwnedFd>) -> Answer<Given> {
        match request {
            Request::Pid
            | Request::HostPointer
            | Request::Init
            | Request::Version
            | Request::DeviceCount
            | Request::Retain { .. }
            | Request::PrimaryRelease { .. }
            | Request::Current
            | Request::SetCurrent { .. }
            | Request::Push { .. }
            | Request::Pop
            | Request::ContextDevice
            | Request::Synchronize => self.contexts(request),
            Request::Create { .. }
            | Request::Release { .. }
            | Request::RetainHandle { .. }
            | Request::Reserve { .. }
            | Request::AddressFree { .. }
            | Request::Map { .. }
            | Request::Unmap { .. }
            | Request::Allow { .. }
            | Request::Properties { .. }
            | Request::Granularity => self.vmm(request),
            Request::Export { .. }
            | Request::Import
            | Request::ImportNumber { .. }
            | Request::IpcGet { .. }
            | Request::IpcOpen { .. }
            | Request::IpcClose { .. }
            | Request::EventShare
            | Request::EventOpen { .. }
            | Request::TryHandles { .. }
            | Request::Inspect { .. }
            | Request::Classify { .. } => self.sharing(request, fd),
            Request::PoolCreate { .. }
            | Request::PoolAlloc { .. }
            | Request::PoolExport { .. }
            | Request::PoolExportPointer { .. }
            | Request::PoolImport
            | Request::PoolImportPointer { .. } => self.pools(request, fd),
            Request::Uuid { .. } | Request::PciBusId { .. } | Request::Peer { .. } => self.devices(request),
            Request::StreamCreate
            | Request::WriteValue { .. }
            | Request::WaitValue { .. }
            | Request::StreamSynchronize { .. }
            | Request::StreamQuery { .. }
            | Request::StreamDestroy { .. }
            | Request::EventRecord { .. }
            | Request::EventQuery { .. }
            | Request::Load { .. }
            | Request::HostFunction { .. }
            | Request::HostFunctionSaid
            | Request::PingPong { .. } => self.streams(request),
            Request::Fork { .. } | Request::Time { .. } => self.trials(request, fd),
            other => self.memory(other),
        }
    }

    fn contexts(&mut self, request: Request) -> Answer<Given> {
        let raw = self.raw;
        match request {
            Request::Pid => Ok(u64::from(std::process::id()).into()),
            // Leaked, so that the address goes on to be the host's.
            Request::HostPointer => Ok((Box::leak(Box::new([0_u64; 1024])).as_ptr().addr() as u64).into()),
            Request::Init => done(raw.init()),
            Request::Version => raw.version().map(|version| u64::from(version.cast_unsigned()).into()),
            Request::DeviceCount => raw.device_count().map(|count| u64::from(count.cast_unsigned()).into()),
            Request::Retain { device } => {
                self.device = device;
                let context = raw.primary_retain(device)?;
                Ok((context as u64).into())
            }
            Request::PrimaryRelease { device } => done(raw.primary_release(device)),
            Request::Current => raw.current().map(|context| (context as u64).into()),
            Request::SetCurrent { context } => done(raw.set_current(size(context))),
            Request::Push { context } => done(raw.push(size(context))),
            Request::Pop => raw.pop().map(|context| (context as u64).into()),
            Request::ContextDevice => {
                raw.context_device().map(|device| u64::from(device.cast_unsigned()).into())
            }
            _ => done(raw.synchronize()),
        }
    }

    fn memory(&mut self, request: Request) -> Answer<Given> {
        let raw = self.raw;
        match request {
            Request::Attribute { attribute, ptr } => {
                raw.pointer_attribute(pointer_attribute(attribute), ptr).map(Given::from)
            }
            Request::Alloc { bytes } => raw.alloc(size(bytes)).map(Given::from),
            Request::Free { ptr } => done(raw.free(ptr)),
            Request::AllocManaged { bytes } => raw.alloc_managed(size(bytes)).map(Given::from),
            Request::AllocHost { bytes } => raw.alloc_host(size(bytes)).map(Given::from),
            Request::MemInfo => raw.mem_info().map(Given::from),
            Request::AddressRange { ptr } => raw.address_range(ptr).map(Given::from),
            Request::Fill { ptr, value, words } => done(raw.memset_d32(ptr, value, size(words))),
            Request::Read { ptr, bytes } => {
                let mut data = vec![0_u8; size(bytes)];
                done(raw.read(ptr, &mut data))?;
                let word = |at: usize| data.get(at..at + 4).map_or(0, sum);
                Ok((word(0), word(data.len().saturating_sub(4))).into())
            }
            Request::Write { ptr, bytes } => done(raw.write(ptr, &vec![0x5a; size(bytes)])),
            Request::Copy { to, from, bytes } => done(raw.copy(to, from, size(bytes))),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    fn vmm(&mut self, request: Request) -> Answer<Given> {
        let raw = self.raw;
        match request {
            Request::Create { bytes, exportable } => {
                raw.create(self.device, size(bytes), exportable).map(Given::from)
            }
            Request::Release { handle } => done(raw.release(handle)),
            Request::RetainHandle { ptr } => raw.retain_handle(ptr).map(Given::from),
            Request::Reserve { bytes } => raw.reserve(size(bytes)).map(Given::from),
            Request::AddressFree { ptr, bytes } => done(raw.address_free(ptr, size(bytes))),
            Request::Map { ptr, bytes, offset, handle } => {
                done(raw.map(ptr, size(bytes), size(offset), handle))
            }
            Request::Unmap { ptr, bytes } => done(raw.unmap(ptr, size(bytes))),
            Request::Allow { ptr, bytes, read_only } => {
                let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
                done(raw.set_access(ptr, size(bytes), self.device, access))
            }
            Request::Properties { handle } => raw.properties(handle).map(|(kind, id, types)| {
                format!("location type {kind}, id {id}, handle types {types}").into()
            }),
            _ => {
                let driver = Driver::load().map_err(|_| Status::NOT_INITIALIZED)?;
                let device = driver.device_at(self.device).map_err(|error| error.status)?;
                device.vmm_granularity().map(Given::from).map_err(|error| error.status)
            }
        }
    }

    fn sharing(&mut self, request: Request, fd: Option<OwnedFd>) -> Answer<Given> {
        let raw = self.raw;
        match request {
            Request::Export { handle } => raw.export(handle).map(Given::from),
            Request::Import => raw.import(fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)).map(Given::from),
            Request::ImportNumber { number } => raw.import(number).map(Given::from),
            Request::IpcGet { ptr } => raw.ipc_get(ptr).map(|handle| handle.as_bytes().into()),
            Request::IpcOpen { handle, flags } => {
                raw.ipc_open(&LegacyHandle::from_bytes(sixty_four(&handle)), flags).map(Given::from)
            }
            Request::IpcClose { ptr } => done(raw.ipc_close(ptr)),
            Request::EventShare => {
                let (stream, event) = (raw.stream_create()?, raw.event_create()?);
                done(raw.event_record(event, stream))?;
                raw.event_get(event).map(|handle| (&handle).into())
            }
            Request::EventOpen { handle } => {
                let event = raw.event_open(&sixty_four(&handle))?;
                done(raw.event_synchronize(event))
            }
            Request::TryHandles { handles, value } => Ok(self.try_handles(&handles, value).into()),
            Request::Inspect { claimed } => {
                let (Ok(driver), Some(fd)) = (Driver::load(), fd) else {
                    return Err(Status::NOT_INITIALIZED);
                };
                Ok(match inspect(driver, fd.as_fd(), claimed, SizeProof::Thorough) {
                    Ok(found) => {
                        format!("{} bytes, GPU visible: {}", found.bytes, found.device.is_some()).into()
                    }
                    Err(error) => error.to_string().into(),
                })
            }
            Request::Classify { ptr } => {
                let driver = Driver::load().map_err(|_| Status::NOT_INITIALIZED)?;
                classify(driver, ptr).map(|memory| described(memory).into()).map_err(|error| error.status)
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    /// Opens each handle; how many opened, and how many of those began with `value`.
    fn try_handles(&self, handles: &[Vec<u8>], value: u32) -> (u64, u64) {
        let (mut opened, mut found) = (0, 0);
        for handle in handles {
            let Ok(ptr) = self.raw.ipc_open(&LegacyHandle::from_bytes(sixty_four(handle)), 1) else {
                continue;
            };
            opened += 1;
            let mut word = [0; 4];
            self.raw.read(ptr, &mut word);
            found += u64::from(u32::from_le_bytes(word) == value);
            self.raw.ipc_close(ptr);
        }
        (opened, found)
    }

    fn trials(&mut self, request: Request, fd: Option<OwnedFd>) -> Answer<Given> {
        match request {
            Request::Fork { what } => Ok(forked(self.raw, what).into()),
            Request::Time { what, rounds, handle } => {
                let fd = fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
                timed::median_ns(self, what, rounds, fd, &handle).map(Given::from)
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}
