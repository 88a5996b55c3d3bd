//! Nothing of the protocol lacks a recording.

use crate::proto::{Schema, Seen};
use crate::recording::{current_version, file, folder};
use crate::replay::recordings;

#[test]
fn the_version_that_this_build_speaks_is_recorded() {
    let folder = folder().join(current_version());
    let recorded = file::read_folder(&folder)
        .unwrap_or_else(|e| panic!("protocol {} has no recordings: {e}", current_version()));
    assert!(recorded.len() > 10, "{} conversations", recorded.len());
}

/// Fields of a message, numbers of an enum: what the protocol file declares and what recordings of the current version
/// contain.
#[test]
fn every_message_field_and_choice_of_the_protocol_is_recorded() {
    let schema = Schema::of_the_protocol();
    let mut seen = Seen::default();
    let current = current_version();
    for (place, conversation) in recordings() {
        if !place.starts_with(&format!("{current}/")) {
            continue;
        }
        for packet in &conversation.packets {
            schema.visit(packet.side.message(), &packet.bytes, &mut seen);
        }
    }
    while let Some((message, bytes)) = seen.sealed.pop() {
        schema.visit(message, &bytes, &mut seen);
    }
    let declared = schema.declared();
    let missing: Vec<_> = declared.difference(&seen.names).collect();
    assert!(missing.is_empty(), "not recorded: {missing:#?}");
    assert!(declared.len() > 150, "{} declared", declared.len());
}
