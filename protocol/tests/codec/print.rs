//! Messages as text in which a descriptor is its inode: two messages are the same if their texts are.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, Grant, SidecarBody, SidecarMessage,
    SlotMessage,
};

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
    format!("{:?} {:?} {} {}", g.lease, g.buffer, carrier(&g.carrier), g.rewrite_pid_word)
}

/// What the four kinds of message have in common, for tests that treat them alike.
pub(crate) trait Print: Debug {
    fn print(&self) -> String;
}

impl Print for ClientMessage {
    fn print(&self) -> String {
        let body = match &self.body {
            ClientBody::Publish(items) => {
                list(items, |i| format!("publish {:?} {}", i.facts, carrier(&i.carrier)))
            }
            other => format!("{other:?}"),
        };
        format!("{} {body}", self.request)
    }
}

impl Print for BrokerMessage {
    fn print(&self) -> String {
        let body = match &self.body {
            BrokerBody::Acquired(items) => list(items, |i| match i {
                Ok(g) => grant(g),
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
            other => format!("{other:?}"),
        };
        format!("{} {body}", self.request)
    }
}

impl Print for SlotMessage {
    fn print(&self) -> String {
        format!("{self:?}")
    }
}

/// The frame that a packet becomes at its receiver, without a socket between.
pub(crate) fn frame(packet: &Outgoing) -> Frame {
    Frame { bytes: packet.bytes.clone(), descriptors: copies(&packet.descriptors), ..Frame::default() }
}

pub(crate) fn copies(descriptors: &[Arc<OwnedFd>]) -> Vec<OwnedFd> {
    descriptors.iter().map(|fd| fd.try_clone().unwrap()).collect()
}
