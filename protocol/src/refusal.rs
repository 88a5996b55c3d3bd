//! A "no" with a stable code, what was compared, and what to do about it.

use std::fmt;

use crate::limits;

/// Declares the codes once: name on the wire, remedy, and the sentence that explains the code.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $remedy:literal;)*) => {
        /// Why something was refused. Names and numbers are stable: they are never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $variant,)*
            /// A code of a newer node that this build does not know, by its number.
            Unknown(u32),
        }

        impl Code {
            /// Every code of this build, in order of number.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self { $(Code::$variant => $number,)* Code::Unknown(number) => number }
            }

            /// The stable name, such as `NOT_FOUND`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $name,)* Code::Unknown(_) => "UNKNOWN" }
            }

            /// What to do about it, unless the refusal carries something more precise.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Code::$variant => $remedy,)*
                    Code::Unknown(_) => "update this program: the node is newer and uses a code it does not know",
                }
            }

            /// The code of a number.
            #[must_use]
            pub const fn from_number(number: u32) -> Self {
                match number { $($number => Code::$variant,)* other => Code::Unknown(other) }
            }
        }
    };
}

codes! {
    /// The packet could not be read.
    Malformed = 1, "MALFORMED", "use a client library of gpu-handoff; the connection was closed";
    /// A packet, an item list or a text is over its limit.
    TooLarge = 2, "TOO_LARGE", "send less in one packet";
    /// The peer speaks a protocol version that this build does not serve.
    UnsupportedVersion = 3, "UNSUPPORTED_VERSION", "update the older side: a node serves its own minor version and the two before it";
    /// Too many or too few descriptors came with a packet.
    DescriptorCount = 4, "DESCRIPTOR_COUNT", "attach exactly one descriptor for each vmm or timeline item and none otherwise";
    /// The kernel cut the control data of a packet, so descriptors were lost.
    TruncatedControl = 5, "TRUNCATED_CONTROL", "attach fewer descriptors, and raise the receiver's RLIMIT_NOFILE if it is exhausted";
    /// Something other than a hello came first, or a second hello came.
    HelloExpected = 6, "HELLO_EXPECTED", "say hello once, first";
    /// The descriptor is not exported GPU memory.
    NotGpuMemory = 10, "NOT_GPU_MEMORY", "export the allocation with cuMemExportToShareableHandle (POSIX file descriptor) and send that descriptor";
    /// The memory has another size than was stated.
    SizeMismatch = 11, "SIZE_MISMATCH", "state the allocation's true size, rounded up to the allocation granularity";
    /// The memory is on another GPU than was stated, or on one that the pod does not hold.
    DeviceMismatch = 12, "DEVICE_MISMATCH", "state the UUID of the GPU that holds the memory; the pod must hold that GPU";
    /// The memory cannot be exported at all.
    NotExportable = 13, "NOT_EXPORTABLE", "allocate with cudaMalloc, or with cuMemCreate and the POSIX file descriptor handle type (PyTorch: expandable_segments:False)";
    /// This node does not serve buffers of that kind.
    UnsupportedKind = 14, "UNSUPPORTED_KIND", "publish the buffer as vmm";
    /// No such buffer, or none that this pod may know of.
    NotFound = 20, "NOT_FOUND", "check the id or name, that its owner lives, and that both pods are in one group";
    /// The id is from another node or from before a reboot.
    StaleHandle = 21, "STALE_HANDLE", "look the buffer up by name again: ids do not outlive the node's boot";
    /// The buffer is retired or gone.
    Retired = 22, "RETIRED", "acquire its successor by name, or wait for one";
    /// The wait ended before the buffer came.
    WaitTimeout = 23, "WAIT_TIMEOUT", "wait longer, or check that the producer runs and publishes under this name";
    /// The lease is not this process's, or has ended already.
    NotLeased = 24, "NOT_LEASED", "release a lease once, in the process that acquired it";
    /// Only the owner may do that.
    NotOwner = 25, "NOT_OWNER", "let the process that published the buffer do it";
    /// Another pod of the group holds that name.
    NameTaken = 26, "NAME_TAKEN", "choose another name, or let its owner retire it first";
    /// A part of the set was refused or did not come in its order, so nothing of the set is published.
    SetBroken = 27, "SET_BROKEN", "look at the refusal of the item that broke the set, then publish the set again from its first buffer";
    /// Every seat of the buffer's order is taken.
    NoSeat = 28, "NO_SEAT", "acquire again when a holder has released, or let the owner publish with more seats";
    /// The peer whose GPU should have written the word died.
    PeerDied = 29, "PEER_DIED", "do not use what the work that waited has produced; release, and acquire from the peer's successor";
    /// The importing pod holds no GPU that reaches the memory.
    NoPeerAccess = 30, "NO_PEER_ACCESS", "give both pods the same GPU, or GPUs with P2P access to each other";
    /// Exporter and importer have the same process number, which legacy handles cannot stand.
    PidCollision = 31, "PID_COLLISION", "publish as vmm, or give the pods different process numbers";
    /// The importing container does not have the device node of the GPU that holds the memory.
    GpuNotReachable = 32, "GPU_NOT_REACHABLE", "give the importing container the device node of that GPU, or both pods the same GPU";
    /// The memory is on another MIG instance.
    MigIsolated = 33, "MIG_ISOLATED", "give both pods the same MIG instance: no memory is shared between two";
    /// The stream is being captured into a graph, which may run any number of times.
    StreamCapturing = 34, "STREAM_CAPTURING", "order the work outside of the graph: wait for and write words on the stream before and after the graph is launched";
    /// No other member of the pod's group is on its node, and others are elsewhere.
    NoPeerOnNode = 35, "NO_PEER_ON_NODE", "let the scheduler put the group's pods on one node: gpu-handoff.io/colocate: required, and room for all of them there";
    /// A container does not have what its pod was granted beside its slot.
    NotAdjusted = 36, "NOT_ADJUSTED", "let the container start anew; if it comes again, look at the node: gpu-handoff doctor";
    /// The container runtime cannot do to a container what the pod was granted.
    RuntimeCannot = 39, "RUNTIME_CANNOT", "use containerd 2.2 or CRI-O 1.34, or later, with NRI on; gpu-handoff.io/shm: group alone needs no namespaces";
    /// The policy does not allow it.
    PolicyDenied = 40, "POLICY_DENIED", "ask the node's administrator to allow it in the policy";
    /// The member holds as many buffers as it may.
    QuotaBuffers = 41, "QUOTA_BUFFERS", "retire buffers, or raise the quota in the policy";
    /// The member has published as many bytes as it may.
    QuotaBytes = 42, "QUOTA_BYTES", "retire buffers, or raise the quota in the policy";
    /// The member holds as many leases as it may.
    QuotaLeases = 43, "QUOTA_LEASES", "release leases, or raise the quota in the policy";
    /// The daemon keeps as many descriptors as it may.
    QuotaDescriptors = 44, "QUOTA_DESCRIPTORS", "retire buffers, or raise the daemon's RLIMIT_NOFILE";
    /// The connection has as many requests waiting as it may.
    TooManyRequests = 45, "TOO_MANY_REQUESTS", "wait for answers before asking again";
    /// The member has as many connections as it may.
    TooManyConnections = 46, "TOO_MANY_CONNECTIONS", "share one connection in a process";
    /// Too many descriptors for the member are under way and unread.
    QuotaInFlight = 47, "QUOTA_IN_FLIGHT", "read the answers that are under way before acquiring more";
    /// Descriptors of the member crashed or hung a GPU worker too often lately.
    MemberSuspended = 48, "MEMBER_SUSPENDED", "publish again after 10 minutes; if it comes again, look at the node's GPU and at what the pod exports";
    /// The group's shared memory is larger than it may be on this node.
    QuotaShm = 49, "QUOTA_SHM", "ask for less (gpu-handoff.io/shm-size), or raise shm.per-group or shm.node-share in the policy";
    /// The peer's identity could not be established beyond doubt.
    PeerUnknown = 50, "PEER_UNKNOWN", "connect from a live process of the pod itself";
    /// What was handed on is no connected SOCK_SEQPACKET socket.
    NotAConnection = 51, "NOT_A_CONNECTION", "hand on only what accept returned on the pod's socket";
    /// Another process than the one that connected speaks on the connection.
    Forked = 52, "FORKED", "connect anew in the child process: rights do not pass over a fork";
    /// The receipt is not one that this node signed since it booted.
    ReceiptInvalid = 53, "RECEIPT_INVALID", "publish or acquire anew: receipts are of one node and do not outlive its boot";
    /// The GPU worker did not answer in time.
    WorkerTimeout = 60, "GPU_WORKER_TIMEOUT", "try again; if it stays, look at the node's GPU (nvidia-smi, dmesg)";
    /// The GPU worker could not be started or died.
    WorkerFailed = 61, "GPU_WORKER_FAILED", "look at the node daemon's log: it names what the driver answered";
    /// The GPU that holds the memory is lost.
    GpuLost = 62, "GPU_LOST", "reset or replace the GPU (nvidia-smi, dmesg), then publish anew";
    /// The node daemon cannot be reached.
    BrokerUnavailable = 70, "BROKER_UNAVAILABLE", "check that the node daemon runs on this node";
    /// The node daemon is stopping.
    ShuttingDown = 71, "SHUTTING_DOWN", "connect again in a moment";
    /// The watcher did not read its events in time.
    WatchOverflow = 72, "WATCH_OVERFLOW", "watch again: it begins with all that is there";
}

