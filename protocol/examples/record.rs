//! Writes the recorded conversations of the version that this build speaks:
//!
//!     cargo run -p gpu-handoff-protocol --example record
//!
//! When that may be done: see `tests/recordings/README.md`.

#![allow(clippy::expect_used, reason = "the recordings' module is written for tests")]

#[path = "../tests/recordings/recording/mod.rs"]
mod recording;

use recording::{RELEASED, current_version, file, folder, hashes, sessions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let version = current_version();
    if RELEASED.iter().any(|(released, _)| *released == version) {
        return Err(format!("protocol {version} is released: its recordings stay as they are").into());
    }
    let folder = folder().join(&version);
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(&folder)? {
        std::fs::remove_file(entry?.path())?;
    }
    let (mut packets, conversations) = (0, sessions::all()?);
    for (name, conversation) in &conversations {
        packets += conversation.packets.len();
        std::fs::write(folder.join(format!("{name}.{}", file::ENDING)), file::write(conversation))?;
    }
    std::fs::write(folder.join(hashes::LIST), hashes::list_of(&folder)?)?;
    println!("{packets} packets of {} conversations in {}", conversations.len(), folder.display());
    Ok(())
}
