//! Where the binaries are: in the folder of the running executable. Started through cargo, that folder is built first.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::Context;

/// The simulator as cargo builds it, and as a program's loader looks for it.
const BUILT_SIMULATOR: &str = "libgpu_handoff_simcuda.so";
const SIMULATOR: &str = "simcuda/libcuda.so.1";

/// The folder with all binaries and the simulated driver.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of this executable. Through `cargo run` or `cargo test` the workspace is built and the folder laid
    /// out first, with cargo's own output shown.
    ///
    /// # Errors
    /// When the build fails or a binary is missing.
    pub fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find this program")?;
        let mut folder = own.parent().context("find this program's folder")?.to_path_buf();
        if folder.ends_with("deps") {
            folder.pop(); // A test's executable.
        }
        if let (Some(cargo), Some(manifest)) =
            (std::env::var_os("CARGO"), std::env::var_os("CARGO_MANIFEST_DIR"))
        {
            build(&cargo, Path::new(&manifest), &folder)?;
        }
        let found = Self(folder);
        for name in ["gpu-handoff-plugin", "gpu-handoff-sidecar", "agent"] {
            found.binary(name)?;
        }
        Ok(found)
    }

    /// The same, found once for all tests of an executable.
    ///
    /// # Errors
    /// As [`find`](Self::find), each time.
    pub fn shared() -> anyhow::Result<Self> {
        static FOLDER: OnceLock<Result<Folder, String>> = OnceLock::new();
        FOLDER.get_or_init(|| Self::find().map_err(|e| format!("{e:#}"))).clone().map_err(anyhow::Error::msg)
    }

    /// A binary's path.
    ///
    /// # Errors
    /// When it is not there.
    pub fn binary(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.join(name);
        anyhow::ensure!(
            path.exists(),
            "{} is missing: build the workspace, or run this through cargo",
            path.display()
        );
        Ok(path)
    }

    /// The folder that holds the simulated `libcuda.so.1`, for `LD_LIBRARY_PATH`.
    ///
    /// # Errors
    /// When it is not there.
    pub fn simulator(&self) -> anyhow::Result<PathBuf> {
        let library = self.binary(SIMULATOR)?;
        Ok(library.parent().context("find the simulator's folder")?.to_path_buf())
    }
}

fn build(cargo: &std::ffi::OsStr, manifest: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(cargo);
    command.args(["build", "--workspace", "--bins", "--lib"]).current_dir(manifest);
    if folder.file_name().is_some_and(|n| n == "release") {
        command.arg("--release");
    }
    let status = command.stdin(Stdio::null()).status().context("run cargo")?;
    anyhow::ensure!(status.success(), "the workspace does not build ({status})");
    lay_out(folder)
}

/// Puts the simulator where a loader finds it under the driver's name. Others may do the same at the same time.
fn lay_out(folder: &Path) -> anyhow::Result<()> {
    let (built, wanted) = (folder.join(BUILT_SIMULATOR), folder.join(SIMULATOR));
    let place = wanted.parent().context("find the simulator's folder")?;
    std::fs::create_dir_all(place)?;
    let fresh = std::fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    if std::fs::read(&wanted).is_ok_and(|there| there == fresh) {
        return Ok(());
    }
    let partial = place.join(format!(".libcuda.so.1.{}", std::process::id()));
    std::fs::write(&partial, fresh)?;
    std::fs::rename(&partial, &wanted).with_context(|| format!("lay out {}", wanted.display()))
}
