//! The values of annotations that are one of a few words.

use std::fmt;

// The policy grants these by the same words.
pub use gpu_handoff_policy::{Devices, OnFailure, Profile};
use serde::{Deserialize, Serialize};

/// A value that is one of a few words.
pub(crate) trait Word: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// How it is written.
    fn word(self) -> &'static str;
}

/// Declares such a value: the first is what it is where nobody says.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_word:literal, $($(#[$word_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
        pub enum $name {
            $(#[$first_doc])*
            #[default]
            #[serde(rename = $first_word)]
            $first,
            $($(#[$word_doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// How it is written in the annotation.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { Self::$first => $first_word, $(Self::$variant => $word,)* }
            }
        }

        impl Word for $name {
            const ALL: &'static [Self] = &[Self::$first, $(Self::$variant,)*];

            fn word(self) -> &'static str {
                self.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

impl Word for Profile {
    const ALL: &'static [Self] = Self::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

impl Word for Devices {
    const ALL: &'static [Self] = Self::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

impl Word for OnFailure {
    const ALL: &'static [Self] = Self::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

words! {
    /// Whether the group shares `/dev/shm`.
    Shm {
        /// Each pod has its own.
        None = "none",
        /// The group shares one.
        Group = "group",
    }
}
words! {
    /// Whether the group shares an IPC namespace.
    Ipc {
        /// Each pod has its own.
        None = "none",
        /// The group shares one.
        Group = "group",
    }
}
words! {
    /// Whether process numbers differ within the group.
    Pids {
        /// Each pod counts for itself.
        Own = "own",
        /// No two processes of the group that use CUDA have the same number.
        Distinct = "distinct",
    }
}
words! {
    /// What the pod may do with others' buffers.
    Access {
        /// Read, and write where the owner says so.
        ReadWrite = "read-write",
        /// Read only.
        ReadOnly = "read-only",
    }
}
words! {
    /// Whether the group's pods must be on one node.
    Colocate {
        /// A pod that finds no room there waits.
        Required = "required",
        /// It goes elsewhere, where it has nobody to exchange with.
        Preferred = "preferred",
        /// The scheduler is told nothing.
        None = "none",
    }
}
