//! Generated: the kubelet's and CSI's messages and services.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    reason = "generated code"
)]

/// What is read of a pod.
pub mod core {
    include!(concat!(env!("OUT_DIR"), "/core.rs"));
}

/// The Container Storage Interface.
pub mod csi {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
}

/// The kubelet's plugin watcher.
pub mod pluginregistration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}

/// The devices of containers.
pub mod podresources {
    include!(concat!(env!("OUT_DIR"), "/v1.rs"));
}

/// The pods of this node.
pub mod pods {
    include!(concat!(env!("OUT_DIR"), "/v1alpha1.rs"));
}
