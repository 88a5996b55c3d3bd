//! How much one may hold.

use gpu_handoff_protocol::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::amount;

/// Declares what may be held at most, and what a namespace or group has of its own instead.
macro_rules! quota {
    (
        $(#[$doc:meta])* $name:ident, $(#[$change_doc:meta])* $change:ident,
        { $($(#[$field_doc:meta])* $field:ident: $default:expr, $read:literal, $read_some:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[$field_doc])* #[serde(deserialize_with = $read)] pub $field: u64,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        $(#[$change_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $change {
            $(
                $(#[$field_doc])*
                #[serde(deserialize_with = $read_some, skip_serializing_if = "Option::is_none")]
                pub $field: Option<u64>,
            )*
        }

        impl $change {
            /// What holds where this is said of what holds otherwise.
            #[must_use]
            pub fn of(&self, otherwise: $name) -> $name {
                $name { $($field: self.$field.unwrap_or(otherwise.$field),)* }
            }

            /// Whether it changes nothing.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }
        }
    };
}

quota! {
    /// What one pod may hold at a time.
    Quota,
    /// What one pod may hold at a time, where it is something else than otherwise.
    QuotaChange,
    {
        /// Published buffers.
        buffers: 16_384, "amount::number", "amount::some_number";
        /// Bytes of GPU memory in published buffers.
        bytes: 4 << 40, "amount::bytes", "amount::some_bytes";
        /// Leases.
        leases: 65_536, "amount::number", "amount::some_number";
        /// Descriptors that the node daemon keeps of published buffers.
        descriptors: 16_384, "amount::number", "amount::some_number";
        /// Connections of its applications.
        connections: 64, "amount::number", "amount::some_number";
        /// Items that one connection waits for, each of its watches counted as one.
        requests: 1_024, "amount::number", "amount::some_number";
        /// Watches of one connection.
        watches: 4, "amount::number", "amount::some_number";
    }
}
quota! {
    /// What the pods of one group may hold together at a time.
    GroupQuota,
    /// What the pods of one group may hold together, where it is something else than otherwise.
    GroupQuotaChange,
    {
        /// Published buffers.
        buffers: 262_144, "amount::number", "amount::some_number";
        /// Bytes of GPU memory in published buffers.
        bytes: 64 << 40, "amount::bytes", "amount::some_bytes";
        /// Leases.
        leases: 1_048_576, "amount::number", "amount::some_number";
        /// Descriptors that the node daemon keeps of published buffers.
        descriptors: 65_536, "amount::number", "amount::some_number";
    }
}

/// What a pod or a group holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Published buffers.
    pub buffers: u64,
    /// Bytes of GPU memory in published buffers.
    pub bytes: u64,
    /// Bytes of these in buffers that live as long as their pod.
    pub pod_lifetime_bytes: u64,
    /// Leases.
    pub leases: u64,
    /// Descriptors that the node daemon keeps of published buffers.
    pub descriptors: u64,
}

/// What a pod holds, and what the pods of its group hold together, itself included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// The pod.
    pub pod: Usage,
    /// Its group.
    pub group: Usage,
}

/// Refuses what would pass the limit.
pub(crate) fn within(code: Code, what: &str, held: u64, more: u64, limit: u64) -> Result<(), Refusal> {
    if held.saturating_add(more) <= limit {
        return Ok(());
    }
    let found = format!("{held} held, {more} more");
    Err(Refusal::new(code).compared_with(what, format!("at most {limit}"), found))
}
