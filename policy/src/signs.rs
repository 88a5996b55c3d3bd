//! What the reader of YAML takes for its signs: found as it finds them, in one pass over the text, before anything is read.
//!
//! Some of them cost it time that grows with the square of the text. Looking for their letters alone finds too few, since
//! what closes a bracket may stand in a comment or in quotes, and too many, since a text may have them. So this follows the
//! scanner of libyaml (`scanner.rs` of `unsafe-libyaml`), which `serde_yaml` reads with. What that refuses is passed over
//! here: in a text that it takes, both find the same.

use crate::Place;

/// What a key may have at most between its beginning and its colon, in bytes.
const KEY_BYTES: usize = 1_024;

/// What stands for something else than itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A bracket, with which as many are open.
    Open(usize),
    /// `%`, at the beginning of a line.
    Directive,
    /// `&`.
    Anchor,
    /// `*`.
    Alias,
    /// `!`.
    Tag,
}

/// All signs of a text, and where they stand.
pub fn signs(text: &str) -> impl Iterator<Item = (Place, Sign)> {
    Signs {
        text: text.as_bytes(),
        at: 0,
        line: 0,
        column: 0,
        open: 0,
        within: vec![0],
        key: None,
        may_key: true,
    }
}

struct Signs<'a> {
    text: &'a [u8],
    /// In bytes.
    at: usize,
    line: usize,
    /// In characters.
    column: usize,
    /// How many brackets are.
    open: usize,
    /// The first column of what belongs to a block, for each block that has begun; the whole text is the first.
    within: Vec<usize>,
    /// What would be a key of a block, if a colon came.
    key: Option<Key>,
    /// Whether what follows can be one.
    may_key: bool,
}

struct Key {
    at: usize,
    line: usize,
    column: usize,
}

impl Iterator for Signs<'_> {
    type Item = (Place, Sign);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.find_token();
            let place = Place { line: self.line + 1, column: self.column + 1 };
            if self.is_end(0) {
                return None;
            }
            if let Some(sign) = self.token() {
                return Some((place, sign));
            }
        }
    }
}

