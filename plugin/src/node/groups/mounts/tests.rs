use super::super::testing::apart;
use super::*;

const MI: u64 = 1 << 20;
const ONE: &str = "0123456789abcdef0123456789abcdef";
const TWO: &str = "fedcba9876543210fedcba9876543210";

fn mounts_below(folder: &Path) -> usize {
    list().unwrap().iter().filter(|mount| mount.at.starts_with(folder)).count()
}

#[test]
fn what_groups_share_is_mounted_as_it_should_be_grows_and_goes() {
    if !apart("node::groups::mounts::tests::what_groups_share_is_mounted_as_it_should_be_grows_and_goes") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("a folder").join("groups");
    let mut kernel = Kernel::open(folder.clone()).unwrap();
    assert_eq!(kernel.found().unwrap(), []);
    let device = kernel.shm(ONE, MI).unwrap();
    let number = kernel.ipc(ONE).unwrap();
    let found = Found { folder: ONE.to_owned(), shm: Some((MI, device)), ipc: Some(number), other: false };
    assert_eq!(kernel.found().unwrap(), std::slice::from_ref(&found));
    // Another life of the daemon finds the same.
    assert_eq!(Kernel::open(folder.clone()).unwrap().found().unwrap(), [found]);
    let shm = kernel.path(ONE, Part::Shm);
    let flags = rustix::fs::statvfs(&shm).unwrap().f_flag;
    for wanted in [
        rustix::fs::StatVfsMountFlags::NOSUID,
        rustix::fs::StatVfsMountFlags::NODEV,
        rustix::fs::StatVfsMountFlags::NOEXEC,
    ] {
        assert!(flags.contains(wanted), "{flags:?}");
    }
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&folder), mode(&folder.join(ONE)), mode(&shm)), (0o700, 0o700, 0o1777));
    // So much fits, and more when it has grown; what was there stays.
    let file = shm.join("file");
    let full = std::fs::write(&file, vec![7; 2 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    std::fs::write(&file, vec![7; 1 << 19]).unwrap();
    kernel.grow(ONE, 4 * MI).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 1 << 19]);
    std::fs::write(shm.join("other"), vec![7; 2 << 20]).unwrap();
    assert_eq!(shm::look(&shm).unwrap(), (4 * MI, device));
    assert_eq!(rustix::fs::statvfs(&shm).unwrap().f_flag, flags, "they outlive a change of size");
    // There is an end to the number of files as well.
    let many =
        (0..10_000).map(|n| std::fs::write(shm.join(n.to_string()), "")).find_map(Result::err).unwrap();
    assert_eq!(many.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    kernel.take_down(ONE, &[Part::Shm]).unwrap();
    assert!(!shm.exists() && kernel.found().unwrap()[0].ipc == Some(number));
    kernel.take_down(ONE, &Part::ALL).unwrap();
    kernel.take_down(ONE, &Part::ALL).unwrap();
    assert!(!folder.join(ONE).exists() && mounts_below(&folder) == 0);
}

#[test]
fn what_is_not_ours_is_told_apart_and_taken_down_with_all_that_is_on_top_of_it() {
    if !apart(
        "node::groups::mounts::tests::what_is_not_ours_is_told_apart_and_taken_down_with_all_that_is_on_top_of_it",
    ) {
        return;
    }
    use rustix::mount::{MountFlags, mount, mount_bind};
    let place = tempfile::tempdir().unwrap();
    let mut kernel = Kernel::open(place.path().join("groups")).unwrap();
    let folder = kernel.folder.clone();
    // A second layer, something below, and something over the whole folder.
    kernel.shm(ONE, MI).unwrap();
    kernel.ipc(ONE).unwrap();
    kernel.shm(TWO, MI).unwrap();
    let shm = kernel.path(ONE, Part::Shm);
    mount(c"tmpfs", &shm, c"tmpfs", MountFlags::empty(), None).unwrap();
    std::fs::create_dir(shm.join("deep")).unwrap();
    mount_bind("/", shm.join("deep")).unwrap();
    mount(c"tmpfs", folder.join(TWO), c"tmpfs", MountFlags::empty(), None).unwrap();
    let mut found = kernel.found().unwrap();
    found.sort_by(|a, b| a.folder.cmp(&b.folder));
    assert!(found[0].other && found[0].shm.is_none() && found[0].ipc.is_some(), "{found:?}");
    assert!(found[1].other, "{found:?}");
    // What has no such name is nobody's to take down.
    std::fs::create_dir(folder.join("other")).unwrap();
    std::fs::write(folder.join("file"), "").unwrap();
    std::os::unix::fs::symlink("/", folder.join("link")).unwrap();
    assert_eq!(kernel.found().unwrap().len(), 2);
    for name in [ONE, TWO] {
        kernel.take_down(name, &Part::ALL).unwrap();
    }
    assert_eq!(mounts_below(&folder), 0);
    let number = kernel.shm(ONE, MI).unwrap();
    let made = Found { folder: ONE.to_owned(), shm: Some((MI, number)), ..Found::default() };
    assert_eq!(kernel.found().unwrap(), [made]);
    // Somebody who has a file open there does not keep it.
    let open = std::fs::File::create(kernel.path(ONE, Part::Shm).join("open")).unwrap();
    kernel.take_down(ONE, &Part::ALL).unwrap();
    drop(open);
    assert_eq!((mounts_below(&folder), kernel.found().unwrap()), (0, vec![]));
}

#[test]
fn lines_of_the_kernels_list_are_read_with_all_that_a_path_may_hold() {
    let line = br"36 35 98:0 /mnt1 /a\040b\134\012c rw,noatime shared:7 master:1 - ext3 /dev/root rw,errors=continue";
    let mount = parse(line).unwrap();
    assert_eq!(mount.at, Path::new("/a b\\\nc"));
    assert_eq!(
        (mount.root.as_str(), mount.file_system.as_str(), mount.source.as_str()),
        ("/mnt1", "ext3", "/dev/root")
    );
    assert!(mount.is_shared);
    let private = parse(b"36 35 0:4 ipc:[4026532] /x rw - nsfs nsfs rw").unwrap();
    assert!(!private.is_shared && ipc::is_one(&private));
    for bad in
        [&b""[..], b"36 35 98:0 /", b"36 35 98:0 / relative rw - a b c", b"36 35 98:0 / /x rw shared:7"]
    {
        assert_eq!(parse(bad), None);
    }
    assert!(!list().unwrap().is_empty());
}
