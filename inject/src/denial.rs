//! A "no" to a pod: every reason with a stable code, what was compared, and a remedy.

use std::fmt;

use gpu_handoff_protocol::{Compared, Refusal};

use crate::limits;

/// Declares the codes once: name, remedy, and the sentence that explains the code.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $remedy:literal;)*) => {
        /// Why a pod was denied. Names are stable: they are never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DenialCode {
            $($(#[$doc])* $variant,)*
        }

        impl DenialCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [DenialCode] = &[$(DenialCode::$variant,)*];

            /// The stable name, such as `UNKNOWN_ANNOTATION`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(DenialCode::$variant => $name,)* }
            }

            /// What to do about it, unless the reason carries something more precise.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(DenialCode::$variant => $remedy,)* }
            }
        }
    };
}

codes! {
    /// No annotation has that name.
    UnknownAnnotation = "UNKNOWN_ANNOTATION", "use a name of docs/annotations.md, or remove it";
    /// The annotation's value is none that it may have.
    BadValue = "BAD_VALUE", "use a value of docs/annotations.md";
    /// The annotation's value is longer than any may be.
    ValueTooLong = "VALUE_TOO_LONG", "shorten it";
    /// Annotations of ours, and none that says which group.
    GroupMissing = "GROUP_MISSING", "set gpu-handoff.io/group to the group's name, or remove the other annotations of gpu-handoff.io";
    /// The label that should name the group is not there.
    GroupLabelMissing = "GROUP_LABEL_MISSING", "give the pod that label; where a controller gives it to pods only, leave the injection to the webhook";
    /// Annotation and label name different groups.
    GroupAmbiguous = "GROUP_AMBIGUOUS", "keep one of gpu-handoff.io/group and gpu-handoff.io/group-from-label";
    /// The group belongs to another namespace, and nothing allows this one in.
    ForeignGroup = "FOREIGN_GROUP", "name a group of the pod's own namespace, or ask the administrator for a rule of the policy that names both namespaces";
    /// The policy does not grant that to pods of this namespace.
    NotGranted = "NOT_GRANTED", "leave it out, or ask the administrator for a line in the policy";
    /// A later version brings that.
    NotYet = "NOT_YET", "remove it until that version is installed; what it asks for would not happen";
    /// The annotation would change nothing beside the others.
    WithoutEffect = "WITHOUT_EFFECT", "remove it, or set what it belongs to";
    /// The pod has no container of that name.
    UnknownContainer = "UNKNOWN_CONTAINER", "name containers of the pod, with commas between them";
    /// The pod shares the node's process numbers.
    HostPid = "HOST_PID", "remove hostPID: gpu-handoff needs no namespace of the node";
    /// The pod is for Windows.
    Windows = "WINDOWS", "remove the annotations of gpu-handoff.io: it hands over GPU memory between Linux containers";
    /// The pod runs in a sandbox that the node's memory handles do not reach into.
    SandboxedRuntime = "SANDBOXED_RUNTIME", "use a runtime class whose containers share the node's kernel";
    /// The pod has a user namespace of its own, and containers with GPUs cannot be made there on this cluster.
    OwnUsers = "OWN_USERS", "remove hostUsers: false, or ask the administrator who denied it whether the nodes can do it by now (user-namespaces)";
    /// A volume, container or label of our name is something else.
    NameTaken = "NAME_TAKEN", "rename yours: gpu-handoff needs that name";
    /// Something else is mounted where our socket belongs.
    MountTaken = "MOUNT_TAKEN", "mount yours elsewhere: gpu-handoff needs that path";
    /// The pod has more containers than any that takes part may have.
    TooManyContainers = "TOO_MANY_CONTAINERS", "split the pod into several of the same group";
    /// The pod is not what Kubernetes calls one.
    PodUnreadable = "POD_UNREADABLE", "write the field as the Kubernetes API has it";
    /// The webhook was asked about something that is not the creation of a pod.
    WrongRequest = "WRONG_REQUEST", "let the MutatingWebhookConfiguration send the creation of pods alone, as manifests/webhook.yaml has it";
}

impl DenialCode {
    /// Where the code is explained.
    #[must_use]
    pub fn anchor(self) -> String {
        format!("docs/denials.md#{}", self.as_str().to_ascii_lowercase())
    }
}

