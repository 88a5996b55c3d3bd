//! Which calls need `cuInit`, which need a context, and what a forked child has.

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::{Attribute, Forked, Request};

use super::here;

const BYTES: u64 = 4 * MIB;

/// Calls by the name that rows give them; pointers and handles are of no memory.
fn calls() -> Vec<(&'static str, Request)> {
    vec![
        ("version", Request::Version),
        ("device-count", Request::DeviceCount),
        ("current", Request::Current),
        ("context-device", Request::ContextDevice),
        ("pop", Request::Pop),
        ("synchronize", Request::Synchronize),
        ("alloc", Request::Alloc { bytes: BYTES }),
        ("free-null", Request::Free { ptr: 0 }),
        ("mem-info", Request::MemInfo),
        ("address-range", Request::AddressRange { ptr: 0x1000 }),
        ("attribute", Request::Attribute { attribute: Attribute::MemoryType, ptr: 0x1000 }),
        ("memset", Request::Fill { ptr: 0x1000, value: 0, words: 1 }),
        ("read", Request::Read { ptr: 0x1000, bytes: 4 }),
        ("create", Request::Create { bytes: BYTES, exportable: true }),
        ("reserve", Request::Reserve { bytes: BYTES }),
        ("ipc-get", Request::IpcGet { ptr: 0x1000 }),
        ("ipc-open", Request::IpcOpen { handle: vec![0; 64], flags: 1 }),
        ("import", Request::ImportNumber { number: 0 }),
        ("stream-create", Request::StreamCreate),
        ("event", Request::EventShare),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, request) in calls() {
        let before = request.clone();
        rows.push(Row::api(
            4,
            format!("noinit-{name}"),
            format!("{} before cuInit", request.name()),
            move |stage| {
                let puppet = stage.shared_uninitialised()?;
                Ok(outcome(&puppet.ask(&before, None)))
            },
        ));
        rows.push(Row::api(
            4,
            format!("nocontext-{name}"),
            format!("{} without a context", request.name()),
            move |stage| {
                let puppet = stage.shared_without_context("nocontext")?;
                Ok(outcome(&puppet.ask(&request, None)))
            },
        ));
    }
    rows.extend(of_memory_without_context());
    rows.extend(of_primary());
    rows.extend(of_fork());
    rows
}

/// A process whose context is no longer current, with memory that it made while it was.
fn detached(
    stage: &mut Stage,
    script: impl FnOnce(&crate::conformance::puppet::Puppet, u64, u64) -> String,
) -> Step<String> {
    let puppet = stage.shared(&here(), "detached")?;
    let context = puppet.word(Request::Current)?;
    let legacy = puppet.word(Request::Alloc { bytes: BYTES })?;
    let vmm = memory::vmm(&puppet, BYTES, true)?.ptr;
    puppet.tell(Request::SetCurrent { context: 0 })?;
    let said = script(&puppet, legacy, vmm);
    puppet.tell(Request::SetCurrent { context })?;
    Ok(said)
}

fn of_memory_without_context() -> Vec<Row> {
    vec![
        Row::api(4, "detached-attributes", "pointer attributes of memory with no context current", |stage| {
            detached(stage, |puppet, legacy, vmm| {
                let ask = |ptr| puppet.word(Request::Attribute { attribute: Attribute::RangeSize, ptr });
                format!("legacy {}, vmm {}", outcome(&ask(legacy)), outcome(&ask(vmm)))
            })
        }),
        Row::api(4, "detached-read", "reading memory with no context current", |stage| {
            detached(stage, |puppet, legacy, vmm| {
                let read = |ptr| outcome(&memory::read(puppet, ptr));
                format!("legacy {}, vmm {}", read(legacy), read(vmm))
            })
        }),
        Row::api(4, "detached-ipc-get", "cuIpcGetMemHandle with no context current", |stage| {
            detached(stage, |puppet, ptr, _| outcome(&puppet.bytes(Request::IpcGet { ptr })))
        }),
        Row::api(4, "detached-free", "cuMemFree with no context current", |stage| {
            detached(stage, |puppet, ptr, _| outcome(&puppet.tell(Request::Free { ptr })))
        }),
        Row::api(4, "detached-address-range", "cuMemGetAddressRange with no context current", |stage| {
            detached(stage, |puppet, legacy, vmm| {
                let ask = |ptr| outcome(&puppet.words(Request::AddressRange { ptr }));
                format!("legacy {}, vmm {}", ask(legacy), ask(vmm))
            })
        }),
        Row::api(4, "detached-unmap", "cuMemUnmap with no context current", |stage| {
            detached(stage, |puppet, _, ptr| outcome(&puppet.tell(Request::Unmap { ptr, bytes: BYTES })))
        }),
        Row::api(4, "detached-ipc-close", "cuIpcCloseMemHandle with no context current", |stage| {
            let exporter = stage.shared(&here(), "exporter")?;
            let importer = stage.own(&here())?;
            let (_, handle) = memory::legacy(&exporter, BYTES)?;
            let ptr = memory::open(&importer, &handle)?;
            importer.tell(Request::SetCurrent { context: 0 })?;
            Ok(outcome(&importer.tell(Request::IpcClose { ptr })))
        }),
    ]
}

