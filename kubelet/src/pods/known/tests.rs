//! Each change once, no deletion lost, none taken back.

use proptest::prelude::*;

use super::*;
use crate::pods::{Phase, Qos};

fn facts(uid: &str, label: &str) -> PodFacts {
    PodFacts {
        namespace: "default".to_owned(),
        name: "p".to_owned(),
        uid: uid.to_owned(),
        annotations: Default::default(),
        labels: [("l".to_owned(), label.to_owned())].into(),
        service_account: "default".to_owned(),
        host_network: false,
        host_pid: false,
        deletion: None,
        ended_by_kubelet: false,
        phase: Phase::Running,
        containers: Vec::new(),
        qos: Qos::BestEffort,
        truncated: false,
    }
}

fn uid(event: &PodEvent) -> &str {
    match event {
        PodEvent::Added(facts) | PodEvent::Changed(facts) => &facts.uid,
        PodEvent::Deleted(gone) => &gone.uid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_twice_is_told_once() {
    let mut known = Known::default();
    assert!(matches!(known.seen(facts("a", "1")), Some(PodEvent::Added(_))));
    assert_eq!(known.seen(facts("a", "1")), None);
    assert!(matches!(known.seen(facts("a", "2")), Some(PodEvent::Changed(_))));
    assert!(matches!(known.gone("a"), Some(PodEvent::Deleted(_))));
    assert_eq!(known.gone("a"), None);
}

#[test]
fn what_is_not_named_any_more_is_gone_though_its_name_is_there() {
    let mut known = Known::default();
    known.seen(facts("old", "1"));
    known.begin();
    // The pod of the same name that came after it.
    assert!(matches!(known.seen(facts("new", "1")), Some(PodEvent::Added(_))));
    let gone = known.complete();
    assert_eq!(gone.iter().map(uid).collect::<Vec<_>>(), ["old"]);
    assert!(known.complete().is_empty());
}

#[test]
fn an_attempt_to_name_all_that_breaks_off_deletes_nothing() {
    let mut known = Known::default();
    known.seen(facts("a", "1"));
    known.begin();
    known.begin();
    known.seen(facts("a", "1"));
    assert!(known.complete().is_empty());
}

#[test]
fn what_was_told_as_deleted_stays_so_while_the_source_still_names_it() {
    let mut known = Known::default();
    known.seen(facts("a", "1"));
    known.gone("a");
    assert_eq!(known.seen(facts("a", "2")), None);
    known.begin();
    assert_eq!(known.seen(facts("a", "2")), None);
    assert!(known.complete().is_empty());
    assert_eq!(known.seen(facts("a", "3")), None);
    known.begin();
    known.complete();
    assert!(known.over.is_empty(), "nothing is kept of what the source has forgotten");
}

#[test]
fn no_more_pods_than_the_limit() {
    let mut known = Known::default();
    for which in 0..=limits::PODS {
        known.seen(facts(&which.to_string(), "1"));
    }
    assert!(known.overfull);
    assert_eq!(known.uids().len(), limits::PODS);
}

#[derive(Clone, Debug)]
enum Word {
    Seen(u8, u8),
    Gone(u8),
    /// All are named, those of these numbers.
    All(Vec<u8>),
}

fn words() -> impl Strategy<Value = Vec<Word>> {
    let word = prop_oneof![
        (0..6_u8, 0..3_u8).prop_map(|(uid, label)| Word::Seen(uid, label)),
        (0..6_u8).prop_map(Word::Gone),
        prop::collection::vec(0..6_u8, 0..6).prop_map(Word::All),
    ];
    prop::collection::vec(word, 0..40)
}

proptest! {
    /// Whoever only hears the events knows what is known here; each pod is added once at most before it is deleted,
    /// and what all were is what is left after all were named, less what had been deleted and was named all the time.
    #[test]
    fn events_tell_all_there_is(words in words()) {
        let mut known = Known::default();
        let mut heard = HashMap::<String, String>::new();
        for word in words {
            let mut events = Vec::new();
            match &word {
                Word::Seen(uid, label) => events.extend(known.seen(facts(&uid.to_string(), &label.to_string()))),
                Word::Gone(uid) => events.extend(known.gone(&uid.to_string())),
                Word::All(uids) => {
                    known.begin();
                    for uid in uids {
                        events.extend(known.seen(facts(&uid.to_string(), "0")));
                    }
                    events.extend(known.complete());
                }
            }
            for event in events {
                let uid = uid(&event).to_owned();
                match event {
                    PodEvent::Added(facts) => prop_assert!(heard.insert(uid, facts.labels["l"].clone()).is_none()),
                    PodEvent::Changed(facts) => {
                        let before = heard.insert(uid, facts.labels["l"].clone());
                        prop_assert!(before.is_some_and(|before| before != facts.labels["l"]));
                    }
                    PodEvent::Deleted(_) => prop_assert!(heard.remove(&uid).is_some()),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(heard.keys().map(String::as_str).collect::<HashSet<_>>(), known.uids());
            if let Word::All(uids) = &word {
                prop_assert!(heard.keys().all(|uid| uids.iter().any(|named| named.to_string() == *uid)));
            }
        }
    }
}