impl fmt::Display for DenialCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One reason of a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    code: DenialCode,
    compared: Compared,
    remedy: Option<String>,
}

impl Reason {
    pub(crate) fn new(
        code: DenialCode,
        what: impl fmt::Display,
        wanted: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        let compared = Compared {
            what: shown(what, limits::SHOWN_BYTES),
            wanted: shown(wanted, limits::WANTED_BYTES),
            found: shown(found, limits::SHOWN_BYTES),
        };
        Self { code, compared, remedy: None }
    }

    /// What a policy refuses a pod: compared and remedied in its words, which the node would say too.
    pub(crate) fn not_granted(refusal: &Refusal) -> Self {
        let compared = refusal.compared().first();
        let [what, wanted, found] =
            compared.map_or([""; 3], |c| [&c.what, &c.wanted, &c.found].map(String::as_str));
        Self::new(DenialCode::NotGranted, what, wanted, found).with_remedy(refusal.remedy())
    }

    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> DenialCode {
        self.code
    }

    /// What was compared.
    #[must_use]
    pub const fn compared(&self) -> &Compared {
        &self.compared
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &str {
        self.remedy.as_deref().unwrap_or_else(|| self.code.remedy())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compared { what, wanted, found } = &self.compared;
        write!(f, "{} ({what}: wanted {wanted}, found {found}); ", self.code)?;
        write!(f, "remedy: {} [{}]", self.remedy(), self.code.anchor())
    }
}

/// Why a pod may not be as it is: all reasons that were found, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    reasons: Vec<Reason>,
    more: usize,
}

impl Denial {
    /// The reasons, most telling first; not more than [`limits::REASONS`].
    #[must_use]
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// The webhook was asked about something that is not the creation of a pod.
    #[must_use]
    pub fn wrong_request(
        what: impl fmt::Display,
        wanted: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Reason::new(DenialCode::WrongRequest, what, wanted, found).into()
    }

    /// How many more there were.
    #[must_use]
    pub const fn more(&self) -> usize {
        self.more
    }
}

impl From<Reason> for Denial {
    fn from(reason: Reason) -> Self {
        Self { reasons: vec![reason], more: 0 }
    }
}

impl fmt::Display for Denial {
    /// A line for each reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, reason) in self.reasons.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}denied: {reason}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Denial {}

/// Reasons as they are found.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    found: Vec<Reason>,
    more: usize,
}

impl Reasons {
    pub(crate) fn add(&mut self, reason: Reason) {
        self.add_with(|| reason);
    }

    /// Adds a reason that is made only if it will be told: of what a pod may have tens of thousands of.
    pub(crate) fn add_with(&mut self, reason: impl FnOnce() -> Reason) {
        if self.found.len() < limits::REASONS {
            self.found.push(reason());
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn into_result(self) -> Result<(), Denial> {
        if self.found.is_empty() { Ok(()) } else { Err(Denial { reasons: self.found, more: self.more }) }
    }
}

/// A user's text as a denial, or a warning, repeats it: cut at a limit, on a character border, control characters escaped.
pub(crate) fn shown(text: impl fmt::Display, limit: usize) -> String {
    let text = text.to_string();
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = String::with_capacity(end);
    for c in text[..end].chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    if end < text.len() {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = DenialCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), DenialCode::ALL.len());
    }

    #[test]
    fn a_reason_reads_as_a_sentence() {
        let reason = Reason::new(DenialCode::HostPid, "hostPID", "false", true);
        assert_eq!(
            reason.to_string(),
            "HOST_PID (hostPID: wanted false, found true); remedy: remove hostPID: gpu-handoff needs no namespace of \
             the node [docs/denials.md#host_pid]"
        );
    }

    #[test]
    fn reasons_and_texts_are_bounded() {
        let mut reasons = Reasons::default();
        for _ in 0..limits::REASONS + 3 {
            reasons.add(Reason::new(DenialCode::BadValue, "x", "y", "ä\n".repeat(1 << 20)));
        }
        reasons.add_with(|| panic!("a reason that is not told is not made"));
        let denial = reasons.into_result().unwrap_err();
        assert_eq!((denial.reasons().len(), denial.more()), (limits::REASONS, 4));
        assert!(denial.reasons()[0].compared().found.len() < 2 * limits::SHOWN_BYTES);
        assert_eq!(denial.to_string().lines().count(), limits::REASONS + 1);
    }
}
