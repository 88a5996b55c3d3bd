//! Meaning, line by line. What is not there is not written, so that the meaning of an old packet stays as it is when
//! later versions have more to say.

use std::fmt::Display;

/// Lines, indented by how deep they are.
#[derive(Debug, Default)]
pub struct Text {
    lines: String,
    depth: usize,
}

impl Text {
    /// A line without a value.
    pub fn line(&mut self, text: impl Display) -> &mut Self {
        self.lines.push_str(&"  ".repeat(self.depth));
        self.lines.push_str(&text.to_string());
        self.lines.push('\n');
        self
    }

    /// A named value.
    pub fn value(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.line(format!("{name} {value}"))
    }

    /// A named value, where there is one.
    pub fn some(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            self.value(name, value);
        }
        self
    }

    /// A named fact, where it is true.
    pub fn flag(&mut self, name: &str, is: bool) -> &mut Self {
        if is {
            self.line(name);
        }
        self
    }

    /// Lines that belong to a heading.
    pub fn under(&mut self, heading: impl Display, inside: impl FnOnce(&mut Self)) -> &mut Self {
        self.line(heading);
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        self
    }

    /// All lines.
    pub fn finish(self) -> String {
        self.lines
    }
}
