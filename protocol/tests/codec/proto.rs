//! Protobuf by hand: packets that no encoder of ours would write.

use std::collections::HashMap;

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
    out
}

/// A field that holds a number.
pub(crate) fn int(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A field that holds a text, bytes or a message.
pub(crate) fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// The messages of `handoff.proto`: which fields hold which message.
#[derive(Debug)]
pub(crate) struct Schema(HashMap<(String, u64), String>);

impl Schema {
    /// Reads the protocol file itself, so that a message that is added there is tested too.
    pub(crate) fn of_the_protocol() -> Self {
        let text = include_str!("../../proto/handoff.proto");
        let lines: Vec<&str> =
            text.lines().map(|l| l.split("//").next().unwrap_or_default().trim()).collect();
        let messages: Vec<&str> =
            lines.iter().filter_map(|l| l.strip_prefix("message ")?.split_whitespace().next()).collect();
        let mut fields = HashMap::new();
        let mut current = "";
        for line in &lines {
            let words: Vec<&str> = line.split([' ', ';']).filter(|w| !w.is_empty()).collect();
            match words.as_slice() {
                ["message", name, ..] => current = name,
                ["repeated", kind, _, "=", number] | [kind, _, "=", number] if messages.contains(kind) => {
                    fields.insert((current.to_owned(), number.parse().unwrap()), (*kind).to_owned());
                }
                _ => {}
            }
        }
        assert!(fields.len() > 30, "the protocol file does not read as expected: {fields:?}");
        Self(fields)
    }

    /// Puts fields that nobody knows before and after those of a message and of every message inside it.
    pub(crate) fn sprinkle(&self, message: &str, data: &[u8]) -> Vec<u8> {
        let mut out = unknown_fields();
        let mut rest = data;
        while !rest.is_empty() {
            let (tag, after) = read_varint(rest);
            let (field, wire) = (tag >> 3, tag & 7);
            let inner = self.0.get(&(message.to_owned(), field));
            let value = match wire {
                0 => after.len() - read_varint(after).1.len(),
                1 => 8,
                5 => 4,
                2 => {
                    let (len, body) = read_varint(after);
                    after.len() - body.len() + usize::try_from(len).unwrap()
                }
                other => panic!("wire type {other}"),
            };
            let end = rest.len() - after.len() + value;
            match inner {
                Some(inner) => {
                    let (_, body) = read_varint(after);
                    let body = &body[..end - (rest.len() - body.len())];
                    out.extend(bytes(field, &self.sprinkle(inner, body)));
                }
                None => out.extend_from_slice(&rest[..end]),
            }
            rest = &rest[end..];
        }
        out.extend(unknown_fields());
        out
    }
}

/// One unknown field of each wire type, groups among them.
fn unknown_fields() -> Vec<u8> {
    let mut out = [int(900, u64::MAX), bytes(901, b"from the future")].concat();
    out.extend([varint(902 << 3 | 5), vec![1; 4]].concat());
    out.extend([varint(903 << 3 | 1), vec![1; 8]].concat());
    out.extend([varint(904 << 3 | 3), int(1, 1), varint(904 << 3 | 4)].concat());
    out
}

fn read_varint(data: &[u8]) -> (u64, &[u8]) {
    let end = data.iter().position(|b| b & 0x80 == 0).unwrap() + 1;
    let value = data[..end].iter().rev().fold(0, |v, b| v << 7 | u64::from(b & 0x7f));
    (value, &data[end..])
}
