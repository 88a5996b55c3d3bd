//! Values that are one of a few words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares such a value.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$word_doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All of them, from the least to the most.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// How it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What the keys of a policy mean.
    Version {
        /// The first.
        V1 = "gpu-handoff.io/v1",
    }
}
words! {
    /// Who may publish legacy handles.
    #[derive(Default)]
    LegacyRule {
        /// Nobody.
        #[default]
        Deny = "deny",
        /// Members of a group of their own namespace, for pods of that namespace alone.
        WithinNamespace = "within-namespace",
    }
}
words! {
    /// A kind of buffer that is granted by a list; legacy handles have a rule of their own.
    GrantedKind {
        /// Descriptors of memory.
        Vmm = "vmm",
        /// Words that streams wait for.
        Timeline = "timeline",
    }
}
words! {
    /// Which kind of program a pod may run, by its annotation `gpu-handoff.io/profile`.
    #[derive(Default)]
    Profile {
        /// Programs that use our client library.
        #[default]
        Client = "client",
        /// Unmodified programs that pass CUDA IPC handles and events, as PyTorch does.
        Torch = "torch",
        /// Unmodified NCCL ranks.
        Nccl = "nccl",
    }
}
words! {
    /// Whose GPUs a pod's containers may have device nodes of, by its annotation `gpu-handoff.io/devices`.
    #[derive(Default)]
    Devices {
        /// Their own.
        #[default]
        Own = "own",
        /// Those of the group.
        Group = "group",
        /// All of the node.
        Node = "node",
    }
}
words! {
    /// What happens to a pod's applications where its start fails, by its annotation `gpu-handoff.io/on-failure`: the node
    /// daemon cannot be reached, or it is known that the pod will be able to exchange nothing.
    #[derive(Default)]
    OnFailure {
        /// They are not started before that is over.
        #[default]
        Block = "block",
        /// They are.
        Start = "start",
    }
}
words! {
    /// What that annotation is where a pod does not have it, and whether it may say otherwise.
    #[derive(Default)]
    FailureRule {
        /// `block`, and it may say nothing else.
        AlwaysBlock = "always-block",
        /// `block`, and it may say otherwise.
        #[default]
        Block = "block",
        /// `start`, and it may say otherwise.
        Start = "start",
    }
}
words! {
    /// What happens to a container that was made without what its pod was granted beside its slot.
    #[derive(Default)]
    Unadjusted {
        /// It does not start, or is killed: it is made anew.
        #[default]
        Kill = "kill",
        /// It is told of.
        Report = "report",
    }
}
words! {
    /// What happens to who still leases a buffer whose time is over.
    #[derive(Default)]
    Orphans {
        /// It is told of.
        #[default]
        Report = "report",
        /// Its pod is evicted.
        Evict = "evict",
        /// Its process is killed.
        Kill = "kill",
    }
}
