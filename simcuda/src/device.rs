//! The devices of the simulated machine, as one process sees them.
//!
//! `Inventory` maps the ordinals of this process to devices of the machine. First the device nodes choose: a GPU whose node this
//! process cannot open is not there. Of the rest `CUDA_VISIBLE_DEVICES` chooses and orders. A GPU that only the variable hides still takes
//! part: its memory can be imported, and is then at ordinal -2 (sharing 7).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use crate::abi::{HANDLE_TYPE_POSIX_FD, device_attribute as attribute, p2p_attribute};
use crate::driver::lock;
use crate::error::{CuResult, Result};
use crate::machine::{Device, Machine};
use crate::rendezvous::Rendezvous;
use crate::tree::open_node;

/// The driver version whose behaviour was measured: 580, CUDA 13.0.
pub(crate) const DRIVER_VERSION: i32 = 13000;

/// The machine's devices and which of them this process sees, in its order.
#[derive(Debug)]
pub(crate) struct Inventory {
    machine: Machine,
    devices: Vec<Device>,
    visible: Vec<usize>,
    /// Device nodes of the GPUs in use, by minor number: open as long as the process uses CUDA.
    nodes: Mutex<BTreeMap<usize, OwnedFd>>,
}

/// Why a process cannot use the memory of another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfReach {
    /// The device node of its GPU is missing.
    Node,
    /// It is of another MIG instance.
    Instance,
}

impl Inventory {
    /// Opens the nodes and chooses what is visible; `lost` GPUs are not there.
    pub(crate) fn new(
        dir: &Rendezvous,
        machine: Machine,
        list: Option<&str>,
        lost: impl Fn(usize) -> bool,
    ) -> std::result::Result<Self, NamedTwice> {
        let devices = machine.devices();
        let mut nodes: BTreeMap<_, _> = (0..machine.gpus)
            .filter(|&minor| !lost(minor))
            .filter_map(|minor| Some((minor, open_node(dir, minor).ok()?)))
            .collect();
        let there: Vec<usize> =
            (0..devices.len()).filter(|&index| nodes.contains_key(&devices[index].minor)).collect();
        let visible = visible(&devices, &there, list)?;
        nodes.retain(|minor, _| visible.iter().any(|&index| devices[index].minor == *minor));
        Ok(Self { machine, devices, visible, nodes: Mutex::new(nodes) })
    }

    pub(crate) const fn count(&self) -> usize {
        self.visible.len()
    }

    /// The machine's device with this ordinal.
    pub(crate) fn gpu(&self, ordinal: i32) -> Result<usize> {
        let index = usize::try_from(ordinal).map_err(|_| CuResult::ERROR_INVALID_DEVICE)?;
        self.visible.get(index).copied().ok_or(CuResult::ERROR_INVALID_DEVICE)
    }

    /// The ordinal of a device of the machine, or -2 if this process does not see it (sharing 7).
    pub(crate) fn ordinal(&self, gpu: usize) -> i32 {
        let position = self.visible.iter().position(|&visible| visible == gpu);
        position.and_then(|index| i32::try_from(index).ok()).unwrap_or(-2)
    }

    /// A device of the machine by index.
    pub(crate) fn device(&self, gpu: usize) -> Result<&Device> {
        self.devices.get(gpu).ok_or(CuResult::ERROR_INVALID_DEVICE)
    }

    /// The device of an ordinal, and its name.
    pub(crate) fn named(&self, ordinal: i32) -> Result<(&Device, String)> {
        let device = self.device(self.gpu(ordinal)?)?;
        Ok((device, self.machine.name(device)))
    }

    /// Bytes of memory of each device.
    pub(crate) fn capacities(&self) -> Vec<u64> {
        self.devices.iter().map(|device| self.machine.memory_bytes(device)).collect()
    }

    /// Minor numbers of the GPUs that this process sees.
    pub(crate) fn minors(&self) -> impl Iterator<Item = usize> {
        self.visible.iter().filter_map(|&gpu| self.devices.get(gpu).map(|device| device.minor))
    }

