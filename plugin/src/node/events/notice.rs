//! What is said of a pod.

use std::fmt;

use gpu_handoff_kubelet::api::events::{About, Kind};
use gpu_handoff_protocol::{Code, Refusal};

use crate::limits;
use crate::members::Member;

impl From<&Member> for About {
    fn from(member: &Member) -> Self {
        let (namespace, name) = (member.pod.namespace.to_string(), member.pod.name.to_string());
        Self { namespace, name, uid: member.uid.to_string() }
    }
}

/// Something that the owner of a pod may want to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Notice {
    pub(super) about: About,
    pub(super) kind: Kind,
    /// A word in camel case.
    pub(super) reason: String,
    pub(super) note: String,
    /// How often it happened.
    pub(super) times: u32,
}

impl Notice {
    /// Something that happened once.
    pub(in crate::node) fn new(about: About, kind: Kind, reason: &str, note: &str) -> Self {
        let (reason, note) = (cut(reason, limits::EVENT_REASON_BYTES), cut(note, limits::EVENT_NOTE_BYTES));
        Self { about, kind, reason, note, times: 1 }
    }

    /// A "no" that the pod's program was given, in the same words.
    pub(in crate::node) fn refused(about: About, refusal: &Refusal) -> Self {
        Self::new(about, Kind::Warning, &camel_case(refusal.code()), &refusal.to_string())
    }

    /// Its reason.
    #[cfg(test)]
    pub(in crate::node) fn reason(&self) -> &str {
        &self.reason
    }

    /// It happened so often.
    pub(in crate::node) const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// A buffer that the pod published or holds has ended, and leases are left.
pub(in crate::node) fn orphaned(about: About, leases: u32) -> Notice {
    let note = format!(
        "a buffer that this pod published, or holds a lease of, has ended, and {leases} leases are left that keep its memory; \
         remedy: let who holds them release them, or end [docs/refusals.md#retired]"
    );
    Notice::new(about, Kind::Warning, "BuffersOrphaned", &note)
}

/// Where it is explained what is done to those that keep what is over.
const OVERSTAYS: &str = "docs/policy.md#who-keeps-what-is-over";

/// A process of the pod was killed.
pub(in crate::node) fn killed(about: About, process: &impl fmt::Display) -> Notice {
    let note = format!(
        "process {process} of this pod was killed: it leased a buffer whose time is over, and the policy says `orphans: kill` of this \
         namespace; remedy: let it release what is retired before the deadline [{OVERSTAYS}]"
    );
    Notice::new(about, Kind::Warning, "ProcessKilled", &note)
}

/// The pod is evicted.
pub(in crate::node) fn evicted(about: About) -> Notice {
    let note = format!(
        "this pod is evicted: it leased a buffer whose time is over, and the policy says `orphans: evict` of this namespace; \
         remedy: let it release what is retired before the deadline [{OVERSTAYS}]"
    );
    Notice::new(about, Kind::Warning, "PodEvicted", &note)
}

/// `GPU_NOT_REACHABLE` as reasons of events are written: `GpuNotReachable`.
fn camel_case(code: Code) -> String {
    let mut text = String::new();
    for word in code.as_str().split('_') {
        let mut letters = word.chars();
        text.extend(letters.next());
        text.extend(letters.map(|letter| letter.to_ascii_lowercase()));
    }
    text
}

/// What Kubernetes takes as one line of a text: without what a terminal would obey.
fn cut(text: &str, bytes: usize) -> String {
    let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.len() > bytes {
        let mut end = bytes - "…".len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About { namespace: "n".into(), name: "p".into(), uid: "u".into() }
    }

    #[test]
    fn a_refusal_is_told_in_its_own_words() {
        let refusal = Refusal::new(Code::GpuNotReachable).compared_with("device node", "one", "none");
        let notice = Notice::refused(about(), &refusal);
        assert_eq!((notice.reason.as_str(), notice.kind), ("GpuNotReachable", Kind::Warning));
        assert_eq!(notice.note, refusal.to_string());
        for code in Code::ALL {
            let reason = camel_case(*code);
            assert!(reason.chars().all(|c| c.is_ascii_alphanumeric()) && !reason.is_empty(), "{reason}");
            assert_eq!(reason.to_ascii_lowercase(), code.as_str().replace('_', "").to_ascii_lowercase());
        }
    }

    #[test]
    fn texts_are_bounded_lines() {
        let long = "é".repeat(limits::EVENT_NOTE_BYTES);
        let notice = Notice::new(about(), Kind::Normal, "Reason", &long);
        assert!(notice.note.len() <= limits::EVENT_NOTE_BYTES && notice.note.ends_with('…'));
        let notice = Notice::new(about(), Kind::Normal, "Reason", "one\u{1b}[2J\ntwo");
        assert_eq!(notice.note, "one [2J two");
    }
}
