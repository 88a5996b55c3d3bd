//! Section 3: who keeps device memory alive.

use std::time::{Duration, Instant};

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;

use super::here;

/// Most and least that is allocated, in bytes.
const MOST: u64 = 4096 * MIB;
const LEAST: u64 = 64 * MIB;
/// Which part of the device's memory it is: more than a context takes on a real one, little on a simulated one.
const PART: u64 = 32;
/// How long memory of a dead process may take to come back.
const SETTLE: Duration = Duration::from_secs(3);

/// Tells how much memory is used, as another process on the device sees it.
struct Meter {
    observer: Puppet,
    /// Free bytes before the exporter was there, and with its context.
    without_exporter: u64,
    with_exporter: u64,
    /// How much the row allocates.
    bytes: u64,
}

impl Meter {
    /// Free bytes once they no longer change: processes of rows before may still be going.
    fn settled(observer: &Puppet) -> Step<u64> {
        let (mut before, mut stable) = (observer.words(Request::MemInfo)?.0, 0);
        while stable < 5 {
            std::thread::sleep(Duration::from_millis(20));
            let now = observer.words(Request::MemInfo)?.0;
            stable = if now == before { stable + 1 } else { 0 };
            before = now;
        }
        Ok(before)
    }

    /// A context goes with its process, so what a dead exporter left is counted from before it had one.
    fn exporter_is_gone(&mut self, exporter: &Puppet) {
        exporter.kill();
        self.with_exporter = self.without_exporter;
    }

    fn is_held(&self) -> Step<bool> {
        let used = self.with_exporter.saturating_sub(self.observer.words(Request::MemInfo)?.0);
        Ok(used >= self.bytes / 2)
    }

    /// `held` or `freed`; memory that is to come back gets some time for it.
    fn says(&self) -> Step<&'static str> {
        let end = Instant::now() + SETTLE;
        while self.is_held()? {
            if Instant::now() > end {
                return Ok("held");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok("freed")
    }

    /// The same where the memory is expected to stay: a moment is enough.
    fn says_soon(&self) -> Step<&'static str> {
        std::thread::sleep(Duration::from_millis(700));
        Ok(if self.is_held()? { "held" } else { "freed" })
    }
}

/// An exporter of this row's own, an importer that is warm already, and the meter before either has allocated.
fn scene(stage: &mut Stage) -> Step<(Puppet, Puppet, Meter)> {
    let importer = stage.shared(&here(), "importer")?;
    let observer = stage.shared(&here(), "observer")?;
    let without_exporter = Meter::settled(&observer)?;
    let total = observer.words(Request::MemInfo)?.1;
    let bytes = (total / PART).clamp(LEAST, MOST) / LEAST * LEAST;
    let exporter = stage.own(&here())?;
    let with_exporter = Meter::settled(&observer)?;
    Ok((exporter, importer, Meter { observer, without_exporter, with_exporter, bytes }))
}

pub(super) fn rows() -> Vec<Row> {
    [of_legacy(), of_vmm()].into_iter().flatten().collect()
}

fn of_legacy() -> Vec<Row> {
    vec![
        Row::api(
            3,
            "life-legacy-exporter-killed",
            "exporter killed while a legacy importer maps: memory and bytes",
            |stage| {
                let (exporter, importer, mut meter) = scene(stage)?;
                let (_, handle) = memory::legacy(&exporter, meter.bytes)?;
                let ptr = memory::open(&importer, &handle)?;
                meter.exporter_is_gone(&exporter);
                let held = meter.says_soon()?;
                let bytes = memory::verify(&importer, ptr, meter.bytes)?;
                let closed = outcome(&importer.tell(Request::IpcClose { ptr }));
                Ok(format!("{held}, bytes {bytes}, close {closed}, then {}", meter.says()?))
            },
        ),
        Row::api(
            3,
            "life-legacy-after-death",
            "opening a legacy handle after the exporter's death, nobody maps it",
            |stage| {
                let (exporter, importer, mut meter) = scene(stage)?;
                let (_, handle) = memory::legacy(&exporter, meter.bytes)?;
                meter.exporter_is_gone(&exporter);
                let gone = meter.says()?;
                Ok(format!("{gone}, open {}", outcome(&memory::open(&importer, &handle))))
            },
        ),
        Row::api(
            3,
            "life-legacy-after-death-mapped",
            "the same while another importer still maps it",
            |stage| {
                let (exporter, importer, mut meter) = scene(stage)?;
                let second = stage.shared(&here(), "observer")?;
                let (_, handle) = memory::legacy(&exporter, meter.bytes)?;
                let ptr = memory::open(&importer, &handle)?;
                meter.exporter_is_gone(&exporter);
                std::thread::sleep(Duration::from_millis(200));
                let opened = memory::open(&second, &handle);
                if let Ok(ptr) = opened {
                    second.tell(Request::IpcClose { ptr })?;
                }
                importer.tell(Request::IpcClose { ptr })?;
                Ok(outcome(&opened))
            },
        ),
        Row::api(
            3,
            "life-legacy-reopen-after-death",
            "an importer closing after the exporter's death and opening again",
            |stage| {
                let (exporter, importer, mut meter) = scene(stage)?;
                let (_, handle) = memory::legacy(&exporter, meter.bytes)?;
                let ptr = memory::open(&importer, &handle)?;
                meter.exporter_is_gone(&exporter);
                std::thread::sleep(Duration::from_millis(200));
                importer.tell(Request::IpcClose { ptr })?;
                Ok(outcome(&memory::open(&importer, &handle)))
            },
        ),
    ]
}

