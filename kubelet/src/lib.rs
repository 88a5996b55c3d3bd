//! What the plugin's privileged node process says to the kubelet of its node and to the API server, and hears from them.
//!
//! | module | socket | who serves |
//! |---|---|---|
//! | [`registration`] | `plugins_registry/gpu-handoff.io@<hash>-reg.sock` | this crate: the kubelet's plugin watcher asks |
//! | [`csi`] | `plugins/gpu-handoff.io/csi.sock` | this crate: the kubelet asks for volumes |
//! | [`pods`] | `pods-api/pods-api.sock`, or the API server | the kubelet: the pods of this node |
//! | [`resources`] | `pod-resources/kubelet.sock` | the kubelet: the devices of its containers |
//! | [`api`] | – | the API server: events, evictions, pods elsewhere, devices of claims |
//!
//! All of these sockets lie in folders that root alone reaches. Nothing here knows of members, buffers or slots: a request
//! is checked, and handed on as a typed command; pods and devices are plain facts.

pub mod api;
mod backoff;
pub mod csi;
pub mod limits;
pub mod names;
pub mod pods;
mod proto;
pub mod registration;
pub mod resources;
mod serving;
mod socket;

pub use crate::serving::ServeError;
pub use crate::socket::SocketError;

/// The driver's name: in pods' volumes, in the CSIDriver object, in the names of folders and sockets, and before the slash
/// of annotations.
pub const DRIVER: &str = "gpu-handoff.io";
