//! One namespace, and the process that sets its numbers.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use gpu_handoff_plugin::limits;
use gpu_handoff_plugin::node::pids::ranges::Grid;
use gpu_handoff_plugin::node::pids::seed::{SeedError, Seeder};

use super::PROGRAM;
use super::pods::{Pod, Registry, available};

#[tokio::test]
async fn a_namespace_goes_on_with_its_numbers_and_again_when_half_of_them_are_used_up() {
    if !available("a_namespace_goes_on_with_its_numbers_and_again_when_half_of_them_are_used_up") {
        return;
    }
    let mut pod = Pod::new(&Registry::default(), 0);
    let seeder = Seeder::new(PROGRAM);
    let first = seeder.seed(pod.pidfd(), 3, None).await.unwrap();
    let numbers = Grid::of(first.pid_max).unwrap().numbers(3);
    assert!(first.is_set && first.last < 100, "{first:?}");
    assert_eq!(pod.next_number(), numbers.before() + 1);
    // Less than half is used up: it stays.
    let second = seeder.seed(pod.pidfd(), 3, Some(first.pid_max)).await.unwrap();
    assert!(!second.is_set && numbers.contains(second.last), "{second:?}");
    let used = pod.next_number();
    assert!(used > second.last && numbers.contains(used));
    // The numbers of another are none of its own.
    let moved = seeder.seed(pod.pidfd(), 4, Some(first.pid_max)).await.unwrap();
    assert!(moved.is_set);
    assert_eq!(pod.next_number(), Grid::of(first.pid_max).unwrap().numbers(4).before() + 1);
}

#[tokio::test]
async fn a_namespace_with_fewer_numbers_is_cut_smaller_and_one_with_too_few_is_not() {
    if !available("a_namespace_with_fewer_numbers_is_cut_smaller_and_one_with_too_few_is_not") {
        return;
    }
    let mut pod = Pod::new(&Registry::default(), 0);
    let read = "read n </proc/sys/kernel/pid_max; echo \"$n\" >\"$GPU.max\"";
    pod.run(read);
    let own = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    if pod.file("nvidia0.max") == own {
        // Before Linux 6.14 it is one number for the whole machine, which is nothing for a test to change.
        return;
    }
    let seeder = Seeder::new(PROGRAM);
    let before = seeder.seed(pod.pidfd(), 40, None).await.unwrap();
    pod.run("echo 40000 >/proc/sys/kernel/pid_max");
    let after = seeder.seed(pod.pidfd(), 40, Some(before.pid_max)).await.unwrap();
    assert_eq!(after.pid_max, 32_768, "{after:?}");
    let small = Grid::of(after.pid_max).unwrap().numbers(40);
    assert_eq!(pod.next_number(), small.before() + 1);
    pod.run("echo 20000 >/proc/sys/kernel/pid_max");
    let none = seeder.seed(pod.pidfd(), 40, Some(1 << 22)).await.unwrap_err();
    assert!(matches!(&none, SeedError::Failed(why) if why.contains("fewer than 32768")), "{none}");
}

#[tokio::test]
async fn a_process_that_has_ended_or_does_not_end_costs_nobody_anything() {
    if !available("a_process_that_has_ended_or_does_not_end_costs_nobody_anything") {
        return;
    }
    let pod = Pod::new(&Registry::default(), 0);
    let pidfd = || pod.pidfd();
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let begin = Instant::now();
    let stuck = Seeder::new(program("stuck", "exec sleep 600")).seed(pidfd(), 0, None).await;
    assert!(matches!(stuck, Err(SeedError::Late)), "{stuck:?}");
    assert!(begin.elapsed() < 3 * limits::PID_SEED_TIME);
    for said in ["echo hello", "echo '{\"pid-max\":7,\"last\":1,\"is-set\":true}'", "yes", "exit 0"] {
        let strange = Seeder::new(program("strange", said)).seed(pidfd(), 0, None).await;
        assert!(!matches!(strange, Ok(_) | Err(SeedError::Start(_))), "{said}: {strange:?}");
    }
    let missing = Seeder::new(folder.path().join("none")).seed(pidfd(), 0, None).await;
    assert!(matches!(missing, Err(SeedError::Start(_))), "{missing:?}");
    let last = pidfd();
    drop(pod);
    let gone = Seeder::new(PROGRAM).seed(last, 0, None).await.unwrap_err();
    assert!(gone.to_string().contains("No such process"), "{gone}");
}
