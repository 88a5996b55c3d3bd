//! What a policy may grant already and this version does not do. It is no error, so that one policy serves nodes of several
//! versions, and it is said.

use std::collections::BTreeSet;

use crate::{Devices, Orphans, Policy, Profile};

impl Policy {
    /// Sentences about keys whose values do nothing in this version.
    #[must_use]
    pub fn not_yet(&self) -> Vec<String> {
        let mut found = BTreeSet::new();
        let (profiles, orphans) = (Some(&self.profiles), Some(self.orphans));
        note("", profiles, Some(self.devices), Some(self.pod_lifetime_bytes), orphans, &mut found);
        for (name, own) in &self.namespaces {
            let path = format!("namespaces.{name}.");
            note(&path, own.profiles.as_ref(), own.devices, own.pod_lifetime_bytes, own.orphans, &mut found);
        }
        found.into_iter().collect()
    }
}

fn note(
    path: &str,
    profiles: Option<&BTreeSet<Profile>>,
    devices: Option<Devices>,
    pod_lifetime_bytes: Option<u64>,
    orphans: Option<Orphans>,
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
    if pod_lifetime_bytes.is_some_and(|bytes| bytes > 0) {
        found.insert(format!("{path}pod-lifetime-bytes: this version lets no buffer outlive its process"));
    }
    if let Some(orphans) = orphans.filter(|orphans| *orphans != Orphans::Report) {
        found.insert(format!("{path}orphans: this version reports and does nothing else: {orphans}"));
    }
}
