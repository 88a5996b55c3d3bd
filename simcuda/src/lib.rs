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
//! | `SIMCUDA_GPUS` | number of GPUs, at most [`GPUS_MAX`] | 1 |
//! | `SIMCUDA_MEMORY_MIB` | memory of each GPU | 4096 |
//! | `CUDA_VISIBLE_DEVICES` | which GPUs this process sees and in which order, as for the vendor's driver | all |
//!
//! # What is different from the real driver
//!
//! - An exported descriptor is a regular file, not a character device (`fstat` tells). Its mark is the sticky bit beside the
//!   permissions, the same for all memory of one rendezvous directory, with that directory's `st_dev`.
//! - There are no kernels, modules, arrays, graphs, managed or host memory calls.
//! - `cuMemFree` does not wait for the GPU; work that is under way keeps the memory until it is done.
//! - All GPUs reach each other, none has a device node of its own that could be missing, and there are no MIG instances.
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
mod ffi;
mod header;
#[cfg(test)]
mod header_check;
mod ipc;
mod ledger;
mod legacy;
mod legacy_handle;
mod mapping;
pub mod measured;
mod physical;
mod pointer;
mod pool;
mod process;
mod rendezvous;
mod store;
mod stream;
mod vmm;
mod word;

pub use config::{GPUS_MAX, default_dir};
pub use error::CuResult;
