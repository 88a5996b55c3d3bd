//! YAML or JSON text as a row of JSON values.

use gpu_handoff_policy::{PolicyError, as_text};
use serde_json::{Map, Number, Value};

use super::bounds::Bounds;
use crate::limits;

/// One document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document<'a> {
    /// As it was written, where it stood alone, as long as nothing is added to it: it goes out as it came in.
    pub(crate) text: Option<&'a str>,
    /// What it says; `null` where it says nothing.
    pub(crate) object: Value,
}

/// Why text is no row of documents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// It is no text.
    #[error(transparent)]
    Text(#[from] PolicyError),
    /// It is not YAML.
    #[error(transparent)]
    Yaml(#[from] serde_yaml::Error),
    /// It begins as JSON and is none.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// JSON has no such value.
    #[error("{0} is nothing that Kubernetes knows")]
    Foreign(String),
    /// Aliases stand for more than there may be.
    #[error("with what its aliases stand for in their place, it has more than {} bytes", limits::INPUT_BYTES)]
    Aliases,
    /// More brackets are open than may be.
    #[error("line {line}: more than {} brackets are open", limits::BRACKETS)]
    Brackets {
        /// Where.
        line: usize,
    },
    /// A line that begins with `%`.
    #[error("line {line}: a directive of YAML, which no object of Kubernetes needs")]
    Directive {
        /// Where.
        line: usize,
    },
    /// There are more than there may be.
    #[error("there are more than {} documents", limits::DOCUMENTS)]
    TooMany,
}

/// Reads all documents: JSON if that is what it begins as. A byte order mark before them is passed over.
pub(crate) fn read<T: AsRef<[u8]> + ?Sized>(text: &T) -> Result<Vec<Document<'_>>, DocumentError> {
    let text = as_text(text.as_ref())?;
    let documents: Vec<_> = if text.trim_start().starts_with('{') {
        let objects = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let objects = objects.take(limits::DOCUMENTS + 1);
        objects
            .map(|object| Ok(Document { text: None, object: object? }))
            .collect::<Result<_, DocumentError>>()?
    } else {
        let parts = split(text);
        if parts.len() > limits::DOCUMENTS {
            return Err(DocumentError::TooMany);
        }
        let bounds = Bounds::new();
        let parts = parts.into_iter().filter(|(_, part)| !part.trim().is_empty());
        let read = |(line, part)| bounds.check(line, part).and_then(|()| read_yaml(line, part));
        parts.map(read).collect::<Result<_, _>>()?
    };
    if documents.len() > limits::DOCUMENTS { Err(DocumentError::TooMany) } else { Ok(documents) }
}

/// Cuts YAML into documents: each with the line that it begins in. `---` at the beginning of a line is nothing else
/// anywhere in YAML.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut begin, mut begin_line, mut at) = (0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if let Some(rest) = line.strip_prefix("---")
            && (rest.is_empty() || rest.starts_with(char::is_whitespace))
        {
            parts.push((begin_line, &text[begin..at]));
            // What stands on the same line belongs to the document, the end of the line does not.
            let skip = rest.len() - rest.trim_start().len();
            begin = at + "---".len() + skip;
            begin_line = number + usize::from(skip == rest.len());
        }
        at += line.len();
    }
    parts.push((begin_line, &text[begin..]));
    parts
}

fn read_yaml(line: usize, text: &str) -> Result<Document<'_>, DocumentError> {
    let parse = |text: &str| -> Result<serde_yaml::Value, serde_yaml::Error> {
        let mut value: serde_yaml::Value = serde_yaml::from_str(text)?;
        value.apply_merge()?;
        Ok(value)
    };
    // Once more with as many empty lines before it, so that the error names the right one.
    let value = parse(text).or_else(|_| parse(&("\n".repeat(line) + text)))?;
    Ok(Document { text: Some(text), object: to_json(value)? })
}

fn to_json(value: serde_yaml::Value) -> Result<Value, DocumentError> {
    Ok(match value {
        serde_yaml::Value::Null => Value::Null,
        serde_yaml::Value::Bool(bool) => Value::Bool(bool),
        serde_yaml::Value::Number(number) => Value::Number(number_to_json(&number)?),
        serde_yaml::Value::String(text) => Value::String(text),
        serde_yaml::Value::Sequence(items) => {
            Value::Array(items.into_iter().map(to_json).collect::<Result<_, _>>()?)
        }
        serde_yaml::Value::Mapping(members) => {
            let members = members.into_iter().map(|(key, value)| Ok((key_to_json(key)?, to_json(value)?)));
            Value::Object(members.collect::<Result<Map<_, _>, DocumentError>>()?)
        }
        serde_yaml::Value::Tagged(tagged) => {
            return Err(DocumentError::Foreign(format!("the tag {}", tagged.tag)));
        }
    })
}

