//! Messages as text in which a descriptor is its inode: two messages are the same if their texts are.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, Grant, Keepsake, Publication, SidecarBody,
    SidecarMessage, SlotBody, SlotMessage,
};
use gpu_handoff_protocol::{Receipt, Refusal};

pub(crate) fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

fn carrier(carrier: &Carrier) -> String {
    match carrier {
        Carrier::Descriptor(fd) => format!("inode {}", inode(fd)),
        Carrier::Legacy(handle) => format!("handle {handle:?}"),
    }
}

fn list<T>(items: &[T], one: impl Fn(&T) -> String) -> String {
    items.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn grant(g: &Grant) -> String {
    let Grant { lease, buffer, carrier: c, rewrite_pid_word, receipt: r, seat } = g;
    format!("{lease:?} {buffer:?} {} {rewrite_pid_word} {} {seat:?}", carrier(c), receipt(r.as_ref()))
}

fn granted(item: &Result<Grant, Refusal>) -> String {
    match item {
        Ok(g) => grant(g),
        Err(r) => format!("{r:?}"),
    }
}

/// Its bytes: it shows only their number itself.
fn receipt(receipt: Option<&Receipt>) -> String {
    format!("receipt {:?}", receipt.map(Receipt::as_bytes))
}

fn some_inode(descriptor: Option<&Arc<OwnedFd>>) -> String {
    format!("inode {:?}", descriptor.map(|fd| inode(fd)))
}

fn publication(item: &Publication) -> String {
    format!("publish {:?} {}", item.facts, carrier(&item.carrier))
}

fn keepsake(k: &Keepsake) -> String {
    format!("keepsake {} {} {}", k.id, receipt(Some(&k.receipt)), some_inode(k.descriptor.as_ref()))
}

/// What the four kinds of message have in common, for tests that treat them alike.
pub(crate) trait Print: Debug {
    fn print(&self) -> String;
}

impl Print for ClientMessage {
    fn print(&self) -> String {
        let body = match &self.body {
            ClientBody::Publish(items) => list(items, publication),
            ClientBody::PublishSet { part, items } => format!("{part:?} {}", list(items, publication)),
            ClientBody::Reattach(claims) => list(claims, |c| {
                format!("claim {} {}", receipt(Some(&c.receipt)), some_inode(c.descriptor.as_ref()))
            }),
            other => format!("{other:?}"),
        };
        format!("{} {body}", self.request)
    }
}

impl Print for BrokerMessage {
    fn print(&self) -> String {
        let body = match &self.body {
            BrokerBody::Acquired(items) => list(items, granted),
            BrokerBody::AcquiredSet { set, grants } => format!("{set:?} {}", list(grants, grant)),
            BrokerBody::Published(items) => list(items, |i| match i {
                Ok(p) => format!("{} {} {}", p.id, p.generation, receipt(p.receipt.as_ref())),
                Err(r) => format!("{r:?}"),
            }),
            other => format!("{other:?}"),
        };
        format!("{} {body}", self.request)
    }
}

impl Print for SidecarMessage {
    fn print(&self) -> String {
        let body = match &self.body {
            SidecarBody::HandOn(fd) => format!("hand on inode {}", inode(fd)),
            SidecarBody::Offer(items) => list(items, keepsake),
            other => format!("{other:?}"),
        };
        format!("{} {body}", self.request)
    }
}

impl Print for SlotMessage {
    fn print(&self) -> String {
        let body = match &self.body {
            SlotBody::Keep(items) => list(items, keepsake),
            other => format!("{other:?}"),
        };
        format!("{} {body}", self.request)
    }
}

/// The frame that a packet becomes at its receiver, without a socket between.
pub(crate) fn frame(packet: &Outgoing) -> Frame {
    Frame { bytes: packet.bytes.clone(), descriptors: copies(&packet.descriptors), ..Frame::default() }
}

pub(crate) fn copies(descriptors: &[Arc<OwnedFd>]) -> Vec<OwnedFd> {
    descriptors.iter().map(|fd| fd.try_clone().unwrap()).collect()
}
