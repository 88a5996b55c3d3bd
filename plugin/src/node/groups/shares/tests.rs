//! Histories of members that come and go, of mounts that fail, and of daemons that are started again.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

const MI: u64 = 1 << 20;
/// The node's memory: of it the policy gives a quarter, and 1 MiB a group, 2 MiB one of namespace `b`.
const MEMORY: u64 = 16 * MI;

/// In a folder: the size and number of a tmpfs, the number of a namespace, whether there is something else.
type There = (Option<(u64, u64)>, Option<u64>, bool);

/// What is mounted, as a kernel would keep it: more than one life of the daemon sees it.
#[derive(Debug, Clone, Default)]
struct Node(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    folders: BTreeMap<String, There>,
    last: u64,
    /// So many calls go well, and then one does not.
    until_failure: Option<u32>,
}

impl Node {
    fn call(&self) -> io::Result<std::cell::RefMut<'_, State>> {
        let mut state = self.0.borrow_mut();
        match state.until_failure {
            Some(0) => {
                state.until_failure = None;
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            Some(n) => state.until_failure = Some(n - 1),
            None => {}
        }
        state.last += 1;
        Ok(state)
    }
}

impl Mounts for Node {
    fn found(&self) -> io::Result<Vec<Found>> {
        let state = self.0.borrow();
        let found = state.folders.iter().map(|(folder, (shm, ipc, other))| Found {
            folder: folder.clone(),
            shm: *shm,
            ipc: *ipc,
            other: *other,
        });
        Ok(found.collect())
    }

    fn path(&self, folder: &str, part: Part) -> PathBuf {
        PathBuf::from(folder).join(format!("{part:?}"))
    }

    fn shm(&mut self, folder: &str, bytes: u64) -> io::Result<u64> {
        self.0.borrow_mut().folders.entry(folder.to_owned()).or_default();
        let mut state = self.call()?;
        let number = state.last;
        let there = state.folders.entry(folder.to_owned()).or_default();
        assert!(there.0.is_none() && !there.2, "a mount on top of another");
        there.0 = Some((bytes, number));
        Ok(number)
    }

    fn grow(&mut self, folder: &str, bytes: u64) -> io::Result<()> {
        let mut state = self.call()?;
        let shm =
            state.folders.get_mut(folder).and_then(|there| there.0.as_mut()).expect("what grows is there");
        assert!(shm.0 < bytes, "what is used is never made smaller");
        shm.0 = bytes;
        Ok(())
    }

    fn ipc(&mut self, folder: &str) -> io::Result<u64> {
        let mut state = self.call()?;
        let number = state.last;
        let there = state.folders.entry(folder.to_owned()).or_default();
        assert!(there.1.is_none() && !there.2, "a namespace on top of another");
        there.1 = Some(number);
        Ok(number)
    }

    fn take_down(&mut self, folder: &str, parts: &[Part]) -> io::Result<()> {
        let mut state = self.call()?;
        let Some(there) = state.folders.get_mut(folder) else { return Ok(()) };
        for part in parts {
            match part {
                Part::Shm => there.0 = None,
                Part::Ipc => there.1 = None,
            }
        }
        if parts.len() == 2 {
            there.2 = false;
            state.folders.remove(folder);
        }
        Ok(())
    }
}

fn policy() -> Policy {
    let text = "version: gpu-handoff.io/v1\nshm: {per-group: 1Mi}\nnamespaces: {b: {shm: {per-group: 2Mi, node-share: 20%}}}\n";
    Policy::read(text).unwrap()
}

fn group(n: usize) -> GroupKey {
    let (namespace, name) = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("b", "z"), ("c", "x")][n];
    GroupKey { namespace: namespace.parse().unwrap(), name: name.parse().unwrap() }
}

