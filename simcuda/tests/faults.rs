//! Faults on demand, in a process that runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use common::loaded::{alone, itself};
use common::wait_for;
use gpu_handoff_simcuda::faults::{Action, Fault, arm, disarm, is_armed};

const UNAVAILABLE: u32 = 46;
const BLOCK: usize = 2 << 20;

/// The directory of the machine that this process is on.
fn dir() -> PathBuf {
    std::env::var_os("SIMCUDA_DIR").unwrap().into()
}

#[test]
fn a_call_fails_as_often_as_told_and_no_other_does() {
    alone("a_call_fails_as_often_as_told_and_no_other_does", &[], |cuda| {
        cuda.start();
        let mut address = 0_usize;
        let mut allocate = || cuda.call("cuMemAlloc_v2", &[(&raw mut address).addr(), BLOCK]);
        assert_eq!(allocate(), 0);
        arm(&dir(), "twice", &Fault::new(Action::Fail(999)).of_call("cuMemAlloc_v2").times(2)).unwrap();
        arm(&dir(), "others", &Fault::new(Action::Fail(999)).of_pid(1)).unwrap();
        assert_eq!(
            [allocate(), cuda.call("cuCtxSynchronize", &[]), allocate(), allocate()],
            [999, 0, 999, 0]
        );
        assert!(!is_armed(&dir(), "twice") && is_armed(&dir(), "others"));
    });
}

#[test]
fn faults_are_armed_and_disarmed_by_hand() {
    alone("faults_are_armed_and_disarmed_by_hand", &[], |cuda| {
        cuda.ok("cuInit", &[0]);
        let run = |words: &[&str]| {
            let program = env!("CARGO_BIN_EXE_simcuda-fault");
            std::process::Command::new(program).args(words).output().unwrap().status.code()
        };
        assert_eq!(run(&["arm", "one", r#"{"does": {"fail": 999}, "call": "cuCtxGetCurrent"}"#]), Some(0));
        let mut context = 0_usize;
        let mut ask = || cuda.call("cuCtxGetCurrent", &[(&raw mut context).addr()]);
        assert_eq!(ask(), 999);
        assert_eq!(run(&["disarm", "one"]), Some(0));
        assert_eq!(ask(), 0);
        assert!(!dir().join("faults").exists(), "nothing is left to look for");
        assert_eq!([run(&["arm", "two", "{}"]), run(&["arm"])], [Some(1), Some(2)]);
    });
}

#[test]
fn a_call_crashes_or_hangs_and_its_file_tells_when() {
    let test = "a_call_crashes_or_hangs_and_its_file_tells_when";
    alone(test, &[], |cuda| {
        cuda.start();
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            cuda.get("cuMemAlloc_v2", &[BLOCK]);
            return;
        }
        let fault = |action| Fault::new(action).of_call("cuMemAlloc_v2").times(1);
        arm(&dir(), "crash", &fault(Action::Crash)).unwrap();
        assert_eq!(itself(test).output().unwrap().status.signal(), Some(11));
        assert!(!is_armed(&dir(), "crash"));
        arm(&dir(), "hang", &fault(Action::Hang).with_argument(test)).unwrap();
        let mut child = itself(test).stdout(std::process::Stdio::null()).spawn().unwrap();
        wait_for("the call to hang", || (!is_armed(&dir(), "hang")).then_some(()));
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(itself(test).output().unwrap().status.success(), "it struck once");
    });
}

#[test]
fn a_lost_gpu_answers_nothing_and_ends_what_waits() {
    let variables = [("SIMCUDA_GPUS", "2"), ("CUDA_VISIBLE_DEVICES", "1")];
    let test = "a_lost_gpu_answers_nothing_and_ends_what_waits";
    alone(test, &variables, |cuda| {
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            return assert_eq!(cuda.call("cuInit", &[0]), 100, "a new process does not see it");
        }
        cuda.start();
        let word = cuda.get("cuMemAlloc_v2", &[BLOCK]);
        cuda.ok("cuMemsetD8_v2", &[word, 0, BLOCK]);
        let stream = cuda.get("cuStreamCreate", &[1]);
        cuda.ok("cuStreamWaitValue64_v2", &[stream, word, 1, 0]);
        arm(&dir(), "other", &Fault::new(Action::Lose(0))).unwrap();
        assert_eq!(cuda.call("cuStreamQuery", &[stream]), 600, "another GPU's loss");
        arm(&dir(), "own", &Fault::new(Action::Lose(1))).unwrap();
        for call in ["cuCtxSynchronize", "cuMemFree_v2", "cuStreamQuery"] {
            assert_eq!(cuda.call(call, &[]), UNAVAILABLE, "{call}");
        }
        let mut text = 0_usize;
        cuda.ok("cuGetErrorName", &[46, (&raw mut text).addr()]);
        assert!(itself(test).output().unwrap().status.success());
        // The wait has ended with the error by the time that the GPU is back.
        let ended = || {
            disarm(&dir(), "own").unwrap();
            let status = cuda.call("cuStreamQuery", &[stream]);
            arm(&dir(), "own", &Fault::new(Action::Lose(1))).unwrap();
            (status != 600).then_some(status)
        };
        assert_eq!(wait_for("the stream", ended), UNAVAILABLE);
        disarm(&dir(), "own").unwrap();
    });
}

#[test]
fn a_file_that_is_no_fault_is_said_to_be_none() {
    let test = "a_file_that_is_no_fault_is_said_to_be_none";
    alone(test, &[], |cuda| {
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            return cuda.ok("cuInit", &[0]);
        }
        arm(&dir(), "wrong", &Fault::new(Action::Hang).of_pid(1)).unwrap();
        std::fs::write(dir().join("faults/wrong"), r#"{"does": "hangs"}"#).unwrap();
        let output = itself(test).output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("simcuda: ") && said.contains("faults/wrong is no fault"), "{said}");
    });
}
