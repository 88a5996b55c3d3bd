//! Which GPU the scenario runs on: the real one if there is one, else the simulator; never a silent choice.

use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::Folder;
use crate::scratch::Scratch;
use anyhow::Context;
use gpu_handoff_cuda::{Driver, Survey};

/// Memory of a simulated GPU, in MiB: as much as a large one has. It is sparse, so only what is filled takes any.
const SIMULATED_MIB: u64 = 64 << 10;

/// The simulated driver, as a program's loader asks for it.
const LIBRARY: &str = "libcuda.so.1";

/// Which GPU is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Wanted {
    /// The real one if there is one, else the simulator.
    Auto,
    /// The real one, or nothing.
    Real,
    /// The simulator.
    Sim,
}

/// The GPU that the scenario runs on.
#[derive(Debug)]
pub enum Gpu {
    /// A real one.
    Real {
        /// Its name and the driver's version.
        name: String,
    },
    /// A simulated one.
    Simulated {
        /// Why not a real one.
        why: String,
        /// The folder of the simulated driver.
        library: PathBuf,
        /// Where that is a copy, for processes of other users: removed in the end.
        copy: Option<Scratch>,
        /// What stands for the device: removed in the end.
        device: Scratch,
        /// How many GPUs the machine has.
        gpus: usize,
        /// What else is said of the machine: `SIMCUDA_*`.
        settings: Settings,
    },
}

/// Variables of the simulated driver, and their values.
pub type Settings = Vec<(&'static str, &'static str)>;

impl Gpu {
    /// Looks for a GPU.
    ///
    /// # Errors
    /// When a real one is wanted and there is none, or the simulator is missing.
    pub fn find(wanted: Wanted, folder: &Folder) -> anyhow::Result<Self> {
        let why = match (wanted, real()) {
            (Wanted::Sim, _) => "the simulator was asked for".to_owned(),
            (_, Ok(name)) => return Ok(Self::Real { name }),
            (Wanted::Real, Err(e)) => return Err(e.context("a real GPU was asked for")),
            (Wanted::Auto, Err(e)) => format!("no real one: {e}"),
        };
        Self::simulate(why, folder, 1, Settings::new())
    }

    fn simulate(why: String, folder: &Folder, gpus: usize, settings: Settings) -> anyhow::Result<Self> {
        let (mut library, mut copy) = (folder.simulator()?, None);
        if rustix::process::geteuid().is_root() && !is_open_to_all(&library)? {
            let place = Scratch::make("gpu-handoff-driver-", None).context("make a folder for the driver")?;
            open_to_all(place.path(), 0o755)?;
            std::fs::copy(library.join(LIBRARY), place.path().join(LIBRARY))?;
            library = place.path().to_path_buf();
            copy = Some(place);
        }
        Ok(Self::Simulated { why, library, copy, device: device_folder()?, gpus, settings })
    }

    /// A simulated one.
    ///
    /// # Errors
    /// When the simulator is missing.
    pub fn simulated(folder: &Folder) -> anyhow::Result<Self> {
        Self::find(Wanted::Sim, folder)
    }

    /// A simulated machine with so many of them.
    ///
    /// # Errors
    /// When the simulator is missing.
    pub fn several(folder: &Folder, gpus: usize) -> anyhow::Result<Self> {
        let why = "the simulator was asked for".to_owned();
        Self::simulate(why, folder, gpus, Settings::new())
    }

    /// A simulated machine with so many of them, of which more is said; it is made at once, with the driver's tree. What the
    /// driver says of it comes back too.
    ///
    /// # Errors
    /// When the simulator is missing, or the machine cannot be made.
    pub fn machine(folder: &Folder, gpus: usize, settings: Settings) -> anyhow::Result<(Self, Survey)> {
        let gpu = Self::simulate("the simulator was asked for".to_owned(), folder, gpus, settings)?;
        let mut command = Command::new(folder.binary("gpu-handoff-plugin")?);
        gpu.give_to(&mut command, None);
        let output = command.arg("gpu-survey").output().context("survey the machine")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "the survey ended with {}: {said}", output.status);
        Ok((gpu, serde_json::from_slice(&output.stdout)?))
    }

    /// Lets a program find this GPU. `device` is where the simulated device is seen by that program.
    pub fn give_to(&self, command: &mut Command, device: Option<&Path>) {
        if let Self::Simulated { library, device: own, gpus, settings, .. } = self {
            command.envs(settings.iter().copied());
            command.env("LD_LIBRARY_PATH", library).env("SIMCUDA_DIR", device.unwrap_or(own.path()));
            command
                .env("SIMCUDA_GPUS", gpus.to_string())
                .env("SIMCUDA_MEMORY_MIB", SIMULATED_MIB.to_string());
        }
    }

    /// What stands for the simulated device.
    #[must_use]
    pub fn device_folder(&self) -> Option<&Path> {
        match self {
            Self::Real { .. } => None,
            Self::Simulated { device, .. } => Some(device.path()),
        }
    }

    /// Whether it is simulated.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated { .. })
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real { name } => write!(f, "real GPU: {name}"),
            Self::Simulated { why, .. } => write!(f, "simulated GPU, host memory only ({why})"),
        }
    }
}

/// The first real GPU, by asking the driver that the loader finds.
fn real() -> anyhow::Result<String> {
    let driver = Driver::load()?;
    let devices = driver.devices()?;
    let first = devices.first().context("the driver shows no device")?;
    let version = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
    let cuda = driver.version()?;
    Ok(format!(
        "{} {}, driver {} (CUDA {}.{})",
        first.name()?,
        first.uuid(),
        version.trim(),
        cuda / 1000,
        cuda % 1000 / 10
    ))
}

/// Shared memory if there is some: simulated GPU memory lives there.
fn device_folder() -> anyhow::Result<Scratch> {
    let made = Scratch::make("gpu-handoff-device-", Some(Path::new("/dev/shm")));
    let made = made.context("make a folder that stands for the simulated device")?;
    if rustix::process::geteuid().is_root() {
        // As real device nodes are: the plugin's processes run as another user.
        open_to_all(made.path(), 0o777)?;
    }
    Ok(made)
}

/// Whether a driver that is installed there can be loaded by every user's processes.
fn is_open_to_all(folder: &Path) -> anyhow::Result<bool> {
    let folder = folder.canonicalize()?;
    for part in folder.ancestors() {
        if part.metadata()?.permissions().mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn open_to_all(folder: &Path, mode: u32) -> anyhow::Result<()> {
    let changed = std::fs::set_permissions(folder, Permissions::from_mode(mode));
    changed.with_context(|| format!("open {} to all users", folder.display()))
}
