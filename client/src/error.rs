//! What can go wrong, with the operation and the object that it went wrong with.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use gpu_handoff_cuda::{CudaError, LoadError};
use gpu_handoff_protocol::{Code, IdError, Refusal};

/// What was being done, and to what: `acquire weights`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doing {
    operation: &'static str,
    object: String,
}

impl Doing {
    pub(crate) fn new(operation: &'static str, object: impl fmt::Display) -> Self {
        Self { operation, object: object.to_string() }
    }

    /// The operation, such as `acquire`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// What it was done to, such as a buffer's name.
    #[must_use]
    pub fn object(&self) -> &str {
        &self.object
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.object)
    }
}

/// Why an operation of the client failed.
///
/// Its text names the operation and its object; the cause is the [source](std::error::Error::source).
/// [`remedy`](Self::remedy) says what to do, where there is something to say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The node said no, or this library did because the node would: a code, what was compared, a remedy.
    #[error("{doing}: refused with {}", .refusal.code())]
    Refused {
        /// What was being done.
        doing: Doing,
        /// The refusal.
        #[source]
        refusal: Refusal,
    },
    /// A name is not one that a buffer can have.
    #[error("read the name of a buffer")]
    Name(#[from] IdError),
    /// The pod's socket cannot be connected to.
    #[error("connect to {}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The connection has ended, and there was no other to be had, so all that was published and leased over it has ended too. Leases that are held
    /// stay mapped until they are dropped.
    #[error(
        "{doing}: the connection to the node is lost for good: connect anew, then publish and acquire again"
    )]
    ConnectionLost {
        /// What was being done.
        doing: Doing,
        /// Why the node ended it, where it said so.
        source: Option<Refusal>,
    },
    /// No answer came in time.
    #[error("{doing}: no answer within {} ms", .after.as_millis())]
    TimedOut {
        /// What was being done.
        doing: Doing,
        /// How long was waited.
        after: Duration,
    },
    /// The node said something that this version of the library cannot read.
    #[error("{doing}: the node's answer cannot be read")]
    Protocol {
        /// What was being done.
        doing: Doing,
        /// What was expected and found.
        source: Refusal,
    },
    /// The system refused a call on the connection.
    #[error("{doing}: the system refused a call")]
    Io {
        /// What was being done.
        doing: Doing,
        /// What it answered.
        source: io::Error,
    },
    /// There is no CUDA driver in this process.
    #[error("{doing}: no CUDA driver")]
    NoDriver {
        /// What was being done.
        doing: Doing,
        /// What is missing.
        source: LoadError,
    },
    /// No CUDA context is current on the calling thread, and this library makes none.
    #[error("{doing}: no CUDA context is current on this thread")]
    NoContext {
        /// What was being done.
        doing: Doing,
    },
    /// The CUDA driver refused a call.
    #[error("{doing}: the CUDA driver refused a call")]
    Cuda {
        /// What was being done.
        doing: Doing,
        /// The call and its answer.
        source: CudaError,
    },
    /// This process was forked from the one that connected. Its parent's leases and connection are not its own.
    #[error("{doing}: the connection belongs to the parent process")]
    Forked {
        /// What was being done.
        doing: Doing,
    },
    /// A thread panicked inside this library; its state cannot be trusted any more.
    #[error("{doing}: another thread panicked inside the client")]
    Poisoned {
        /// What was being done.
        doing: Doing,
    },
}

impl ClientError {
    /// The refusal behind this error, if it is one or carries one.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            Self::ConnectionLost { source, .. } => source.as_ref(),
            Self::Protocol { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The stable code of the refusal behind this error.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.refusal().map(Refusal::code)
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Connect { .. } => Some(
                "check that the pod is a member (annotation gpu-handoff.io/group), that its sidecar runs and that \
                 the socket is mounted into this container; GPU_HANDOFF_SOCKET names another socket",
            ),
            Self::NoContext { .. } => Some(
                "make a context current first: cuCtxSetCurrent, cudaSetDevice and any runtime call, or \
                 torch.cuda.init()",
            ),
            Self::NoDriver { .. } => Some(
                "run where libcuda.so.1 is visible: a container with a GPU, or the simulated driver on \
                 LD_LIBRARY_PATH",
            ),
            Self::ConnectionLost { source: None, .. } | Self::Poisoned { .. } => Some("connect again"),
            Self::TimedOut { .. } => Some("check that the node daemon answers: gpu-handoff whoami"),
            Self::Forked { .. } => {
                Some("connect in the process that uses the client; start children before, or spawn them")
            }
            other => other.refusal().map(Refusal::remedy),
        }
    }
}

/// A failure before it is known what was being done.
#[derive(Debug)]
pub(crate) enum Fault {
    Refused(Refusal),
    Lost(Option<Refusal>),
    TimedOut(Duration),
    Protocol(Refusal),
    Io(io::Error),
    NoDriver(LoadError),
    NoContext,
    Cuda(CudaError),
    Forked,
    Poisoned,
}

impl Fault {
    /// Adds what was being done.
    pub(crate) fn while_doing(self, operation: &'static str, object: impl fmt::Display) -> ClientError {
        let doing = Doing::new(operation, object);
        match self {
            Self::Refused(refusal) => ClientError::Refused { doing, refusal },
            Self::Lost(source) => ClientError::ConnectionLost { doing, source },
            Self::TimedOut(after) => ClientError::TimedOut { doing, after },
            Self::Protocol(source) => ClientError::Protocol { doing, source },
            Self::Io(source) => ClientError::Io { doing, source },
            Self::NoDriver(source) => ClientError::NoDriver { doing, source },
            Self::NoContext => ClientError::NoContext { doing },
            Self::Cuda(source) => ClientError::Cuda { doing, source },
            Self::Forked => ClientError::Forked { doing },
            Self::Poisoned => ClientError::Poisoned { doing },
        }
    }

    /// The node answered a request with something that is no answer to it.
    pub(crate) fn unexpected(wanted: &str) -> Self {
        Self::Protocol(Refusal::new(Code::Malformed).compared_with("answer", wanted, "another"))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<CudaError> for Fault {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl From<LoadError> for Fault {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Forked { .. } => Self::Forked,
            other => Self::NoDriver(other),
        }
    }
}

impl<T> From<std::sync::PoisonError<T>> for Fault {
    fn from(_: std::sync::PoisonError<T>) -> Self {
        Self::Poisoned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_names_what_was_done_and_keeps_its_cause_apart() {
        let refusal = Refusal::new(Code::NotFound).compared_with("name", "weights", "nothing");
        let error = Fault::Refused(refusal).while_doing("acquire", "weights");
        assert_eq!(error.to_string(), "acquire weights: refused with NOT_FOUND");
        assert_eq!(error.code(), Some(Code::NotFound));
        assert_eq!(error.remedy(), Some(Code::NotFound.remedy()));
        assert!(error.source().unwrap().to_string().contains("found nothing"));
    }

    #[test]
    fn a_missing_context_says_how_to_make_one() {
        let error = Fault::NoContext.while_doing("acquire", "weights");
        assert!(error.remedy().unwrap().contains("torch.cuda.init()"));
        assert_eq!(error.code(), None);
    }
}
