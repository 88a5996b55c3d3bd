//! Quantities as Kubernetes writes them: `500m`, `1.5`, `64Mi`, `1e3`.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// An amount, exact to a billionth as Kubernetes has it; smaller parts are rounded up as there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Quantity {
    nano: i128,
}

const NANO: i128 = 1_000_000_000;
/// Most digits that are read, so that every amount fits: Kubernetes itself keeps fewer.
const DIGITS: usize = 18;

impl Quantity {
    /// The amount of a text, if it is one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, text) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{part}");
        if digits.is_empty() || digits.len() > DIGITS || part.contains('.') {
            return None;
        }
        let digits: i128 = digits.parse().ok()?;
        let (times, by) = scale(suffix)?;
        let nano = digits.checked_mul(times)?.checked_mul(NANO)?;
        let by = by.checked_mul(10_i128.checked_pow(u32::try_from(part.len()).ok()?)?)?;
        let nano = nano / by + i128::from(nano % by != 0);
        Some(Self { nano: if negative { -nano } else { nano } })
    }

    /// Whether it is more than nothing.
    pub(crate) const fn is_some(self) -> bool {
        self.nano > 0
    }

    /// The amount in whole bytes, rounded up, where it is one.
    pub(crate) fn bytes(self) -> Option<u64> {
        u64::try_from(self.nano / NANO + i128::from(self.nano % NANO > 0)).ok()
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_add(other.nano) }
    }
}

/// What a suffix multiplies and divides by.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let scale = match suffix {
        "" => (1, 1),
        "n" => (1, NANO),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (NANO, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => return exponent(suffix),
    };
    Some(scale)
}

fn exponent(suffix: &str) -> Option<(i128, i128)> {
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power_of_ten = 10_i128.checked_pow(power.unsigned_abs())?;
    Some(if power < 0 { (1, power_of_ten) } else { (power_of_ten, 1) })
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 500m or 64Mi")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
            // The API takes numbers as well.
            fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_amounts_are_equal_however_they_are_written() {
        for same in [
            ["1", "1000m"],
            ["0.5", "500m"],
            ["1Gi", "1024Mi"],
            ["1e3", "1k"],
            ["1.5Gi", "1536Mi"],
            ["+2", "2.0"],
            [".5", "5e-1"],
            ["1E", "1e18"],
            ["0.1n", "1n"],
            ["-1", "-1000m"],
        ] {
            let [one, other] = same.map(|text| Quantity::parse(text).unwrap_or_else(|| panic!("{text}")));
            assert_eq!(one, other, "{same:?}");
        }
        assert!(Quantity::parse("1Mi") > Quantity::parse("1M"));
        assert!(!Quantity::parse("0").unwrap().is_some() && !Quantity::parse("-1").unwrap().is_some());
    }

    #[test]
    fn what_is_none_is_refused() {
        let long = "9".repeat(DIGITS + 1);
        for text in ["", "x", "1.2.3", "1 Gi", "1gi", "Mi", "1e", "1e99", "--1", ".", &long] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_taken_too() {
        let read = |json: &str| serde_json::from_str::<Quantity>(json).ok();
        assert_eq!(read("2"), read("\"2000m\""));
        assert_eq!(read("0.5"), read("\"500m\""));
        assert_eq!(read("true"), None);
    }
}
