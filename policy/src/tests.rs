use gpu_handoff_protocol::{
    Access, BufferFacts, BufferName, DeviceUuid, GroupKey, Kind, Lifetime, Metadata, Namespace,
    ServiceAccount,
};

use crate::{Party, Policy};

mod decisions;
mod exchange;
mod page;
mod properties;
mod reading;
mod signs;

/// A policy's text after its version.
pub(crate) fn policy(text: &str) -> Policy {
    Policy::read(&format!("version: gpu-handoff.io/v1\n{text}")).unwrap()
}

/// A pod that owns its names.
#[derive(Debug, Clone)]
struct Pod {
    namespace: Namespace,
    group: GroupKey,
    service_account: Option<ServiceAccount>,
}

impl Pod {
    /// `namespace group [service account]`; the group as a pod names it.
    fn new(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let namespace: Namespace = words.next().unwrap().parse().unwrap();
        let group = words.next().unwrap();
        let (of, name) = group.split_once('/').unwrap_or((namespace.as_str(), group));
        let group = GroupKey { namespace: of.parse().unwrap(), name: name.parse().unwrap() };
        Self { group, namespace, service_account: words.next().map(|own| own.parse().unwrap()) }
    }

    fn party(&self) -> Party<'_> {
        let Self { namespace, group, service_account } = self;
        Party { namespace, group, service_account: service_account.as_ref() }
    }
}

fn facts(kind: Kind) -> BufferFacts {
    BufferFacts {
        name: BufferName::new("w").unwrap(),
        kind,
        device: DeviceUuid::from_bytes([1; 16]),
        offset: 0,
        size: 10,
        allocation_size: 10,
        access: Access::ReadWrite,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    }
}
