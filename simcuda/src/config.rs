//! The simulator's environment, read once by `cuInit`.

use std::path::PathBuf;

/// The most GPUs one simulated machine has.
pub const GPUS_MAX: usize = 16;

const MIB: u64 = 1 << 20;
const MEMORY_MIB_DEFAULT: u64 = 4096;

/// What `SIMCUDA_*` says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `SIMCUDA_DIR`: the rendezvous directory, which stands for the device node.
    pub(crate) dir: PathBuf,
    /// Whether the directory is the default one, which must belong to this user.
    pub(crate) default_dir: bool,
    /// `SIMCUDA_GPUS`: how many GPUs the machine has.
    pub(crate) gpus: usize,
    /// `SIMCUDA_MEMORY_MIB`: memory of each, in bytes here.
    pub(crate) memory_bytes: u64,
    /// `CUDA_VISIBLE_DEVICES`, which the vendor's driver reads too.
    pub(crate) visible: Option<String>,
}

impl Config {
    pub(crate) fn from_env() -> Self {
        let dir = std::env::var_os("SIMCUDA_DIR").filter(|dir| !dir.is_empty());
        Self {
            default_dir: dir.is_none(),
            dir: dir.map_or_else(default_dir, PathBuf::from),
            gpus: number("SIMCUDA_GPUS").map_or(1, |n| usize::try_from(n).unwrap_or(GPUS_MAX).min(GPUS_MAX)),
            memory_bytes: number("SIMCUDA_MEMORY_MIB").unwrap_or(MEMORY_MIB_DEFAULT).saturating_mul(MIB),
            visible: std::env::var_os("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned()),
        }
    }
}

/// The rendezvous directory of a process of this user that sets no `SIMCUDA_DIR`.
pub fn default_dir() -> PathBuf {
    PathBuf::from(format!("/dev/shm/simcuda-{}", rustix::process::getuid().as_raw()))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}
