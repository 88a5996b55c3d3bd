//! Memory shared by 64-byte handle: what `cuMemAlloc` made, so also an ordinary `cudaMalloc` or PyTorch tensor.
//!
//! A legacy handle is a bearer token of predictable content: whoever has it, or computes it, can open the memory. It
//! dies with its exporter, unless someone maps the memory already.

use std::fmt;

use cudarc::driver::sys::{CUipcMem_flags, CUipcMemHandle};

use crate::calls::call;
use crate::classify::range_of;
use crate::context::ContextRef;
use crate::load::Driver;
use crate::self_test::PidWordProof;
use crate::status::{CudaError, note_drop};

/// Size of a handle, in bytes.
pub const HANDLE_BYTES: usize = 64;

/// Where the exporter's process number stands in a handle, in bytes; observed, not documented by the vendor.
const PID_WORD: std::ops::Range<usize> = 8..12;

/// Device memory of `cuMemAlloc`; freed on drop.
#[derive(Debug)]
pub struct LegacyAllocation {
    driver: Driver,
    context: ContextRef,
    ptr: u64,
    bytes: u64,
}

impl LegacyAllocation {
    /// Allocates `bytes` in the current context.
    pub fn create(driver: Driver, bytes: u64) -> Result<LegacyAllocation, CudaError> {
        let context = ContextRef::require(driver, "cuMemAlloc")?;
        let size = usize::try_from(bytes).map_err(|_| CudaError::invalid("cuMemAlloc"))?;
        let mut ptr = 0;
        // SAFETY: the first argument points at an address that lives through the call.
        unsafe { call!(driver, cuMemAlloc_v2(&raw mut ptr, size)) }?;
        Ok(LegacyAllocation { driver, context, ptr, bytes })
    }

    /// The address, a `CUdeviceptr`.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Size in bytes, as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for LegacyAllocation {
    fn drop(&mut self) {
        note_drop(self.context.enter(self.driver).and_then(|_entered| {
            // SAFETY: the address came from cuMemAlloc in the context that is current now, and is freed once.
            unsafe { call!(self.driver, cuMemFree_v2(self.ptr)) }
        }));
    }
}

/// A CUDA IPC memory handle. Not printed: its bytes are a key to the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LegacyHandle([u8; HANDLE_BYTES]);

impl fmt::Debug for LegacyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LegacyHandle(of process {})", self.pid_word())
    }
}

impl LegacyHandle {
    /// Asks the driver for the handle of the allocation that `ptr` is in, which must be of `cuMemAlloc`. It names the
    /// whole allocation: an offset into it is the caller's to pass on.
    pub fn export(driver: Driver, ptr: u64) -> Result<LegacyHandle, CudaError> {
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: the first argument points at 64 bytes that live through the call; a wrong address is refused.
        unsafe { call!(driver, cuIpcGetMemHandle(&raw mut handle, ptr)) }?;
        Ok(LegacyHandle(handle.reserved.map(|byte| byte.cast_unsigned())))
    }

    /// A handle from its bytes. Any bytes will do: the driver is who checks them.
    pub const fn from_bytes(bytes: [u8; HANDLE_BYTES]) -> LegacyHandle {
        LegacyHandle(bytes)
    }

    /// The bytes, to be passed to another process.
    pub const fn as_bytes(&self) -> &[u8; HANDLE_BYTES] {
        &self.0
    }

    /// The exporter's process number, as its own PID namespace counts. A process of the same number cannot open the
    /// handle as it is.
    pub fn pid_word(&self) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.0[PID_WORD]);
        u32::from_le_bytes(word)
    }

    /// The same handle with another process number in it, so that an importer whose number is the exporter's can open
    /// it. Needs the proof that this driver keeps the number there and nothing else.
    pub fn with_pid_word(&self, _proof: &PidWordProof, pid: u32) -> LegacyHandle {
        self.with_unproven_pid_word(pid)
    }

    pub(crate) fn with_unproven_pid_word(&self, pid: u32) -> LegacyHandle {
        let mut bytes = self.0;
        bytes[PID_WORD].copy_from_slice(&pid.to_le_bytes());
        LegacyHandle(bytes)
    }

    pub(crate) fn to_sys(self) -> CUipcMemHandle {
        CUipcMemHandle { reserved: self.0.map(u8::cast_signed) }
    }
}

/// Another process's memory, opened from its handle; closed on drop.
#[derive(Debug)]
pub struct LegacyMapping {
    driver: Driver,
    context: ContextRef,
    ptr: u64,
}

impl LegacyMapping {
    /// Opens the handle in the current context, on any GPU that can reach the memory.
    pub fn open(driver: Driver, handle: &LegacyHandle) -> Result<LegacyMapping, CudaError> {
        let context = ContextRef::require(driver, "cuIpcOpenMemHandle")?;
        let mut ptr = 0;
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the first argument points at an address that lives through the call; the handle goes by value and
        // the driver refuses one that names nothing.
        unsafe { call!(driver, cuIpcOpenMemHandle_v2(&raw mut ptr, handle.to_sys(), flags)) }?;
        Ok(LegacyMapping { driver, context, ptr })
    }

    /// Where the exporter's allocation begins in this process, a `CUdeviceptr`.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// How much of it there is, in bytes, as the driver says.
    pub fn bytes(&self) -> Result<u64, CudaError> {
        let _entered = self.context.enter(self.driver)?;
        let (base, bytes) = range_of(self.driver, self.ptr)?;
        Ok(bytes.saturating_sub(self.ptr - base.min(self.ptr)))
    }
}

impl Drop for LegacyMapping {
    fn drop(&mut self) {
        note_drop(self.context.enter(self.driver).and_then(|_entered| {
            // SAFETY: the address came from cuIpcOpenMemHandle in the context that is current now, and is closed once.
            unsafe { call!(self.driver, cuIpcCloseMemHandle(self.ptr)) }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    fn counted() -> [u8; HANDLE_BYTES] {
        std::array::from_fn(|i| u8::try_from(i).unwrap_or(0))
    }

    #[test]
    fn the_pid_word_is_little_endian_at_byte_eight() {
        assert_eq!(LegacyHandle::from_bytes(counted()).pid_word(), 0x0b0a_0908);
    }

    #[test]
    fn rewriting_changes_four_bytes_only() {
        let proof = PidWordProof::from_outcomes(Status::INVALID_CONTEXT, Status::SUCCESS, true).unwrap();
        let handle = LegacyHandle::from_bytes(counted());
        let changed = handle.with_pid_word(&proof, 4711);
        assert_eq!(changed.pid_word(), 4711);
        for i in (0..HANDLE_BYTES).filter(|i| !PID_WORD.contains(i)) {
            assert_eq!(changed.as_bytes()[i], handle.as_bytes()[i], "byte {i}");
        }
    }

    #[test]
    fn debug_shows_no_key_material() {
        assert_eq!(
            format!("{:?}", LegacyHandle::from_bytes([7; HANDLE_BYTES])),
            format!("LegacyHandle(of process {})", u32::from_le_bytes([7; 4]))
        );
    }
}
