//! Enumerations by their names, for JSON.

use serde::Serializer;

use crate::proto::{kubelet, pods, policy};

/// What a newer daemon says and this program does not know.
const UNKNOWN: &str = "UNKNOWN";

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn registration<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kubelet::Registration::try_from(*value).map_or(UNKNOWN, |known| known.as_str_name()))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn source<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(pods::Source::try_from(*value).map_or(UNKNOWN, |known| known.as_str_name()))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn origin<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(policy::Origin::try_from(*value).map_or(UNKNOWN, |known| known.as_str_name()))
}
