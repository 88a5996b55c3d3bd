//! Protobuf written straight into a packet, without a copy of every text in between. The generated code reads it.

/// Adds fields to a message, in the order of their numbers.
pub(super) struct Fields<'a>(&'a mut Vec<u8>);

/// Wire types of protobuf.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

/// Fills a message that is a whole by itself.
pub(super) fn message(bytes: &mut Vec<u8>, fill: impl FnOnce(&mut Fields<'_>)) {
    fill(&mut Fields(bytes));
}

impl Fields<'_> {
    /// A number, or a truth value as 0 or 1; 0 is not written.
    pub(super) fn number(&mut self, field: u32, value: impl Into<u64>) {
        let value = value.into();
        if value != 0 {
            self.present(field, value);
        }
    }

    /// A number of a field that may be absent, and is not.
    pub(super) fn present(&mut self, field: u32, value: impl Into<u64>) {
        self.varint((field << 3 | VARINT).into());
        self.varint(value.into());
    }

    /// A number of fixed length; 0 is not written.
    pub(super) fn fixed(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint((field << 3 | FIXED64).into());
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Bytes or text; nothing is written of what is empty.
    pub(super) fn bytes(&mut self, field: u32, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        if !value.is_empty() {
            self.varint((field << 3 | BYTES).into());
            self.varint(value.len() as u64);
            self.0.extend_from_slice(value);
        }
    }

    /// A row of numbers; nothing is written of an empty one.
    pub(super) fn numbers(&mut self, field: u32, values: &[u64]) {
        if !values.is_empty() {
            self.message(field, |f| values.iter().for_each(|value| f.varint(*value)));
        }
    }

    /// A row of numbers with signs (`sint64`).
    pub(super) fn signed_numbers(&mut self, field: u32, values: &[i64]) {
        if !values.is_empty() {
            self.message(field, |f| {
                values.iter().for_each(|value| f.varint((value << 1 ^ value >> 63).cast_unsigned()));
            });
        }
    }

    /// A message within this one, empty or not.
    pub(super) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Fields<'_>)) {
        self.varint((field << 3 | BYTES).into());
        // Its length stands before it and is known after it: mostly one byte, else it is moved.
        let begin = self.0.len() + 1;
        self.0.push(0);
        fill(&mut Fields(self.0));
        let mut length = self.0.len() - begin;
        let mut at = begin - 1;
        while length >= 0x80 {
            self.0[at] = low_bits(length as u64) | 0x80;
            at += 1;
            self.0.insert(at, 0);
            length >>= 7;
        }
        self.0[at] = low_bits(length as u64);
    }

    /// What is written already.
    pub(super) fn whole(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(low_bits(value) | 0x80);
            value >>= 7;
        }
        self.0.push(low_bits(value));
    }
}

/// The lowest seven bits.
const fn low_bits(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}