impl Code {
    /// Where the code is explained.
    #[must_use]
    pub fn anchor(self) -> String {
        format!("docs/refusals.md#{}", self.as_str().to_ascii_lowercase())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Unknown(number) => write!(f, "UNKNOWN_{number}"),
            known => f.write_str(known.as_str()),
        }
    }
}

/// One comparison behind a refusal: what was looked at, what was wanted, what was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// What was looked at, such as `device` or `bytes`.
    pub what: String,
    /// What was wanted.
    pub wanted: String,
    /// What was there.
    pub found: String,
}

/// A "no": stable code, what was compared, remedy, and where to read on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    code: Code,
    compared: Vec<Compared>,
    remedy: Option<String>,
}

impl Refusal {
    /// A refusal with the code's own remedy and nothing compared yet.
    #[must_use]
    pub const fn new(code: Code) -> Self {
        Self { code, compared: Vec::new(), remedy: None }
    }

    /// Adds a comparison. More than [`limits::REFUSAL_COMPARED`] are dropped, longer texts are cut.
    #[must_use]
    pub fn compared_with(mut self, what: &str, wanted: impl fmt::Display, found: impl fmt::Display) -> Self {
        if self.compared.len() < limits::REFUSAL_COMPARED {
            let (wanted, found) = (cut(wanted.to_string()), cut(found.to_string()));
            self.compared.push(Compared { what: cut(what.to_owned()), wanted, found });
        }
        self
    }

