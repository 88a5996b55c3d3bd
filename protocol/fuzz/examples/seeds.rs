//! Writes the seeds: one small right packet of each kind, as the targets read them.
//!
//!     cargo run --example seeds -- seeds

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::codec::{Outgoing, encode_broker, encode_client, encode_sidecar, encode_slot};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, EndReason, Event, Grant, Publication,
    PublishedAs, SidecarBody, SidecarMessage, SlotBody, SlotMessage, Target, Wanted, Welcome,
};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, Code, DeviceUuid, GroupKey, Kind, LeaseId, Lifetime,
    Metadata, PROTOCOL_VERSION, PodRef, Refusal, Tensor,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let to = std::env::args().nth(1).ok_or("usage: seeds FOLDER")?;
    let to = Path::new(&to);
    for (name, body) in client()? {
        write(to, "decode_client", name, &encode_client(&ClientMessage { request: 1, body }))?;
    }
    for (name, body) in broker()? {
        for packet in encode_broker(&BrokerMessage { request: 1, body }) {
            write(to, "decode_broker", name, &packet)?;
        }
    }
    for (name, body) in slot()? {
        write(to, "decode_broker", name, &encode_slot(&SlotMessage { request: 1, body }))?;
    }
    let hand_on = SidecarBody::HandOn(std::fs::File::open("/dev/null")?.into());
    for (name, body) in [("hello", SidecarBody::Hello { version: PROTOCOL_VERSION }), ("hand-on", hand_on)] {
        write(to, "decode_sidecar", name, &encode_sidecar(SidecarMessage { request: 1, body }))?;
    }
    Ok(())
}

fn write(to: &Path, target: &str, name: &str, packet: &Outgoing) -> Outcome {
    let folder = to.join(target);
    std::fs::create_dir_all(&folder)?;
    let head = [u8::try_from(packet.descriptors.len())?, 0];
    Ok(std::fs::write(folder.join(name), [&head, packet.bytes.as_slice()].concat())?)
}

fn id() -> BufferId {
    BufferId { boot: BootTag(0x0102_0304_0506_0708), random: 0x1112_1314_1516_1718_1920 }
}

fn facts(kind: Kind) -> Outcome<BufferFacts> {
    Ok(BufferFacts {
        name: "weights/layer-0".parse()?,
        kind,
        device: DeviceUuid::from_bytes([7; 16]),
        offset: 512,
        size: 4096,
        allocation_size: 2 << 20,
        access: Access::ReadOnly,
        lifetime: Lifetime::Pod,
        metadata: Metadata {
            tensor: Some(Tensor { dtype: "bfloat16".into(), shape: vec![2, 1024], strides: vec![-1024, 1] }),
            user: b"{}".to_vec(),
        },
    })
}

fn carrier(kind: Kind) -> Outcome<Carrier> {
    Ok(match kind {
        Kind::Legacy => Carrier::Legacy([9; 64]),
        Kind::Vmm | Kind::Timeline => {
            Carrier::Descriptor(Arc::new(OwnedFd::from(std::fs::File::open("/dev/null")?)))
        }
    })
}

fn client() -> Outcome<Vec<(&'static str, ClientBody)>> {
    let publish = [Kind::Vmm, Kind::Legacy, Kind::Timeline]
        .map(|kind| {
            Ok::<_, Box<dyn std::error::Error>>(Publication { facts: facts(kind)?, carrier: carrier(kind)? })
        })
        .into_iter()
        .collect::<Result<_, _>>()?;
    let wanted = vec![
        Wanted { target: Target::Id(id()), newer_than: 0 },
        Wanted { target: Target::Name("weights/layer-0".parse()?), newer_than: 3 },
    ];
    Ok(vec![
        ("hello", ClientBody::Hello { version: PROTOCOL_VERSION, program: "trainer".into() }),
        ("publish", ClientBody::Publish(publish)),
        ("acquire", ClientBody::Acquire { items: wanted, wait: Duration::from_secs(5) }),
        ("release", ClientBody::Release(vec![LeaseId(1), LeaseId(300)])),
        ("retire", ClientBody::Retire { id: id(), deadline: Duration::from_secs(30) }),
        ("watch", ClientBody::Watch),
        ("cancel", ClientBody::Cancel { request: 7 }),
    ])
}

fn refusal() -> Refusal {
    Refusal::new(Code::SizeMismatch).compared_with("bytes", 4096, 2 << 20).with_remedy("state the true size")
}

fn pod() -> Outcome<PodRef> {
    Ok(PodRef { namespace: "ml".parse()?, name: "trainer-0".parse()? })
}

fn group() -> Outcome<GroupKey> {
    Ok(GroupKey { namespace: "ml".parse()?, name: "serving".parse()? })
}

fn broker() -> Outcome<Vec<(&'static str, BrokerBody)>> {
    let info = |kind| -> Outcome<BufferInfo> {
        Ok(BufferInfo { id: id(), generation: 3, owner: pod()?, verified: true, facts: facts(kind)? })
    };
    let grant = |kind| -> Outcome<Grant> {
        let (buffer, carrier) = (info(kind)?, carrier(kind)?);
        Ok(Grant { lease: LeaseId(42), buffer, carrier, rewrite_pid_word: kind == Kind::Legacy })
    };
    let welcome = Welcome {
        version: PROTOCOL_VERSION,
        pod: pod()?,
        group: group()?,
        boot: BootTag(1),
        legacy_pid_word_proven: true,
    };
    let reason = EndReason::OwnerDied;
    let receipt = PublishedAs { id: id(), generation: 3 };
    Ok(vec![
        ("welcome", BrokerBody::Welcome(welcome)),
        ("published", BrokerBody::Published(vec![Ok(receipt), Err(refusal())])),
        (
            "acquired",
            BrokerBody::Acquired(vec![Ok(grant(Kind::Vmm)?), Err(refusal()), Ok(grant(Kind::Legacy)?)]),
        ),
        ("released", BrokerBody::Released(vec![Ok(()), Err(refusal())])),
        ("retired", BrokerBody::Retired(Ok(2))),
        ("appeared", BrokerBody::Event(Event::Appeared(Arc::new(info(Kind::Timeline)?)))),
        ("snapshot-done", BrokerBody::Event(Event::SnapshotDone)),
        ("retiring", BrokerBody::Event(Event::Retiring { id: id(), deadline: Duration::from_secs(30) })),
        ("gone", BrokerBody::Event(Event::Gone { id: id(), reason })),
        ("orphaned", BrokerBody::Event(Event::Orphaned { id: id(), reason, leases: 2 })),
        ("cancelled", BrokerBody::Cancelled),
        ("refused", BrokerBody::Refused(refusal())),
    ])
}

fn slot() -> Outcome<Vec<(&'static str, SlotBody)>> {
    Ok(vec![
        ("slot-welcome", SlotBody::Welcome { version: PROTOCOL_VERSION, pod: pod()?, group: group()? }),
        ("slot-handed-on", SlotBody::HandedOn(Ok(()))),
        ("slot-not-handed-on", SlotBody::HandedOn(Err(refusal()))),
        ("slot-refused", SlotBody::Refused(refusal())),
    ])
}
