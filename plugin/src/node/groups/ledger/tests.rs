//! Histories: the ledger is told less than what happens, and never says that something is over that a member here made.

use proptest::prelude::*;

use super::*;

fn pod(n: u8) -> PodUid {
    format!("0000000{n}-0000-0000-0000-000000000000").parse().unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Enter(u8),
    Leave(u8),
    /// Member, thing, and how it is told: with its maker, without, not at all.
    Make(u8, u8, Told),
    /// One of another pod that is no member, or of none.
    Strange(u8),
    Gone(u8),
    Lost,
    /// What has been told of those that left is all.
    Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Whole,
    Nameless,
    NotAtAll,
}

fn step() -> impl Strategy<Value = Step> {
    let told = prop_oneof![3 => Just(Told::Whole), 2 => Just(Told::Nameless), 1 => Just(Told::NotAtAll)];
    let (pods, things) = (0_u8..5, 0_u8..6);
    prop_oneof![
        3 => pods.clone().prop_map(Step::Enter),
        3 => pods.clone().prop_map(Step::Leave),
        6 => (pods, things.clone(), told).prop_map(|(p, t, told)| Step::Make(p, t, told)),
        1 => things.clone().prop_map(Step::Strange),
        1 => things.prop_map(Step::Gone),
        1 => Just(Step::Lost),
        1 => Just(Step::Told),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_over_that_somebody_here_made(steps in proptest::collection::vec(step(), 0..60), most in 1_usize..8) {
        let mut ledger = Ledger::new(most);
        // What is true: who made each thing, by whatever name; who is here.
        let mut makers: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
        let (mut here, mut untold) = (BTreeSet::new(), false);
        for step in steps {
            match step {
                Step::Enter(p) => {
                    here.insert(p);
                    ledger.enter(pod(p));
                }
                Step::Leave(p) => {
                    here.remove(&p);
                    ledger.leave(&pod(p));
                }
                Step::Make(p, thing, told) if here.contains(&p) => {
                    makers.entry(thing).or_default().insert(p);
                    match told {
                        Told::Whole => ledger.made(thing, By::Pod(pod(p))),
                        Told::Nameless => ledger.made(thing, By::SomeMember),
                        Told::NotAtAll => untold = true,
                    }
                }
                Step::Make(..) => {}
                // 99 is always here.
                Step::Strange(thing) => {
                    makers.entry(thing).or_default().insert(99);
                    ledger.made(thing, By::Pod(pod(9)));
                }
                // Told in its order, as all that is told.
                Step::Gone(thing) => {
                    makers.remove(&thing);
                    ledger.gone(&thing);
                }
                Step::Lost => ledger.lost(None),
                Step::Told => ledger.is_told(&(0..5).map(pod).collect()),
            }
            // Where something is lost, that is told before anything else is.
            if std::mem::take(&mut untold) {
                ledger.lost(Some(makers.keys().copied().collect()));
            }
            for (thing, by) in &makers {
                let is_used = by.iter().any(|p| here.contains(p) || *p == 99);
                prop_assert!(!is_used || !ledger.is_over(thing), "{thing} of {by:?} with {here:?} here");
            }
            prop_assert!(ledger.things.len() <= most);
        }
    }
}

#[test]
fn what_was_made_by_those_who_are_gone_is_over() {
    let mut ledger = Ledger::new(8);
    ledger.enter(pod(1));
    ledger.enter(pod(2));
    ledger.made("named", By::Pod(pod(1)));
    ledger.made("both", By::Pod(pod(1)));
    ledger.made("both", By::Pod(pod(2)));
    ledger.made("nameless", By::SomeMember);
    assert!(!ledger.has_leftovers());
    ledger.leave(&pod(1));
    // It was made before, and is told of now.
    ledger.made("late", By::Pod(pod(1)));
    let over = |ledger: &Ledger<&'static str>| {
        ["named", "both", "nameless", "late", "untold"]
            .into_iter()
            .filter(|thing| ledger.is_over(thing))
            .collect::<Vec<_>>()
    };
    assert_eq!(over(&ledger), ["named", "late"]);
    ledger.enter(pod(3));
    ledger.leave(&pod(2));
    assert_eq!(over(&ledger), ["named", "both", "nameless", "late"]);
    ledger.is_told(&[pod(1), pod(2)].into());
    // By who is no member here.
    ledger.made("named", By::Pod(pod(1)));
    assert!(!ledger.is_over(&"named"));
    assert!(ledger.has_leftovers());
}

#[test]
fn more_than_there_is_room_for_and_more_makers_than_are_kept_stay() {
    let mut ledger = Ledger::new(1);
    (0..=9).for_each(|n| ledger.enter(pod(n)));
    (0..=9).for_each(|n| ledger.made(1, By::Pod(pod(n))));
    ledger.made(2, By::Pod(pod(0)));
    assert!(ledger.is_blind());
    (0..=9).for_each(|n| ledger.leave(&pod(n)));
    assert!(!ledger.is_over(&1) && !ledger.is_over(&2));
    // Of what is told for the first time then, nobody knows whether it is what there was no room for.
    ledger.gone(&1);
    ledger.enter(pod(0));
    ledger.made(2, By::Pod(pod(0)));
    ledger.leave(&pod(0));
    assert!(!ledger.has_leftovers());
}

#[test]
fn what_is_found_when_nothing_was_told_is_of_somebody_who_is_here() {
    let mut ledger = Ledger::new(8);
    ledger.enter(pod(1));
    ledger.lost(Some(vec![1, 2]));
    ledger.enter(pod(2));
    ledger.made(1, By::Pod(pod(2)));
    ledger.leave(&pod(1));
    assert!(!ledger.is_over(&1) && ledger.is_over(&2));
    ledger.retain(|thing| *thing != 2);
    assert!(!ledger.has_leftovers());
}
