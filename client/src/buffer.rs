//! What an application publishes.

use std::fmt;
use std::sync::Arc;

use gpu_handoff_cuda::vmm::ExportError;
use gpu_handoff_cuda::{ExportedFd, VmmAllocation, VmmHold, VmmMapping};
use gpu_handoff_protocol::{Access, BufferName, Code, Lifetime, Metadata, Refusal, Tensor, limits};

use crate::error::{ClientError, Fault};
use crate::limits as client_limits;

/// Memory that can be exported as a descriptor: a [`VmmAllocation`] or a [`VmmMapping`].
pub trait Exportable: sealed::Sealed + Sync {
    /// Makes a descriptor for the whole allocation.
    ///
    /// # Errors
    /// When the memory was made without the POSIX descriptor type, or the driver refuses.
    fn export(&self) -> Result<ExportedFd, ExportError>;
}

mod sealed {
    pub trait Sealed {
        /// A hold of its own on the memory.
        fn hold(&self) -> super::VmmHold;
    }

    impl Sealed for super::VmmAllocation {
        fn hold(&self) -> super::VmmHold {
            super::VmmAllocation::hold(self)
        }
    }

    impl Sealed for super::VmmMapping {
        fn hold(&self) -> super::VmmHold {
            super::VmmMapping::hold(self)
        }
    }
}

impl Exportable for VmmAllocation {
    fn export(&self) -> Result<ExportedFd, ExportError> {
        VmmAllocation::export(self)
    }
}

impl Exportable for VmmMapping {
    fn export(&self) -> Result<ExportedFd, ExportError> {
        VmmMapping::export(self)
    }
}

/// Where a buffer's memory is.
#[derive(Clone)]
pub(crate) enum Source<'a> {
    Nothing,
    Vmm(&'a dyn Exportable),
    Exported(Arc<ExportedFd>),
    Pointer { ptr: u64, bytes: u64 },
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Vmm(_) => f.write_str("vmm allocation"),
            Self::Exported(exported) => write!(f, "{exported:?}"),
            Self::Pointer { ptr, bytes } => write!(f, "{bytes} bytes at {ptr:#x}"),
        }
    }
}

/// A buffer to publish: a name, memory, and what importers should know of it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (ptr, bytes) = (0, 0);
/// use gpu_handoff_client::Buffer;
///
/// let buffer = Buffer::named("kv-cache")?.pointer(ptr, bytes).tensor("float16", &[32, 2, 4096, 128]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Buffer<'a> {
    pub(crate) name: BufferName,
    pub(crate) source: Source<'a>,
    /// Offset and size in bytes within a vmm allocation; `None`: all of it.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) access: Access,
    pub(crate) lifetime: Lifetime,
    pub(crate) metadata: Metadata,
    pub(crate) seats: u32,
}

impl<'a> Buffer<'a> {
    /// Begins with the name that others look the buffer up by: at most 128 bytes, printable, without blanks. Publishing
    /// a name again makes its next generation.
    ///
    /// # Errors
    /// [`ClientError::Name`] when it is not such a name.
    pub fn named(name: &str) -> Result<Self, ClientError> {
        Ok(Self {
            name: BufferName::new(name)?,
            source: Source::Nothing,
            range: None,
            access: Access::default(),
            lifetime: Lifetime::default(),
            metadata: Metadata::default(),
            seats: client_limits::SEATS,
        })
    }

    /// The memory is this vmm allocation or mapping. It is exported when it is published; it may be dropped
    /// afterwards, the node keeps it alive until the buffer ends.
    #[must_use]
    pub fn vmm(mut self, memory: &'a dyn Exportable) -> Self {
        self.source = Source::Vmm(memory);
        self
    }

    /// The memory is that of a descriptor which is exported already: the cheapest way to publish the same memory again
    /// and again.
    #[must_use]
    pub fn exported(mut self, descriptor: Arc<ExportedFd>) -> Self {
        self.source = Source::Exported(descriptor);
        self
    }

