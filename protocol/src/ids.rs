//! Names and identifiers as types: none of them is ever a bare string or number.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits;

mod numbers;

pub use numbers::{Instance, LeaseId, Seat};

/// Why a piece of text or a row of bytes is not the identifier it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("{what} is empty")]
    Empty {
        /// Which identifier was expected.
        what: &'static str,
    },
    /// The text is longer than its limit.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Which identifier was expected.
        what: &'static str,
        /// Length that was given, in bytes.
        bytes: usize,
        /// Longest length allowed, in bytes.
        limit: usize,
    },
    /// A character is outside the allowed set.
    #[error("{what} contains {found:?}, allowed are {allowed}")]
    Character {
        /// Which identifier was expected.
        what: &'static str,
        /// The first character that is not allowed.
        found: char,
        /// The allowed set, in words.
        allowed: &'static str,
    },
    /// The shape is wrong: length of a fixed-size identifier, missing prefix or separator.
    #[error("{what} must look like {expected}")]
    Shape {
        /// Which identifier was expected.
        what: &'static str,
        /// An example of the right shape.
        expected: &'static str,
    },
}

/// Declares a text identifier: checked when made, immutable afterwards. Copies share the text.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:expr, $allowed:literal, $accept:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text and takes it over.
            ///
            /// # Errors
            /// When it is empty, too long, or holds a character outside the allowed set.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check_text($what, text, $limit, $allowed, $accept)?;
                Ok(Self(text.into()))
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }
    };
}

fn check_text(
    what: &'static str,
    text: &str,
    limit: usize,
    allowed: &'static str,
    accept: fn(char) -> bool,
) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { what });
    }
    if text.len() > limit {
        return Err(IdError::TooLong { what, bytes: text.len(), limit });
    }
    match text.chars().find(|c| !accept(*c)) {
        Some(found) => Err(IdError::Character { what, found, allowed }),
        None => Ok(()),
    }
}

fn is_dns(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.'
}

fn is_uid(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

fn is_name(c: char) -> bool {
    !c.is_control() && !c.is_whitespace()
}

text_id!(
    /// A Kubernetes namespace (a DNS label).
    Namespace, "namespace", limits::NAMESPACE_BYTES, "a-z, 0-9, '-' and '.'", is_dns
);
text_id!(
    /// A Kubernetes pod name.
    PodName, "pod name", limits::POD_NAME_BYTES, "a-z, 0-9, '-' and '.'", is_dns
);
text_id!(
    /// A pod's UID, as the API server gave it (mirror pods have other shapes than UUIDs).
    PodUid, "pod uid", limits::POD_UID_BYTES, "letters, digits and '-'", is_uid
);
text_id!(
    /// The name of a pod's service account, within the pod's namespace.
    ServiceAccount, "service account", limits::SERVICE_ACCOUNT_BYTES, "a-z, 0-9, '-' and '.'", is_dns
);
text_id!(
    /// A group's name, as written in the annotation `gpu-handoff.io/group`.
    GroupName, "group name", limits::GROUP_NAME_BYTES, "a-z, 0-9, '-' and '.'", is_dns
);
text_id!(
    /// The slot of a member on its node: the name of the folder that holds `slot.sock`.
    SlotId, "slot id", limits::SLOT_ID_BYTES, "letters, digits and '-'", is_uid
);
text_id!(
    /// The name that a buffer is published under and looked up by.
    BufferName, "buffer name", limits::BUFFER_NAME_BYTES, "printable characters without blanks", is_name
);

impl From<SlotId> for PodUid {
    /// Where nobody gives pods UIDs, the slot tells them apart. It has the same characters, and fewer.
    fn from(slot: SlotId) -> Self {
        Self(slot.0)
    }
}

/// A group: the members that may exchange buffers. Fixed when the pod is created.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupKey {
    /// Namespace of the group.
    pub namespace: Namespace,
    /// Name of the group within its namespace.
    pub name: GroupName,
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod, by what people call it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: Namespace,
    /// Name of the pod.
    pub name: PodName,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The boot of the node that a buffer was published in: the first 64 bits of the kernel's boot id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTag(pub u64);

impl BootTag {
    /// Parses the contents of `/proc/sys/kernel/random/boot_id`.
    ///
    /// # Errors
    /// When the text is not a UUID.
    pub fn from_boot_id(text: &str) -> Result<Self, IdError> {
        let shape = IdError::Shape { what: "boot id", expected: "9b2f1c3e-5a70-4c1d-8f2e-0a1b2c3d4e5f" };
        let bytes = parse_uuid(text.trim()).ok_or(shape)?;
        let mut head = [0; 8];
        head.copy_from_slice(&bytes[..8]);
        Ok(Self(u64::from_be_bytes(head)))
    }
}

/// A buffer's identity: 128 random bits and the boot of the node they were drawn in. Not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId {
    /// The node's boot.
    pub boot: BootTag,
    /// 128 random bits.
    pub random: u128,
}

impl BufferId {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 24;

    /// The wire form: boot tag, then random bits, big-endian.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.boot.0.to_be_bytes());
        out[8..].copy_from_slice(&self.random.to_be_bytes());
        out
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// When there are not exactly [`BufferId::BYTES`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, IdError> {
        let whole: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| IdError::Shape { what: "buffer id", expected: "24 bytes" })?;
        let (mut boot, mut random) = ([0; 8], [0; 16]);
        boot.copy_from_slice(&whole[..8]);
        random.copy_from_slice(&whole[8..]);
        Ok(Self { boot: BootTag(u64::from_be_bytes(boot)), random: u128::from_be_bytes(random) })
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buf-{:016x}-{:032x}", self.boot.0, self.random)
    }
}

impl fmt::Debug for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BufferId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let shape = || IdError::Shape { what: "buffer id", expected: "buf-<16 hex digits>-<32 hex digits>" };
        let (boot, random) = text.strip_prefix("buf-").and_then(|t| t.split_once('-')).ok_or_else(shape)?;
        if boot.len() != 16
            || random.len() != 32
            || !text[4..].bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
        {
            return Err(shape());
        }
        let boot = u64::from_str_radix(boot, 16).map_err(|_| shape())?;
        let random = u128::from_str_radix(random, 16).map_err(|_| shape())?;
        Ok(Self { boot: BootTag(boot), random })
    }
}

/// A GPU (or MIG instance) by the driver's UUID; never by index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceUuid([u8; 16]);

impl DeviceUuid {
    /// Takes the 16 bytes that the driver gives.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes that the driver gives.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeviceUuid {
    type Err = IdError;

    /// Accepts `GPU-…`, `MIG-…` and the bare UUID.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bare = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
        parse_uuid(bare).map(Self).ok_or(IdError::Shape {
            what: "device uuid",
            expected: "GPU-01234567-89ab-cdef-0123-456789abcdef",
        })
    }
}

impl TryFrom<String> for DeviceUuid {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<DeviceUuid> for String {
    fn from(uuid: DeviceUuid) -> String {
        uuid.to_string()
    }
}

/// Reads `8-4-4-4-12` hex digits.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let groups = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = text.split('-').collect();
    let right_shape = parts.len() == groups.len()
        && parts.iter().zip(groups).all(|(p, n)| p.len() == n && p.bytes().all(|b| b.is_ascii_hexdigit()));
    if !right_shape {
        return None;
    }
    let whole = u128::from_str_radix(&parts.concat(), 16).ok()?;
    Some(whole.to_be_bytes())
}

#[cfg(test)]
mod tests;
