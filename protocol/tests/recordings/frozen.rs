//! Recordings do not change unnoticed, and those of a released version not at all.

use crate::recording::hashes::{LIST, hash, list_of};
use crate::recording::{RELEASED, current_version, file, folder, sessions};
use crate::replay::{recordings, versions};

#[test]
fn every_recording_is_the_one_that_was_listed() {
    for folder in versions() {
        let listed = std::fs::read_to_string(folder.join(LIST)).unwrap();
        assert_eq!(list_of(&folder).unwrap(), listed, "{}", folder.display());
    }
}

#[test]
fn a_changed_recording_is_noticed() {
    let copy = std::env::temp_dir().join(format!("gpu-handoff-recordings-{}", std::process::id()));
    std::fs::create_dir(&copy).unwrap();
    let first = versions().remove(0);
    for entry in std::fs::read_dir(&first).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let listed = std::fs::read_to_string(copy.join(LIST)).unwrap();
    let before = list_of(&copy).unwrap();
    let changed = copy.join("hello.recording");
    std::fs::write(&changed, std::fs::read_to_string(&changed).unwrap().replace("trainer", "trailer"))
        .unwrap();
    let after = list_of(&copy).unwrap();
    std::fs::remove_file(&changed).unwrap();
    let without = list_of(&copy).unwrap();
    std::fs::remove_dir_all(&copy).unwrap();
    assert_eq!(before, listed);
    assert_ne!(after, listed);
    assert_ne!(without, listed);
}

/// The released versions whose recordings are not the released ones.
fn changed_since_release(released: &[(&str, &str)]) -> Vec<String> {
    let listed = |version: &str| std::fs::read(folder().join(version).join(LIST)).unwrap();
    let changed = released.iter().filter(|(version, list)| hash(&listed(version)) != *list);
    changed.map(|(version, _)| (*version).to_owned()).collect()
}

#[test]
fn what_was_released_is_as_it_was_released() {
    assert_eq!(changed_since_release(RELEASED), Vec::<String>::new());
    // Every older version was released, and the check sees a change.
    let current = current_version();
    for folder in versions() {
        let version = folder.file_name().unwrap().to_string_lossy().into_owned();
        assert!(
            version == current || RELEASED.iter().any(|(v, _)| *v == version),
            "{version} is not in RELEASED"
        );
        let changed = changed_since_release(&[(&version, "another hash")]);
        assert_eq!(changed, std::slice::from_ref(&version));
    }
}

#[test]
fn what_the_recorder_would_write_now_is_what_is_recorded() {
    let recorded = recordings();
    for (name, conversation) in sessions::all().unwrap() {
        let path = format!("{}/{name}.{}", current_version(), file::ENDING);
        let found = recorded.iter().find(|(p, _)| *p == path).unwrap_or_else(|| panic!("{path} is missing"));
        assert_eq!(found.1, conversation, "{path}: cargo run -p gpu-handoff-protocol --example record");
    }
}

#[test]
fn a_recording_reads_as_it_was_written() {
    for (_, conversation) in sessions::all().unwrap() {
        assert_eq!(file::read(&file::write(&conversation)).unwrap(), conversation);
    }
    for wrong in
        ["", "no title", "# t\n0801", "# t\n> nobody, 0 descriptors", "# t\n> broker, 0 descriptors\n080"]
    {
        assert!(file::read(wrong).is_err(), "{wrong}");
    }
}
