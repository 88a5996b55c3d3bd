//! What is said to an application, and what is expected back.

use std::time::Duration;

use crate::agent::{Answer, Command, MemoryKind, Told, churn};
use crate::app::App;
use crate::node::PATIENCE;

/// A buffer as its publisher or a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) generation: u64,
}

/// Makes memory, fills it, and publishes it under its own name.
pub(super) fn publish(app: &mut App, name: &str, bytes: u64, word: u32) -> anyhow::Result<Seen> {
    fill(app, name, bytes, word)?;
    match publish_filled(app, name)? {
        Ok(seen) => Ok(seen),
        Err(refused) => anyhow::bail!("publishing {name} was refused: {refused}"),
    }
}

/// Makes memory and fills it.
pub(super) fn fill(app: &mut App, name: &str, bytes: u64, word: u32) -> anyhow::Result<()> {
    app.done(&Command::Fill { memory: name.to_owned(), bytes, kind: MemoryKind::Vmm, word })
}

/// Publishes memory that was filled under its own name; the refusal's text where it is refused.
pub(super) fn publish_filled(app: &mut App, name: &str) -> anyhow::Result<Result<Seen, String>> {
    app.expect(&Command::Publish { memory: name.to_owned(), name: name.to_owned() }, |answer| match answer {
        Answer::Published { id, generation, .. } => Ok(Ok(Seen { id, generation })),
        Answer::Refused { text, .. } => Ok(Err(text)),
        other => Err(other),
    })
}

/// Frees memory.
pub(super) fn free(app: &mut App, memory: &str) -> anyhow::Result<()> {
    app.done(&Command::Free { memory: memory.to_owned() })
}

/// Retires, and tells how many leases are left.
pub(super) fn retire(app: &mut App, name: &str, deadline: Duration) -> anyhow::Result<u32> {
    let deadline_ms = u64::try_from(deadline.as_millis())?;
    app.expect(&Command::Retire { name: name.to_owned(), deadline_ms }, |answer| match answer {
        Answer::Retired { leases } => Ok(leases),
        other => Err(other),
    })
}

/// An acquire.
pub(super) fn wanted(name: Option<&str>, id: Option<&str>, lease: &str, wait: Duration) -> Command {
    Command::Acquire {
        name: name.map(str::to_owned),
        id: id.map(str::to_owned),
        newer_than: 0,
        wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        lease: lease.to_owned(),
        announce: false,
    }
}

/// Acquires, and tells what came.
pub(super) fn acquire(app: &mut App, command: &Command) -> anyhow::Result<Seen> {
    app.expect(command, acquired)
}

/// What an acquire gave.
pub(super) fn acquired(answer: Answer) -> Result<Seen, Answer> {
    match answer {
        Answer::Acquired { id, generation, .. } => Ok(Seen { id, generation }),
        other => Err(other),
    }
}

/// The code with which an acquire by id is refused.
pub(super) fn refusal(app: &mut App, id: &str) -> anyhow::Result<String> {
    app.expect(&wanted(None, Some(id), "never", Duration::ZERO), |answer| match answer {
        Answer::Refused { code, .. } => Ok(code),
        other => Err(other),
    })
}

/// Releases.
pub(super) fn release(app: &mut App, lease: &str) -> anyhow::Result<()> {
    app.done(&Command::Release { lease: lease.to_owned() })
}

/// Looks at every word of a leased buffer: how many are wrong.
pub(super) fn wrong(app: &mut App, lease: &str, word: u32) -> anyhow::Result<u64> {
    app.expect(&Command::Verify { lease: lease.to_owned(), word }, |answer| match answer {
        Answer::Verified { words, wrong } if words > 0 => Ok(wrong),
        other => Err(other),
    })
}

/// How a lease stands.
pub(super) fn lease_state(app: &mut App, lease: &str) -> anyhow::Result<String> {
    app.expect(&Command::LeaseState { lease: lease.to_owned() }, |answer| match answer {
        Answer::LeaseState { state } => Ok(state),
        other => Err(other),
    })
}

/// Begins to watch, anew if it watched before. It has begun when the node has told of all that there is: what happens while the
/// request is on its way is told to nobody.
pub(super) fn watch(app: &mut App) -> anyhow::Result<()> {
    app.done(&Command::Watch)?;
    await_event(app, "snapshot-done", "", PATIENCE)?;
    told(app).map(drop)
}

/// Lets it wait for an event; [`told`] gives that.
pub(super) fn await_event(app: &mut App, what: &str, id: &str, time: Duration) -> anyhow::Result<()> {
    let timeout_ms = u64::try_from(time.as_millis())?;
    app.tell(&Command::AwaitEvent { what: what.to_owned(), id: id.to_owned(), timeout_ms })
}

/// The event that it waited for.
pub(super) fn told(app: &mut App) -> anyhow::Result<Told> {
    match app.hear()? {
        Answer::Event(told) => Ok(told),
        other => anyhow::bail!("waiting for an event, the application answered {other:?}"),
    }
}

/// Begins to publish and acquire all the time.
pub(super) fn churn(app: &mut App, work: churn::Work) -> anyhow::Result<()> {
    app.done(&Command::Churn { work })
}

/// Ends that.
pub(super) fn end_churn(app: &mut App) -> anyhow::Result<churn::Churned> {
    app.expect(&Command::EndChurn, |answer| match answer {
        Answer::Churned(churned) => Ok(churned),
        other => Err(other),
    })
}
