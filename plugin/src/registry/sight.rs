//! Who sees whose buffers. Within a group of one namespace everybody sees everything; where pods of several namespaces are in
//! one, or buffers are known by their ids across groups, the policy decides about each two.

use gpu_handoff_policy::{Party, Policy};
use gpu_handoff_protocol::{GroupKey, Kind, Namespace, PodRef, ServiceAccount};

use super::{Buffer, Member, MemberFacts, MemberId, Registry, SessionId};

impl MemberFacts {
    /// What a policy can name of it.
    #[must_use]
    pub fn party(&self) -> Party<'_> {
        let namespace = &self.pod.namespace;
        Party { namespace, group: &self.group, service_account: self.service_account.as_ref() }
    }
}

impl Registry {
    /// What a policy can name of whoever speaks in a session.
    pub(super) fn party_of(&self, session: SessionId) -> Option<Party<'_>> {
        let member = self.sessions.get(&session)?.facts.member;
        self.members.get(&member).map(|m| m.facts.party())
    }

    /// Of the pod that publishes in a group, which may be gone by now: then its service account is not known any more.
    pub(super) fn publisher<'a>(
        &'a self,
        member: MemberId,
        namespace: &'a Namespace,
        group: &'a GroupKey,
    ) -> Party<'a> {
        let of = |m: &'a Member| m.facts.service_account.as_ref();
        let service_account: Option<&ServiceAccount> = self.members.get(&member).and_then(of);
        Party { namespace, group, service_account }
    }

    /// Whether a session may know of a buffer and acquire it.
    pub(super) fn sees(&self, session: SessionId, buffer: &Buffer) -> bool {
        self.sees_by(&self.policy, session, buffer)
    }

    /// The same by a policy that may be another one.
    pub(super) fn sees_by(&self, policy: &Policy, session: SessionId, buffer: &Buffer) -> bool {
        let publisher = self.publisher(buffer.member, &buffer.info.owner.namespace, &buffer.group);
        self.party_of(session).is_some_and(|own| policy.may_acquire(&publisher, &own, buffer.info.facts.kind))
    }

    /// Who holds a name, as a member may know it: a pod that it sees nothing of has no name.
    pub(super) fn holder_for(&self, member: MemberId, holder: MemberId, pod: &PodRef) -> String {
        let parties = [holder, member].map(|id| self.members.get(&id).map(|m| m.facts.party()));
        match parties {
            [Some(holder), Some(own)] if !self.policy.may_exchange(&holder, &own) => {
                "held by another pod".to_owned()
            }
            _ => format!("held by pod {pod}"),
        }
    }

    /// Whether a session may know of what a member publishes.
    pub(super) fn sees_member(&self, session: SessionId, member: MemberId) -> bool {
        let publisher = self.members.get(&member).map(|m| m.facts.party());
        let Some((publisher, own)) = publisher.zip(self.party_of(session)) else { return false };
        self.policy.may_acquire(&publisher, &own, Kind::Vmm)
    }
}
