//! Which group: from an annotation, or from the label that an annotation names; and the group's hash.

use std::collections::BTreeMap;

use gpu_handoff_protocol::{GroupKey, GroupName, IdError, Namespace};

use crate::denial::{DenialCode, Reason};
use crate::keys::{GROUP_HASH_LABEL, Key};
use crate::reader::{Reader, quoted};

/// Letters of a group's hash.
const HASH_LETTERS: usize = 16;

/// The value of the label that a group's pods find each other by: the first letters of the BLAKE3 hash, in hexadecimal,
/// of `namespace/group`.
#[must_use]
pub fn group_hash(group: &GroupKey) -> String {
    blake3::hash(group.to_string().as_bytes()).to_hex()[..HASH_LETTERS].to_owned()
}

/// The group that the annotations name; what is wrong with them, the reader is told.
pub(crate) fn read(
    reader: &mut Reader<'_>,
    labels: &BTreeMap<String, String>,
    namespace: &Namespace,
) -> Option<GroupKey> {
    let text = reader.text(Key::Group);
    let label = reader.text(Key::GroupFromLabel);
    match (text, label) {
        (None, None) => {
            let what = format!("{} or {}", Key::Group.as_str(), Key::GroupFromLabel.as_str());
            reader.refuse(Reason::new(DenialCode::GroupMissing, what, "a group", "neither"));
            None
        }
        (Some(text), None) => parse(reader, Key::Group.as_str(), text, namespace),
        (text, Some(key)) => {
            let group = from_label(reader, key, labels, namespace)?;
            if let Some(named) = text.and_then(|text| parse(reader, Key::Group.as_str(), text, namespace))
                && named != group
            {
                let wanted = format!("{group}, as label {key} says");
                reader.refuse(Reason::new(DenialCode::GroupAmbiguous, Key::Group.as_str(), wanted, named));
            }
            Some(group)
        }
    }
}

/// The group of a label's value. Labels are names within the pod's namespace: they cannot hold a `/`.
fn from_label(
    reader: &mut Reader<'_>,
    key: &str,
    labels: &BTreeMap<String, String>,
    namespace: &Namespace,
) -> Option<GroupKey> {
    if key == GROUP_HASH_LABEL {
        let wanted = "a label that is not the injection's own";
        reader.refuse(Reason::new(DenialCode::BadValue, Key::GroupFromLabel.as_str(), wanted, key));
        return None;
    }
    let Some(value) = labels.get(key) else {
        let wanted = format!("the label {key:?}");
        let found = if labels.is_empty() { "no labels".to_owned() } else { listed(labels) };
        reader.refuse(Reason::new(
            DenialCode::GroupLabelMissing,
            Key::GroupFromLabel.as_str(),
            wanted,
            found,
        ));
        return None;
    };
    parse(reader, &format!("label {key}"), value, namespace)
}

fn listed(labels: &BTreeMap<String, String>) -> String {
    labels.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// `name`, or `namespace/name`.
fn parse(reader: &mut Reader<'_>, what: &str, text: &str, namespace: &Namespace) -> Option<GroupKey> {
    let key = || -> Result<GroupKey, IdError> {
        match text.split_once('/') {
            Some((namespace, name)) => Ok(GroupKey { namespace: namespace.parse()?, name: name.parse()? }),
            None => Ok(GroupKey { namespace: namespace.clone(), name: GroupName::new(text)? }),
        }
    };
    key()
        .map_err(|e| {
            let wanted = "a group's name, or namespace/name";
            let found = format!("{}, whose {e}", quoted(text));
            reader.refuse(Reason::new(DenialCode::BadValue, what, wanted, found));
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_a_label_and_never_changes() {
        let key = |namespace: &str, name: &str| GroupKey {
            namespace: namespace.parse().unwrap(),
            name: name.parse().unwrap(),
        };
        let hash = group_hash(&key("ml", "llama"));
        assert_eq!(hash, blake3::hash(b"ml/llama").to_hex().as_str()[..16]);
        assert_ne!(hash, group_hash(&key("ml", "llama-2")));
        assert_ne!(hash, group_hash(&key("llama", "ml")));
    }
}
