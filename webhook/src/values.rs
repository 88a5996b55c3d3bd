//! How many values a JSON text has, before it is read.

use crate::limits;

/// The text has more values than a review may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wanted at most {} values, found more", limits::REVIEW_VALUES)]
pub(crate) struct TooManyValues;

/// Refuses a text that would take far more memory than it has bytes: `[{"a":0},{"a":0},...` takes eighty times as many.
/// Whether it is JSON at all, its reader finds out.
///
/// # Errors
/// There are too many.
pub(crate) fn check(text: &[u8]) -> Result<(), TooManyValues> {
    if count(text) > limits::REVIEW_VALUES { Err(TooManyValues) } else { Ok(()) }
}

/// Commas and opening brackets outside of strings: with one more, as many as there are values, or a few more.
fn count(text: &[u8]) -> usize {
    let mut found = 0_usize;
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b',' | b'[' | b'{') => found += 1,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn what_stands_in_strings_does_not_count() {
        let text = json!({"annotations": {"a": "{\"\\,".repeat(limits::REVIEW_VALUES)}}).to_string();
        assert_eq!(check(text.as_bytes()), Ok(()));
    }

    #[test]
    fn one_more_is_too_many() {
        for unit in ["{\"a\":0},", "[,"] {
            let most = unit.repeat(limits::REVIEW_VALUES / 2);
            assert_eq!(check(most.as_bytes()), Ok(()));
            assert_eq!(check(format!("{most},").as_bytes()), Err(TooManyValues));
        }
    }

    fn values_of(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(values_of).sum::<usize>(),
            Value::Object(map) => 1 + map.values().map(values_of).sum::<usize>(),
            _ => 1,
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,6}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn about_as_many_are_counted_as_there_are(value in values()) {
            let found = count(value.to_string().as_bytes()) + 1;
            prop_assert!(found >= values_of(&value) && found <= 2 * values_of(&value));
        }
    }
}
