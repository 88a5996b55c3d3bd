//! Which pods have been told of, so that each change is told once and no deletion is lost. Pure.

use std::collections::{HashMap, HashSet};

use super::facts::PodFacts;
use super::stream::Source;
use crate::limits;

/// News of this node's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodEvent {
    /// From now on this source is asked: the first event, and again where another takes over.
    Source(Source),
    /// There is a pod that was not known.
    Added(Box<PodFacts>),
    /// Something of it is other than before.
    Changed(Box<PodFacts>),
    /// It is gone, and does not come back: a pod of its name has another UID.
    Deleted(PodGone),
    /// All pods that there were have been told of, and those that had gone meanwhile.
    Synced,
    /// The source is away, and why. What is known stays known; pods that are new wait until [`PodEvent::Synced`].
    Away(String),
}

/// A pod that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGone {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The pods that have been told of, by UID.
#[derive(Debug, Default)]
pub(super) struct Known {
    pods: HashMap<String, PodFacts>,
    /// Told as deleted, and still named by the source, or were when it last named all: they stay deleted.
    over: HashSet<String>,
    /// While the source names all: those that it has named.
    named: Option<HashSet<String>>,
    /// Pods were left out, because there are too many.
    pub(super) overfull: bool,
}

impl Known {
    /// The source begins to name all pods.
    pub(super) fn begin(&mut self) {
        self.named = Some(HashSet::new());
    }

    /// The source says how a pod is.
    pub(super) fn seen(&mut self, facts: PodFacts) -> Option<PodEvent> {
        let over = self.over.contains(&facts.uid);
        let full = self.pods.len() >= limits::PODS && !self.pods.contains_key(&facts.uid);
        if let Some(named) = &mut self.named
            && (over || !full)
        {
            named.insert(facts.uid.clone());
        }
        if over {
            return None;
        }
        match self.pods.get_mut(&facts.uid) {
            Some(known) if *known == facts => None,
            Some(known) => {
                known.clone_from(&facts);
                Some(PodEvent::Changed(Box::new(facts)))
            }
            None if full => {
                self.overfull = true;
                None
            }
            None => {
                self.pods.insert(facts.uid.clone(), facts.clone());
                Some(PodEvent::Added(Box::new(facts)))
            }
        }
    }

    /// The source says that a pod is gone.
    pub(super) fn gone(&mut self, uid: &str) -> Option<PodEvent> {
        if let Some(named) = &mut self.named {
            named.remove(uid);
        }
        let facts = self.pods.remove(uid)?;
        if self.over.len() < limits::PODS {
            self.over.insert(facts.uid.clone());
        }
        Some(deleted(facts))
    }

    /// The source has named all: which are gone.
    pub(super) fn complete(&mut self) -> Vec<PodEvent> {
        let Some(named) = self.named.take() else {
            return Vec::new();
        };
        self.overfull = false;
        self.over.retain(|uid| named.contains(uid));
        let gone: Vec<_> = self.pods.extract_if(|uid, _| !named.contains(uid)).collect();
        // A late word of one of them must not bring it back.
        self.over.extend(gone.iter().map(|(uid, _)| uid.clone()));
        gone.into_iter().map(|(_, facts)| deleted(facts)).collect()
    }

    #[cfg(test)]
    fn uids(&self) -> HashSet<&str> {
        self.pods.keys().map(String::as_str).collect()
    }
}

fn deleted(facts: PodFacts) -> PodEvent {
    PodEvent::Deleted(PodGone { namespace: facts.namespace, name: facts.name, uid: facts.uid })
}

#[cfg(test)]
mod tests;
