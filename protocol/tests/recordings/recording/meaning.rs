//! What a packet means, in words and numbers.

use std::os::fd::OwnedFd;

use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, Event, Grant, Keepsake, Publication,
    PublishedAs, Reattached, SidecarBody, SidecarMessage, SlotBody, SlotMessage, Target, Wanted, Welcome,
};
use gpu_handoff_protocol::receipt::{ReceiptBody, Subject};
use gpu_handoff_protocol::{
    Access, BufferFacts, BufferInfo, Lifetime, Metadata, Order, Receipt, Refusal, SetPart,
};

use super::file::hex;
use super::hashes::hash;
use super::text::Text;

/// Tells the descriptors of a packet apart: their place in it.
#[derive(Debug)]
pub struct Numbers(Vec<u64>);

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).expect("an open descriptor").st_ino
}

impl Numbers {
    /// Remembers the descriptors before they are given away.
    pub fn of(descriptors: &[OwnedFd]) -> Self {
        Self(descriptors.iter().map(inode).collect())
    }

    fn name(&self, fd: &OwnedFd) -> String {
        let place = self.0.iter().position(|i| *i == inode(fd));
        place.map_or_else(|| "of nobody knows where".to_owned(), |n| (n + 1).to_string())
    }
}

/// What an application says.
pub fn of_client(message: &ClientMessage, numbers: &Numbers) -> String {
    let mut text = Text::default();
    text.value("request", message.request);
    match &message.body {
        ClientBody::Hello { version: (major, minor), program } => {
            text.under("hello", |t| {
                t.value("version", format!("{major}.{minor}")).value("program", program);
            });
        }
        ClientBody::Publish(items) => {
            text.under("publish", |t| publications(t, items, numbers));
        }
        ClientBody::PublishSet { part: SetPart { name, total, first }, items } => {
            text.under(format!("publish of set {name}, {total} buffers, from {first} on"), |t| {
                publications(t, items, numbers);
            });
        }
        ClientBody::Acquire { items, wait, device } => {
            text.under("acquire", |t| {
                t.value("wait ms", wait.as_millis()).some("on", *device);
                items.iter().for_each(|item| wanted(t, item));
            });
        }
        ClientBody::AcquireSet { name, newer_than, wait, device } => {
            text.under("acquire set", |t| {
                t.value("name", name).value("newer than", newer_than);
                t.value("wait ms", wait.as_millis()).some("on", *device);
            });
        }
        ClientBody::Release(leases) => {
            text.under("release", |t| {
                leases.iter().for_each(|lease| {
                    t.line(lease);
                })
            });
        }
        ClientBody::Retire { id, deadline } => {
            text.value("retire", id).value("deadline ms", deadline.as_millis());
        }
        ClientBody::Watch => {
            text.line("watch");
        }
        ClientBody::Cancel { request } => {
            text.value("cancel", request);
        }
        ClientBody::Announce(names) => {
            text.under("announce", |t| {
                names.iter().for_each(|name| {
                    t.line(name);
                })
            });
        }
        ClientBody::Reattach(claims) => {
            text.under("reattach", |t| {
                for claim in claims {
                    receipt(t, Some(&claim.receipt));
                    t.some("  descriptor", claim.descriptor.as_ref().map(|fd| numbers.name(fd)));
                }
            });
        }
    }
    text.finish()
}

fn publications(text: &mut Text, items: &[Publication], numbers: &Numbers) {
    for Publication { facts: f, carrier: c } in items {
        text.under("item", |t| {
            facts(t, f);
            carrier(t, c, numbers);
        });
    }
}

fn wanted(text: &mut Text, item: &Wanted) {
    match &item.target {
        Target::Id(id) => text.value("id", id),
        Target::Name(name) => text.value("name", name),
    };
    text.some("  newer than", Some(item.newer_than).filter(|n| *n > 0));
}

fn carrier(text: &mut Text, carrier: &Carrier, numbers: &Numbers) {
    match carrier {
        Carrier::Descriptor(fd) => text.value("descriptor", numbers.name(fd)),
        Carrier::Legacy(handle) => text.value("handle", hex(handle)),
    };
}

/// A receipt by its hash: what is inside is not for everybody, and recorded on its own.
fn receipt(text: &mut Text, receipt: Option<&Receipt>) {
    let short = |r: &Receipt| format!("{} of {} bytes", &hash(r.as_bytes())[..16], r.as_bytes().len());
    text.some("receipt", receipt.map(short));
}

