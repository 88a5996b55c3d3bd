//! Who may exchange with whom.

use gpu_handoff_protocol::Kind;

use super::{Pod, policy};
use crate::{Differs, Exchange, Policy};

const FRAMES: &str = "exchange:
  - name: frames
    publish:
      - {namespaces: [video], groups: [decode, live], service-accounts: [decoder]}
    acquire:
      - {namespaces: [ml]}
";

fn may(policy: &Policy, publisher: &str, acquirer: &str) -> bool {
    policy.may_exchange(&Pod::new(publisher).party(), &Pod::new(acquirer).party())
}

#[test]
fn without_a_rule_namespace_and_group_have_to_be_the_same() {
    let none = Policy::default();
    assert!(may(&none, "ml g", "ml g"));
    assert!(may(&none, "ml g a", "ml g b"));
    for (one, other) in
        [("ml g", "ml h"), ("ml g", "video g"), ("ml g", "video ml/g"), ("video ml/g", "ml g")]
    {
        assert!(!may(&none, one, other), "{one}, {other}");
    }
}

#[test]
fn a_rule_grants_what_it_names_in_its_direction() {
    let policy = policy(FRAMES);
    assert!(may(&policy, "video decode decoder", "ml infer"));
    assert!(may(&policy, "video live decoder", "ml train anybody"));
    for (one, other) in [
        ("ml infer", "video decode decoder"),
        ("video encode decoder", "ml infer"),
        ("video decode other", "ml infer"),
        ("video decode", "ml infer"),
        ("audio decode decoder", "ml infer"),
        ("video decode decoder", "web infer"),
        ("video decode decoder", "video live decoder"),
        // Who is a guest in a group has to be named with it.
        ("video decode decoder", "ml video/decode"),
        ("video ml/decode decoder", "ml infer"),
    ] {
        assert!(!may(&policy, one, other), "{one}, {other}");
    }
}

#[test]
fn a_rule_may_go_both_ways() {
    let policy = policy(&format!("{FRAMES}    both-ways: true\n"));
    assert!(may(&policy, "video decode decoder", "ml infer"));
    assert!(may(&policy, "ml infer", "video decode decoder"));
    assert!(!may(&policy, "ml infer", "ml train"));
}

#[test]
fn legacy_handles_stay_within_a_namespace() {
    let policy = policy(FRAMES);
    let (publisher, acquirer) = (Pod::new("video decode decoder"), Pod::new("ml infer"));
    assert!(policy.may_acquire(&publisher.party(), &acquirer.party(), Kind::Vmm));
    assert!(policy.may_acquire(&publisher.party(), &acquirer.party(), Kind::Timeline));
    assert!(!policy.may_acquire(&publisher.party(), &acquirer.party(), Kind::Legacy));
    assert!(policy.may_acquire(&publisher.party(), &publisher.party(), Kind::Legacy));
}

#[test]
fn a_guest_in_a_group_has_to_be_named_with_those_who_are_at_home_there() {
    let policy = policy(
        "exchange:\n  - name: guests\n    publish: [{namespaces: [ml], groups: [infer]}]\n    \
         acquire: [{namespaces: [video], groups: [ml/infer], service-accounts: [decoder]}]\n",
    );
    for (pod, invited) in [
        ("ml infer", true),
        ("web infer", true),
        ("video ml/infer decoder", true),
        ("video ml/infer other", false),
        ("video ml/train decoder", false),
        ("web ml/infer decoder", false),
        ("ml video/infer", false),
    ] {
        assert_eq!(policy.is_invited(&Pod::new(pod).party()), invited, "{pod}");
    }
    assert!(may(&policy, "ml infer", "video ml/infer decoder"));
    assert!(!may(&policy, "video ml/infer decoder", "ml infer"));
    assert!(!may(&policy, "ml infer", "video infer decoder"));
    let refusal = policy.may_be_member(&Pod::new("web ml/infer").party()).unwrap_err();
    assert!(
        refusal.to_string().starts_with("refused: POLICY_DENIED (group: wanted one of namespace web"),
        "{refusal}"
    );
}

#[test]
fn it_is_said_which_rule_grants_and_what_is_missing() {
    let policy = policy(FRAMES);
    let why = |publisher: &str, acquirer: &str| {
        let (publisher, acquirer) = (Pod::new(publisher), Pod::new(acquirer));
        match policy.exchange(&publisher.party(), &acquirer.party()) {
            Exchange::SameGroup => (None, vec![]),
            Exchange::Rule(rule) => (Some(rule.name.to_string()), vec![]),
            Exchange::Denied(gap) => match gap.almost {
                Some(almost) => (Some(almost.rule.to_string()), almost.differs),
                None => (Some(String::new()), vec![]),
            },
        }
    };
    let frames = Some("frames".to_owned());
    assert_eq!(why("ml g", "ml g"), (None, vec![]));
    assert_eq!(why("video live decoder", "ml g"), (frames.clone(), vec![]));
    assert_eq!(why("ml g", "video live decoder"), (frames.clone(), vec![Differs::Direction]));
    let both = vec![Differs::PublisherGroup, Differs::PublisherServiceAccount];
    assert_eq!(why("video x y", "ml g"), (frames.clone(), both));
    assert_eq!(why("video live decoder", "ml video/live"), (frames, vec![Differs::AcquirerGroup]));
    assert_eq!(why("video live decoder", "web g"), (Some(String::new()), vec![]));
}
