//! The GPUs of the simulated machine, as one process sees them.
//!
//! `Inventory` maps the ordinals of this process to GPUs of the machine. It is the identity today; hiding GPUs
//! (`CUDA_VISIBLE_DEVICES`, missing device nodes) is a matter of this file alone.

use crate::abi::{HANDLE_TYPE_POSIX_FD, device_attribute as attribute, p2p_attribute};
use crate::error::{CuResult, Result};

/// The driver version whose behaviour was measured: 580, CUDA 13.0.
pub(crate) const DRIVER_VERSION: i32 = 13000;
/// The name of every simulated GPU.
pub(crate) const NAME: &str = "Simulated GPU";

/// The GPUs this process sees, in its order.
#[derive(Debug)]
pub(crate) struct Inventory {
    visible: Vec<usize>,
}

impl Inventory {
    pub(crate) fn new(gpus: usize) -> Self {
        Self { visible: (0..gpus).collect() }
    }

    pub(crate) const fn count(&self) -> usize {
        self.visible.len()
    }

    /// The machine's GPU with this ordinal.
    pub(crate) fn gpu(&self, ordinal: i32) -> Result<usize> {
        let index = usize::try_from(ordinal).map_err(|_| CuResult::ERROR_INVALID_DEVICE)?;
        self.visible.get(index).copied().ok_or(CuResult::ERROR_INVALID_DEVICE)
    }

    /// The ordinal of a GPU of the machine, or -2 if this process does not see it (sharing 7).
    pub(crate) fn ordinal(&self, gpu: usize) -> i32 {
        let position = self.visible.iter().position(|&visible| visible == gpu);
        position.and_then(|index| i32::try_from(index).ok()).unwrap_or(-2)
    }
}

/// Stable over processes and restarts: what the product compares instead of ordinals.
pub(crate) fn uuid(gpu: usize) -> [u8; 16] {
    let mut uuid = *b"simcuda\0\x40\0\x80\0\0\0\0\0";
    uuid[15] = u8::try_from(gpu).unwrap_or(u8::MAX);
    uuid
}

pub(crate) fn pci_bus_id(gpu: usize) -> String {
    format!("0000:{:02X}:00.0", gpu + 1)
}

/// A device attribute; what the simulator has no view on is 0.
pub(crate) fn attribute(gpu: usize, number: u32) -> i32 {
    match number {
        attribute::CAN_MAP_HOST_MEMORY
        | attribute::UNIFIED_ADDRESSING
        | attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | attribute::MEMORY_POOLS_SUPPORTED
        | attribute::CAN_USE_64_BIT_STREAM_MEM_OPS
        | attribute::CAN_USE_STREAM_WAIT_VALUE_NOR
        | attribute::IPC_EVENT_SUPPORTED
        | attribute::ASYNC_ENGINE_COUNT => 1,
        attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES => i32::try_from(HANDLE_TYPE_POSIX_FD).unwrap_or(0),
        attribute::MAX_THREADS_PER_BLOCK => 1024,
        attribute::WARP_SIZE => 32,
        attribute::MULTIPROCESSOR_COUNT => 1,
        attribute::COMPUTE_CAPABILITY_MAJOR => 9,
        attribute::PCI_BUS_ID => i32::try_from(gpu + 1).unwrap_or(0),
        _ => 0,
    }
}

/// Whether one GPU reaches the other's memory: all do, as over NVLink.
pub(crate) fn can_access_peer(gpu: usize, peer: usize) -> bool {
    gpu != peer
}

/// A peer attribute of two different GPUs, as measured on two H200 (sharing 7).
pub(crate) fn p2p_attribute(number: u32, gpu: usize, peer: usize) -> Result<i32> {
    if gpu == peer {
        return Err(CuResult::ERROR_INVALID_DEVICE);
    }
    match number {
        p2p_attribute::PERFORMANCE_RANK => Ok(0),
        p2p_attribute::ACCESS_SUPPORTED
        | p2p_attribute::NATIVE_ATOMIC_SUPPORTED
        | p2p_attribute::CUDA_ARRAY_ACCESS_SUPPORTED => Ok(1),
        _ => Err(CuResult::ERROR_INVALID_VALUE),
    }
}
