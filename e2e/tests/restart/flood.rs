//! A sidecar that sends without end is a sidecar all the same: what its pod publishes it is told to keep.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, ensure};
use gpu_handoff_e2e::node::PATIENCE;
use gpu_handoff_e2e::rough;
use gpu_handoff_protocol::codec::encode_sidecar;
use gpu_handoff_protocol::message::{SidecarBody, SidecarMessage, SlotBody};
use gpu_handoff_protocol::socket::SeqPacket;

use crate::stage::{BYTES, Hand, node};

/// Answers after which the flood is under way.
const ANSWERS: usize = 500;

#[test]
fn a_sidecar_that_sends_without_end_is_told_what_to_keep() -> anyhow::Result<()> {
    let node = node()?;
    let mut hand = Hand::new(&node, "other")?;
    let mut client = hand.client()?;
    let sending = SeqPacket::from_own(hand.sidecar.wire.socket().as_fd().try_clone_to_owned()?);
    let flood = std::thread::spawn(move || -> anyhow::Result<()> {
        for request in 1_000.. {
            let body = SidecarBody::HandOn(File::open("/dev/null")?.into());
            let packet = encode_sidecar(SidecarMessage { request, body });
            if sending.send(&packet, Some(Instant::now() + PATIENCE)).is_err() {
                break; // The test is over.
            }
        }
        Ok(())
    });
    for answers in 0..ANSWERS {
        hand.sidecar.hear()?.with_context(|| format!("the slot ended the connection after {answers}"))?;
    }
    let device = gpu_handoff_protocol::DeviceUuid::from_bytes([7; 16]);
    let published = client.publish_one(rough::legacy("to-be-kept", device, BYTES)?)??;
    let (begin, mut answers) = (Instant::now(), 0);
    loop {
        let message = hand.sidecar.hear()?.context("the slot ended the connection")?;
        match message.body {
            SlotBody::Keep(items) if items.iter().any(|item| item.id == published.id) => break,
            _ => answers += 1,
        }
        ensure!(begin.elapsed() < PATIENCE, "after {answers} answers it was told nothing");
    }
    println!("told after {:?} and {answers} answers", begin.elapsed());
    hand.sidecar.wire.socket().end();
    drop((hand, client));
    flood.join().map_err(|_| anyhow::anyhow!("the flood broke off"))??;
    node.stop()
}
