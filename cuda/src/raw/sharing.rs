//! Exporting and importing, unchecked.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use cudarc::driver::sys::{CUipcEventHandle, CUipcMemHandle};

use super::{Answer, Raw, status, to_status};
use crate::calls::{call, call_extra};
use crate::legacy::LegacyHandle;
use crate::status::Status;
use crate::vmm::POSIX_FD;

impl Raw {
    /// `cuMemExportToShareableHandle` as a descriptor.
    pub fn export(self, handle: u64) -> Answer<OwnedFd> {
        let mut number: i32 = -1;
        // SAFETY: the first argument points at an integer that lives through the call.
        let outcome = unsafe {
            call!(self, cuMemExportToShareableHandle((&raw mut number).cast(), handle, POSIX_FD, 0))
        };
        status(outcome, ()).and_then(|()| owned(number))
    }

    /// `cuMemImportFromShareableHandle` of any descriptor number, open or not.
    pub fn import(self, fd: i32) -> Answer<u64> {
        let mut handle = 0;
        let number: *mut c_void = ptr::without_provenance_mut(fd as isize as usize);
        // SAFETY: the first argument points at a handle that lives through the call; the second is a number here.
        let outcome =
            unsafe { call!(self, cuMemImportFromShareableHandle(&raw mut handle, number, POSIX_FD)) };
        status(outcome, handle)
    }

    /// `cuIpcGetMemHandle`.
    pub fn ipc_get(self, ptr: u64) -> Answer<LegacyHandle> {
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the first argument points at 64 bytes that live through the call.
        let outcome = unsafe { call!(self, cuIpcGetMemHandle(&raw mut handle, ptr)) };
        status(outcome, LegacyHandle::from_bytes(handle.reserved.map(i8::cast_unsigned)))
    }

    /// `cuIpcOpenMemHandle` with the given flags (1: peer access where needed).
    pub fn ipc_open(self, handle: &LegacyHandle, flags: u32) -> Answer<u64> {
        let mut ptr = 0;
        // SAFETY: the first argument points at an address that lives through the call.
        let outcome = unsafe { call!(self, cuIpcOpenMemHandle_v2(&raw mut ptr, handle.to_sys(), flags)) };
        status(outcome, ptr)
    }

    /// `cuIpcCloseMemHandle`.
    pub fn ipc_close(self, ptr: u64) -> Status {
        // SAFETY: the driver checks the address; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuIpcCloseMemHandle(ptr)) })
    }

    /// `cuIpcGetEventHandle`, 64 bytes.
    pub fn event_get(self, event: usize) -> Answer<[u8; 64]> {
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        let event = ptr::with_exposed_provenance_mut(event);
        // SAFETY: the first argument points at 64 bytes that live through the call.
        let outcome = unsafe { call_extra!(self, cuIpcGetEventHandle(&raw mut handle, event)) };
        status(outcome, handle.reserved.map(i8::cast_unsigned))
    }

    /// `cuIpcOpenEventHandle`.
    pub fn event_open(self, handle: &[u8; 64]) -> Answer<usize> {
        let mut event = ptr::null_mut();
        let handle = CUipcEventHandle { reserved: handle.map(u8::cast_signed) };
        // SAFETY: the first argument points at a handle that lives through the call.
        let outcome = unsafe { call_extra!(self, cuIpcOpenEventHandle(&raw mut event, handle)) };
        status(outcome, event.expose_provenance())
    }

    /// The handle with another process number, without asking for proof: what the suite is there to find out.
    pub fn with_pid_word(self, handle: &LegacyHandle, pid: u32) -> LegacyHandle {
        handle.with_unproven_pid_word(pid)
    }
}

pub(super) fn owned(number: i32) -> Answer<OwnedFd> {
    if number < 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the driver opened this descriptor for us and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