fn number_to_json(number: &serde_yaml::Number) -> Result<Number, DocumentError> {
    let whole = number.as_i64().map(Number::from).or_else(|| number.as_u64().map(Number::from));
    let number_of = |float| Number::from_f64(float);
    whole
        .or_else(|| number.as_f64().and_then(number_of))
        .ok_or_else(|| DocumentError::Foreign(format!("the number {number}")))
}

/// The names of a JSON object are texts.
fn key_to_json(key: serde_yaml::Value) -> Result<String, DocumentError> {
    match to_json(key)? {
        Value::String(text) => Ok(text),
        key @ (Value::Bool(_) | Value::Number(_)) => Ok(key.to_string()),
        key => Err(DocumentError::Foreign(format!("the key {key}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn objects(text: &str) -> Vec<Value> {
        read(text).unwrap().into_iter().map(|document| document.object).collect()
    }

    #[test]
    fn documents_are_cut_at_their_marks_and_nowhere_else() {
        let text =
            "a: 1\n---\n# a comment\n--- {b: 2}\n---\t# another\nc: |\n  ---\n  x\nd: ---x\n---\n\n---";
        assert_eq!(
            objects(text),
            [json!({"a": 1}), json!(null), json!({"b": 2}), json!({"c": "---\nx\n", "d": "---x"})]
        );
        assert_eq!(objects("---\na: 1\n...\n"), [json!({"a": 1})]);
        assert_eq!(objects(""), [] as [Value; 0]);
        assert_eq!(objects("---\r\na: 1\r\n---\r\nb: 2\r\n"), [json!({"a": 1}), json!({"b": 2})]);
    }

    #[test]
    fn what_a_document_was_is_kept() {
        let text = "# one\na: 1\n---\n# two\nb: 2\n";
        let texts: Vec<_> = read(text).unwrap().into_iter().map(|document| document.text.unwrap()).collect();
        assert_eq!(texts, ["# one\na: 1\n", "# two\nb: 2\n"]);
    }

    #[test]
    fn json_may_be_several_too() {
        assert_eq!(objects("\n{\"a\":\t1}\n{\"b\": 2}"), [json!({"a": 1}), json!({"b": 2})]);
        assert!(matches!(read("{\"a\": 1"), Err(DocumentError::Json(_))));
    }

    #[test]
    fn a_byte_order_mark_says_nothing() {
        assert_eq!(objects("\u{feff}a: 1\n---\nb: 2\n"), [json!({"a": 1}), json!({"b": 2})]);
        assert_eq!(objects("\u{feff}{\"a\": 1}"), [json!({"a": 1})]);
    }

    #[test]
    fn anchors_and_merges_are_resolved() {
        let text = "base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3\n1: one\ntrue: two\n";
        let base = json!({"x": 1, "y": 2});
        let wanted = json!({"base": base, "more": {"x": 1, "y": 3}, "1": "one", "true": "two"});
        assert_eq!(objects(text), [wanted]);
    }

    #[test]
    fn what_is_not_yaml_or_not_json_is_refused_with_its_line() {
        let error = read("a: 1\n---\nb: 2\n---\nc: [\n").unwrap_err().to_string();
        assert!(error.contains("line 6"), "{error}");
        for text in ["a: 1\na: 2\n", "a: !mine x\n", "a: .nan\n", "[1]: x\n", "a: *nowhere\n"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn there_is_a_limit() {
        let text = "a: 1\n---\n".repeat(limits::DOCUMENTS + 1);
        assert!(matches!(read(&text), Err(DocumentError::TooMany)));
        assert!(matches!(read(&"{}".repeat(limits::DOCUMENTS + 1)), Err(DocumentError::TooMany)));
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()
            + &('b'..='j')
                .zip('a'..)
                .map(|(n, o)| format!("{n}: &{n} [{}]\n", vec![format!("*{o}"); 9].join(",")))
                .collect::<String>();
        assert!(read(&bomb).is_err());
    }
}
