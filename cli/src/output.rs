//! Tables, sizes and JSON.

use std::io::{self, Write};

use gpu_handoff_client::{Access, BufferInfo, GroupKey, Lifetime, PodRef};
use serde::Serialize;

use crate::failure::Failure;

/// Columns are this far apart.
const GAP: usize = 2;

/// Writes rows in columns as wide as their widest cell; the first row is the header. The last column is not padded.
pub(crate) fn table(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let pad = width - cell.chars().count() + GAP;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A row of a table.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// A size as people read it: `4.5 GiB`, `768 B`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = bytes.checked_ilog2().map(|log| log / 10).filter(|power| *power > 0) else {
        return format!("{bytes} B");
    };
    let unit = 1_u64 << (10 * power);
    let (whole, tenths) = (bytes / unit, (bytes % unit) as u128 * 10 / u128::from(unit));
    let name = UNITS[power as usize - 1];
    if tenths == 0 { format!("{whole} {name}") } else { format!("{whole}.{tenths} {name}") }
}

/// A time as people read it: `45 s`, `3 min`, `2 h`, `4 d`.
#[cfg(feature = "admin")]
pub(crate) fn time(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Text of somebody else's, on one line and without what a terminal takes for a command.
#[cfg(any(feature = "admin", feature = "inject"))]
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes one JSON object, indented, and a line end.
pub(crate) fn json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    Ok(writeln!(out)?)
}

/// Writes one JSON object on one line, and makes sure that it is seen now.
pub(crate) fn json_line(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A buffer as JSON shows it.
#[derive(Debug, Serialize)]
pub(crate) struct BufferJson<'a> {
    id: String,
    name: &'a str,
    generation: u64,
    kind: &'static str,
    device: String,
    offset_bytes: u64,
    size_bytes: u64,
    allocation_bytes: u64,
    access: Access,
    lifetime: Lifetime,
    owner: NamedJson<'a>,
    /// Whether the node itself checked device and size.
    verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<TensorJson<'a>>,
}

/// A pod or a group as JSON shows it, wherever one is shown.
#[derive(Debug, Serialize)]
pub(crate) struct NamedJson<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> From<&'a PodRef> for NamedJson<'a> {
    fn from(pod: &'a PodRef) -> Self {
        Self { namespace: pod.namespace.as_str(), name: pod.name.as_str() }
    }
}

impl<'a> From<&'a GroupKey> for NamedJson<'a> {
    fn from(group: &'a GroupKey) -> Self {
        Self { namespace: group.namespace.as_str(), name: group.name.as_str() }
    }
}

#[derive(Debug, Serialize)]
struct TensorJson<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    strides: &'a [i64],
}

impl<'a> From<&'a BufferInfo> for BufferJson<'a> {
    fn from(buffer: &'a BufferInfo) -> Self {
        let facts = &buffer.facts;
        let tensor = facts.metadata.tensor.as_ref();
        Self {
            id: buffer.id.to_string(),
            name: facts.name.as_str(),
            generation: buffer.generation,
            kind: facts.kind.as_str(),
            device: facts.device.to_string(),
            offset_bytes: facts.offset,
            size_bytes: facts.size,
            allocation_bytes: facts.allocation_size,
            access: facts.access,
            lifetime: facts.lifetime,
            owner: NamedJson::from(&buffer.owner),
            verified: buffer.verified,
            tensor: tensor.map(|t| TensorJson { dtype: &t.dtype, shape: &t.shape, strides: &t.strides }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let read: Vec<String> =
            [0, 768, 1 << 10, 1536, 2 << 20, (4 << 30) + (1 << 29), u64::MAX].map(size).into();
        assert_eq!(read, ["0 B", "768 B", "1 KiB", "1.5 KiB", "2 MiB", "4.5 GiB", "15.9 EiB"]);
    }

    #[test]
    fn columns_are_aligned_and_lines_end_bare() {
        let mut out = Vec::new();
        table(&mut out, &[row(["NAME", "SIZE"]), row(["wärme", "2 MiB"]), row(["x", ""])]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME   SIZE\nwärme  2 MiB\nx\n");
    }
}
