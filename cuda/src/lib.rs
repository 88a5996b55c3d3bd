//! A thin safe layer over the CUDA driver API, for only the calls that gpu-handoff uses.
//!
//! Nothing here panics and nothing here needs a GPU to be linked: `libcuda.so.1` is opened when [`Driver::load`] is
//! called, and a machine without it gets an error that says so. The types are the vendor's, through
//! [`cudarc::driver::sys`]; its functions are not called, because they panic on a missing library and return a closed
//! enum, which an unknown code of a newer driver would make undefined behaviour.
//!
//! | concern | file |
//! |---|---|
//! | the library, its symbols, the table of functions | [`load`], `calls` |
//! | the driver's answers and our errors | [`status`] |
//! | GPUs and their primary contexts | [`device`], [`context`] |
//! | which devices there are and which reach each other, without a context | [`survey`] |
//! | memory shared by descriptor: create, export, import, map | [`vmm`] |
//! | memory shared by 64-byte handle: `cuMemAlloc` and CUDA IPC | [`legacy`] |
//! | which of the two a pointer is, or why neither | [`mod@classify`] |
//! | a descriptor from a stranger: which GPU, how large, without a context | [`mod@inspect`] |
//! | cheap exports | [`sentinel`] |
//! | may the process number inside a legacy handle be rewritten on this driver? | [`self_test`] |
//! | fill, read, write, copy, wait, timeline words | [`ops`] |
//! | streams, the application's and our own | [`stream`] |
//! | a function of the host that a stream comes to | [`host`] |
//! | which process this is, and when it ends | [`process`], [`leaving`] |
//!
//! Ownership is in the types: an import, an allocation and a mapping are different things, a mapping owns what it
//! maps, and drop order is field order. An error in a drop is counted and handed to a hook ([`status::drop_errors`]).

#![allow(unsafe_code, reason = "every call into the driver is foreign code; this crate is where they live")]

mod calls;
pub mod classify;
pub mod context;
pub mod device;
pub mod host;
pub mod inspect;
pub mod leaving;
pub mod legacy;
pub mod load;
pub mod ops;
pub mod process;
#[doc(hidden)]
pub mod raw;
pub mod self_test;
pub mod sentinel;
pub mod status;
pub mod stream;
pub mod survey;
pub mod vmm;

pub use classify::{Memory, NotExportable, classify};
pub use context::{ContextGuard, ContextRef, PrimaryContext, PrimaryHold};
pub use device::Device;
pub use gpu_handoff_protocol::{Access, DeviceUuid};
pub use host::call_on;
pub use inspect::{InspectError, Inspection, SizeProof, inspect};
pub use legacy::{LegacyAllocation, LegacyHandle, LegacyMapping};
pub use load::{Driver, LoadError, Since};
pub use self_test::PidWordProof;
pub use sentinel::Sentinel;
pub use status::{CudaError, Status, drop_errors};
pub use stream::{Stream, StreamRef};
pub use survey::Survey;
pub use vmm::{ExportError, ExportedFd, VmmAllocation, VmmHold, VmmImport, VmmMapping};
