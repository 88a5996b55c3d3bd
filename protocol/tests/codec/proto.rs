//! Protobuf by hand: packets that no encoder of ours would write, and what stands in those that ours wrote.

use std::collections::{BTreeMap, BTreeSet};

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

/// What `handoff.proto` declares.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    messages: BTreeSet<String>,
    /// By message and number.
    fields: BTreeMap<(String, u64), Field>,
    /// By enum: its values but 0, which is never sent.
    choices: BTreeMap<String, BTreeSet<u64>>,
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: String,
}

impl Schema {
    /// Reads the protocol file itself, so that a message that is added there is tested too.
    pub(crate) fn of_the_protocol() -> Self {
        let mut schema = Self::default();
        let mut current = String::new();
        for line in include_str!("../../proto/handoff.proto").lines() {
            let line = line.split("//").next().unwrap_or_default();
            let words: Vec<&str> = line.split([' ', ';']).filter(|w| !w.is_empty()).collect();
            match words.as_slice() {
                ["message", name, ..] => {
                    current = (*name).to_owned();
                    schema.messages.insert(current.clone());
                }
                ["enum", name, ..] => {
                    current = (*name).to_owned();
                    schema.choices.insert(current.clone(), BTreeSet::new());
                }
                ["repeated" | "optional", kind, name, "=", number] | [kind, name, "=", number] => {
                    let (name, kind) = ((*name).to_owned(), (*kind).to_owned());
                    let number = number.parse().unwrap();
                    schema.fields.insert((current.clone(), number), Field { name, kind });
                }
                [_, "=", number] if schema.choices.contains_key(&current) => {
                    let number = number.parse().unwrap();
                    schema.choices.get_mut(&current).unwrap().insert(number);
                }
                _ => {}
            }
        }
        assert!(schema.fields.len() > 150, "the protocol file does not read as expected: {schema:?}");
        Self { choices: schema.choices.into_iter().map(|(e, v)| (e, without_zero(v))).collect(), ..schema }
    }

    /// The message that a field holds.
    fn inner(&self, message: &str, number: u64) -> Option<&str> {
        let field = self.fields.get(&(message.to_owned(), number))?;
        Some(field.kind.as_str()).filter(|kind| self.messages.contains(*kind))
    }

    /// Puts fields that nobody knows before and after those of a message and of every message inside it.
    pub(crate) fn sprinkle(&self, message: &str, data: &[u8]) -> Vec<u8> {
        let mut out = unknown_fields();
        let mut rest = data;
        while !rest.is_empty() {
            let (tag, after) = read_varint(rest);
            let (field, wire) = (tag >> 3, tag & 7);
            let end = rest.len() - after.len() + length(wire, after);
            match self.inner(message, field) {
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

    /// All fields, and all choices of enums.
    pub(crate) fn declared(&self) -> BTreeSet<String> {
        let fields = self.fields.iter().map(|((message, _), field)| format!("{message}.{}", field.name));
        let choices =
            self.choices.iter().flat_map(|(e, values)| values.iter().map(move |v| format!("{e} {v}")));
        fields.chain(choices).collect()
    }

    /// Notes which fields and choices stand in a message and in those inside it.
    pub(crate) fn visit(&self, message: &str, data: &[u8], seen: &mut Seen) {
        let mut rest = data;
        while !rest.is_empty() {
            let (tag, after) = read_varint(rest);
            let end = length(tag & 7, after);
            let field = &self.fields[&(message.to_owned(), tag >> 3)];
            seen.names.insert(format!("{message}.{}", field.name));
            let (number, inside) = read_varint(after);
            let inside = || &inside[..end - (after.len() - inside.len())];
            if let Some(inner) = self.inner(message, tag >> 3) {
                self.visit(inner, inside(), seen);
            } else if self.choices.contains_key(&field.kind) {
                seen.names.insert(format!("{} {number}", field.kind));
            } else if field.name == "receipt" {
                seen.sealed.push(("Receipt", inside().to_vec()));
            } else if (message, field.name.as_str()) == ("Receipt", "body") {
                seen.sealed.push(("ReceiptBody", inside().to_vec()));
            }
            rest = &after[end..];
        }
    }
}

/// What stands in messages.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Fields by message, and choices by enum.
    pub(crate) names: BTreeSet<String>,
    /// Messages that travel as bytes, with what they should be.
    pub(crate) sealed: Vec<(&'static str, Vec<u8>)>,
}

fn without_zero(mut values: BTreeSet<u64>) -> BTreeSet<u64> {
    values.remove(&0);
    values
}

/// Bytes of a field's value.
fn length(wire: u64, value: &[u8]) -> usize {
    match wire {
        0 => value.len() - read_varint(value).1.len(),
        1 => 8,
        5 => 4,
        2 => {
            let (len, body) = read_varint(value);
            value.len() - body.len() + usize::try_from(len).unwrap()
        }
        other => panic!("wire type {other}"),
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
