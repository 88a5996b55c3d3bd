//! Changing a pod, and writing down each change. There is one kind of change: something is added where nothing was.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, Patch, PatchOperation};
use serde_json::{Map, Value};

use crate::denial::{Denial, DenialCode, Reason};

/// A pod that is being changed. What was there stays: no method removes or replaces.
pub(crate) struct Edit {
    object: Value,
    operations: Vec<PatchOperation>,
}

impl Edit {
    pub(crate) fn new(object: Value) -> Self {
        Self { object, operations: Vec::new() }
    }

    /// The pod as it has become, and how.
    pub(crate) fn into_parts(self) -> (Value, Patch) {
        (self.object, Patch(self.operations))
    }

    /// Adds what is missing of an object, member by member, at all depths. A list or a text that is there is left alone.
    pub(crate) fn complete(&mut self, at: &Pointer, wanted: Value) -> Result<(), Denial> {
        match (self.get(at), wanted) {
            (None, wanted) => self.add(at.to_buf(), wanted),
            (Some(Value::Object(_)), Value::Object(members)) => members
                .into_iter()
                .try_for_each(|(name, member)| self.complete(&at.with_trailing_token(name.as_str()), member)),
            (Some(_), _) => Ok(()),
        }
    }

    /// Adds an item to a list, at its end.
    pub(crate) fn append(&mut self, list: &Pointer, item: Value) -> Result<(), Denial> {
        self.add_item(list, "-", item)
    }

    /// Adds an item to a list, at its beginning.
    pub(crate) fn prepend(&mut self, list: &Pointer, item: Value) -> Result<(), Denial> {
        self.add_item(list, "0", item)
    }

    fn add_item(&mut self, list: &Pointer, place: &str, item: Value) -> Result<(), Denial> {
        if self.get(list).is_some() {
            return self.add(list.with_trailing_token(place), item);
        }
        // The objects that it stands in may be missing as well.
        let missing = |at: &Pointer| self.get(at).is_none();
        let (mut at, mut value) = (list.to_buf(), Value::Array(vec![item]));
        while let Some((parent, name)) = at.split_back()
            && missing(parent)
        {
            value = Value::Object(Map::from_iter([(name.decoded().into_owned(), value)]));
            at = parent.to_buf();
        }
        self.add(at, value)
    }

    /// What is there; `null` is nothing.
    fn get(&self, at: &Pointer) -> Option<&Value> {
        at.resolve(&self.object).ok().filter(|value| !value.is_null())
    }

    fn add(&mut self, path: PointerBuf, value: Value) -> Result<(), Denial> {
        let operation = PatchOperation::Add(AddOperation { path, value });
        json_patch::patch(&mut self.object, std::slice::from_ref(&operation)).map_err(|e| {
            let wanted = "a place where something can be added";
            Denial::from(Reason::new(DenialCode::PodUnreadable, e.path, wanted, e.kind))
        })?;
        self.operations.push(operation);
        Ok(())
    }
}

/// The place that a path of names and indices leads to.
pub(crate) fn at<const N: usize>(path: [&str; N]) -> PointerBuf {
    PointerBuf::from_tokens(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edited(object: Value, change: impl FnOnce(&mut Edit) -> Result<(), Denial>) -> Value {
        let mut edit = Edit::new(object.clone());
        change(&mut edit).unwrap();
        let (edited, patch) = edit.into_parts();
        let mut patched = object;
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, edited, "the patch is what was done");
        edited
    }

    #[test]
    fn only_what_is_missing_is_added() {
        let wanted = json!({"a/b": {"x": 1, "y": 2}, "l": [1], "n": 3});
        let complete = |object| edited(object, |edit| edit.complete(Pointer::root(), wanted.clone()));
        assert_eq!(complete(json!({})), wanted);
        assert_eq!(complete(wanted.clone()), wanted);
        assert_eq!(
            complete(json!({"a/b": {"x": 7, "z": 0}, "l": [], "n": null})),
            json!({"a/b": {"x": 7, "y": 2, "z": 0}, "l": [], "n": 3})
        );
        assert_eq!(complete(json!({"a/b": "text"})), json!({"a/b": "text", "l": [1], "n": 3}));
    }

    #[test]
    fn items_are_added_to_lists_that_are_there_or_not() {
        let list = at(["a", "l"]);
        let append = |object| edited(object, |edit| edit.append(&list, json!(9)));
        assert_eq!(append(json!({"a": {"l": [1]}})), json!({"a": {"l": [1, 9]}}));
        for without in [json!({}), json!({"a": null}), json!({"a": {}}), json!({"a": {"l": null}})] {
            assert_eq!(append(without), json!({"a": {"l": [9]}}));
        }
        let prepended = edited(json!({"a": {"l": [1]}}), |edit| edit.prepend(&list, json!(9)));
        assert_eq!(prepended, json!({"a": {"l": [9, 1]}}));
    }

    #[test]
    fn where_nothing_can_be_added_is_a_denial() {
        let mut edit = Edit::new(json!({"a": "text"}));
        let denial = edit.append(&at(["a", "l"]), json!(9)).unwrap_err();
        assert_eq!(denial.reasons()[0].code(), DenialCode::PodUnreadable);
    }
}
