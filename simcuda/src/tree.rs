//! The driver's files: device nodes, and the tree that it shows under `/proc`.
//!
//! | under the rendezvous directory | stands for |
//! |---|---|
//! | `dev/nvidia<minor>` | the GPU's device node |
//! | `proc/driver/nvidia/version` | the driver's version |
//! | `proc/driver/nvidia/gpus/<pci>/information` | UUID and minor number of a GPU |
//! | `machine` | what the first process was told to simulate |
//!
//! A simulated node is a regular file, because only a privileged process makes device nodes and none would have a driver
//! behind it. What tells one node from another, through bind mounts too, is therefore `st_dev` with `st_ino`, where it is `st_rdev`
//! for a device.
//!
//! Files are made once, when the machine gets the GPU: a node that somebody takes away, or hides in a mount namespace, stays away.

use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fchmod, mkdirat, openat};
use rustix::io::Errno;

use crate::machine::{Device, Machine, NAME};
use crate::rendezvous::{Rendezvous, open_dir};

/// The driver whose behaviour was measured.
const DRIVER: &str = "580.159.04";

/// The machine of a directory, after changing it as `change` says; the ledger's lock must be held.
pub(crate) fn machine(dir: &Rendezvous, change: impl FnOnce(Machine) -> Machine) -> std::io::Result<Machine> {
    let mut file = std::fs::File::from(open_or_create(dir.root(), "machine", dir.file_mode())?);
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    // An empty file is a new machine.
    let before = if text.is_empty() { Machine::default() } else { serde_json::from_str(&text)? };
    let mut machine = change(before.clone());
    machine.made = machine.made.max(machine.gpus);
    if before != machine {
        make(dir, before.made..machine.made)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(serde_json::to_string(&machine)?.as_bytes())?;
    }
    Ok(machine)
}

/// Makes the files of new GPUs.
fn make(dir: &Rendezvous, gpus: std::ops::Range<usize>) -> rustix::io::Result<()> {
    let nodes = folder(dir, dir.root(), "dev")?;
    let mut tree = folder(dir, dir.root(), "proc")?;
    for name in ["driver", "nvidia"] {
        tree = folder(dir, tree.as_fd(), name)?;
    }
    write(
        dir,
        tree.as_fd(),
        "version",
        &format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (simcuda)\nGCC version:  none\n"
        ),
    )?;
    let of_gpus = folder(dir, tree.as_fd(), "gpus")?;
    for minor in gpus {
        let gpu = Device { minor, instance: None };
        let bus = gpu.pci_bus_id().to_ascii_lowercase();
        write(dir, nodes.as_fd(), &node(minor), "")?;
        write(dir, folder(dir, of_gpus.as_fd(), &bus)?.as_fd(), "information", &information(&gpu, &bus))?;
    }
    Ok(())
}

/// The driver's text, with what matters filled in.
fn information(gpu: &Device, bus: &str) -> String {
    let (uuid, minor) = (gpu.gpu_uuid_text(), gpu.minor);
    format!(
        "Model: \t\t {NAME}\nIRQ:   \t\t 0\nGPU UUID: \t {uuid}\nVideo BIOS: \t 00.00.00.00.00\nBus Type: \t PCIe\n\
         DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n\
         GPU Firmware: \t {DRIVER}\nGPU Excluded:\t No\n"
    )
}

fn node(minor: usize) -> String {
    format!("nvidia{minor}")
}

/// Opens a GPU's node as the driver does; an error if it is not there or not for this user.
pub(crate) fn open_node(dir: &Rendezvous, minor: usize) -> rustix::io::Result<OwnedFd> {
    openat(dir.root(), format!("dev/{}", node(minor)), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn write(dir: &Rendezvous, at: BorrowedFd<'_>, name: &str, text: &str) -> rustix::io::Result<()> {
    let file = open_or_create(at, name, dir.file_mode())?;
    rustix::io::pwrite(&file, text.as_bytes(), 0).map(drop)
}

/// A folder that is made if missing, with the mode of the rendezvous directory.
fn folder(dir: &Rendezvous, at: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    match mkdirat(at, name, dir.mode()) {
        Ok(()) => {
            let made = open_dir(at, name)?;
            // The umask must not narrow what the directory's owner allowed.
            fchmod(&made, dir.mode())?;
            Ok(made)
        }
        Err(Errno::EXIST) => open_dir(at, name),
        Err(error) => Err(error),
    }
}

/// A file for reading and writing that is made if missing.
pub(crate) fn open_or_create(at: BorrowedFd<'_>, name: &str, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match openat(at, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    match openat(at, name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(file) => {
            // The directory's owner decides who may use the machine; the umask does not.
            fchmod(&file, mode)?;
            Ok(file)
        }
        Err(Errno::EXIST) => openat(at, name, flags, Mode::empty()),
        Err(error) => Err(error),
    }
}
