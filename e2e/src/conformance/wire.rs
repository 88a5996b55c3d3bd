//! What the suite and a puppet say to each other: one JSON packet each way, with at most one descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Largest packet, in bytes.
const PACKET_BYTES: usize = 16 << 10;

/// Which attribute of a pointer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Attribute {
    MemoryType,
    IsManaged,
    DeviceOrdinal,
    IsLegacyIpcCapable,
    RangeStart,
    RangeSize,
    Mapped,
    MappingBase,
    MappingSize,
    AllowedHandleTypes,
    MempoolHandle,
}

/// What a forked child of a puppet tries.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Forked {
    Init,
    DeviceCount,
    CurrentContext,
    Alloc,
    Read(u64),
}

/// What is timed, each some hundred times; the answer is the median in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Timed {
    Export { bytes: u64, sentinel: bool },
    CloseExported { bytes: u64, sentinel: bool },
    Import,
    MapAndAllow { bytes: u64 },
    IpcGet { ptr: u64 },
    IpcOpen,
    IpcClose,
    Init,
}

/// One thing for a puppet to do. Sizes are bytes; pointers, handles, streams and contexts are numbers of the puppet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    Pid,
    HostPointer,
    Init,
    Version,
    DeviceCount,
    Retain { device: i32 },
    PrimaryRelease { device: i32 },
    Current,
    SetCurrent { context: u64 },
    Push { context: u64 },
    Pop,
    ContextDevice,
    Synchronize,
    Attribute { attribute: Attribute, ptr: u64 },
    Alloc { bytes: u64 },
    Free { ptr: u64 },
    AllocManaged { bytes: u64 },
    AllocHost { bytes: u64 },
    MemInfo,
    AddressRange { ptr: u64 },
    Fill { ptr: u64, value: u32, words: u64 },
    Read { ptr: u64, bytes: u64 },
    Write { ptr: u64, bytes: u64 },
    Copy { to: u64, from: u64, bytes: u64 },
    Granularity,
    Create { bytes: u64, exportable: bool },
    Release { handle: u64 },
    RetainHandle { ptr: u64 },
    Reserve { bytes: u64 },
    AddressFree { ptr: u64, bytes: u64 },
    Map { ptr: u64, bytes: u64, offset: u64, handle: u64 },
    Unmap { ptr: u64, bytes: u64 },
    Allow { ptr: u64, bytes: u64, read_only: bool },
    Properties { handle: u64 },
    Export { handle: u64 },
    Import,
    ImportNumber { number: i32 },
    PoolCreate { exportable: bool },
    PoolAlloc { pool: u64, bytes: u64 },
    PoolExport { pool: u64 },
    PoolExportPointer { ptr: u64 },
    PoolImport,
    PoolImportPointer { pool: u64, data: Vec<u8> },
    Uuid { device: i32 },
    PciBusId { device: i32 },
    Peer { from: i32, to: i32 },
    IpcGet { ptr: u64 },
    IpcOpen { handle: Vec<u8>, flags: u32 },
    IpcClose { ptr: u64 },
    EventShare,
    EventOpen { handle: Vec<u8> },
    StreamCreate,
    WriteValue { stream: u64, ptr: u64, value: u64 },
    WaitValue { stream: u64, ptr: u64, value: u64 },
    StreamSynchronize { stream: u64 },
    StreamQuery { stream: u64 },
    StreamDestroy { stream: u64 },
    EventRecord { stream: u64 },
    EventQuery { event: u64 },
    Load { ptr: u64 },
    HostFunction { stream: u64, calls_driver: bool },
    HostFunctionSaid,
    PingPong { ptr: u64, rounds: u64, leads: bool },
    Fork { what: Forked },
    Time { what: Timed, rounds: usize, handle: Vec<u8> },
    TryHandles { handles: Vec<Vec<u8>>, value: u32 },
    Inspect { claimed: u64 },
    Classify { ptr: u64 },
}

impl Request {
    /// Its name alone.
    pub(crate) fn name(&self) -> String {
        format!("{self:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
    }
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Response {
    /// The driver's code.
    pub(crate) status: u32,
    /// Numbers.
    pub(crate) words: Vec<u64>,
    /// A handle.
    pub(crate) bytes: Vec<u8>,
    /// An outcome in words.
    pub(crate) text: String,
}

/// Sends one packet.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let packet = serde_json::to_vec(message)?;
    if packet.len() > PACKET_BYTES {
        return Err(io::Error::other("packet too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(socket, &[IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet; `None` at the end of the connection.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut packet = vec![0; PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut packet)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&packet[..received.bytes])?, fd)))
}
