//! A simulated `libcuda.so.1` that behaves as measured on the real driver, on host memory.
//!
//! For laptops, clusters without GPUs and CI: install the built `libgpu_handoff_simcuda.so` as `libcuda.so.1` and programs that
//! use the driver API for sharing memory run unchanged. Device memory is sparse files in one *rendezvous directory*, which
//! stands for the GPU's device node: whoever is given it has the GPUs, and nothing else is shared between processes.
//! Answers that are the driver's choice stand in [`measured`], with how each is known. [`dump`] tells who holds what.
//!
//! | environment | meaning | default |
//! |---|---|---|
//! | `SIMCUDA_DIR` | rendezvous directory; made with mode 0700 if missing | `/dev/shm/simcuda-<uid>` |
//! | `SIMCUDA_GPUS` | number of GPUs | 1 |
//! | `SIMCUDA_MEMORY_MIB` | memory of each GPU | 4096 |
//! | `SIMCUDA_MIG` | GPUs that are split into MIG instances: `0:2,3:7` are two of GPU 0 and seven of GPU 3 | none |
//! | `SIMCUDA_P2P` | which GPUs reach each other: `all`, `none`, or pairs, `0-1` both ways, `0>1` only GPU 0 to the memory of GPU 1 | `all` |
//! | `CUDA_VISIBLE_DEVICES` | which GPUs this process sees and in which order, as for the vendor's driver | all |
//!
//! What the first process of a directory was told stays the machine's: it is the default of those that come later. There are at most
//! [`GPUS_MAX`] devices, whole GPUs and instances together.
//!
//! # GPUs that are out of reach
//!
//! Each GPU has a device node, `dev/nvidia<minor>` in the rendezvous directory, and the driver's tree beside it under `proc`. A process keeps
//! the nodes of the GPUs that it uses open. A GPU whose node it cannot open, because somebody took it away or hid it in a mount
//! namespace, is not there: importing its memory fails as measured. A node is a regular file, which takes no privilege
//! to make; so where a real node is known by its `st_rdev`, this one is known by `st_dev` and `st_ino`.
//!
//! A process sees one MIG instance, the first or the one that `CUDA_VISIBLE_DEVICES` names, and then no whole GPU.
//!
//! # Faults
//!
//! Calls hang, fail or crash and GPUs are lost on demand: see [`faults`].
//!
//! # What is different from the real driver
//!
//! - An exported descriptor is a regular file, not a character device (`fstat` tells). Its mark is the sticky bit beside the
//!   permissions, the same for all memory of one rendezvous directory, with that directory's `st_dev`.
//! - There are no kernels, modules, arrays, graphs, managed or host memory calls.
//! - `cuMemFree` does not wait for the GPU; work that is under way keeps the memory until it is done.
//! - There are no nodes of the driver as a whole (`nvidiactl`, `nvidia-uvm`), and none of MIG instances (`nvidia-caps`).
//! - A pool keeps no memory back, and its descriptor alone keeps none alive.
//! - A full file system under the rendezvous directory shows as `CUDA_ERROR_OUT_OF_MEMORY` from a copy or memset.

#![allow(unsafe_code, reason = "a C library over shared mappings; each block states its invariants")]

mod abi;
mod address_space;
mod config;
mod context;
mod copy;
mod device;
mod driver;
pub mod dump;
mod error;
mod event;
pub mod faults;
mod ffi;
mod header;
#[cfg(test)]
mod header_check;
mod ipc;
mod ledger;
mod legacy;
mod legacy_handle;
mod machine;
mod mapping;
pub mod measured;
mod physical;
mod pointer;
mod pool;
mod process;
mod rendezvous;
mod store;
mod stream;
mod tree;
mod vmm;
mod word;

pub use config::{GPUS_MAX, default_dir};
pub use error::CuResult;

/// Says what the simulator cannot do as asked: where no result code would tell it.
pub(crate) fn complain(what: &str) {
    // Nobody is left to be told if even that fails.
    let _unheard = std::io::Write::write_all(&mut std::io::stderr(), format!("simcuda: {what}\n").as_bytes());
}
