//! What a forked child of an application can do with what its parent has: nothing, and it is told so.

use std::time::Duration;

use gpu_handoff_client::{Acquire, AcquireSet, Buffer, ClientError, StreamRef};
use gpu_handoff_cuda::drop_errors;
use gpu_handoff_cuda::raw::{ForkEnd, Raw};

use super::order::{Orders, Rest};

/// Every call of the client in a forked child. Gives the names of those that did not answer `FORKED`.
///
/// The child calls the driver for none of it, so that may be armed to end whoever does. It must have a lease called `lease`, a publication `kept` and one of each else in the parent.
pub(super) fn try_everything(orders: &mut Orders, rest: &mut Rest<'_>) -> anyhow::Result<Vec<String>> {
    let names: Vec<&str> = calls().iter().map(|(name, _)| *name).collect();
    let (raw, before) = (Raw::load()?, drop_errors());
    let end = raw.in_forked_child(|_| {
        let mut failed = 0;
        for (bit, (_, call)) in calls().iter().enumerate() {
            if !matches!(call(orders, rest), Some(Err(ClientError::Forked { .. }))) {
                failed |= 1 << bit;
            }
        }
        // Dropping in the child does nothing: neither to the driver, which would hang or crash, nor to the node.
        orders.readers.clear();
        orders.writers.clear();
        orders.lease_sets.clear();
        orders.published_sets.clear();
        orders.timelines.clear();
        rest.leases.clear();
        rest.published.clear();
        rest.context.take();
        if drop_errors() != before {
            failed |= 1 << names.len();
        }
        failed
    });
    let what = names.iter().copied().chain(["drop: the driver was called"]);
    match end {
        ForkEnd::Answered(failed) => {
            let failed = what.enumerate().filter(|(bit, _)| failed & (1 << bit) != 0);
            Ok(failed.map(|(_, name)| name.to_owned()).collect())
        }
        other => anyhow::bail!("the forked child ended otherwise: {other:?}"),
    }
}

type Called = Option<Result<(), ClientError>>;
type Call = fn(&mut Orders, &mut Rest<'_>) -> Called;

/// The calls by name; `None`: the parent has nothing to call it on.
fn calls() -> [(&'static str, Call); 25] {
    const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
    [
        ("acquire", |_, r| Some(Acquire::named("any").and_then(|w| r.client.acquire(w).map(drop)))),
        ("acquire_many", |_, r| {
            Some(Acquire::named("any").and_then(|w| r.client.acquire_many(&[w]).map(drop)))
        }),
        ("acquire_set", |_, r| {
            Some(AcquireSet::named("any").and_then(|w| r.client.acquire_set(w).map(drop)))
        }),
        ("acquire_timeline", |_, r| {
            Some(Acquire::named("any").and_then(|w| r.client.acquire_timeline(w).map(drop)))
        }),
        ("join_ring", |_, r| {
            Some(Acquire::named("any").and_then(|w| r.client.join_ring(w, Duration::ZERO).map(drop)))
        }),
        ("publish", |_, r| {
            Some(Buffer::named("any").and_then(|b| r.client.publish(b.pointer(1, 1)).map(drop)))
        }),
        ("publish_many", |_, r| {
            Some(Buffer::named("any").and_then(|b| r.client.publish_many([b.pointer(1, 1)]).map(drop)))
        }),
        ("publish_set", |_, r| {
            Some(Buffer::named("any").and_then(|b| r.client.publish_set("any", [b.pointer(1, 1)]).map(drop)))
        }),
        ("publish_on", |o, r| {
            let timeline = o.timelines.values().next()?;
            Some(
                Buffer::named("any")
                    .and_then(|b| r.client.publish_on(STREAM, b.pointer(1, 1), timeline).map(drop)),
            )
        }),
        ("create_timeline", |_, r| Some(r.client.create_timeline("any", 1).map(drop))),
        ("create_ring", |_, r| Some(r.client.create_ring("any", 1, 1, 1).map(drop))),
        ("watch", |_, r| Some(r.client.watch().map(drop))),
        ("signal", |o, _| Some(o.timelines.values().next()?.signal(STREAM, 0, 1))),
        ("wait", |o, _| Some(o.timelines.values().next()?.wait(STREAM, 0, 1))),
        ("wait_here", |o, _| Some(o.timelines.values().next()?.wait_here(0, 1, Duration::ZERO))),
        ("check", |o, _| Some(o.timelines.values().next()?.check(0, 1))),
        ("load", |o, _| Some(o.timelines.values().next()?.load(0).map(drop))),
        ("reserve", |o, _| Some(o.timelines.values().next()?.reserve(0..1))),
        ("lease wait_on", |_, r| Some(r.leases.get("lease")?.wait_on(STREAM))),
        ("lease check", |_, r| Some(r.leases.get("lease")?.check())),
        ("lease release_on", |_, r| Some(r.leases.remove("lease-on")?.release_on(STREAM))),
        ("lease release", |_, r| Some(r.leases.remove("lease")?.release())),
        ("retire_on", |_, r| {
            Some(r.published.remove("ordered")?.retire_on(STREAM, Duration::ZERO).map(drop))
        }),
        ("retire", |_, r| Some(r.published.remove("kept")?.retire(Duration::ZERO).map(drop))),
        ("retire set", |o, _| Some(o.published_sets.remove("set")?.retire(Duration::ZERO).map(drop))),
    ]
}
