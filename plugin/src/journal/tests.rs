//! The journal held against a model: whatever was written, and wherever the file is cut, replay tells what was alive.

use std::collections::BTreeMap;
use std::path::Path;

use gpu_handoff_protocol::message::EndReason;
use gpu_handoff_protocol::{BootTag, BufferId, LeaseId, Seat};
use proptest::prelude::*;

use super::*;

const BOOT: BootTag = BootTag(7);

fn id(n: u8) -> BufferId {
    BufferId { boot: BOOT, random: u128::from(n) << 64 | 5 }
}

fn open(folder: &Path) -> (Journal, Found) {
    open_in(folder, BOOT)
}

fn open_in(folder: &Path, boot: BootTag) -> (Journal, Found) {
    let folder = std::fs::File::open(folder).unwrap().into();
    Journal::open(StateDir::open(folder, boot).unwrap()).unwrap()
}

fn live(n: u8) -> Record {
    let tag = |salt: u64| Tag(u64::from(n % 3) + salt);
    let (group, name, member) = (tag(10), tag(20), tag(30));
    let bytes = ((1 << 48) - 1) >> (4 * n);
    let lasts = n % 2 == 1;
    Record::BufferLive { id: id(n), generation: u64::from(n) + 1, group, name, member, bytes, lasts }
}

fn record() -> impl Strategy<Value = Record> {
    let reason = prop_oneof![
        Just(EndReason::Retired),
        Just(EndReason::OwnerClosed),
        Just(EndReason::OwnerDied),
        Just(EndReason::MemberLeft),
        Just(EndReason::Superseded),
        Just(EndReason::NotAllowed),
        Just(EndReason::Other)
    ];
    let (n, lease) = (0_u8..12, 0_u64..12);
    prop_oneof![
        4 => n.clone().prop_map(live),
        4 => (lease.clone(), n.clone(), proptest::option::of(0_u32..9)).prop_map(|(lease, n, seat)| {
            let process = Holder { pid: u32::from(n), started: lease << 40 };
            Record::LeaseLive { lease: LeaseId(lease), buffer: id(n), holder: Tag(31), process, seat: seat.map(Seat) }
        }),
        2 => (n.clone(), reason.clone(), proptest::option::of(1_u64..u64::MAX)).prop_map(|(n, reason, until)| {
            Record::Retiring { id: id(n), reason, until: until.map(SinceBoot) }
        }),
        3 => (n, reason).prop_map(|(n, reason)| Record::BufferEnded { id: id(n), reason, group: Tag(10) }),
        3 => lease.prop_map(|lease| Record::LeaseEnded { lease: LeaseId(lease) }),
        1 => (0_u64..3, 0_u64..20).prop_map(|(group, last)| Record::Generation { group: Tag(10 + group), last }),
    ]
}

/// What a reader with patience would say: each thing's fate is told by the records about it, and nothing else.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    buffers: BTreeMap<BufferId, (u64, u64, Option<alive::Retiring>)>,
    leases: BTreeMap<LeaseId, (BufferId, Option<Seat>)>,
    generations: BTreeMap<Tag, u64>,
}

impl Model {
    fn of(history: &[Record]) -> Self {
        let mut model = Self::default();
        for n in 0..12 {
            let begun = history.iter().rposition(|r| *r == live(n));
            let Some(begun) = begun else { continue };
            let after = &history[begun..];
            let Record::BufferLive { generation, bytes, .. } = live(n) else { unreachable!() };
            if after.iter().any(|r| matches!(r, Record::BufferEnded { id: ended, .. } if *ended == id(n))) {
                continue;
            }
            let retiring = after.iter().rev().find_map(|r| match r {
                Record::Retiring { id: retiring, reason, until } if *retiring == id(n) => {
                    Some((*reason, *until))
                }
                _ => None,
            });
            model.buffers.insert(id(n), (generation, bytes, retiring));
        }
        for lease in (0..12).map(LeaseId) {
            let last = history.iter().rev().find_map(|r| match r {
                Record::LeaseLive { lease: l, buffer, seat, .. } if *l == lease => {
                    Some(Some((*buffer, *seat)))
                }
                Record::LeaseEnded { lease: l } if *l == lease => Some(None),
                _ => None,
            });
            if let Some(Some(buffer)) = last {
                model.leases.insert(lease, buffer);
            }
        }
        for record in history {
            let (group, given) = match record {
                Record::BufferLive { group, generation, .. } => (*group, *generation),
                Record::Generation { group, last } => (*group, *last),
                _ => continue,
            };
            let last = model.generations.entry(group).or_default();
            *last = given.max(*last);
        }
        model
    }

