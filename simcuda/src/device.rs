//! The GPUs of the simulated machine, as one process sees them.
//!
//! `Inventory` maps the ordinals of this process to GPUs of the machine, which `CUDA_VISIBLE_DEVICES` chooses and orders.
//! A GPU that the variable hides still takes part: its memory can be imported, and is then at ordinal -2 (sharing 7).

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
    /// The machine's GPUs, or those that `CUDA_VISIBLE_DEVICES` lists.
    pub(crate) fn new(gpus: usize, list: Option<&str>) -> Self {
        Self { visible: list.map_or_else(|| (0..gpus).collect(), |list| listed(gpus, list)) }
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

/// The GPUs of a list of ordinals or of (abbreviated) UUIDs. As the vendor documents it, the first entry that names none ends
/// the list; one that is named twice leaves no GPU at all.
fn listed(gpus: usize, list: &str) -> Vec<usize> {
    let mut visible = Vec::new();
    for entry in list.split(',') {
        let Some(gpu) = named(gpus, entry.trim()) else { break };
        if visible.contains(&gpu) {
            return Vec::new();
        }
        visible.push(gpu);
    }
    visible
}

/// The one GPU that an entry names. Numbers end at the first other character, as `strtol` reads them.
fn named(gpus: usize, entry: &str) -> Option<usize> {
    if let Some(start) = entry.strip_prefix("GPU-") {
        let mut of_name = (0..gpus).filter(|&gpu| {
            let uuid = uuid_text(gpu);
            uuid.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
        });
        return of_name.next().filter(|_| !start.is_empty() && of_name.next().is_none());
    }
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok().filter(|&gpu| gpu < gpus)
}

/// The UUID as the driver's tools print it, without `GPU-`.
fn uuid_text(gpu: usize) -> String {
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let uuid = uuid(gpu);
    [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex).join("-")
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

#[cfg(test)]
mod tests {
    use super::{Inventory, uuid_text};

    fn visible(list: &str) -> Vec<usize> {
        Inventory::new(3, Some(list)).visible
    }

    #[test]
    fn the_variable_chooses_and_orders() {
        assert_eq!(Inventory::new(3, None).visible, [0, 1, 2]);
        assert_eq!(visible("2,0"), [2, 0]);
        assert_eq!(visible(" 1 , 2x"), [1, 2]);
        for none in ["", "-1", "7", "none", "1,1", "GPU-"] {
            assert_eq!(visible(none), [0; 0], "{none:?}");
        }
        assert_eq!(visible("1,-1,2"), [1], "the first entry that names none ends the list");
        assert_eq!(Inventory::new(3, Some("2")).ordinal(2), 0);
        assert_eq!(Inventory::new(3, Some("2")).ordinal(0), -2);
    }

    #[test]
    fn uuids_may_be_short_as_long_as_they_name_one_gpu() {
        let (first, last) = (uuid_text(0), uuid_text(2));
        assert_eq!(first.len(), 36);
        assert_eq!(visible(&format!("GPU-{last},GPU-{first}")), [2, 0]);
        assert_eq!(visible(&format!("GPU-{}", last.to_uppercase())), [2]);
        assert_eq!(visible(&format!("GPU-{}", &last[..8])), [0; 0], "all begin like that");
        assert_eq!(visible(&format!("GPU-{last}0")), [0; 0]);
    }
}
