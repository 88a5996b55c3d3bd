//! Writes the seeds, as the targets read them: each packet of the recorded conversations.
//!
//!     cargo run --example seeds -- seeds

#![allow(clippy::expect_used, reason = "the recordings' module is written for tests")]

#[path = "../../tests/recordings/recording/mod.rs"]
mod recording;

use std::path::Path;

use recording::packet::Side;
use recording::sessions;

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
