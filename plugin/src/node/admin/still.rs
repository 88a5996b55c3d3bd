//! What does not change while the node lives: who it is, its folders, its GPUs, its kernel.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::SystemTime;

use gpu_handoff_admin::proto::{Daemon, Folder, Gpus, Kernel, kernel};
use gpu_handoff_sys::filter::Held;
use gpu_handoff_sys::{peer, pidfs};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tracing::warn;

use super::words::ms;
use crate::config::Config;
use crate::limits;
use crate::node::gpus;
use crate::node::place::is_volatile;

/// Who this is.
pub(in crate::node) fn daemon(config: &Config) -> Daemon {
    let of = |what: fn(&crate::config::KubeletConfig) -> &String| {
        config.kubelet.as_ref().map(|kubelet| what(kubelet).clone()).unwrap_or_default()
    };
    Daemon {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: of(|kubelet| &kubelet.instance),
        node: of(|kubelet| &kubelet.node),
        boot: format!("{:016x}", config.boot.0),
        since_ms: ms(SystemTime::now()),
        run_dir: Some(folder(&config.run_dir)),
        state_dir: Some(folder(&config.state_dir)),
    }
}

fn folder(path: &Path) -> Folder {
    let is_volatile = rustix::fs::statfs(path).is_ok_and(|found| is_volatile(&found));
    Folder { path: path.display().to_string(), is_volatile }
}

/// The GPUs. A node without any says so when it starts: nothing can be handed over there.
pub(in crate::node) fn gpus(config: &Config, found: &gpus::Gpus) -> Gpus {
    let driver = driver_version(&config.nvidia_proc_root).unwrap_or_default();
    let proc_root = config.nvidia_proc_root.display().to_string();
    let gpus = found.told();
    if gpus.is_empty() {
        let driver = if driver.is_empty() { "none" } else { &driver };
        warn!(
            driver,
            proc_root,
            "no GPU is found here: nothing can be published on this node; where it has GPUs, their driver is not loaded, or its part of /proc is elsewhere (--nvidia-proc-root)"
        );
    }
    Gpus { driver, proc_root, gpus, loaded: None }
}

/// The first line of what the driver says of itself.
fn driver_version(proc_root: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(proc_root.join("driver/nvidia/version")).ok()?;
    file.take(limits::GPU_FACTS_BYTES).read_to_string(&mut text).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// What the kernel says of whoever connects.
pub(in crate::node) fn kernel() -> Kernel {
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    let number = own.ok().and_then(|pidfd| pidfs::inode(pidfd.as_fd()).ok().flatten());
    Kernel {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        peer_pidfd: peer::kernel_gives_pidfds().unwrap_or(false),
        process_number: number.is_some(),
        held: held(Held::could_be()).into(),
    }
}

const fn held(held: Held) -> kernel::Held {
    match held {
        Held::Fully => kernel::Held::Fully,
        Held::Partly => kernel::Held::Partly,
        Held::Not => kernel::Held::Not,
    }
}
