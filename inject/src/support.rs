//! What this version cannot do yet, and what would change nothing.

use std::collections::BTreeMap;

use crate::denial::{DenialCode, Reason, Reasons};
use crate::keys::Key;
use crate::wishes::Wishes;
use crate::words::{Access, Devices, Ipc, Pids, Profile, Shm};

/// The version that brings what this one refuses.
const COMES_WITH: &str = "0.2";

/// Refuses what is asked for in vain.
pub(crate) fn check(wishes: &Wishes, annotations: &BTreeMap<String, String>, reasons: &mut Reasons) {
    if wishes.profile == Profile::Client {
        for (key, wanted, found) in parts(wishes) {
            if wanted != found {
                reasons.add(not_yet(key, wanted, found));
            }
        }
    } else {
        // One reason for the profile, not one for each part that it sets.
        reasons.add(not_yet(Key::Profile, Profile::Client.as_str(), wishes.profile.as_str()));
    }
    let set = |key: Key| annotations.contains_key(key.as_str());
    if set(Key::ShmSize) && wishes.shm == Shm::None {
        reasons.add(without_effect(Key::ShmSize, "gpu-handoff.io/shm: group beside it", "shm: none"));
    }
    if set(Key::GroupSize) && wishes.devices != Devices::Group {
        let found = format!("devices: {}", wishes.devices);
        reasons.add(without_effect(Key::GroupSize, "gpu-handoff.io/devices: group beside it", &found));
    }
}

/// Each part with what this version does and what was asked for.
fn parts(wishes: &Wishes) -> [(Key, &'static str, &'static str); 5] {
    [
        (Key::Shm, Shm::None.as_str(), wishes.shm.as_str()),
        (Key::Ipc, Ipc::None.as_str(), wishes.ipc.as_str()),
        (Key::Pids, Pids::Own.as_str(), wishes.pids.as_str()),
        (Key::Devices, Devices::Own.as_str(), wishes.devices.as_str()),
        (Key::Access, Access::ReadWrite.as_str(), wishes.access.as_str()),
    ]
}

fn not_yet(key: Key, wanted: &str, found: &str) -> Reason {
    let wanted = format!("{wanted} (more comes with gpu-handoff {COMES_WITH})");
    Reason::new(DenialCode::NotYet, key.as_str(), wanted, found)
}

fn without_effect(key: Key, wanted: &str, found: &str) -> Reason {
    Reason::new(DenialCode::WithoutEffect, key.as_str(), wanted, found)
}