    /// Makes sure that this process can use a device's memory, opening its node if that was not needed before.
    pub(crate) fn reach(&self, dir: &Rendezvous, gpu: usize) -> std::result::Result<(), OutOfReach> {
        if self.visible.contains(&gpu) {
            return Ok(());
        }
        let device = self.devices.get(gpu).ok_or(OutOfReach::Node)?;
        let instances = self.visible.iter().filter_map(|&own| self.devices.get(own)?.instance);
        if device.instance.is_some() || instances.count() > 0 {
            return Err(OutOfReach::Instance);
        }
        let mut nodes = lock(&self.nodes);
        if let Entry::Vacant(node) = nodes.entry(device.minor) {
            node.insert(open_node(dir, device.minor).map_err(|_| OutOfReach::Node)?);
        }
        Ok(())
    }

    /// Whether one device reaches another's memory; none reaches its own as a peer's.
    pub(crate) fn can_access_peer(&self, gpu: usize, peer: usize) -> bool {
        match (self.devices.get(gpu), self.devices.get(peer)) {
            (Some(from), Some(to)) => self.machine.reaches(from, to),
            _ => false,
        }
    }

    /// A peer attribute of two different devices, as measured on two H200 (sharing 7).
    pub(crate) fn p2p_attribute(&self, number: u32, gpu: usize, peer: usize) -> Result<i32> {
        if gpu == peer {
            return Err(CuResult::ERROR_INVALID_DEVICE);
        }
        match number {
            p2p_attribute::PERFORMANCE_RANK => Ok(0),
            p2p_attribute::ACCESS_SUPPORTED
            | p2p_attribute::NATIVE_ATOMIC_SUPPORTED
            | p2p_attribute::CUDA_ARRAY_ACCESS_SUPPORTED => Ok(i32::from(self.can_access_peer(gpu, peer))),
            _ => Err(CuResult::ERROR_INVALID_VALUE),
        }
    }

    /// A device attribute; what the simulator has no view on is 0.
    pub(crate) fn attribute(&self, ordinal: i32, number: u32) -> Result<i32> {
        let device = self.device(self.gpu(ordinal)?)?;
        Ok(match number {
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
            attribute::PCI_BUS_ID => i32::try_from(device.pci_bus()).unwrap_or(0),
            _ => 0,
        })
    }
}

/// What a process sees of the devices that are `there`, by the list of `CUDA_VISIBLE_DEVICES`. Where that has a MIG instance, the
/// process sees the first one and nothing else, as the vendor documents it.
fn visible(
    devices: &[Device],
    there: &[usize],
    list: Option<&str>,
) -> std::result::Result<Vec<usize>, NamedTwice> {
    let chosen = list.map_or_else(|| Ok(there.to_vec()), |list| listed(devices, there, list))?;
    let instance = chosen.iter().copied().find(|&index| devices[index].instance.is_some());
    Ok(instance.map_or(chosen, |first| vec![first]))
}

/// A list of devices has one of them twice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedTwice;

/// The devices of a list of ordinals or of (abbreviated) UUIDs: whichever the first entry is. As the vendor documents it, the first
/// entry that names none ends the list; so does one of the other kind.
fn listed(devices: &[Device], there: &[usize], list: &str) -> std::result::Result<Vec<usize>, NamedTwice> {
    let is_uuid = |entry: &str| entry.starts_with("GPU-") || entry.starts_with("MIG-");
    let (mut visible, by_uuid) = (Vec::new(), is_uuid(list.trim()));
    for entry in list.split(',').map(str::trim).take_while(|entry| is_uuid(entry) == by_uuid) {
        let Some(device) = named(devices, there, entry) else { break };
        if visible.contains(&device) {
            return Err(NamedTwice);
        }
        visible.push(device);
    }
    Ok(visible)
}