fn facts(text: &mut Text, f: &BufferFacts) {
    text.value("name", &f.name).value("kind", f.kind.as_str()).value("device", f.device);
    text.value("offset", f.offset).value("size", f.size).value("allocation", f.allocation_size);
    text.flag("read-only", f.access == Access::ReadOnly)
        .flag("lives as long as the pod", f.lifetime == Lifetime::Pod);
    let Metadata { tensor, user } = &f.metadata;
    if let Some(tensor) = tensor {
        text.under("tensor", |t| {
            t.value("dtype", &tensor.dtype).value("shape", format!("{:?}", tensor.shape));
            t.value("strides", format!("{:?}", tensor.strides));
        });
    }
    text.some("metadata", Some(hex(user)).filter(|h| !h.is_empty()));
    if let Some(Order { timeline, ready_word, value, first_seat_word, seats }) = f.order {
        text.under("order", |t| {
            t.value("timeline", timeline).value("ready word", ready_word).value("value", value);
            t.value("first seat word", first_seat_word).value("seats", seats);
        });
    }
}

fn info(text: &mut Text, i: &BufferInfo) {
    text.value("id", i.id).value("generation", i.generation).value("owner", &i.owner);
    text.flag("verified", i.verified);
    facts(text, &i.facts);
    let set = i.set.as_ref();
    text.some("of set", set.map(|s| format!("{}, {} of {}", s.name, s.index, s.total)));
}

fn refusal(text: &mut Text, r: &Refusal) {
    text.under(format!("refused {} ({})", r.code(), r.code().number()), |t| {
        for c in r.compared() {
            t.line(format!("{}: wanted {}, found {}", c.what, c.wanted, c.found));
        }
        t.some("remedy", Some(r.remedy()).filter(|own| *own != r.code().remedy()));
    });
}

fn outcomes<T>(text: &mut Text, items: &[Result<T, Refusal>], mut yes: impl FnMut(&mut Text, &T)) {
    for item in items {
        match item {
            Ok(value) => yes(text, value),
            Err(r) => refusal(text, r),
        }
    }
}

/// What the broker says to an application.
pub fn of_broker(message: &BrokerMessage, more: bool, numbers: &Numbers) -> String {
    let mut text = Text::default();
    text.value("request", message.request);
    match &message.body {
        BrokerBody::Welcome(w) => welcome(&mut text, w),
        BrokerBody::Published(items) => {
            text.under("published", |t| outcomes(t, items, published));
        }
        BrokerBody::Acquired(items) => {
            text.under("acquired", |t| outcomes(t, items, |t, g| grant(t, g, numbers)));
        }
        BrokerBody::AcquiredSet { set, grants } => {
            let head =
                format!("acquired set {}, generation {}, {} buffers", set.name, set.generation, set.total);
            text.under(head, |t| grants.iter().for_each(|g| grant(t, g, numbers)));
        }
        BrokerBody::Released(items) => {
            text.under("released", |t| {
                outcomes(t, items, |t, ()| {
                    t.line("done");
                })
            });
        }
        BrokerBody::Retired(Ok(leases)) => {
            text.value("retired, leases left", leases);
        }
        BrokerBody::Retired(Err(r)) => {
            text.under("not retired", |t| refusal(t, r));
        }
        BrokerBody::Event(e) => event(&mut text, e),
        BrokerBody::Cancelled => {
            text.line("cancelled");
        }
        BrokerBody::Announced => {
            text.line("announced");
        }
        BrokerBody::Refused(r) => refusal(&mut text, r),
        BrokerBody::Reattached(items) => {
            text.under("reattached", |t| {
                outcomes(t, items, |t, item| match item {
                    Reattached::Restored => {
                        t.line("restored");
                    }
                    Reattached::DescriptorWanted => {
                        t.line("descriptor wanted");
                    }
                });
            });
        }
    }
    text.flag("more follows", more);
    text.finish()
}

fn welcome(text: &mut Text, w: &Welcome) {
    text.under("welcome", |t| {
        t.value("version", format!("{}.{}", w.version.0, w.version.1));
        t.value("pod", &w.pod).value("group", &w.group).value("boot", format!("{:016x}", w.boot.0));
        t.flag("process-number word proven", w.legacy_pid_word_proven).value("instance", w.instance);
    });
}

