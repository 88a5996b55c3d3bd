//! A pointer into the middle of an allocation: a handle is of the whole, so who maps it must be told where the part is.

use anyhow::ensure;
use gpu_handoff_e2e::agent::{Answer, Command};

use crate::bystanders::{Bystanders, GROUP, gpu};
use crate::members::{self, By};
use crate::play::{Outcome, Scenario, scenario};
use crate::program::agent;
use crate::scene::{Scene, Standard};

/// Neither begins nor ends where the driver would have it.
const OFFSET: u64 = (1 << 20) + 4_096 + 12;
const PART: u64 = (1 << 20) + 4;

pub(super) fn all() -> Vec<Scenario> {
    vec![scenario("matrix_07_a_handle_of_an_interior_pointer", Standard::Restricted, interior)]
}

/// Two parts of one allocation, each a buffer; whoever has one sees that part's words and its size.
async fn interior(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let parts = [("part-1", OFFSET, 0x1111_2222), ("part-2", OFFSET + PART, 0x3333_4444)];
    members::publish(&mut bystanders.producer, "whole", 0xAAAA_BBBB).await?;
    for (name, offset, word) in parts {
        let (memory, name) = ("whole".to_owned(), name.to_owned());
        let publish = Command::PublishRange { memory, name, offset, bytes: PART, word };
        let published = bystanders.producer.ask(&publish).await?;
        ensure!(matches!(published, Answer::Published { .. }), "{published:?}");
    }
    scene.start(agent("reader", gpu()).restricted().member(GROUP)).await?;
    let mut reader = scene.app("reader").await?;
    members::connect(scene, &mut reader, "reader", GROUP).await?;
    for (name, _, word) in parts {
        let acquired = members::acquire(&mut reader, By::Name(name.to_owned()), name).await?;
        ensure!(matches!(acquired, Answer::Acquired { bytes: PART, .. }), "{name}: {acquired:?}");
        let verified = reader.ask(&Command::Verify { lease: name.to_owned(), word }).await?;
        ensure!(
            matches!(verified, Answer::Verified { words, wrong: 0 } if words == PART / 4),
            "{verified:?}"
        );
    }
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}