impl Signs<'_> {
    /// The byte so many after this one.
    fn byte(&self, after: usize) -> u8 {
        self.text.get(self.at + after).copied().unwrap_or_default()
    }

    /// No text has NUL.
    fn is_end(&self, after: usize) -> bool {
        self.byte(after) == 0
    }

    fn is_blank(&self, after: usize) -> bool {
        matches!(self.byte(after), b' ' | b'\t')
    }

    /// How many bytes the end of a line has there: none where it does not end.
    fn break_bytes(&self, after: usize) -> usize {
        match [0, 1, 2].map(|more| self.byte(after + more)) {
            [b'\r', b'\n', _] | [0xc2, 0x85, _] => 2,
            [b'\r' | b'\n', ..] => 1,
            [0xe2, 0x80, 0xa8 | 0xa9] => 3,
            _ => 0,
        }
    }

    fn is_break(&self) -> bool {
        self.break_bytes(0) > 0
    }

    fn is_line_end(&self, after: usize) -> bool {
        self.is_end(after) || self.break_bytes(after) > 0
    }

    /// Whether no word goes on there.
    fn is_gap(&self, after: usize) -> bool {
        self.is_blank(after) || self.is_line_end(after)
    }

    /// Passes over one character.
    fn skip(&mut self) {
        self.at += match self.byte(0) {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0.. => 4,
        };
        self.column += 1;
    }

    fn skip_break(&mut self) {
        let bytes = self.break_bytes(0);
        if bytes > 0 {
            self.at += bytes;
            (self.line, self.column) = (self.line + 1, 0);
        }
    }

    fn skip_line(&mut self) {
        while !self.is_line_end(0) {
            self.skip();
        }
    }

    /// Passes over what is between tokens.
    fn find_token(&mut self) {
        loop {
            if self.column == 0 && [0, 1, 2].map(|after| self.byte(after)) == [0xef, 0xbb, 0xbf] {
                self.skip();
            }
            while self.is_blank(0) {
                self.skip();
            }
            if self.byte(0) == b'#' {
                self.skip_line();
            }
            if !self.is_break() {
                return;
            }
            self.skip_break();
            self.may_key |= self.open == 0;
        }
    }

    fn token(&mut self) -> Option<Sign> {
        self.leave(self.column);
        if self.column == 0 && self.byte(0) == b'%' {
            self.skip_line();
            return Some(Sign::Directive);
        }
        if self.is_document_mark() {
            if self.open == 0 {
                self.within.truncate(1);
            }
            self.no_key(false);
            (0..3).for_each(|_| self.skip());
            return None;
        }
        let in_brackets = self.open > 0;
        match self.byte(0) {
            b'[' | b'{' => {
                self.begin_key(true);
                self.open += 1;
                self.skip();
                return Some(Sign::Open(self.open));
            }
            b']' | b'}' => {
                self.no_key(false);
                self.open = self.open.saturating_sub(1);
                self.skip();
            }
            b',' => {
                self.no_key(true);
                self.skip();
            }
            b'-' if self.is_gap(1) => self.entry(),
            b'?' if in_brackets || self.is_gap(1) => self.entry(),
            b':' if in_brackets || self.is_gap(1) => self.colon(),
            b'*' => return Some(self.name(Sign::Alias)),
            b'&' => return Some(self.name(Sign::Anchor)),
            b'!' => return Some(self.tag()),
            b'|' | b'>' if !in_brackets => self.block_scalar(),
            quote @ (b'\'' | b'"') => self.quoted(quote),
            _ => self.plain(),
        }
        None
    }

    fn is_document_mark(&self) -> bool {
        let mark = [0, 1, 2].map(|after| self.byte(after));
        self.column == 0 && matches!(&mark, b"---" | b"...") && self.is_gap(3)
    }

    /// Blocks begin and end outside brackets alone.
    fn enter(&mut self, column: usize) {
        if self.open == 0 && self.block() <= column {
            self.within.push(column + 1);
        }
    }

    fn leave(&mut self, column: usize) {
        while self.open == 0 && self.block() > column + 1 {
            self.within.pop();
        }
    }

    fn block(&self) -> usize {
        self.within.last().copied().unwrap_or_default()
    }

    fn begin_key(&mut self, then: bool) {
        if self.open == 0 && self.may_key {
            self.key = Some(Key { at: self.at, line: self.line, column: self.column });
        }
        self.may_key = then;
    }

    fn no_key(&mut self, then: bool) {
        if self.open == 0 {
            self.key = None;
        }
        self.may_key = then;
    }

    fn entry(&mut self) {
        self.enter(self.column);
        self.no_key(true);
        self.skip();
    }

    fn colon(&mut self) {
        if self.open == 0 {
            let is_near = |key: &Key| key.line == self.line && self.at - key.at <= KEY_BYTES;
            let key = self.key.take().filter(is_near);
            self.may_key = key.is_none();
            self.enter(key.map_or(self.column, |key| key.column));
        }
        self.skip();
    }

    fn name(&mut self, sign: Sign) -> Sign {
        self.begin_key(false);
        self.skip();
        while matches!(self.byte(0), b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'-') {
            self.skip();
        }
        sign
    }

    /// Between `<` and `>` it may have brackets.
    fn tag(&mut self) -> Sign {
        self.begin_key(false);
        let ends: &[u8] = if self.byte(1) == b'<' { b">" } else { b",[]{}" };
        while !self.is_gap(0) && !ends.contains(&self.byte(0)) {
            self.skip();
        }
        if ends == b">" && self.byte(0) == b'>' {
            self.skip();
        }
        Sign::Tag
    }

    fn quoted(&mut self, quote: u8) {
        self.begin_key(false);
        self.skip();
        while !self.is_end(0) {
            let (byte, next) = (self.byte(0), self.byte(1));
            let is_pair = if quote == b'"' { byte == b'\\' } else { byte == b'\'' && next == b'\'' };
            if self.is_break() {
                self.skip_break();
            } else if is_pair {
                self.skip();
                if self.is_break() { self.skip_break() } else { self.skip() }
            } else {
                self.skip();
                if byte == quote {
                    return;
                }
            }
        }
    }

    fn plain(&mut self) {
        self.begin_key(false);
        let mut is_new_line = false;
        while !self.is_document_mark() && self.byte(0) != b'#' {
            while !self.is_gap(0) && !self.ends_plain() {
                self.skip();
                is_new_line = false;
            }
            if self.is_end(0) || !self.is_gap(0) {
                break;
            }
            while self.is_blank(0) || self.is_break() {
                if self.is_break() {
                    self.skip_break();
                    is_new_line = true;
                } else {
                    self.skip();
                }
            }
            if self.open == 0 && self.column < self.block() {
                break;
            }
        }
        self.may_key |= is_new_line;
    }

    fn ends_plain(&self) -> bool {
        match self.byte(0) {
            b':' => self.is_gap(1),
            b',' | b'[' | b']' | b'{' | b'}' => self.open > 0,
            _ => false,
        }
    }

    fn block_scalar(&mut self) {
        self.no_key(true);
        self.skip();
        let mut more = 0;
        while let byte @ (b'+' | b'-' | b'1'..=b'9') = self.byte(0) {
            more = if byte.is_ascii_digit() { usize::from(byte - b'0') } else { more };
            self.skip();
        }
        // Blanks and a comment.
        self.skip_line();
        self.skip_break();
        let mut column = (more > 0).then(|| self.block().saturating_sub(1) + more);
        loop {
            let first = self.indentation(column);
            column = Some(first);
            if self.column != first || self.is_end(0) {
                return;
            }
            self.skip_line();
            self.skip_break();
        }
    }

    /// Passes over empty lines and the beginning of the one after them, up to the column where a block's text begins: which
    /// one that is, where nothing has said it yet, they say.
    fn indentation(&mut self, column: Option<usize>) -> usize {
        let mut widest = 0;
        loop {
            while self.byte(0) == b' ' && column.is_none_or(|column| self.column < column) {
                self.skip();
            }
            widest = widest.max(self.column);
            if !self.is_break() {
                break;
            }
            self.skip_break();
        }
        column.unwrap_or_else(|| widest.max(self.block()).max(1))
    }
}
