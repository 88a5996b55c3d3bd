//! Which word may have been meant.

use crate::limits;

/// The nearest of the words that exist, if it is near: at most every third letter was mistaken, and one always may be.
pub(crate) fn nearest<'a>(asked: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if asked.len() > limits::NEAREST_BYTES {
        return None;
    }
    let distances = words.into_iter().map(|word| (strsim::osa_distance(asked, word), word));
    let (mistakes, word) = distances.min_by_key(|(mistakes, _)| *mistakes)?;
    (mistakes <= (asked.len() / 3).max(1)).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_word_is_found_and_a_far_one_is_not() {
        let words = ["group", "group-size", "profile"];
        assert_eq!(nearest("gruop", words), Some("group"));
        assert_eq!(nearest("group_size", words), Some("group-size"));
        assert_eq!(nearest("profil", words), Some("profile"));
        assert_eq!(nearest("banana", words), None);
        assert_eq!(nearest("", words), None);
        assert_eq!(nearest(&"group".repeat(100_000), words), None);
        assert_eq!(nearest("group", []), None);
    }
}
