//! What the daemon says of the kernel and the GPUs.

use super::*;

#[test]
fn the_kernel_and_the_gpus() {
    let held =
        |held: kernel::Held| of_status("kernel.holds", |s| s.kernel.as_mut().unwrap().held = held.into());
    says(&held(kernel::Held::Partly), Verdict::Note, "but not from truncating");
    says(&held(kernel::Held::Not), Verdict::Note, "no Landlock");
    says(&held(kernel::Held::Unknown), Verdict::CouldNotCheck, "does not say");
    let old = |s: &mut StatusResponse| s.kernel.as_mut().unwrap().peer_pidfd = false;
    says(&of_status("kernel.identity", old), Verdict::Note, "by its number");
    let none = |members: usize| {
        of_status("gpus.found", |s| {
            s.gpus = Some(Gpus { proc_root: "/proc".into(), ..Gpus::default() });
            s.slots.as_mut().unwrap().members.truncate(members);
        })
    };
    says(&none(0), Verdict::Note, "0 below /proc; no driver");
    says(&none(2), Verdict::Problem, "can publish nothing: 2");
}

#[test]
fn a_driver_that_cannot_be_loaded() {
    let with = |asked: bool, failure: Option<&str>| {
        of_status("gpus.driver", |s| {
            let failure = failure.map(str::to_owned);
            s.gpus.as_mut().unwrap().loaded = Some(Driver { asked, failure });
        })
    };
    let why = "load the driver: libcuda.so.1: cannot open shared object file";
    says(&with(true, Some(why)), Verdict::Problem, why);
    says(&with(false, None), Verdict::Note, "not asked yet");
    let older = of_status("gpus.driver", |s| s.gpus.as_mut().unwrap().loaded = None);
    says(&older, Verdict::CouldNotCheck, "does not say");
    let none = of_status("gpus.driver", |s| {
        let loaded = Some(Driver { asked: true, failure: Some(why.into()) });
        s.gpus = Some(Gpus { loaded, ..Gpus::default() });
    });
    says(&none, Verdict::Ok, "no GPU");
}
