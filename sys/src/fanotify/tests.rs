use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, mount};

use super::*;
use crate::testing::{Place, apart};

/// The next thing that is told.
fn next(watch: &mut Watch) -> Event {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(event) = watch.next().unwrap() {
            return event;
        }
        assert!(Instant::now() < deadline, "nothing is told");
        let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&second)).unwrap();
    }
}

fn made(event: Event) -> (FileKey, Option<u32>) {
    match event {
        Event::Made { file, by } => (file, by.map(|by| by.pid)),
        other => panic!("{other:?}"),
    }
}

fn key(folder: &File, name: &CStr) -> FileKey {
    FileKey::of(folder.as_fd(), name).unwrap()
}

fn shell(folder: &Path, script: &str) -> u32 {
    let mut child = Command::new("/bin/sh").args(["-c", script]).current_dir(folder).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    child.id()
}

#[test]
fn what_is_made_on_a_tmpfs_is_told_with_who_made_it_and_when_it_is_gone() {
    if !apart("fanotify::tests::what_is_made_on_a_tmpfs_is_told_with_who_made_it_and_when_it_is_gone") {
        return;
    }
    let place = Place::new("fanotify");
    mount(c"tmpfs", place.path(), c"tmpfs", MountFlags::NOSUID, None).unwrap();
    let folder = File::open(place.path()).unwrap();
    let mut watch = Watch::of(folder.as_fd()).unwrap();
    assert!(watch.next().unwrap().is_none());
    let own = Some(std::process::id());
    std::fs::write(place.path().join("one"), "").unwrap();
    let one = key(&folder, c"one");
    assert_eq!(made(next(&mut watch)), (one.clone(), own));
    std::fs::create_dir(place.path().join("deep")).unwrap();
    assert_eq!(made(next(&mut watch)), (key(&folder, c"deep"), own));
    let strange = "deep/a\nb";
    std::os::unix::net::UnixListener::bind(place.path().join(strange)).unwrap();
    assert_eq!(made(next(&mut watch)).1, own);
    // Further names of it are told of, and it stays what it is.
    for change in ["ln one two", "mv one three"] {
        shell(place.path(), change);
        assert_eq!(made(next(&mut watch)).0, one, "{change}");
    }
    assert_eq!(key(&folder, c"three"), one);
    // With the last name of it that is gone too, and not before.
    shell(place.path(), "rm two");
    assert!(watch.next().unwrap().is_none());
    let open = File::open(place.path().join("three")).unwrap();
    shell(place.path(), "rm three");
    assert!(watch.next().unwrap().is_none());
    drop(open);
    assert!(matches!(next(&mut watch), Event::Gone(file) if file == one));
    // Another file is another, whatever number its inode has.
    std::fs::write(place.path().join("one"), "").unwrap();
    assert_ne!(key(&folder, c"one"), one);
    assert_eq!(made(next(&mut watch)).1, own);
    let deep = key(&folder, c"deep");
    shell(place.path(), "rm -r deep");
    let gone = [next(&mut watch), next(&mut watch)];
    assert!(gone.iter().any(|event| matches!(event, Event::Gone(file) if *file == deep)), "{gone:?}");
    rustix::mount::unmount(place.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn so_are_message_queues_of_a_pinned_namespace() {
    if !apart("fanotify::tests::so_are_message_queues_of_a_pinned_namespace") {
        return;
    }
    let place = Place::new("queues");
    let pin = place.path().join("ipc");
    std::fs::write(&pin, "").unwrap();
    crate::namespaces::pin_new_ipc(&pin).unwrap();
    let folder = File::from(crate::namespaces::message_queues(&pin).unwrap());
    let mut watch = match Watch::of_folder(folder.as_fd()) {
        Ok(watch) => watch,
        // Before Linux 6.6.
        Err(e) => return crate::testing::skip("so_are_message_queues_of_a_pinned_namespace", &e.to_string()),
    };
    crate::namespaces::within(&pin, || {
        // SAFETY: the name ends with a zero byte; without attributes there is nothing else that is read.
        let queue = unsafe {
            libc::mq_open(
                c"/one".as_ptr(),
                libc::O_CREAT | libc::O_RDWR,
                0o600,
                std::ptr::null::<libc::mq_attr>(),
            )
        };
        drop(owned(queue).unwrap());
    })
    .unwrap();
    assert_eq!(made(next(&mut watch)), (key(&folder, c"one"), Some(std::process::id())));
    rustix::fs::unlinkat(&folder, c"one", rustix::fs::AtFlags::empty()).unwrap();
    assert!(matches!(next(&mut watch), Event::Gone(_)));
    rustix::mount::unmount(&pin, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn who_has_ended_is_nobody_and_more_than_is_read_in_time_is_lost() {
    if !apart("fanotify::tests::who_has_ended_is_nobody_and_more_than_is_read_in_time_is_lost") {
        return;
    }
    let place = Place::new("overflow");
    mount(c"tmpfs", place.path(), c"tmpfs", MountFlags::NOSUID, None).unwrap();
    let folder = File::open(place.path()).unwrap();
    let mut watch = Watch::of(folder.as_fd()).unwrap();
    shell(place.path(), "echo > one");
    assert_eq!(made(next(&mut watch)), (key(&folder, c"one"), None));
    let queued: usize =
        std::fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap().trim().parse().unwrap();
    for n in 0..=queued {
        std::fs::hard_link(place.path().join("one"), place.path().join(n.to_string())).unwrap();
    }
    let mut told = 0;
    loop {
        match next(&mut watch) {
            Event::Made { .. } => told += 1,
            Event::Lost => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=queued).contains(&told), "{told}");
    rustix::mount::unmount(place.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn what_does_not_read_as_it_should_is_an_error_and_never_a_panic() {
    // A file made by nobody: metadata, a handle of four bytes.
    let mut good = vec![0; 0];
    let piece = [
        &[libc::FAN_EVENT_INFO_TYPE_FID, 0, 24, 0][..],
        &[0; 8],
        &4_u32.to_ne_bytes(),
        &1_i32.to_ne_bytes(),
        &[1, 2, 3, 4],
    ]
    .concat();
    let length = u32::try_from(METADATA_BYTES + piece.len()).unwrap();
    good.extend(length.to_ne_bytes());
    good.extend([libc::FANOTIFY_METADATA_VERSION, 0]);
    good.extend(24_u16.to_ne_bytes());
    good.extend(libc::FAN_CREATE.to_ne_bytes());
    good.extend([0xff; 4]);
    good.extend(7_i32.to_ne_bytes());
    good.extend(&piece);
    let read = |bytes: &[u8]| {
        let mut into = VecDeque::new();
        parse(bytes, &mut into).map(|()| into.len())
    };
    assert_eq!(read(&good).unwrap(), 1);
    assert_eq!(read(&[good.clone(), good.clone()].concat()).unwrap(), 2);
    for cut in 1..good.len() {
        assert!(read(&good[..cut]).is_err(), "{cut}");
    }
    for at in 0..good.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = byte;
            let _whatever = read(&bad);
        }
    }
}
