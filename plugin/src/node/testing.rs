//! What the node is told to do.

use std::path::Path;

use gpu_handoff_protocol::BootTag;

use super::policy::Origin;
use crate::config::Config;
use crate::identity::cgroup::Root;

/// A node without anything.
pub(super) fn config() -> Config {
    Config {
        slots: crate::limits::MEMBERS,
        awake: 0,
        run_dir: "/nowhere".into(),
        policy: serde_json::from_str("{}").unwrap(),
        kubelet: None,
        policy_file: None,
        policy_origin: Origin::BuiltIn,
        admin_group: None,
        cgroup_root: Root::default(),
        runtime: gpu_handoff_nri::Settings::new(Path::new("/nowhere"), "gpu-handoff", 90).unwrap(),
        members: Vec::new(),
        boot: BootTag(7),
        state_dir: "/nowhere".into(),
        user: None,
        nvidia_proc_root: "/nowhere".into(),
        nvidia_dev_root: "/nowhere".into(),
        descriptors: 1_024,
        log_format: gpu_handoff_logs::LogFormat::Text,
    }
}
