//! Bytes and times as people write them: `80Gi`, `30s`.

use std::fmt;
use std::time::Duration;

use serde::Serializer;
use serde::de::{Deserializer, Error, Unexpected, Visitor};

use crate::limits;

/// A number of bytes: a whole number, or one with a unit.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(Bytes)
}

/// The same where it may be left out.
pub(crate) fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    bytes(deserializer).map(Some)
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes such as 1073741824, 512Mi or 80Gi (Ki, Mi, Gi or Ti)")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
        Ok(bytes)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        const UNITS: &[(&str, u64)] = &[("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40)];
        of_units(text, UNITS).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A whole number.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_u64(Number)
}

/// The same where it may be left out.
pub(crate) fn some_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    number(deserializer).map(Some)
}

struct Number;

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, 0 or more")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}

/// A time: a whole number with its unit.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Time)
}

/// The same where it may be left out.
pub(crate) fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    time(deserializer).map(Some)
}

/// Writes a time so that it can be read again.
pub(crate) fn write_time<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Written(*time))
}

/// The same where it may be left out.
pub(crate) fn write_some_time<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => write_time(time, serializer),
        None => serializer.serialize_none(),
    }
}

struct Written(Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

struct Time;

impl Visitor<'_> for Time {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time such as 500ms, 30s or 5m (ms, s, m or h), at most 1h")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        const UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
        let with_unit = Some(text).filter(|text| !text.ends_with(|c: char| c.is_ascii_digit()));
        let time = with_unit.and_then(|text| of_units(text, UNITS)).map(Duration::from_millis);
        time.filter(|time| *time <= limits::RETIRE_DEADLINE)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A whole number with one of these units, or without one.
fn of_units(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let times = match unit {
        "" => 1,
        unit => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    number.parse::<u64>().ok()?.checked_mul(times)
}
