//! Reading annotations one by one, and keeping count of what is wrong with them.

use std::collections::BTreeMap;

use crate::denial::{DenialCode, Reason, Reasons};
use crate::keys::{Key, PREFIX};
use crate::limits;
use crate::nearest::nearest;
use crate::quantity::Quantity;
use crate::words::Word;

/// A pod's annotations, and what was found wrong with them so far.
pub(crate) struct Reader<'a> {
    annotations: &'a BTreeMap<String, String>,
    reasons: Reasons,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(annotations: &'a BTreeMap<String, String>) -> Self {
        Self { annotations, reasons: Reasons::default() }
    }

    pub(crate) fn into_reasons(self) -> Reasons {
        self.reasons
    }

    pub(crate) fn refuse(&mut self, reason: Reason) {
        self.reasons.add(reason);
    }

    /// Refuses annotations of ours that do not exist.
    pub(crate) fn refuse_unknown(&mut self) {
        let known = || Key::ALL.iter().map(|key| key.as_str());
        let unknown = self.annotations.keys().filter(|key| key.starts_with(PREFIX));
        for key in unknown.filter(|key| !known().any(|known| known == key.as_str())) {
            self.reasons.add_with(|| {
                let reason = Reason::new(DenialCode::UnknownAnnotation, "annotation", names(), key);
                match nearest(bare(key), known().map(bare)) {
                    Some(near) => reason.with_remedy(format!("did you mean {PREFIX}{near}?")),
                    None => reason,
                }
            });
        }
    }

    /// The value as it is written, if it is not too long to be one.
    pub(crate) fn text(&mut self, key: Key) -> Option<&'a str> {
        let value = self.annotations.get(key.as_str())?;
        if value.len() > limits::VALUE_BYTES {
            let wanted = format!("at most {} bytes", limits::VALUE_BYTES);
            let found = format!("{} bytes", value.len());
            self.refuse(Reason::new(DenialCode::ValueTooLong, key.as_str(), wanted, found));
            return None;
        }
        Some(value)
    }

    /// A value that is one of a few words.
    pub(crate) fn word<W: Word>(&mut self, key: Key) -> Option<W> {
        let text = self.text(key)?;
        let found = W::ALL.iter().find(|word| word.word() == text);
        if found.is_none() {
            let words = || W::ALL.iter().map(|word| word.word());
            let wanted = words().collect::<Vec<_>>().join(", ");
            let reason =
                Reason::new(DenialCode::BadValue, key.as_str(), format!("one of {wanted}"), quoted(text));
            self.refuse(match nearest(text, words()) {
                Some(near) => reason.with_remedy(format!("did you mean {near}?")),
                None => reason,
            });
        }
        found.copied()
    }

    /// A size, in bytes.
    pub(crate) fn bytes(&mut self, key: Key) -> Option<u64> {
        let text = self.text(key)?;
        let bytes = Quantity::parse(text).and_then(Quantity::bytes).filter(|bytes| *bytes > 0);
        if bytes.is_none() {
            self.refuse(Reason::new(DenialCode::BadValue, key.as_str(), "a size such as 1Gi", quoted(text)));
        }
        bytes
    }

    /// How many members the group has.
    pub(crate) fn group_size(&mut self) -> Option<u32> {
        let key = Key::GroupSize;
        let text = self.text(key)?;
        let size = text.parse().ok().filter(|size| (1..=limits::GROUP_SIZE).contains(size));
        if size.is_none() {
            let wanted = format!("a number from 1 to {}", limits::GROUP_SIZE);
            self.refuse(Reason::new(DenialCode::BadValue, key.as_str(), wanted, quoted(text)));
        }
        size
    }

    /// The containers that are named.
    pub(crate) fn containers(&mut self) -> Option<Vec<String>> {
        let key = Key::Containers;
        let text = self.text(key)?;
        let mut names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.len() > limits::CONTAINERS || names.iter().any(String::is_empty) {
            let wanted = format!("1 to {} names with commas between them", limits::CONTAINERS);
            self.refuse(Reason::new(DenialCode::BadValue, key.as_str(), wanted, quoted(text)));
            return None;
        }
        names.sort_unstable();
        names.dedup();
        Some(names)
    }
}

/// A name without what all of them begin with.
fn bare(key: &str) -> &str {
    key.strip_prefix(PREFIX).unwrap_or(key)
}

/// The annotations that a user may write.
fn names() -> String {
    let names = Key::ALL.iter().filter(|key| **key != Key::Injected).map(|key| key.as_str());
    let names: Vec<_> = names.map(bare).collect();
    format!("{PREFIX} and one of {}", names.join(", "))
}

/// A value in quotes, so that an empty one is seen.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