fn of_vmm() -> Vec<Row> {
    vec![
        Row::api(
            3,
            "life-vmm-exporter-killed",
            "exporter killed while a vmm importer maps: memory and bytes",
            |stage| {
                let (exporter, importer, mut meter) = scene(stage)?;
                let (_, fd) = memory::shared_vmm(&exporter, meter.bytes)?;
                let ours = memory::import_map(&importer, &fd, meter.bytes)?;
                drop(fd);
                meter.exporter_is_gone(&exporter);
                let held = meter.says_soon()?;
                let bytes = memory::verify(&importer, ours.ptr, meter.bytes)?;
                memory::unmap(&importer, ours)?;
                Ok(format!("{held}, bytes {bytes}, then {}", meter.says()?))
            },
        ),
        Row::api(
            3,
            "life-vmm-descriptor-alone",
            "exporter killed while a process without CUDA holds the descriptor",
            |stage| {
                // The suite itself is that process.
                let (exporter, importer, mut meter) = scene(stage)?;
                let (_, fd) = memory::shared_vmm(&exporter, meter.bytes)?;
                meter.exporter_is_gone(&exporter);
                let held = meter.says_soon()?;
                let ours = memory::import_map(&importer, &fd, meter.bytes)?;
                let bytes = memory::verify(&importer, ours.ptr, meter.bytes)?;
                memory::unmap(&importer, ours)?;
                let again = meter.says_soon()?;
                drop(fd);
                Ok(format!(
                    "{held}, later import reads {bytes}, {again}, descriptor closed: {}",
                    meter.says()?
                ))
            },
        ),
        Row::api(
            3,
            "life-vmm-released-exported",
            "exporter alive, unmapped and released, descriptor open elsewhere",
            |stage| {
                let (exporter, _, meter) = scene(stage)?;
                let (mapped, fd) = memory::shared_vmm(&exporter, meter.bytes)?;
                memory::unmap(&exporter, mapped)?;
                let held = meter.says_soon()?;
                drop(fd);
                Ok(format!("{held}, descriptor closed: {}", meter.says()?))
            },
        ),
        Row::api(3, "life-vmm-released-mapped", "handle released while mapped: memory and bytes", |stage| {
            let (exporter, _, meter) = scene(stage)?;
            let mapped = memory::vmm(&exporter, meter.bytes, true)?;
            exporter.tell(Request::Release { handle: mapped.handle })?;
            let held = meter.says_soon()?;
            let bytes = memory::verify(&exporter, mapped.ptr, meter.bytes)?;
            exporter.tell(Request::Unmap { ptr: mapped.ptr, bytes: meter.bytes })?;
            Ok(format!("{held}, bytes {bytes}, unmapped: {}", meter.says()?))
        }),
        Row::api(
            3,
            "life-vmm-imported-not-mapped",
            "exporter killed while an import is held that was never mapped",
            |stage| {
                let (exporter, importer, mut meter) = scene(stage)?;
                let (_, fd) = memory::shared_vmm(&exporter, meter.bytes)?;
                let handle = memory::import(&importer, std::os::fd::AsFd::as_fd(&fd))?;
                drop(fd);
                meter.exporter_is_gone(&exporter);
                let held = meter.says_soon()?;
                importer.tell(Request::Release { handle })?;
                Ok(format!("{held}, released: {}", meter.says()?))
            },
        ),
    ]
}
