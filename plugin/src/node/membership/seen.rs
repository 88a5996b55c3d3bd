//! What is known of pods and of volumes that wait, for whoever asks.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use gpu_handoff_kubelet::api::times;
use gpu_handoff_kubelet::csi::{Answer, PodName, Publish};
use gpu_handoff_kubelet::pods::{PodEvent, Source};
use tokio::sync::watch;

use crate::limits;

/// Who tells of pods, and which volumes wait.
#[derive(Debug, Clone, Default)]
pub(in crate::node) struct Seen {
    pub(in crate::node) source: Option<Source>,
    /// It has told of all pods that there are.
    pub(in crate::node) complete: bool,
    /// Why it is away, and since when.
    pub(in crate::node) away: Option<(String, SystemTime)>,
    /// How many pods are known.
    pub(in crate::node) known: usize,
    /// By the volume's id.
    waiting: BTreeMap<String, Wait>,
}

/// A volume that the kubelet asks for, and that is not there.
#[derive(Debug, Clone)]
pub(in crate::node) struct Wait {
    pub(in crate::node) pod: PodName,
    /// As the pod calls it.
    pub(in crate::node) volume: String,
    pub(in crate::node) why: String,
    pub(in crate::node) since: SystemTime,
    /// When it was asked for last.
    asked: Instant,
}

impl Wait {
    /// Whether it still waits, as far as can be known: nobody says that a volume is not asked for any more.
    fn lasts(&self) -> bool {
        self.asked.elapsed() < limits::VOLUME_ASKED_AGAIN
    }
}

impl Seen {
    /// The volumes that wait.
    pub(in crate::node) fn waiting(&self) -> impl Iterator<Item = &Wait> {
        self.waiting.values().filter(|wait| wait.lasts())
    }

    /// Why a pod is not known of. The same for as long as nothing changes: the kubelet counts events of the same text.
    fn not_known(&self, pod: &PodName) -> String {
        let Some(source) = self.source else {
            return format!("pod {pod} is not known of yet: nobody was asked yet for the pods of this node");
        };
        let why = match &self.away {
            Some((why, since)) => {
                format!("is away since {}, and new pods wait until it is back: {why}", times::written(*since))
            }
            None if self.complete => "has not named it among them".to_owned(),
            None => "has not named all of them yet".to_owned(),
        };
        format!("pod {pod} is not known of yet: {source}, which is asked for the pods of this node, {why}")
    }
}

/// Tells of it.
#[derive(Debug)]
pub(in crate::node) struct Teller(watch::Sender<Seen>);

impl Teller {
    /// Nobody has told of anything.
    pub(in crate::node) fn new() -> (Self, watch::Receiver<Seen>) {
        let (sender, receiver) = watch::channel(Seen::default());
        (Self(sender), receiver)
    }

    /// News of pods.
    pub(super) fn hear(&self, event: &PodEvent) {
        self.0.send_modify(|seen| match event {
            PodEvent::Source(source) => (seen.source, seen.complete) = (Some(*source), false),
            PodEvent::Away(why) => {
                let since = seen.away.as_ref().map_or_else(SystemTime::now, |(_, since)| *since);
                seen.away = Some((why.clone(), since));
            }
            PodEvent::Synced => (seen.complete, seen.away) = (true, None),
            PodEvent::Deleted(gone) => seen.waiting.retain(|_, wait| wait.pod.uid != gone.uid),
            PodEvent::Added(_) | PodEvent::Changed(_) => {}
        });
    }

    /// So many pods are known.
    pub(super) fn knows(&self, pods: usize) {
        self.0.send_modify(|seen| seen.known = pods);
    }

    /// What told of them is there no longer, and will not be.
    pub(super) fn broke_off(&self, why: &str) {
        self.0.send_modify(|seen| {
            (seen.source, seen.away) = (None, Some((why.to_owned(), SystemTime::now())));
        });
    }

