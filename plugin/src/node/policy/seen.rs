//! Which policy is in force, for whoever asks.

use std::path::PathBuf;
use std::time::SystemTime;

use gpu_handoff_policy::Policy;
use tokio::sync::watch;

/// Bytes of a text's hash in what a policy's version is called.
const VERSION_BYTES: usize = 8;

/// Where a policy is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody wrote one.
    BuiltIn,
    /// The file of static members.
    MembersFile,
    /// A file of its own.
    File(PathBuf),
}

/// The policy that is in force.
#[derive(Debug, Clone)]
pub(in crate::node) struct Seen {
    pub(in crate::node) origin: Origin,
    /// The beginning of its text's hash.
    pub(in crate::node) version: String,
    pub(in crate::node) since: SystemTime,
    /// How many times what was found in its place was refused.
    pub(in crate::node) refused: u64,
    /// What is refused at present, and since when.
    pub(in crate::node) refusal: Option<(String, SystemTime)>,
    /// What it grants and this version does not do.
    pub(in crate::node) not_yet: Vec<String>,
    pub(in crate::node) rules: usize,
    /// It has pods evicted.
    pub(in crate::node) evicts: bool,
}

/// Tells of it.
#[derive(Debug)]
pub(in crate::node) struct Teller(watch::Sender<Seen>);

impl Teller {
    /// Begins with the policy that is in force first.
    pub(in crate::node) fn new(
        origin: Origin,
        version: String,
        policy: &Policy,
    ) -> (Self, watch::Receiver<Seen>) {
        let (since, refusal) = (SystemTime::now(), None);
        let (not_yet, rules, evicts) = (policy.not_yet(), policy.exchange.len(), policy.evicts());
        let (sender, receiver) =
            watch::channel(Seen { origin, version, since, refused: 0, refusal, not_yet, rules, evicts });
        (Self(sender), receiver)
    }

    /// What is found is one again: what was refused before is over.
    pub(super) fn read(&self) {
        self.0.send_modify(|seen| seen.refusal = None);
    }

    /// Another one is in force.
    pub(super) fn taken(&self, version: &str, policy: &Policy) {
        self.0.send_modify(|seen| {
            (seen.version, seen.since) = (version.to_owned(), SystemTime::now());
            (seen.not_yet, seen.rules, seen.evicts) =
                (policy.not_yet(), policy.exchange.len(), policy.evicts());
        });
    }

    /// What was found is none; so many were refused so far.
    pub(super) fn refused(&self, why: &str, refused: u64) {
        self.0.send_modify(|seen| {
            (seen.refused, seen.refusal) = (refused, Some((why.to_owned(), SystemTime::now())));
        });
    }
}

/// What a policy's text is called.
pub(in crate::node) fn version_of(text: &[u8]) -> String {
    blake3::hash(text).as_bytes()[..VERSION_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_stays_until_a_policy_is_read_and_a_policy_until_another_is_in_force() {
        let policy = Policy::default();
        let (teller, told) = Teller::new(Origin::BuiltIn, version_of(b"one"), &policy);
        teller.refused("line 3", 1);
        teller.refused("line 4", 2);
        assert_eq!(told.borrow().refusal.as_ref().map(|(why, _)| why.as_str()), Some("line 4"));
        assert_eq!(told.borrow().version, version_of(b"one"));
        let evicting = Policy::read("version: gpu-handoff.io/v1\norphans: evict\n").unwrap();
        assert!(!told.borrow().evicts);
        teller.read();
        assert_eq!(
            (told.borrow().refusal.clone(), told.borrow().version.clone()),
            (None, version_of(b"one"))
        );
        teller.taken(&version_of(b"two"), &evicting);
        assert!(told.borrow().evicts);
        let seen = told.borrow();
        assert_eq!((seen.refused, &seen.refusal), (2, &None));
        assert_eq!((seen.version.len(), seen.version == version_of(b"two")), (16, true));
    }
}
