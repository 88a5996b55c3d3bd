//! `gpu-handoff list`: the buffers of the pod's group.

use std::io::Write;

use gpu_handoff_client::{BufferInfo, Client, Event};
use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;
use crate::output::{self, BufferJson, NamedJson};

#[derive(Serialize)]
struct ListJson<'a> {
    group: NamedJson<'a>,
    buffers: Vec<BufferJson<'a>>,
}

pub(crate) fn run(client: &Client, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let buffers = snapshot(client)?;
    let group = &client.welcome().group;
    match format {
        Format::Json => {
            let buffers = buffers.iter().map(BufferJson::from).collect();
            output::json(out, &ListJson { group: group.into(), buffers })
        }
        Format::Text | Format::Yaml if buffers.is_empty() => {
            Ok(writeln!(out, "no buffers in group {group}")?)
        }
        Format::Text | Format::Yaml => Ok(output::table(out, &rows(&buffers))?),
    }
}

/// What a watch tells before the snapshot is done, by name and generation.
fn snapshot(client: &Client) -> Result<Vec<BufferInfo>, Failure> {
    let mut buffers = Vec::new();
    for event in client.watch()? {
        match event? {
            Event::Appeared(buffer) => buffers.push(BufferInfo::clone(&buffer)),
            Event::Gone { id, .. } => buffers.retain(|buffer: &BufferInfo| buffer.id != id),
            Event::SnapshotDone => break,
            Event::Retiring { .. }
            | Event::Orphaned { .. }
            | Event::Seated { .. }
            | Event::Unseated { .. } => {}
        }
    }
    buffers.sort_by(|a, b| (&a.facts.name, a.generation).cmp(&(&b.facts.name, b.generation)));
    Ok(buffers)
}

fn rows(buffers: &[BufferInfo]) -> Vec<Vec<String>> {
    let header = output::row(["NAME", "GENERATION", "KIND", "SIZE", "OWNER", "VERIFIED", "DEVICE", "ID"]);
    let row = |buffer: &BufferInfo| {
        let facts = &buffer.facts;
        vec![
            facts.name.to_string(),
            buffer.generation.to_string(),
            facts.kind.as_str().to_owned(),
            output::size(facts.size),
            buffer.owner.to_string(),
            if buffer.verified { "yes" } else { "no" }.to_owned(),
            facts.device.to_string(),
            buffer.id.to_string(),
        ]
    };
    std::iter::once(header).chain(buffers.iter().map(row)).collect()
}