/// The one device that an entry names: a split GPU by number or UUID is its first instance. Numbers end at the first other
/// character, as `strtol` reads them.
fn named(devices: &[Device], there: &[usize], entry: &str) -> Option<usize> {
    let gpu_of = |index: usize| devices[index].minor;
    let first_of = |minor: usize| there.iter().copied().find(|&index| gpu_of(index) == minor);
    let begins = |text: &str| text.get(..entry.len()).is_some_and(|head| head.eq_ignore_ascii_case(entry));
    if entry.starts_with("MIG-") {
        let matches =
            |&index: &usize| devices[index].instance.is_some() && begins(&devices[index].uuid_text());
        return only(there.iter().copied().filter(matches), entry);
    }
    let mut minors: Vec<usize> = there.iter().map(|&index| gpu_of(index)).collect();
    minors.dedup();
    if entry.starts_with("GPU-") {
        let matches =
            |&minor: &usize| first_of(minor).is_some_and(|index| begins(&devices[index].gpu_uuid_text()));
        return only(minors.iter().copied().filter(matches), entry).and_then(first_of);
    }
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number: usize = digits.get(..end)?.parse().ok()?;
    first_of(*minors.get(number)?)
}

/// The one match of an entry that says more than its kind.
fn only(mut matches: impl Iterator<Item = usize>, entry: &str) -> Option<usize> {
    let first = matches.next()?;
    (entry.len() > 4 && matches.next().is_none()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::{NamedTwice, visible};
    use crate::machine::{Device, Machine};

    fn devices(gpus: usize, mig: &[(usize, usize)]) -> Vec<Device> {
        Machine { gpus, mig: mig.to_vec(), ..Machine::default() }.devices()
    }

    /// Of three GPUs.
    fn seen(list: &str) -> Vec<usize> {
        visible(&devices(3, &[]), &[0, 1, 2], Some(list)).unwrap()
    }

    #[test]
    fn a_device_is_named_once_and_a_list_is_of_one_kind() {
        let all = devices(3, &[]);
        assert_eq!(visible(&all, &[0, 1, 2], Some("1,1")), Err(NamedTwice));
        assert_eq!(seen(&format!("{},0", all[1].uuid_text())), [1]);
        assert_eq!(seen(&format!("0,{}", all[1].uuid_text())), [0]);
    }

    #[test]
    fn the_variable_chooses_and_orders() {
        assert_eq!(visible(&devices(3, &[]), &[0, 1, 2], None).unwrap(), [0, 1, 2]);
        assert_eq!(seen("2,0"), [2, 0]);
        assert_eq!(seen(" 1 , 2x"), [1, 2]);
        for none in ["", "-1", "7", "none", "GPU-"] {
            assert_eq!(seen(none), [0; 0], "{none:?}");
        }
        assert_eq!(seen("1,-1,2"), [1], "the first entry that names none ends the list");
    }

    #[test]
    fn uuids_may_be_short_as_long_as_they_name_one_gpu() {
        let all = devices(3, &[]);
        let (first, last) = (all[0].uuid_text(), all[2].uuid_text());
        assert_eq!(seen(&format!("{last},{first}")), [2, 0]);
        assert_eq!(seen(&format!("GPU-{}", last[4..].to_uppercase())), [2]);
        assert_eq!(seen(&last[..12]), [0; 0], "all begin like that");
        assert_eq!(seen(&format!("{last}0")), [0; 0]);
    }

    #[test]
    fn a_gpu_without_a_node_is_not_counted() {
        let all = devices(3, &[]);
        assert_eq!(visible(&all, &[1, 2], Some("1")).unwrap(), [2]);
        assert_eq!(visible(&all, &[1, 2], Some(&all[0].uuid_text())).unwrap(), [0; 0]);
    }

    #[test]
    fn one_instance_is_seen_and_nothing_beside_it() {
        let all = devices(3, &[(1, 2)]);
        let there = [0, 1, 2, 3];
        assert_eq!(visible(&all, &there, None).unwrap(), [1]);
        assert_eq!(visible(&all, &there, Some("0,2")).unwrap(), [0, 3], "no instance in the list");
        assert_eq!(visible(&all, &there, Some("1")).unwrap(), [1], "the first of its instances");
        assert_eq!(visible(&all, &there, Some(&all[2].uuid_text())).unwrap(), [2]);
        assert_eq!(visible(&all, &there, Some(&all[1].gpu_uuid_text())).unwrap(), [1]);
        assert_eq!(visible(&all, &there, Some(&format!("{},0", all[2].uuid_text()))).unwrap(), [2]);
        assert_eq!(visible(&all, &there, Some("MIG-")).unwrap(), [0; 0]);
    }
}