    fn found(alive: &Alive) -> Self {
        Self {
            buffers: alive.buffers.iter().map(|(id, b)| (*id, (b.generation, b.bytes, b.retiring))).collect(),
            leases: alive.leases.iter().map(|(l, a)| (*l, (a.buffer, a.seat))).collect(),
            generations: alive.generations.iter().map(|(g, last)| (*g, *last)).collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn replay_equals_the_model_wherever_the_file_is_cut(
        history in prop::collection::vec(record(), 0..60),
        batch in 1_usize..5,
        keep in 0.0_f64..=1.0,
        rewrite_at in 0_usize..80,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, found) = open(folder.path());
        prop_assert_eq!(found.life, 1);
        let mut written: Vec<Record> = Vec::new();
        let mut alive = Alive::default();
        for (n, records) in history.chunks(batch).enumerate() {
            if n == rewrite_at {
                journal.rewrite(alive.records()).unwrap();
                written = alive.records().collect();
                prop_assert_eq!(Model::of(&written), Model::found(&alive), "a rewrite says the same");
            }
            journal.append(records);
            written.extend(records);
            records.iter().for_each(|r| alive.take(*r));
        }
        drop(journal);
        let path = folder.path().join("journal");
        let bytes = std::fs::metadata(&path).unwrap().len();
        prop_assert_eq!(bytes, (written.len() as u64 + 1) * RECORD_BYTES as u64);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share of a small number")]
        let cut = (bytes as f64 * keep) as u64;
        std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let whole = usize::try_from(cut).unwrap() / RECORD_BYTES;
        let (_, found) = open(folder.path());
        prop_assert_eq!(Model::found(&found.alive), Model::of(&written[..whole.saturating_sub(1)]));
        // What was found was written anew: the next daemon finds the same.
        let (_, again) = open(folder.path());
        prop_assert_eq!(Model::found(&again.alive), Model::found(&found.alive));
        prop_assert_eq!(again.life, found.life + 1);
    }
}

/// A journal of `count` buffers, and its file.
fn written(folder: &Path, count: u8) -> std::path::PathBuf {
    let (mut journal, _) = open(folder);
    journal.append(&(0..count).map(live).collect::<Vec<_>>());
    folder.join("journal")
}

#[test]
fn a_changed_a_moved_and_a_repeated_record_end_the_journal() {
    for damage in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), 4);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = |n: usize| n * RECORD_BYTES..(n + 1) * RECORD_BYTES;
        match damage {
            0 => bytes[at(3)][30] ^= 1,
            1 => bytes[3 * RECORD_BYTES..].rotate_left(RECORD_BYTES),
            _ => bytes.copy_within(at(2), 3 * RECORD_BYTES),
        }
        std::fs::write(&path, bytes).unwrap();
        let (_, found) = open(folder.path());
        assert_eq!(found.alive.buffers.len(), 2, "damage {damage}");
    }
}

#[test]
fn the_journal_of_another_boot_or_key_is_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), 3);
    let old = std::fs::read(&path).unwrap();
    let (journal, found) = open_in(folder.path(), BootTag(8));
    assert_eq!((found.alive, found.life, journal.is_empty()), (Alive::default(), 1, true));
    // Put back by hand, it is still another key's.
    std::fs::write(&path, old).unwrap();
    let (_, found) = open_in(folder.path(), BootTag(8));
    assert_eq!(found.alive, Alive::default());
}

#[test]
fn the_files_are_their_owners_alone_and_the_key_stays_for_the_boot() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_path_buf();
    written(&state, 1);
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state.join("key")), mode(&state.join("journal"))), (0o600, 0o600));
    let key = || std::fs::read(state.join("key")).unwrap();
    let first = key();
    open(&state);
    assert_eq!(first, key(), "the key stays for the boot");
    std::fs::write(state.join("key"), &first[..20]).unwrap();
    let (_, found) = open(&state);
    assert_eq!(found.alive, Alive::default(), "a torn key opens nothing");
    assert_ne!(first, key());
}

#[test]
fn a_journal_that_cannot_be_written_says_that_nothing_is_alive_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), 3);
    let (mut journal, _) = open(folder.path());
    // Not open for writing: like a full file system, it takes nothing.
    journal.file = std::fs::File::open("/dev/null").unwrap();
    journal.append(&[live(9)]);
    assert!(journal.broken.is_some() && !journal.wants_rewrite(), "not at once again");
    assert!(!path.exists() || std::fs::metadata(&path).unwrap().len() == 0);
    assert!(matches!(journal.take_news()[..], [News::Broken(_), News::NotEmptied(_)]));
    journal.rewrite([live(1)].into_iter()).unwrap();
    assert!(matches!(journal.take_news()[..], [News::Again]));
    journal.append(&[live(2)]);
    drop(journal);
    let (_, found) = open(folder.path());
    assert_eq!(found.alive.buffers.len(), 2);
}

#[test]
fn a_journal_that_has_grown_wants_to_be_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let end = Record::LeaseEnded { lease: LeaseId(1) };
    let batch = vec![end; usize::try_from(limits::JOURNAL_RECORDS).unwrap()];
    journal.append(&batch);
    assert!(!journal.wants_rewrite());
    journal.append(&[end]);
    assert!(journal.wants_rewrite());
    journal.rewrite(std::iter::empty()).unwrap();
    assert!(!journal.wants_rewrite() && journal.is_empty());
}

/// Processor time of this thread, which others on the machine do not add to.
fn cpu_time() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

/// What a record costs, for `cargo test --release -p gpu-handoff-plugin --lib journal -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_record() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut journal, _) = open(folder.path());
    let rounds = 200_000_u32;
    let begun = cpu_time();
    for n in 0..rounds {
        journal.append(&[Record::LeaseEnded { lease: LeaseId(n.into()) }]);
    }
    println!("{:?} a record, one write each", (cpu_time() - begun) / rounds);
    let begun = cpu_time();
    journal.rewrite((0..30_000_u64).map(|n| Record::LeaseEnded { lease: LeaseId(n) })).unwrap();
    println!("{:?} to write 30,000 records anew", cpu_time() - begun);
}
