//! What a YAML text may have, looked at before it is read: there are some of which a few bytes cost their reader all memory, or hours.

use std::cell::Cell;
use std::fmt;

use gpu_handoff_policy::{Sign, signs};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess};
use serde::de::{VariantAccess, Visitor};

use super::documents::DocumentError;
use crate::limits;

/// Bytes that each value counts as, beside its text: `1,`.
const VALUE_BYTES: u64 = 2;

/// What documents may still have.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Bytes, with what their aliases stand for in the place of these.
    left: Cell<u64>,
}

impl Bounds {
    /// Of all documents of an input.
    pub(super) const fn new() -> Self {
        Self { left: Cell::new(limits::INPUT_BYTES) }
    }

    /// Whether a document may be read that begins in this line, counted from 0. What else is wrong with it, its reader finds out.
    pub(super) fn check(&self, begin: usize, text: &str) -> Result<(), DocumentError> {
        let mut has_aliases = false;
        for (place, sign) in signs(text) {
            let line = begin + place.line;
            match sign {
                // Each is compared with all before it, and none stands before an object that is cut out at its mark.
                Sign::Directive => return Err(DocumentError::Directive { line }),
                // At each token all that are open are looked at.
                Sign::Open(open) if open > limits::BRACKETS => return Err(DocumentError::Brackets { line }),
                Sign::Alias => has_aliases = true,
                _ => {}
            }
        }
        // Only what aliases stand for is more than there is to be read.
        if has_aliases
            && Weigh(&self.left).deserialize(serde_yaml::Deserializer::from_str(text)).is_err()
            && self.left.get() == 0
        {
            return Err(DocumentError::Aliases);
        }
        Ok(())
    }
}

/// Counts what a document has, without keeping it.
#[derive(Clone, Copy)]
struct Weigh<'a>(&'a Cell<u64>);

impl Weigh<'_> {
    fn take<E: Error>(self, text: usize) -> Result<(), E> {
        let left = self.0.get().saturating_sub(VALUE_BYTES + text as u64);
        self.0.set(left);
        if left == 0 { Err(E::custom("too much")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Weigh<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weigh<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.take(0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.take(0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.take(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.take(0)?;
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.take(0)?;
        while members.next_key_seed(self)?.is_some() {
            members.next_value_seed(self)?;
        }
        Ok(())
    }

    /// A value with a tag.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let (_, value) = tagged.variant::<IgnoredAny>()?;
        value.newtype_variant_seed(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::documents::read;
    use super::*;

    /// Why it is.
    fn refused(text: &str) -> String {
        let begin = Instant::now();
        let said = read(text).unwrap_err().to_string();
        // What is not looked for here takes minutes, or more memory than there is.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}: {text:.20}", begin.elapsed());
        said
    }

    #[test]
    fn aliases_stand_for_no_more_than_an_input_may_have() {
        let half = usize::try_from(limits::INPUT_BYTES).unwrap() / 2;
        let long =
            |times: usize| format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 10), vec!["*a"; times].join(","));
        assert!(read(&long(half >> 10)).is_ok());
        let told = "with what its aliases stand for in their place, it has more than 16777216 bytes";
        assert_eq!(refused(&long(half >> 9)), told);
        let lists =
            format!("a: &a [{}]\nb: [{}]\n", vec!["1"; 10_000].join(","), vec!["*a"; 1_000].join(","));
        assert_eq!(refused(&lists), told);
        let keys =
            format!("a: &a {{{}: 1}}\nb: [{}]\n", "x".repeat(1 << 10), vec!["*a"; half >> 9].join(","));
        assert_eq!(refused(&keys), told);
        // All documents together.
        let few = format!("{}---\n", long(1_000));
        assert!(read(&few).is_ok());
        assert_eq!(refused(&few.repeat(20)), told);
        // Merged, and with a tag, as its reader finds out.
        let tagged =
            format!("a: &a !mine {}\nb: [{}]\n", "x".repeat(1 << 10), vec!["*a"; half >> 9].join(","));
        assert_eq!(refused(&tagged), told);
        assert_eq!(refused("a: &a !mine x\nb: *a\n"), "the tag !mine is nothing that Kubernetes knows");
    }

    #[test]
    fn depth_and_directives_are_told_with_their_line() {
        let open = "[".repeat(limits::BRACKETS);
        assert!(!refused(&open).contains("more than"), "its reader says what is wrong with it");
        assert_eq!(
            refused(&format!("a: 1\n---\nb: {open}\n  [\n")),
            "line 4: more than 128 brackets are open"
        );
        assert_eq!(
            refused(&"{".repeat(1 << 20).replacen('{', "a: {", 1)),
            "line 1: more than 128 brackets are open"
        );
        let closed = format!("{open}[]{}", "]".repeat(limits::BRACKETS));
        assert_eq!(refused(&closed), "line 1: more than 128 brackets are open");
        let tags: String = (0..500_000).map(|i| format!("%TAG !a{i}! x\n")).collect();
        let told = "line 1: a directive of YAML, which no object of Kubernetes needs";
        assert_eq!(refused(&format!("{tags}---\na: 1\n")), told);
        for end in ["\r", "\u{85}", "\u{2028}", "\u{2029}"] {
            assert_eq!(refused(&format!("# a{end}%TAG !a! x{end}---{end}a: 1\n")), told.replace('1', "2"));
        }
    }

    #[test]
    fn what_closes_a_bracket_in_a_comment_or_in_quotes_closes_none() {
        for (row, line) in [("{a: #}\n", 131), ("[#]\n", 131), ("[\"]\",", 3)] {
            let told = format!("line {line}: more than 128 brackets are open");
            assert_eq!(refused(&format!("b: 1\na:\n  {}", row.repeat(40_000))), told, "{row}");
        }
    }

    #[test]
    fn texts_may_have_what_means_something_elsewhere() {
        let words = "\\e[31mword {[ if [[ x ]]; then { ".repeat(1_001);
        for text in [
            format!("a: |\n  {words}\nb: 1\n"),
            format!("a: >\n  {words}\n\n  # {words}\nb: 1\n"),
            format!("a: '{words}'\nb: 1\n"),
            format!("a: \"{}\n\n  {0}\"\nb: 1\n", words.replace('\\', "\\\\")),
            format!("a: x{words}\n  {words}\nb: 1\n"),
            format!("# {words}\na: 1 # {words}\n"),
            "a: |\n  %x\nb: \"*\n%x\"\nc: x\n %y\n".to_owned(),
        ] {
            assert!(read(&text).is_ok(), "{text:.60}: {:?}", read(&text).map(|_| ()));
        }
    }
}