fn pod(n: usize) -> PodUid {
    format!("0000000{n}-0000-0000-0000-000000000000").parse().unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Enter(usize, usize, Wish),
    Leave(usize, usize),
    Fail(u32),
    Tidy,
    Restart,
    /// Somebody mounts something in a group's folder.
    Disturb(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let wish = (any::<bool>(), any::<bool>(), proptest::option::of(0_u64..3 * MI))
        .prop_map(|(shm, ipc, size)| Wish { shm, size, ipc });
    let (groups, pods) = (0_usize..6, 0_usize..4);
    prop_oneof![
        6 => (groups.clone(), pods.clone(), wish).prop_map(|(g, p, w)| Step::Enter(g, p, w)),
        4 => (groups.clone(), pods).prop_map(|(g, p)| Step::Leave(g, p)),
        2 => (0_u32..4).prop_map(Step::Fail),
        1 => Just(Step::Tidy),
        1 => Just(Step::Restart),
        1 => groups.prop_map(Step::Disturb),
    ]
}

/// What every moment has to look like.
fn check(shares: &Shares<Node>, node: &Node, records: &BTreeMap<(usize, usize), Wish>) {
    let state = node.0.borrow();
    let (mut all, mut of_b) = (0, 0);
    for n in 0..6 {
        let key = group(n);
        let folder = Group::new(&key).folder;
        let there = state.folders.get(&folder).copied().unwrap_or_default();
        let wishes: Vec<_> = records.iter().filter(|((g, _), _)| *g == n).map(|(_, wish)| *wish).collect();
        let shared = shares.shared(&key, Wish { shm: true, size: None, ipc: true });
        for part in Part::ALL {
            let (wanted, thing, found) = match part {
                Part::Shm => {
                    (wishes.iter().any(|w| w.wants(part)), shared.shm.as_ref(), there.0.map(|shm| shm.1))
                }
                Part::Ipc => (wishes.iter().any(|w| w.wants(part)), shared.ipc.as_ref(), there.1),
            };
            assert!(thing.is_none() || wanted, "{key}: {part:?} is shared by nobody");
            if let Some(thing) = thing {
                assert_eq!(Some(thing.number), found, "{key}: what is said to be there is");
            }
            assert!(
                found.is_none() || thing.is_some() || shares.left.contains(&folder),
                "{key}: {part:?} is left, and forgotten"
            );
        }
        if shared.shm.is_some() {
            let bytes = there.0.map_or(0, |shm| shm.0);
            let limit = policy().shm_of(&key.namespace);
            assert!(
                wishes.iter().all(|w| !w.wants(Part::Shm) || w.size.unwrap_or(limit) <= bytes)
                    && bytes <= limit
            );
            all += bytes;
            of_b += if key.namespace.as_str() == "b" { bytes } else { 0 };
        }
    }
    assert!(all <= MEMORY / 4 && of_b <= MEMORY / 5, "{all} and {of_b} of {MEMORY}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shared_is_what_members_ask_for_within_the_bounds_and_nothing_is_left(
        steps in proptest::collection::vec(step(), 0..40)
    ) {
        let (node, policy) = (Node::default(), policy());
        let mut shares = Shares::new(node.clone(), MEMORY, vec![], &policy).unwrap();
        let mut records: BTreeMap<(usize, usize), Wish> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Enter(g, p, wish) => {
                    // As pods do: what it asked for once stays so.
                    let wish = records.get(&(g, p)).copied().unwrap_or(wish);
                    match shares.enter(&policy, &group(g), &pod(p), wish) {
                        Ok(shared) => {
                            prop_assert_eq!(shared.shm.is_some(), wish.wants(Part::Shm));
                            prop_assert_eq!(shared.ipc.is_some(), wish.ipc);
                            records.insert((g, p), wish);
                        }
                        Err(EnterError::Refused(refusal)) => prop_assert_eq!(refusal.code().as_str(), "QUOTA_SHM"),
                        Err(EnterError::Failed { .. }) => {}
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
                Step::Leave(g, p) => {
                    records.remove(&(g, p));
                    shares.leave(&group(g), &pod(p));
                }
                Step::Fail(n) => node.0.borrow_mut().until_failure = Some(n),
                Step::Tidy => shares.tidy(&policy),
                Step::Restart => {
                    let members = records.iter().map(|((g, p), wish)| (group(*g), pod(*p), *wish)).collect();
                    shares = Shares::new(node.clone(), MEMORY, members, &policy).unwrap();
                }
                Step::Disturb(g) => {
                    // Seen by the next life of the daemon alone.
                    let folder = Group::new(&group(g)).folder;
                    if let Some(there) = node.0.borrow_mut().folders.get_mut(&folder) {
                        *there = (None, None, true);
                    }
                    let members = records.iter().map(|((g, p), wish)| (group(*g), pod(*p), *wish)).collect();
                    shares = Shares::new(node.clone(), MEMORY, members, &policy).unwrap();
                }
            }
            check(&shares, &node, &records);
        }
        // When all are gone and nothing fails, nothing is there.
        node.0.borrow_mut().until_failure = None;
        for (g, p) in records.keys() {
            shares.leave(&group(*g), &pod(*p));
        }
        shares.tidy(&policy);
        prop_assert!(!shares.is_untidy() && shares.groups.is_empty());
        prop_assert_eq!(&node.0.borrow().folders, &BTreeMap::new());
    }
}

#[test]
fn what_is_there_after_a_restart_stays_and_what_is_missing_is_made_anew() {
    let (node, policy) = (Node::default(), policy());
    let everything = Wish { shm: true, ipc: true, size: Some(MI / 2) };
    let mut shares = Shares::new(node.clone(), MEMORY, vec![], &policy).unwrap();
    let before = shares.enter(&policy, &group(0), &pod(0), everything).unwrap();
    shares.enter(&policy, &group(1), &pod(1), everything).unwrap();
    let members = || vec![(group(0), pod(0), everything)];
    let again = Shares::new(node.clone(), MEMORY, members(), &policy).unwrap();
    assert_eq!(again.shared(&group(0), everything), before);
    assert_eq!(node.0.borrow().folders.len(), 1, "what is nobody's is gone");
    // A reboot has taken all mounts with it.
    node.0.borrow_mut().folders.clear();
    let anew = Shares::new(node.clone(), MEMORY, members(), &policy).unwrap().shared(&group(0), everything);
    assert!(anew.shm.is_some() && anew.ipc.is_some() && anew != before);
}

#[test]
fn sizes_are_the_largest_that_is_asked_for_and_never_smaller_again() {
    let (node, policy) = (Node::default(), policy());
    let mut shares = Shares::new(node.clone(), MEMORY, vec![], &policy).unwrap();
    let of = |size| Wish { shm: true, size, ipc: false };
    let bytes = |node: &Node| node.0.borrow().folders.values().next().and_then(|there| there.0).unwrap().0;
    let mut enter = |p, size| shares.enter(&policy, &group(0), &pod(p), of(size)).map(drop);
    enter(0, Some(MI / 2)).unwrap();
    enter(1, Some(MI / 4)).unwrap();
    assert_eq!(bytes(&node), MI / 2);
    enter(2, None).unwrap();
    assert_eq!(bytes(&node), MI);
    for too_much in [MI + 1, MEMORY, u64::MAX] {
        assert!(matches!(enter(3, Some(too_much)), Err(EnterError::Refused(_))), "{too_much}");
    }
    enter(3, Some(0)).unwrap();
    shares.leave(&group(0), &pod(2));
    assert_eq!(bytes(&node), MI);
}

#[test]
fn there_are_so_many_groups_and_no_more() {
    let policy = Policy::read("version: gpu-handoff.io/v1\n").unwrap();
    let mut shares = Shares::new(Node::default(), u64::MAX, vec![], &policy).unwrap();
    let wish = Wish { shm: true, size: Some(1), ipc: false };
    let key = |n: usize| GroupKey { namespace: "a".parse().unwrap(), name: format!("g{n}").parse().unwrap() };
    for n in 0..limits::SHARING_GROUPS {
        shares.enter(&policy, &key(n), &pod(0), wish).unwrap();
    }
    let refused = shares.enter(&policy, &key(limits::SHARING_GROUPS), &pod(0), wish);
    assert!(matches!(refused, Err(EnterError::Full)));
    shares.enter(&policy, &key(0), &pod(1), wish).unwrap();
}