fn of_primary() -> Vec<Row> {
    vec![
        Row::api(4, "primary-same", "retaining a primary context twice", |stage| {
            let puppet = stage.initialised(&here())?;
            let (first, second) =
                (puppet.word(Request::Retain { device: 0 })?, puppet.word(Request::Retain { device: 0 })?);
            Ok(if first == second { "the same context".into() } else { "two contexts".into() })
        }),
        Row::api(4, "primary-not-current", "is a retained primary context current?", |stage| {
            let puppet = stage.initialised(&here())?;
            puppet.word(Request::Retain { device: 0 })?;
            Ok(if puppet.word(Request::Current)? == 0 { "no".into() } else { "yes".into() })
        }),
        Row::api(4, "primary-no-such-device", "retaining the primary context of device 99", |stage| {
            Ok(outcome(&stage.initialised(&here())?.word(Request::Retain { device: 99 })))
        }),
        Row::api(
            4,
            "primary-release-unretained",
            "releasing a primary context that was never retained",
            |stage| Ok(outcome(&stage.initialised(&here())?.tell(Request::PrimaryRelease { device: 0 }))),
        ),
        Row::api(
            4,
            "primary-released-alloc",
            "cuMemAlloc while the current primary context is released",
            |stage| {
                let puppet = stage.own(&here())?;
                puppet.tell(Request::PrimaryRelease { device: 0 })?;
                Ok(outcome(&puppet.word(Request::Alloc { bytes: BYTES })))
            },
        ),
        Row::api(4, "primary-released-set", "cuCtxSetCurrent of a released primary context", |stage| {
            let puppet = stage.initialised(&here())?;
            let context = puppet.word(Request::Retain { device: 0 })?;
            puppet.tell(Request::PrimaryRelease { device: 0 })?;
            Ok(outcome(&puppet.tell(Request::SetCurrent { context })))
        }),
        Row::api(4, "primary-released-push", "cuCtxPushCurrent of a released primary context", |stage| {
            let puppet = stage.initialised(&here())?;
            let context = puppet.word(Request::Retain { device: 0 })?;
            puppet.tell(Request::PrimaryRelease { device: 0 })?;
            Ok(outcome(&puppet.tell(Request::Push { context })))
        }),
        Row::api(
            4,
            "primary-released-frees",
            "memory of cuMemAlloc after its primary context was released and made anew",
            |stage| {
                let puppet = stage.own(&here())?;
                let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
                puppet.tell(Request::PrimaryRelease { device: 0 })?;
                memory::enter(&puppet, 0)?;
                Ok(outcome(&memory::read(&puppet, ptr)))
            },
        ),
        Row::api(
            4,
            "primary-released-vmm",
            "a vmm mapping after its primary context was released and made anew",
            |stage| {
                let puppet = stage.own(&here())?;
                let mapped = memory::vmm(&puppet, BYTES, true)?;
                puppet.tell(Request::PrimaryRelease { device: 0 })?;
                memory::enter(&puppet, 0)?;
                Ok(memory::verify(&puppet, mapped.ptr, BYTES).unwrap_or_else(|end| end.to_string()))
            },
        ),
        Row::api(4, "push-pop", "the current context after push and pop", |stage| {
            let puppet = stage.own(&here())?;
            let context = puppet.word(Request::Current)?;
            puppet.tell(Request::Push { context })?;
            let popped = puppet.word(Request::Pop)? == context;
            Ok(format!(
                "popped the same: {popped}, current the same: {}",
                puppet.word(Request::Current)? == context
            ))
        }),
        Row::api(4, "set-current-replaces", "popping after cuCtxSetCurrent on an empty stack", |stage| {
            let puppet = stage.own(&here())?;
            let first = puppet.word(Request::Pop).map(|context| context != 0);
            let second = puppet.word(Request::Pop);
            Ok(format!("first {}, second {}", outcome(&first), outcome(&second)))
        }),
    ]
}

fn of_fork() -> Vec<Row> {
    let forked = |id: &str, says: &str, what: Forked| {
        Row::api(4, id, says, move |stage| stage.shared(&here(), "forks")?.text(Request::Fork { what }))
    };
    vec![
        forked("fork-init", "cuInit in the forked child of an initialised process", Forked::Init),
        forked("fork-device-count", "cuDeviceGetCount there", Forked::DeviceCount),
        forked("fork-current", "cuCtxGetCurrent there", Forked::CurrentContext),
        forked("fork-alloc", "cuMemAlloc there", Forked::Alloc),
        Row::api(4, "fork-read", "reading the parent's memory there", |stage| {
            let puppet = stage.shared(&here(), "forks")?;
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            puppet.text(Request::Fork { what: Forked::Read(ptr) })
        }),
        Row::api(
            4,
            "fork-before-init",
            "cuInit in the forked child of a process that only loaded the library",
            |stage| stage.fresh(&here())?.text(Request::Fork { what: Forked::Init }),
        ),
        Row::api(4, "fork-parent-goes-on", "the parent's memory after its child has ended", |stage| {
            let puppet = stage.shared(&here(), "forks")?;
            let (ptr, _) = memory::legacy(&puppet, BYTES)?;
            puppet.text(Request::Fork { what: Forked::CurrentContext })?;
            memory::verify(&puppet, ptr, BYTES)
        }),
    ]
}
