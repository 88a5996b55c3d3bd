//! Writes the seeds, as the targets read them: each packet of the recorded conversations, and what a container runtime said.
//!
//!     cargo run --example seeds -- seeds

#![allow(clippy::expect_used, reason = "the recordings' module is written for tests")]

#[path = "../../tests/recordings/recording/mod.rs"]
mod recording;

use std::path::Path;

use gpu_handoff_nri::mux::{Connection, Demux};
use gpu_handoff_nri::names;
use gpu_handoff_nri::ttrpc::{Frames, Request};
use prost::Message as _;
use recording::packet::Side;
use recording::sessions;

/// As in `fuzz_targets/answer_runtime.rs`.
const CALLS: [&str; 5] = [
    names::CONFIGURE,
    names::SYNCHRONIZE,
    names::CREATE_CONTAINER,
    names::VALIDATE_CONTAINER_ADJUSTMENT,
    names::START_CONTAINER,
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let to = std::env::args().nth(1).ok_or("usage: seeds FOLDER")?;
    if Path::new(&to).exists() {
        std::fs::remove_dir_all(&to)?;
    }
    for (name, conversation) in sessions::all()? {
        for (number, packet) in conversation.packets.iter().enumerate() {
            let folder = Path::new(&to).join(target(packet.side));
            std::fs::create_dir_all(&folder)?;
            let head = [u8::try_from(packet.descriptors)?, 0];
            let head = if packet.side == Side::Receipt { &[][..] } else { &head };
            let input = [head, packet.bytes.as_slice()].concat();
            std::fs::write(folder.join(format!("{name}-{:02}", number + 1)), input)?;
        }
    }
    runtimes(&Path::new(&to).join("answer_runtime"))?;
    Ok(())
}

/// All that a runtime said as it came over the socket, and each of its calls' payloads once.
fn runtimes(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    let said = include_bytes!("../../../nri/tests/recorded/from_runtime.bin");
    std::fs::write(folder.join("containerd"), [&[u8::MAX, 100][..], said].concat())?;
    let (mut demux, mut plugin) = (Demux::default(), Frames::default());
    for piece in demux.feed(said)?.into_iter().filter(|piece| piece.connection == Connection::Plugin) {
        for frame in plugin.feed(&piece.bytes)? {
            let request = Request::decode(frame.data.as_slice())?;
            let Some(call) = CALLS.iter().position(|call| *call == request.method) else { continue };
            let input = [&[u8::try_from(call)?, 0][..], &request.payload].concat();
            std::fs::write(folder.join(&request.method), input)?;
        }
    }
    Ok(())
}

/// The target that reads what a side says.
fn target(side: Side) -> &'static str {
    match side {
        Side::Application => "decode_client",
        Side::Broker | Side::Slot => "decode_broker",
        Side::Sidecar => "decode_sidecar",
        Side::Receipt => "decode_receipt",
    }
}
