//! The simulated machine: how many GPUs it has, which of them are split into MIG instances, and which reach each other.
//!
//! A *device* is what the driver enumerates: a whole GPU, or one instance of a split one. Everywhere else in this crate `gpu` and
//! `device` are the index of a device of the machine; only here and in the tree of files the GPU itself has a number, its minor.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::config::{Config, GPUS_MAX};
use crate::header::BLOCK_BYTES;

/// The name of every simulated GPU.
pub(crate) const NAME: &str = "Simulated GPU";

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What the first process of a directory made, and later ones may change by their environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Machine {
    pub(crate) gpus: usize,
    pub(crate) memory_mib: u64,
    /// GPUs that are split, and into how many instances.
    pub(crate) mig: Vec<(usize, usize)>,
    pub(crate) p2p: Peers,
    /// GPUs whose files were ever made; a process that is told of fewer takes none away.
    pub(crate) made: usize,
}

/// Which GPUs reach the memory of which others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Peers {
    All,
    /// From the first to the memory of the second.
    Pairs(Vec<(usize, usize)>),
}

impl Default for Machine {
    fn default() -> Self {
        Self { gpus: 1, memory_mib: 4096, mig: Vec::new(), p2p: Peers::All, made: 0 }
    }
}

/// A whole GPU or an instance of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// The GPU.
    pub(crate) minor: usize,
    /// Which of how many instances.
    pub(crate) instance: Option<(usize, usize)>,
}

impl Machine {
    /// This machine with what a process's environment says.
    pub(crate) fn with(mut self, config: &Config) -> Self {
        self.gpus = config.gpus.unwrap_or(self.gpus);
        self.memory_mib = config.memory_mib.unwrap_or(self.memory_mib);
        self.mig = config.mig.clone().unwrap_or(self.mig);
        self.p2p = config.p2p.clone().unwrap_or(self.p2p);
        self
    }

    /// The devices in the machine's order; a device's index is its place here.
    pub(crate) fn devices(&self) -> Vec<Device> {
        let of_gpu = |minor: usize| {
            let count = self.mig.iter().find(|(gpu, _)| *gpu == minor).map_or(0, |(_, count)| *count);
            let instances = (0..count).map(move |number| Device { minor, instance: Some((number, count)) });
            instances.chain((count == 0).then_some(Device { minor, instance: None }))
        };
        (0..self.gpus).flat_map(of_gpu).take(GPUS_MAX).collect()
    }

    /// Bytes of memory of a device.
    pub(crate) fn memory_bytes(&self, device: &Device) -> u64 {
        let bytes = self.memory_mib.saturating_mul(MIB);
        device.instance.map_or(bytes, |(_, count)| bytes / count as u64 / BLOCK_BYTES * BLOCK_BYTES)
    }

    /// Whether a device reaches the memory of another: GPUs that are linked do, instances never.
    pub(crate) fn reaches(&self, from: &Device, to: &Device) -> bool {
        let whole = from.instance.is_none() && to.instance.is_none() && from.minor != to.minor;
        whole
            && match &self.p2p {
                Peers::All => true,
                Peers::Pairs(pairs) => pairs.contains(&(from.minor, to.minor)),
            }
    }

    /// The product name of a device.
    pub(crate) fn name(&self, device: &Device) -> String {
        match device.instance {
            None => NAME.to_owned(),
            Some(_) => format!("{NAME} MIG 1g.{}gb", self.memory_bytes(device) / GIB),
        }
    }
}

