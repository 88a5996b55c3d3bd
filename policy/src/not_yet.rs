//! What a policy may grant already and this version does not do. It is no error, so that one policy serves nodes of several
//! versions, and it is said.

use std::collections::BTreeSet;

use crate::{Devices, Policy, Profile};

impl Policy {
    /// Sentences about keys whose values do nothing in this version.
    #[must_use]
    pub fn not_yet(&self) -> Vec<String> {
        let mut found = BTreeSet::new();
        note("", Some(&self.profiles), Some(self.devices), &mut found);
        for (name, own) in &self.namespaces {
            let path = format!("namespaces.{name}.");
            note(&path, own.profiles.as_ref(), own.devices, &mut found);
        }
        found.into_iter().collect()
    }
}

fn note(
    path: &str,
    profiles: Option<&BTreeSet<Profile>>,
    devices: Option<Devices>,
    found: &mut BTreeSet<String>,
) {
    for profile in profiles.into_iter().flatten().filter(|profile| **profile != Profile::Client) {
        found.insert(format!("{path}profiles: this version serves no pods of profile {profile}"));
    }
    if let Some(devices) = devices.filter(|devices| *devices != Devices::Own) {
        found.insert(format!(
            "{path}devices: this version adds no device nodes, whatever is granted: {devices}"
        ));
    }
}
