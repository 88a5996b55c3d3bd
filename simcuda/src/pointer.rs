//! What `cuPointerGetAttribute` tells about a device address.

use crate::abi::{self, pointer_attribute as attribute};
use crate::address_space::{Origin, Region};
use crate::driver::{Driver, State};
use crate::error::Result;
use crate::header::Kind;
use crate::measured;

/// A value of the width that the attribute has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    U32(u32),
    I32(i32),
    U64(u64),
    Pointer(usize),
}

impl Driver {
    /// The value of an attribute.
    pub(crate) fn pointer_attribute(&self, number: u32, address: u64) -> Result<Value> {
        let state = self.state();
        let region = state.space.find(address).ok_or(measured::POINTER_UNKNOWN)?;
        let flag = |yes: bool| Ok(Value::I32(i32::from(yes)));
        match number {
            attribute::CONTEXT => context_of(&state, region).map(Value::Pointer),
            attribute::MEMORY_TYPE => Ok(Value::U32(abi::MEMORY_TYPE_DEVICE)),
            attribute::DEVICE_POINTER => Ok(Value::U64(address)),
            attribute::SYNC_MEMOPS | attribute::IS_MANAGED | attribute::IS_GPU_DIRECT_RDMA_CAPABLE => {
                flag(false)
            }
            attribute::BUFFER_ID => Ok(Value::U64(region.id)),
            attribute::DEVICE_ORDINAL => Ok(Value::I32(self.ordinal_of(region))),
            attribute::IS_LEGACY_CUDA_IPC_CAPABLE => flag(matches!(region.origin, Origin::Allocated { .. })),
            attribute::RANGE_START_ADDR => Ok(Value::U64(range_of(&state, region).0)),
            attribute::RANGE_SIZE => Ok(Value::U64(range_of(&state, region).1)),
            attribute::MAPPING_BASE_ADDR => Ok(Value::U64(region.start)),
            attribute::MAPPING_SIZE => Ok(Value::U64(region.bytes)),
            attribute::MAPPED => flag(true),
            attribute::ALLOWED_HANDLE_TYPES => {
                Ok(Value::U64(u64::from(region.view.physical().handle_types())))
            }
            attribute::ACCESS_FLAGS => {
                Ok(Value::U32(region.access.get(region.gpu()).copied().unwrap_or(abi::ACCESS_NONE)))
            }
            attribute::MEMPOOL_HANDLE => match region.origin {
                Origin::Pooled { pool, .. } => Ok(Value::Pointer(pool)),
                _ => Ok(Value::Pointer(0)),
            },
            _ => Err(measured::POINTER_ATTRIBUTE),
        }
    }
}

impl Driver {
    /// A legacy import of a GPU that this process does not see shows the ordinal of the GPU that it was opened on (sharing 7).
    fn ordinal_of(&self, region: &Region) -> i32 {
        match (self.devices.ordinal(region.gpu()), region.origin) {
            (hidden, Origin::Imported { gpu, .. }) if hidden < 0 => self.devices.ordinal(gpu),
            (ordinal, _) => ordinal,
        }
    }
}

/// The range of a mapping is the whole reservation that it is in (measured), that of anything else is its own.
fn range_of(state: &State, region: &Region) -> (u64, u64) {
    match region.origin {
        Origin::Mapped { .. } => state.space.reservation_of(region),
        _ => (region.start, region.bytes),
    }
}

/// VMM and pool memory belong to no context.
fn context_of(state: &State, region: &Region) -> Result<usize> {
    let gpu = match region.origin {
        Origin::Imported { gpu, .. } => gpu,
        _ => region.gpu(),
    };
    match region.kind() {
        Kind::Legacy => Ok(state.contexts.of_gpu(gpu).unwrap_or(0)),
        Kind::Vmm | Kind::Pool | Kind::PoolMemory => Ok(0),
    }
}
