//! Every recorded packet means today what it meant, and is written as it was.

use std::path::PathBuf;

use crate::proto::Schema;
use crate::recording::file::{self, Conversation, hex};
use crate::recording::folder;
use crate::recording::packet::{Packet, Side, understand};

/// The folders of all recorded versions.
pub(crate) fn versions() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path());
    let is_version = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.split_once('.').is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
    };
    entries.filter(|p| p.is_dir() && is_version(p)).collect()
}

/// All recorded conversations with where they are.
pub(crate) fn recordings() -> Vec<(String, Conversation)> {
    let mut all = Vec::new();
    for folder in versions() {
        for (name, conversation) in file::read_folder(&folder).unwrap() {
            all.push((format!("{}/{name}", folder.file_name().unwrap().to_string_lossy()), conversation));
        }
    }
    assert!(!all.is_empty(), "no recordings");
    all
}

fn packets() -> impl Iterator<Item = (String, Packet)> {
    recordings().into_iter().flat_map(|(name, conversation)| {
        let numbered = conversation.packets.into_iter().enumerate();
        numbered.map(move |(n, packet)| (format!("{name}, packet {}", n + 1), packet))
    })
}

#[test]
fn every_packet_means_what_it_meant_and_is_written_as_it_was() {
    for (place, packet) in packets() {
        let understood = understand(packet.side, &packet.bytes, packet.descriptors)
            .unwrap_or_else(|refusal| panic!("{place}: {refusal}"));
        assert_eq!(understood.meaning, packet.meaning, "{place}");
        if let Some(again) = understood.again {
            assert_eq!(hex(&again), hex(&packet.bytes), "{place} is written differently");
        }
    }
}

#[test]
fn what_a_later_version_adds_is_ignored_at_every_depth() {
    let schema = Schema::of_the_protocol();
    for (place, packet) in packets() {
        let bytes = schema.sprinkle(packet.side.message(), &packet.bytes);
        // The additions may make a full packet too long for one: then there is nothing to see.
        if bytes.len() > gpu_handoff_protocol::limits::MESSAGE_BYTES {
            continue;
        }
        assert!(bytes.len() > packet.bytes.len());
        let understood = understand(packet.side, &bytes, packet.descriptors)
            .unwrap_or_else(|refusal| panic!("{place}: {refusal}"));
        assert_eq!(understood.meaning, packet.meaning, "{place}");
    }
}

#[test]
fn a_descriptor_more_or_less_is_noticed() {
    let mut seen = 0;
    for (place, packet) in packets().filter(|(_, p)| p.side != Side::Receipt) {
        let beside = [packet.descriptors + 1, packet.descriptors.wrapping_sub(1)];
        for count in beside.into_iter().filter(|count| *count <= 65) {
            assert!(
                understand(packet.side, &packet.bytes, count).is_err(),
                "{place} with {count} descriptors"
            );
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}