    /// Replaces the code's own remedy with a more precise one.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(cut(remedy.into()));
        self
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// What was compared.
    #[must_use]
    pub fn compared(&self) -> &[Compared] {
        &self.compared
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &str {
        self.remedy.as_deref().unwrap_or_else(|| self.code.remedy())
    }

    /// The remedy of this very refusal, where it differs from the code's.
    pub(crate) fn own_remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// Cuts a text at [`limits::REFUSAL_TEXT_BYTES`], on a character border.
fn cut(mut text: String) -> String {
    if text.len() > limits::REFUSAL_TEXT_BYTES {
        let mut end = limits::REFUSAL_TEXT_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", self.code)?;
        for (i, c) in self.compared.iter().enumerate() {
            let lead = if i == 0 { " (" } else { "; " };
            write!(f, "{lead}{}: wanted {}, found {}", c.what, c.wanted, c.found)?;
        }
        if !self.compared.is_empty() {
            f.write_str(")")?;
        }
        write!(f, "; remedy: {} [{}]", self.remedy(), self.code.anchor())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_and_names_are_unique_and_reversible() {
        let numbers: HashSet<u32> = Code::ALL.iter().map(|c| c.number()).collect();
        let names: HashSet<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(numbers.len(), Code::ALL.len());
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), *code);
        }
        assert_eq!(Code::from_number(9_999).to_string(), "UNKNOWN_9999");
    }

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let refusal = Refusal::new(Code::SizeMismatch).compared_with("bytes", 4096, 2_097_152);
        assert_eq!(
            refusal.to_string(),
            "refused: SIZE_MISMATCH (bytes: wanted 4096, found 2097152); remedy: state the allocation's true size, \
             rounded up to the allocation granularity [docs/refusals.md#size_mismatch]"
        );
    }

    #[test]
    fn texts_and_lists_are_bounded() {
        let long = "ä".repeat(limits::REFUSAL_TEXT_BYTES);
        let mut refusal = Refusal::new(Code::NotFound).with_remedy(long.clone());
        for _ in 0..20 {
            refusal = refusal.compared_with("id", &long, "nothing");
        }
        assert_eq!(refusal.compared().len(), limits::REFUSAL_COMPARED);
        assert!(refusal.remedy().len() <= limits::REFUSAL_TEXT_BYTES);
    }

    #[test]
    fn every_code_is_explained_in_the_documentation() {
        let page = include_str!("../../docs/refusals.md");
        for code in Code::ALL {
            assert!(page.contains(&format!("### {}", code.as_str())), "docs/refusals.md lacks {code}");
        }
    }
}