fn published(text: &mut Text, p: &PublishedAs) {
    text.under("item", |t| {
        t.value("id", p.id).value("generation", p.generation);
        receipt(t, p.receipt.as_ref());
        t.some("checked ns", p.checked.map(|took| took.as_nanos()));
    });
}

fn grant(text: &mut Text, g: &Grant, numbers: &Numbers) {
    text.under(g.lease, |t| {
        info(t, &g.buffer);
        carrier(t, &g.carrier, numbers);
        t.flag("process-number word to be rewritten", g.rewrite_pid_word);
        receipt(t, g.receipt.as_ref());
        t.some("has", g.seat);
    });
}

fn event(text: &mut Text, event: &Event) {
    match event {
        Event::Appeared(i) => text.under("appeared", |t| info(t, i)),
        Event::SnapshotDone => text.line("snapshot done"),
        Event::Retiring { id, deadline } => {
            text.value("retiring", id).value("deadline ms", deadline.as_millis())
        }
        Event::Gone { id, reason } => text.value("gone", id).value("reason", reason.as_str()),
        Event::Orphaned { id, reason, leases } => {
            text.value("orphaned", id).value("reason", reason.as_str()).value("leases", leases)
        }
        Event::Seated { id, seat } => text.value("seated", id).line(seat),
        Event::Unseated { id, seat, how } => text.value("unseated", id).line(seat).value("how", how.as_str()),
    };
}

fn keepsakes(text: &mut Text, items: &[Keepsake], numbers: &Numbers) {
    for item in items {
        text.under(item.id, |t| {
            receipt(t, Some(&item.receipt));
            t.some("descriptor", item.descriptor.as_ref().map(|fd| numbers.name(fd)));
        });
    }
}

/// What a sidecar says.
pub fn of_sidecar(message: &SidecarMessage, numbers: &Numbers) -> String {
    let mut text = Text::default();
    text.value("request", message.request);
    match &message.body {
        SidecarBody::Hello { version: (major, minor) } => {
            text.value("hello, version", format!("{major}.{minor}"))
        }
        SidecarBody::HandOn(fd) => text.value("hand on descriptor", numbers.name(fd)),
        SidecarBody::Offer(items) => text.under("offer", |t| keepsakes(t, items, numbers)),
        SidecarBody::OfferDone => text.line("offer done"),
    };
    text.finish()
}

/// What the broker says to a sidecar.
pub fn of_slot(message: &SlotMessage, more: bool, numbers: &Numbers) -> String {
    let mut text = Text::default();
    text.value("request", message.request);
    match &message.body {
        SlotBody::Welcome { version: (major, minor), pod, group } => text.under("welcome", |t| {
            t.value("version", format!("{major}.{minor}")).value("pod", pod).value("group", group);
        }),
        SlotBody::HandedOn(Ok(())) => text.line("handed on"),
        SlotBody::HandedOn(Err(r)) => text.under("not handed on", |t| refusal(t, r)),
        SlotBody::Refused(r) => text.under("refused", |t| refusal(t, r)),
        SlotBody::Keep(items) => text.under("keep", |t| keepsakes(t, items, numbers)),
        SlotBody::Forget(ids) => text.under("forget", |t| {
            ids.iter().for_each(|id| {
                t.line(id);
            })
        }),
        SlotBody::Offered(items) => text.under("offered", |t| {
            outcomes(t, items, |t, ()| {
                t.line("kept on");
            })
        }),
    };
    text.flag("more follows", more);
    text.finish()
}

/// What a receipt says.
pub fn of_receipt(body: &ReceiptBody) -> String {
    let mut text = Text::default();
    text.value("boot", format!("{:016x}", body.boot.0)).value("process", body.process.pid);
    text.value("started", body.process.started).some("pidfs inode", body.process.pidfs_inode);
    text.value("slot", &body.slot).value("pod uid", &body.pod_uid);
    match &body.subject {
        Subject::Buffer(b) => text.under("buffer", |t| {
            info(t, &b.info);
            t.value("group", &b.group).some("handle", b.legacy_handle.map(|h| hex(&h)));
            t.value("own process number", b.own_pid);
            t.some("container", Some(&b.container).filter(|c| !c.is_empty()));
        }),
        Subject::Lease(l) => text.under(l.lease, |t| {
            info(t, &l.buffer);
            t.value("group", &l.group).some("has", l.seat);
        }),
    };
    text.finish()
}
