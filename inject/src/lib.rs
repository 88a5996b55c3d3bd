//! What a pod needs to take part in gpu-handoff, from one annotation: its wishes read and checked, and what they add.
//!
//! Everything here is a pure function of a pod, its namespace, the [`Settings`] and the [`Policy`]: the admission webhook and
//! `gpu-handoff inject` are the same code. A pod is JSON here, not a type of one version of Kubernetes: a typed pod would
//! forget the fields that it does not know, and a newer API server would see them removed. So only what is looked at has
//! a type, and there is one kind of change: something is added where nothing was.
//!
//! | concern | file |
//! |---|---|
//! | the names: annotations, volumes, paths | [`keys`] |
//! | what a pod asks for | `wishes.rs`, `reader.rs`, `words.rs`, `group.rs` |
//! | what this version cannot do yet | `support.rs` |
//! | how a "no" reads | `denial.rs`, and `docs/denials.md` |
//! | what is read of a pod | `pod.rs`, `quantity.rs`, `qos.rs` |
//! | pods that cannot take part, and those that their users may not have meant so | `checks.rs`, `warnings.rs` |
//! | what is added | `parts/` |
//! | adding it, and the JSON Patch | `edit.rs` |
//! | what the administrator decides | `settings.rs` |

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::Namespace;
use serde_json::Value;

mod checks;
mod denial;
mod edit;
mod group;
pub mod keys;
pub mod limits;
mod nearest;
mod parts;
mod pod;
mod qos;
mod quantity;
mod reader;
mod settings;
mod support;
mod warnings;
mod wishes;
mod words;

pub use denial::{Denial, DenialCode, Reason};
pub use group::group_hash;
pub use json_patch::Patch;
pub use settings::{
    Amounts, NodeRequirement, Operator, PullPolicy, Settings, SettingsError, SidecarResources, UserNamespaces,
};
pub use warnings::daemon_set_warning;
pub use wishes::Wishes;
pub use words::{Access, Colocate, Devices, Ipc, OnFailure, Pids, Profile, Shm};

/// The version that pods are marked with.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A pod that takes part, or that asked for nothing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Injected {
    /// The whole pod.
    pub object: Value,
    /// What was done to it; nothing where it asked for nothing, or has all of it.
    pub patch: Patch,
    /// What it asked for, if it did.
    pub wishes: Option<Wishes>,
    /// What its user should know: sentences.
    pub warnings: Vec<String>,
}

/// Adds to a pod, or to the template of one, what it asks for by its annotations.
///
/// `namespace` is the one that the pod will be in: its own metadata mostly does not say.
///
/// # Errors
/// Everything that is wrong with it.
pub fn inject(
    object: &Value,
    namespace: &Namespace,
    settings: &Settings,
    policy: &Policy,
) -> Result<Injected, Denial> {
    let pod = pod::Pod::read(object)?;
    let unchanged =
        |warnings| Injected { object: object.clone(), patch: Patch::default(), wishes: None, warnings };
    if pod.is_mirror() {
        return Ok(unchanged(warnings::of_mirror(&pod)));
    }
    let Some(wishes) = Wishes::read(&pod.metadata.annotations, &pod.metadata.labels, namespace)? else {
        return Ok(unchanged(warnings::of_bystander(&pod)));
    };
    checks::size(&pod)?;
    checks::check(&pod, &wishes, namespace, settings, policy)?;
    let mut edit = edit::Edit::new(object.clone());
    let on_failure = policy.on_failure_of(namespace, wishes.on_failure);
    parts::add(&pod, &wishes, namespace, settings, on_failure, &mut edit)?;
    let (object, patch) = edit.into_parts();
    let warnings = warnings::of_member(&pod, &wishes);
    Ok(Injected { object, patch, wishes: Some(wishes), warnings })
}