    /// Why a pod is not known of.
    pub(super) fn not_known(&self, pod: &PodName) -> String {
        self.0.borrow().not_known(pod)
    }

    /// How the kubelet was answered that asked for a volume.
    pub(super) fn answered(&self, publish: &Publish, answer: &Answer) {
        match answer {
            Ok(()) => self.gone(&publish.volume),
            Err(refusal) => self.waits(publish, &refusal.to_string()),
        }
    }

    /// A volume is asked for and cannot be there yet.
    pub(super) fn waits(&self, publish: &Publish, why: &str) {
        self.0.send_modify(|seen| {
            seen.waiting.retain(|_, wait| wait.lasts());
            let (since, asked) = (SystemTime::now(), Instant::now());
            let there = seen.waiting.contains_key(&publish.volume);
            if !there && seen.waiting.len() >= limits::WAITING_VOLUMES {
                return;
            }
            let new = || {
                let (pod, volume) = (publish.pod.clone(), publish.name.clone());
                Wait { pod, volume, why: String::new(), since, asked }
            };
            let wait = seen.waiting.entry(publish.volume.clone()).or_insert_with(new);
            (wait.why, wait.asked) = (why.to_owned(), asked);
        });
    }

    /// A volume is there, or nobody wants it any more.
    pub(super) fn gone(&self, volume: &str) {
        self.0.send_if_modified(|seen| seen.waiting.remove(volume).is_some());
    }
}

#[cfg(test)]
mod tests {
    use gpu_handoff_kubelet::csi::Refusal;
    use gpu_handoff_kubelet::pods::PodGone;

    use super::*;

    fn publish(volume: &str) -> Publish {
        let pod = PodName { namespace: "n".into(), name: "p".into(), uid: format!("uid-{volume}") };
        let service_account = "default".into();
        Publish { volume: volume.into(), pod, service_account, name: "slot".into(), target: "/t".into() }
    }

    #[test]
    fn a_volume_waits_from_its_first_refusal_until_it_is_there_or_its_pod_gone() {
        let (teller, told) = Teller::new();
        let why = |volume: &str| told.borrow().waiting.get(volume).map(|wait| wait.why.clone());
        teller.waits(&publish("a"), "not known");
        let since = told.borrow().waiting["a"].since;
        teller.answered(&publish("a"), &Err(Refusal::NoSlot("no slot".into())));
        assert_eq!((why("a").as_deref(), told.borrow().waiting["a"].since), (Some("no slot"), since));
        teller.answered(&publish("a"), &Ok(()));
        assert_eq!(why("a"), None);
        teller.waits(&publish("b"), "not known");
        let gone = PodGone { namespace: "n".into(), name: "p".into(), uid: "uid-b".into() };
        teller.hear(&PodEvent::Deleted(gone));
        assert_eq!(why("b"), None);
        for n in 0..1_000 {
            teller.waits(&publish(&n.to_string()), "not known");
        }
        assert_eq!(told.borrow().waiting().count(), limits::WAITING_VOLUMES);
    }

    #[test]
    fn a_source_is_away_until_it_has_told_of_all() {
        let (teller, told) = Teller::new();
        teller.hear(&PodEvent::Source(Source::Kubelet));
        assert_eq!((told.borrow().source, told.borrow().complete), (Some(Source::Kubelet), false));
        teller.hear(&PodEvent::Away("refused".into()));
        assert!(told.borrow().away.is_some() && !told.borrow().complete);
        let since = |told: &watch::Receiver<Seen>| told.borrow().away.as_ref().map(|(_, since)| *since);
        let first = since(&told);
        teller.hear(&PodEvent::Away("reset".into()));
        assert_eq!(since(&told), first, "it was away all the time");
        teller.hear(&PodEvent::Synced);
        assert!(told.borrow().away.is_none() && told.borrow().complete);
        teller.broke_off("over");
        assert!(told.borrow().away.is_some() && told.borrow().source.is_none());
    }
}
