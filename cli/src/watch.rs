//! `gpu-handoff watch`: what happens to the buffers of the pod's group.

use std::collections::HashMap;
use std::io::Write;

use gpu_handoff_client::{BufferId, BufferName, Client, Event};
use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;
use crate::output::{self, BufferJson};

/// One event as JSON shows it.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "snake_case")]
enum EventJson<'a> {
    Appeared { buffer: BufferJson<'a> },
    SnapshotDone,
    Retiring { id: String, deadline_ms: u128 },
    Orphaned { id: String, reason: &'static str, leases: u32 },
    Gone { id: String, reason: &'static str },
    Seated { id: String, seat: u32 },
    Unseated { id: String, seat: u32, how: &'static str },
}

impl<'a> From<&'a Event> for EventJson<'a> {
    fn from(event: &'a Event) -> Self {
        match event {
            Event::Appeared(buffer) => Self::Appeared { buffer: BufferJson::from(&**buffer) },
            Event::SnapshotDone => Self::SnapshotDone,
            Event::Retiring { id, deadline } => {
                Self::Retiring { id: id.to_string(), deadline_ms: deadline.as_millis() }
            }
            Event::Orphaned { id, reason, leases } => {
                Self::Orphaned { id: id.to_string(), reason: reason.as_str(), leases: *leases }
            }
            Event::Gone { id, reason } => Self::Gone { id: id.to_string(), reason: reason.as_str() },
            Event::Seated { id, seat } => Self::Seated { id: id.to_string(), seat: seat.0 },
            Event::Unseated { id, seat, how } => {
                Self::Unseated { id: id.to_string(), seat: seat.0, how: how.as_str() }
            }
        }
    }
}

pub(crate) fn run(client: &Client, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let mut names = HashMap::new();
    for event in client.watch()? {
        let event = event?;
        match format {
            Format::Json => output::json_line(out, &EventJson::from(&event))?,
            Format::Text | Format::Yaml => {
                writeln!(out, "{}", sentence(&event, &mut names))?;
                out.flush()?;
            }
        }
    }
    Ok(())
}

/// The event in words. Names are kept while their buffers live, since later events carry the id alone.
fn sentence(event: &Event, names: &mut HashMap<BufferId, BufferName>) -> String {
    let called =
        |id: &BufferId| names.get(id).map_or_else(|| id.to_string(), |name| format!("{name} ({id})"));
    match event {
        Event::Appeared(buffer) => {
            let facts = &buffer.facts;
            names.insert(buffer.id, facts.name.clone());
            let (kind, size, owner) = (facts.kind.as_str(), output::size(facts.size), &buffer.owner);
            let (name, generation, id) = (&facts.name, buffer.generation, buffer.id);
            format!("appeared  {name} ({id}), generation {generation}, {kind}, {size}, from {owner}")
        }
        Event::SnapshotDone => "snapshot  that is all that was there".to_owned(),
        Event::Retiring { id, deadline } => {
            format!("retiring  {}, {} ms left for its holders", called(id), deadline.as_millis())
        }
        Event::Orphaned { id, reason, leases } => {
            format!("orphaned  {}, {}, {leases} leases left", called(id), reason.as_str())
        }
        Event::Gone { id, reason } => {
            let text = format!("gone      {}, {}", called(id), reason.as_str());
            names.remove(id);
            text
        }
        Event::Seated { id, seat } => format!("seated    {}, {seat}", called(id)),
        Event::Unseated { id, seat, how } => format!("unseated  {}, {seat}, {}", called(id), how.as_str()),
    }
}
