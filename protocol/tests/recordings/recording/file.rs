//! A recorded conversation as a text file: a title, then for each packet who says it, its bytes, and what it means.
//!
//! ```text
//! # A consumer acquires a buffer by its name.
//!
//! > application, 0 descriptors
//! 0801 2206 0a04 ...
//! = request 1
//! = acquire
//! ```

use std::fmt::Write as _;
use std::path::Path;

use super::packet::{Packet, Side};

/// The ending of a recording's file name.
pub const ENDING: &str = "recording";
/// Bytes in one line.
const LINE: usize = 40;

/// Packets in the order in which they travel, both directions mixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// What happens in it.
    pub title: String,
    /// What is said.
    pub packets: Vec<Packet>,
}

/// The text of a conversation.
pub fn write(conversation: &Conversation) -> String {
    let mut out = format!("# {}\n", conversation.title);
    for packet in &conversation.packets {
        let _ = writeln!(out, "\n> {}, {} descriptors", packet.side, packet.descriptors);
        for line in packet.bytes.chunks(LINE) {
            let pairs: Vec<String> = line.chunks(2).map(hex).collect();
            let _ = writeln!(out, "{}", pairs.join(" "));
        }
        for line in packet.meaning.lines() {
            let _ = writeln!(out, "= {line}");
        }
    }
    out
}

/// Bytes as digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Reads the text of a conversation.
///
/// # Errors
/// A sentence with the line that does not read.
pub fn read(text: &str) -> Result<Conversation, String> {
    let mut lines = text.lines().enumerate();
    let title = lines.next().and_then(|(_, line)| line.strip_prefix("# ")).ok_or("line 1: no title")?;
    let mut packets: Vec<Packet> = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if let Some(head) = line.strip_prefix("> ") {
            packets.push(begin(head).ok_or_else(|| wrong("not the head of a packet"))?);
            continue;
        }
        let packet = packets.last_mut().ok_or_else(|| wrong("before the first packet"))?;
        if let Some(meaning) = line.strip_prefix("= ") {
            packet.meaning.push_str(meaning);
            packet.meaning.push('\n');
        } else {
            packet.bytes.extend(digits(line).ok_or_else(|| wrong("not hexadecimal"))?);
        }
    }
    Ok(Conversation { title: title.to_owned(), packets })
}

fn begin(head: &str) -> Option<Packet> {
    let (side, rest) = head.split_once(", ")?;
    let side = Side::ALL.into_iter().find(|s| s.as_str() == side)?;
    let descriptors = rest.strip_suffix(" descriptors")?.parse().ok()?;
    Some(Packet { side, descriptors, bytes: Vec::new(), meaning: String::new() })
}

fn digits(line: &str) -> Option<Vec<u8>> {
    let all: Vec<u8> = line.bytes().filter(|b| *b != b' ').collect();
    all.chunks(2)
        .map(|pair| {
            let text = std::str::from_utf8(pair).ok().filter(|t| t.len() == 2)?;
            u8::from_str_radix(text, 16).ok()
        })
        .collect()
}

/// All conversations in a folder, each with its file's name, in order of the names.
///
/// # Errors
/// A sentence with the file that cannot be read.
pub fn read_folder(folder: &Path) -> Result<Vec<(String, Conversation)>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        if path.extension().is_none_or(|e| e != ENDING) {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
        found.push((name.clone(), read(&text).map_err(|e| format!("{name}: {e}"))?));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}