impl Device {
    /// Stable over processes and restarts: what the product compares instead of ordinals.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        let mut uuid = self.gpu_uuid();
        uuid[14] = self.instance.and_then(|(number, _)| u8::try_from(number + 1).ok()).unwrap_or(0);
        uuid
    }

    /// The UUID of the GPU.
    pub(crate) fn gpu_uuid(&self) -> [u8; 16] {
        let mut uuid = *b"simcuda\0\x40\0\x80\0\0\0\0\0";
        uuid[15] = u8::try_from(self.minor).unwrap_or(u8::MAX);
        uuid
    }

    /// As the driver's tools print it: `GPU-…` or `MIG-…`.
    pub(crate) fn uuid_text(&self) -> String {
        let kind = if self.instance.is_some() { "MIG" } else { "GPU" };
        format!("{kind}-{}", dashed(&self.uuid()))
    }

    /// The GPU's UUID as the driver's tools print it.
    pub(crate) fn gpu_uuid_text(&self) -> String {
        format!("GPU-{}", dashed(&self.gpu_uuid()))
    }

    pub(crate) fn pci_bus(&self) -> usize {
        self.minor + 1
    }

    pub(crate) fn pci_bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.pci_bus())
    }
}

/// `8-4-4-4-12` hexadecimal digits.
fn dashed(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _written = write!(text, "{byte:02x}");
    }
    text
}

/// `SIMCUDA_MIG`: `<gpu>:<instances>`, comma-separated; `none` or nothing for no instance.
pub(crate) fn parse_mig(text: &str) -> Option<Vec<(usize, usize)>> {
    entries(text)
        .map(|entry| {
            let (gpu, count) = entry.split_once(':')?;
            let count: usize = count.trim().parse().ok()?;
            Some((gpu.trim().parse().ok()?, count)).filter(|_| (1..=GPUS_MAX).contains(&count))
        })
        .collect()
}

/// `SIMCUDA_P2P`: `all`, `none`, or pairs of GPUs: `0-1` for both ways, `0>1` for GPU 0 to the memory of GPU 1 alone.
pub(crate) fn parse_p2p(text: &str) -> Option<Peers> {
    if text.trim() == "all" {
        return Some(Peers::All);
    }
    let mut pairs = Vec::new();
    for entry in entries(text) {
        let both = entry.contains('-');
        let (from, to) = entry.split_once(['-', '>'])?;
        let (from, to) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        pairs.push((from, to));
        if both {
            pairs.push((to, from));
        }
    }
    Some(Peers::Pairs(pairs))
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty() && *entry != "none")
}

#[cfg(test)]
mod tests {
    use super::{Machine, Peers, parse_mig, parse_p2p};

    #[test]
    fn a_split_gpu_is_its_instances() {
        let machine = Machine { gpus: 3, mig: vec![(1, 2)], memory_mib: 4096, ..Machine::default() };
        let devices = machine.devices();
        let minors: Vec<_> = devices.iter().map(|device| (device.minor, device.instance)).collect();
        assert_eq!(minors, [(0, None), (1, Some((0, 2))), (1, Some((1, 2))), (2, None)]);
        let texts: Vec<_> = devices.iter().map(super::Device::uuid_text).collect();
        assert!(texts[0].starts_with("GPU-") && texts[1].starts_with("MIG-") && texts[1] != texts[2]);
        assert_eq!(devices[1].gpu_uuid_text(), devices[2].gpu_uuid_text());
        assert_eq!(machine.memory_bytes(&devices[1]), 2 << 30);
        assert_eq!(machine.name(&devices[1]), "Simulated GPU MIG 1g.2gb");
        assert!(machine.reaches(&devices[0], &devices[3]));
        assert!(!machine.reaches(&devices[1], &devices[2]) && !machine.reaches(&devices[0], &devices[1]));
        assert_eq!(texts[0].len(), 40);
    }

    #[test]
    fn the_variables_are_read_or_refused() {
        assert_eq!(parse_mig("1:2, 3:7"), Some(vec![(1, 2), (3, 7)]));
        assert_eq!(parse_mig("none"), Some(vec![]));
        for wrong in ["1", "1:0", "a:2", "1:99"] {
            assert_eq!(parse_mig(wrong), None, "{wrong}");
        }
        assert_eq!(parse_p2p("all"), Some(Peers::All));
        assert_eq!(parse_p2p("none"), Some(Peers::Pairs(vec![])));
        assert_eq!(parse_p2p("0-1,2>0"), Some(Peers::Pairs(vec![(0, 1), (1, 0), (2, 0)])));
        assert_eq!(parse_p2p("0/1"), None);
    }
}