    /// The memory is `bytes` bytes at this device pointer of this process (a `CUdeviceptr`; `tensor.data_ptr()` in
    /// PyTorch). What kind of memory it is, is asked from the driver: vmm memory is exported as a descriptor, memory of
    /// `cudaMalloc` as a legacy handle, and anything else is refused with `NOT_EXPORTABLE` and what to do about it.
    ///
    /// Memory of `cudaMalloc` must not be freed before the buffer has ended.
    #[must_use]
    pub fn pointer(mut self, ptr: u64, bytes: u64) -> Self {
        self.source = Source::Pointer { ptr, bytes };
        self
    }

    /// Only `bytes` bytes of the allocation, from `offset` on, are the buffer. Importers map the whole allocation. Has no
    /// effect on [`pointer`](Self::pointer), which says it already.
    #[must_use]
    pub fn range(mut self, offset: u64, bytes: u64) -> Self {
        self.range = Some((offset, bytes));
        self
    }

    /// Importers may only read. They promise it by mapping the memory read-only (vmm; legacy memory has no such
    /// mapping); CUDA lets nobody enforce it.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.access = Access::ReadOnly;
        self
    }

    /// The buffer outlives this process and ends with its pod (vmm only, not published on a stream, where the policy grants bytes for it).
    /// After a restart of its container the next process finds it by its name, as others do, and may retire it
    /// ([`Client::retire`](crate::Client::retire)) or publish the name anew, which lets this one end with its last lease.
    #[must_use]
    pub fn outlives_process(mut self) -> Self {
        self.lifetime = Lifetime::Pod;
        self
    }

    /// It holds one contiguous tensor: element type (such as `bfloat16`) and extents in elements.
    #[must_use]
    pub fn tensor(self, dtype: &str, shape: &[u64]) -> Self {
        self.strided_tensor(dtype, shape, &[])
    }

    /// It holds one tensor with these steps between elements, in elements; negative ones go backwards.
    #[must_use]
    pub fn strided_tensor(mut self, dtype: &str, shape: &[u64], strides: &[i64]) -> Self {
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        self.metadata.tensor = Some(Tensor { dtype: dtype.to_owned(), shape, strides });
        self
    }

    /// Anything else that importers should know, at most 1,024 bytes. The node does not look at it.
    #[must_use]
    pub fn metadata(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.metadata.user = bytes.into();
        self
    }

    /// It can be leased so many times at a time, at most 1,024; 4 if not set. Matters only where it is published
    /// [on a stream](crate::Client::publish_on): each lease needs a word of the timeline.
    #[must_use]
    pub fn seats(mut self, seats: u32) -> Self {
        self.seats = seats;
        self
    }

    /// Refuses here what the node would answer by ending the connection.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        check_limit("seats", self.seats as usize, limits::SEATS as usize)?;
        check_limit("bytes of metadata", self.metadata.user.len(), limits::METADATA_BYTES)?;
        let Some(tensor) = &self.metadata.tensor else { return Ok(()) };
        check_limit("bytes of dtype", tensor.dtype.len(), limits::DTYPE_BYTES)?;
        check_limit("dimensions", tensor.shape.len().max(tensor.strides.len()), limits::TENSOR_DIMENSIONS)
    }
}

/// Refuses more than `limit` of something.
pub(crate) fn check_limit(what: &str, found: usize, limit: usize) -> Result<(), Fault> {
    if found <= limit {
        return Ok(());
    }
    Err(Refusal::new(Code::TooLarge).compared_with(what, format!("at most {limit}"), found).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_node_would_hang_up_on_is_refused_here() {
        let buffer = || Buffer::named("x").unwrap();
        assert!(buffer().tensor("float32", &[1; 16]).metadata([0; 1024]).check().is_ok());
        for bad in [
            buffer().tensor("float32", &[1; 17]),
            buffer().strided_tensor("float32", &[1], &[1; 17]),
            buffer().tensor(&"f".repeat(33), &[1]),
            buffer().metadata([0; 1025]),
        ] {
            let Err(Fault::Refused(refusal)) = bad.check() else { panic!("not refused: {bad:?}") };
            assert_eq!(refusal.code(), Code::TooLarge);
        }
        assert!(matches!(Buffer::named("two words"), Err(ClientError::Name(_))));
    }
}
