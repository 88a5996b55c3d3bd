//! Containers of members that were there when the runtime was connected to: they may have been made while this process
//! was away, and then have nothing of what their pod was granted.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpu_handoff_nri::Container;
use gpu_handoff_policy::{Policy, Unadjusted};
use gpu_handoff_protocol::Refusal;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;
use tracing::warn;

use super::look::{self, Expected};
use super::seen::Counts;
use crate::identity::cgroup::{ContainerId, Root};
use crate::identity::is_named_in;
use crate::node::events::{About, Events, Notice};
use crate::node::parts::Plan;

/// One that runs.
#[derive(Debug, Clone)]
pub(super) struct Found {
    plan: Arc<Plan>,
    id: ContainerId,
    name: String,
    pid: u32,
    expected: Expected,
}

/// What was seen, and done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// It has what it is to have, or has ended.
    Well,
    /// It lacks this, and was killed, where the rule says so.
    Lacks(Refusal),
    /// It cannot be told.
    Unknown(String),
}

/// Who looks at them, and what it takes.
#[derive(Debug)]
pub(super) struct Killer {
    pub(super) root: Root,
    /// Where those whose pods they are read of it.
    pub(super) events: Events,
    pub(super) policies: watch::Receiver<Arc<Policy>>,
    pub(super) counts: watch::Sender<Counts>,
}

impl Killer {
    /// Looks at a container's first process, and kills that where it lacks what it is to have, unless the policy says
    /// otherwise: the kubelet makes it anew.
    pub(super) fn see_to(&self, found: &Found) {
        let Found { plan, id, name, pid, .. } = found;
        let containers = BTreeSet::from([id.clone()]);
        let is_its_own = |started| is_named_in(*pid, started, &plan.uid, &containers, &self.root);
        let rule = self.policies.borrow().unadjusted_of(&plan.pod.namespace);
        match found.look(rule, is_its_own) {
            Seen::Well => {}
            Seen::Lacks(refusal) => {
                warn!(pod = %plan.pod, container = name, pid, %refusal, %rule, "it was made while the node daemon was away");
                self.counts.send_modify(|counts| counts.killed += u64::from(rule == Unadjusted::Kill));
                self.events.tell(Notice::refused(about(plan), &refusal));
            }
            Seen::Unknown(why) => {
                warn!(pod = %plan.pod, container = name, pid, why, "what a container got cannot be looked at");
            }
        }
    }
}

impl Found {
    /// Where there is something to look at.
    pub(super) fn new(plan: &Arc<Plan>, container: Container, expected: Expected) -> Option<Self> {
        let (id, pid) = (container.id.parse().ok()?, container.pid?);
        let found = Self { plan: Arc::clone(plan), id, name: container.name, pid, expected };
        (!expected.is_nothing()).then_some(found)
    }

    /// Looks, and does what the rule says. `is_its_own`: whether the process that started then is in this container.
    fn look(&self, rule: Unadjusted, is_its_own: impl FnOnce(u64) -> Result<(), Refusal>) -> Seen {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(number) = pid else { return Seen::Unknown("no process can have that number".to_owned()) };
        // First: what is signalled in the end is what had the number before all that is read.
        let process = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Seen::Well,
            Err(error) => return Seen::Unknown(error.to_string()),
        };
        let got = match look::got(self.pid) {
            Ok(got) => got,
            Err(error) => return Seen::Unknown(error.to_string()),
        };
        let Err(refusal) = self.expected.check(&got) else { return Seen::Well };
        if let Err(other) = is_its_own(got.started) {
            return Seen::Unknown(other.to_string());
        }
        if rule == Unadjusted::Report {
            return Seen::Lacks(refusal);
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Ok(()) => Seen::Lacks(refusal),
            Err(Errno::SRCH) => Seen::Well,
            Err(error) => Seen::Unknown(error.to_string()),
        }
    }
}

pub(super) fn about(plan: &Plan) -> About {
    let (namespace, name) = (plan.pod.namespace.to_string(), plan.pod.name.to_string());
    About { namespace, name, uid: plan.uid.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use gpu_handoff_protocol::Code;

    use super::*;
    use crate::node::membership::testing::volume;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn found(pid: u32, expected: Expected) -> Found {
        let container =
            Container { id: "a".repeat(64), pid: Some(pid), name: "app".into(), ..Container::default() };
        Found::new(&Arc::new(volume("csi-1").plan()), container, expected).unwrap()
    }

    fn with(ipc: u64) -> Expected {
        Expected { ipc: Some(ipc), shm: None }
    }

    #[test]
    fn what_lacks_something_is_killed_and_nothing_else_is() {
        let mut child = sleeper();
        let own = look::got(child.id()).unwrap();
        assert_eq!(
            found(child.id(), with(own.ipc)).look(Unadjusted::Kill, |_| panic!("it has all")),
            Seen::Well
        );
        let elsewhere = |_| Err(Refusal::new(Code::PeerUnknown));
        assert!(matches!(found(child.id(), with(1)).look(Unadjusted::Kill, elsewhere), Seen::Unknown(_)));
        // This test is in no pod's container, as its cgroups say.
        let (events, mut told) = Events::for_test();
        let policies = watch::channel(Arc::default()).1;
        let killer = Killer { root: Root::default(), events, policies, counts: watch::Sender::default() };
        killer.see_to(&found(child.id(), with(1)));
        // Where the policy says so, it is only told of.
        let reported = found(child.id(), with(1)).look(Unadjusted::Report, |_| Ok(()));
        assert!(matches!(reported, Seen::Lacks(_)));
        assert!(child.try_wait().unwrap().is_none() && told.try_recv().is_err());

        let is_asked_of_it = |started| {
            assert_eq!(started, own.started);
            Ok(())
        };
        let Seen::Lacks(refusal) = found(child.id(), with(1)).look(Unadjusted::Kill, is_asked_of_it) else {
            panic!()
        };
        assert_eq!(refusal.code(), Code::NotAdjusted);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        // It has ended: nothing is to be done.
        assert_eq!(found(child.id(), with(1)).look(Unadjusted::Kill, |_| Ok(())), Seen::Well);
    }

    #[test]
    fn there_is_something_to_look_at_or_nothing_is_kept() {
        let plan = Arc::new(volume("csi-1").plan());
        let container = Container { id: "a".repeat(64), pid: Some(7), ..Container::default() };
        let kept = |container: Container, expected| Found::new(&plan, container, expected).is_some();
        assert!(kept(container.clone(), with(1)));
        assert!(!kept(container.clone(), Expected::default()));
        assert!(!kept(Container { pid: None, ..container.clone() }, with(1)));
        assert!(!kept(Container { id: "short".into(), ..container }, with(1)));
        assert!(matches!(found(0, with(1)).look(Unadjusted::Kill, |_| Ok(())), Seen::Unknown(_)));
        assert!(matches!(found(u32::MAX, with(1)).look(Unadjusted::Kill, |_| Ok(())), Seen::Unknown(_)));
    }
}
