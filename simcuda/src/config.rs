//! The simulator's environment, read once by `cuInit`.

use std::path::PathBuf;

use crate::machine::{Peers, parse_mig, parse_p2p};

/// The most devices (whole GPUs and MIG instances) one simulated machine has.
pub const GPUS_MAX: usize = 16;

/// What `SIMCUDA_*` says; what it leaves out is as the directory's machine was made.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `SIMCUDA_DIR`: the rendezvous directory.
    pub(crate) dir: PathBuf,
    /// Whether the directory is the default one, which must belong to this user.
    pub(crate) default_dir: bool,
    /// `SIMCUDA_GPUS`: how many GPUs the machine has.
    pub(crate) gpus: Option<usize>,
    /// `SIMCUDA_MEMORY_MIB`: memory of each.
    pub(crate) memory_mib: Option<u64>,
    /// `SIMCUDA_MIG`: GPUs that are split into instances.
    pub(crate) mig: Option<Vec<(usize, usize)>>,
    /// `SIMCUDA_P2P`: which GPUs reach each other.
    pub(crate) p2p: Option<Peers>,
    /// `CUDA_VISIBLE_DEVICES`, which the vendor's driver reads too.
    pub(crate) visible: Option<String>,
}

impl Config {
    /// `None` if a variable says something that cannot be understood.
    pub(crate) fn from_env() -> Option<Self> {
        let (dir, default_dir) = dir();
        let gpus = read("SIMCUDA_GPUS", |text| text.parse().ok())?;
        Some(Self {
            dir,
            default_dir,
            gpus: gpus.map(|gpus: usize| gpus.min(GPUS_MAX)),
            memory_mib: read("SIMCUDA_MEMORY_MIB", |text| text.parse().ok())?,
            mig: read("SIMCUDA_MIG", parse_mig)?,
            p2p: read("SIMCUDA_P2P", parse_p2p)?,
            visible: std::env::var_os("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned()),
        })
    }
}

/// The rendezvous directory, and whether it is the default one.
pub(crate) fn dir() -> (PathBuf, bool) {
    let named = std::env::var_os("SIMCUDA_DIR").filter(|dir| !dir.is_empty());
    let default = named.is_none();
    (named.map_or_else(default_dir, PathBuf::from), default)
}

/// The rendezvous directory of a process of this user that sets no `SIMCUDA_DIR`.
pub fn default_dir() -> PathBuf {
    PathBuf::from(format!("/dev/shm/simcuda-{}", rustix::process::getuid().as_raw()))
}

/// The value of a variable, `Some(None)` if it is not set, `None` (and a word to the user) if it cannot be understood.
#[allow(clippy::option_option, reason = "not set and not understood are two things")]
fn read<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    let Some(text) = std::env::var_os(name) else { return Some(None) };
    let value = text.to_str().map(str::trim).and_then(parse);
    if value.is_none() {
        crate::complain(&format!("{name}={} is not understood", text.to_string_lossy()));
    }
    value.map(Some)
}
