//! What is published, before the registry sees it: a vmm buffer's descriptor goes to a GPU worker, which says on which
//! device the memory really is and how large it is. A legacy handle cannot be checked: the buffer stays `unverified`.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::message::{Carrier, Publication};
use gpu_handoff_protocol::{BootTag, BufferFacts, BufferId, Code, Refusal};

use crate::gpu::{Inspector, Verdict};
use crate::registry::Vetted;

/// Vets all items of a packet, in order.
pub(super) async fn publications(
    items: Vec<Publication>,
    boot: BootTag,
    inspector: Inspector,
) -> Vec<Result<Vetted, Refusal>> {
    let mut vetted = Vec::with_capacity(items.len());
    for item in items {
        vetted.push(publication(item, boot, &inspector).await);
    }
    vetted
}

async fn publication(
    publication: Publication,
    boot: BootTag,
    inspector: &Inspector,
) -> Result<Vetted, Refusal> {
    let verified = match &publication.carrier {
        Carrier::Legacy(_) => false,
        Carrier::Descriptor(fd) => {
            check(&publication.facts, fd, inspector).await?;
            true
        }
    };
    Ok(Vetted { id: draw_id(boot)?, publication, verified })
}

async fn check(facts: &BufferFacts, fd: &Arc<OwnedFd>, inspector: &Inspector) -> Result<(), Refusal> {
    match inspector.inspect(fd, facts.allocation_size).await? {
        Verdict::GpuMemory { device: Some(found) } if found == facts.device => Ok(()),
        Verdict::GpuMemory { device } => {
            let found =
                device.map_or_else(|| "a GPU that the node daemon cannot see".to_owned(), |d| d.to_string());
            Err(Refusal::new(Code::DeviceMismatch).compared_with("device", facts.device, found))
        }
        Verdict::NotGpuMemory { answer } => {
            Err(Refusal::new(Code::NotGpuMemory).compared_with("descriptor", "exported GPU memory", answer))
        }
        Verdict::SizeMismatch { actual } => {
            let found = actual.map_or_else(|| "another size".to_owned(), |bytes| bytes.to_string());
            Err(Refusal::new(Code::SizeMismatch).compared_with("bytes", facts.allocation_size, found))
        }
        Verdict::Failed { why } => {
            Err(Refusal::new(Code::WorkerFailed).compared_with("descriptor", "inspected", why))
        }
    }
}

fn draw_id(boot: BootTag) -> Result<BufferId, Refusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|e| Refusal::new(Code::WorkerFailed).compared_with("random bits", "128", e))?;
    Ok(BufferId { boot, random: u128::from_ne_bytes(random) })
}
