//! Section 4: what a process without a context learns of a descriptor, and what sizes, offsets and descriptors the
//! driver takes.

use std::os::fd::{AsFd, OwnedFd};

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{End, Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;

use super::here;

/// Two granules, so that half of it can be asked for.
const BYTES: u64 = 4 * MIB;
const GRANULE: u64 = 2 * MIB;

/// A broker without a context, and a descriptor of an exporter's memory.
fn scene(stage: &mut Stage) -> Step<(Puppet, OwnedFd)> {
    let exporter = stage.shared(&here(), "exporter")?;
    let broker = stage.shared_without_context("broker")?;
    let handle = exporter.word(Request::Create { bytes: BYTES, exportable: true })?;
    let fd = exporter.fd(Request::Export { handle })?;
    exporter.tell(Request::Release { handle })?;
    Ok((broker, fd))
}

/// Tries to map `bytes` at `offset` of an import into a reservation of `reserved`.
fn try_map(stage: &mut Stage, reserved: u64, bytes: u64, offset: u64) -> Step<String> {
    let (broker, fd) = scene(stage)?;
    let handle = memory::import(&broker, fd.as_fd())?;
    let ptr = broker.word(Request::Reserve { bytes: reserved })?;
    let mapped = broker.tell(Request::Map { ptr, bytes, offset, handle });
    if mapped.is_ok() {
        broker.tell(Request::Unmap { ptr, bytes })?;
    }
    broker.tell(Request::AddressFree { ptr, bytes: reserved })?;
    broker.tell(Request::Release { handle })?;
    Ok(outcome(&mapped))
}

/// Tries to import something that is no device memory.
fn try_import(stage: &mut Stage, fd: std::io::Result<OwnedFd>) -> Step<String> {
    let fd = fd.map_err(|error| End::NotRun(error.to_string()))?;
    let broker = stage.shared_without_context("broker")?;
    Ok(outcome(&memory::import(&broker, fd.as_fd())))
}

pub(super) fn rows() -> Vec<Row> {
    [of_looking(), of_mapping(), of_descriptors(), of_creating(), of_kernel()].into_iter().flatten().collect()
}

fn of_looking() -> Vec<Row> {
    vec![
        Row::api(4, "broker-import", "importing a descriptor after cuInit alone", |stage| {
            let (broker, fd) = scene(stage)?;
            let handle = memory::import(&broker, fd.as_fd());
            handle.clone().and_then(|handle| broker.tell(Request::Release { handle }))?;
            Ok(outcome(&handle))
        }),
        Row::api(4, "broker-properties", "properties of that import", |stage| {
            let (broker, fd) = scene(stage)?;
            let handle = memory::import(&broker, fd.as_fd())?;
            let said = broker.text(Request::Properties { handle })?;
            broker.tell(Request::Release { handle })?;
            Ok(said)
        }),
        Row::api(4, "broker-set-access", "mapping and cuMemSetAccess without a context", |stage| {
            let (broker, fd) = scene(stage)?;
            let mapped = memory::import_map(&broker, &fd, BYTES);
            if let Ok(mapped) = mapped {
                memory::unmap(&broker, mapped)?;
            }
            Ok(outcome(&mapped))
        }),
        Row::api(4, "broker-no-context-after", "the current context after all that", |stage| {
            let (broker, _) = scene(stage)?;
            Ok(if broker.word(Request::Current)? == 0 { "none".into() } else { "one".into() })
        }),
        Row::api(4, "broker-inspect-right", "the inspection with the right size", |stage| {
            let (broker, fd) = scene(stage)?;
            let (found, _) = broker.ask(&Request::Inspect { claimed: BYTES }, Some(fd.as_fd()))?;
            Ok(found.text)
        }),
        Row::api(4, "broker-inspect-more", "the inspection with too large a size", |stage| {
            let (broker, fd) = scene(stage)?;
            let (found, _) = broker.ask(&Request::Inspect { claimed: 8 * BYTES }, Some(fd.as_fd()))?;
            Ok(found.text)
        }),
        Row::api(4, "broker-inspect-less", "the inspection with too small a size", |stage| {
            let (broker, fd) = scene(stage)?;
            let (found, _) = broker.ask(&Request::Inspect { claimed: BYTES / 2 }, Some(fd.as_fd()))?;
            Ok(found.text)
        }),
    ]
}

fn of_mapping() -> Vec<Row> {
    let row = |id: &str, says: &str, reserved, bytes, offset| {
        Row::api(4, id, says, move |stage| try_map(stage, reserved, bytes, offset))
    };
    vec![
        row("map-n", "mapping all of n bytes", BYTES, BYTES, 0),
        row("map-2n", "mapping 2n bytes", 2 * BYTES, 2 * BYTES, 0),
        row("map-n-plus-granule", "mapping a granule more than n", BYTES + GRANULE, BYTES + GRANULE, 0),
        row("map-half", "mapping half of it", BYTES, BYTES / 2, 0),
        row("map-offset", "mapping the second half, at an offset", BYTES, BYTES / 2, BYTES / 2),
        row("map-into-larger", "mapping n bytes into a reservation of 2n", 2 * BYTES, BYTES, 0),
        Row::api(4, "map-beyond-reservation", "mapping n bytes into a reservation of n/2", |stage| {
            // In a process of its own: addresses that rows before it reserved and freed can lie behind it.
            let puppet = stage.own(&here())?;
            let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            let ptr = puppet.word(Request::Reserve { bytes: BYTES / 2 })?;
            Ok(outcome(&puppet.tell(Request::Map { ptr, bytes: BYTES, offset: 0, handle })))
        }),
        row("map-unaligned-size", "mapping n - 4096 bytes", BYTES, BYTES - 4096, 0),
        row("map-unaligned-offset", "mapping a granule at offset 4096", BYTES, GRANULE, 4096),
        row("map-zero", "mapping 0 bytes", BYTES, 0, 0),
        Row::api(4, "map-twice-same-range", "mapping over a range that is mapped", |stage| {
            let (broker, fd) = scene(stage)?;
            let mapped = memory::import_map(&broker, &fd, BYTES)?;
            let again =
                broker.tell(Request::Map { ptr: mapped.ptr, bytes: BYTES, offset: 0, handle: mapped.handle });
            memory::unmap(&broker, mapped)?;
            Ok(outcome(&again))
        }),
        Row::api(4, "map-twice-elsewhere", "mapping one handle at two addresses", |stage| {
            let solo = stage.solo()?;
            let first = memory::vmm(&solo, BYTES, true)?;
            let second = memory::map(&solo, first.handle, BYTES);
            Ok(match second {
                Ok(second) => format!("OK, the same bytes: {}", memory::verify(&solo, second.ptr, BYTES)?),
                refused => outcome(&refused),
            })
        }),
        Row::api(4, "reserve-unaligned", "reserving 4096 bytes of addresses", |stage| {
            Ok(outcome(&stage.solo()?.word(Request::Reserve { bytes: 4096 })))
        }),
        Row::api(4, "reserve-zero", "reserving 0 bytes of addresses", |stage| {
            Ok(outcome(&stage.solo()?.word(Request::Reserve { bytes: 0 })))
        }),
    ]
}

fn of_descriptors() -> Vec<Row> {
    let from = |id: &str, says: &str, make: fn() -> std::io::Result<OwnedFd>| {
        Row::api(4, id, says, move |stage| try_import(stage, make()))
    };
    vec![
        from("import-pipe", "importing a pipe", || Ok(std::io::pipe()?.0.into())),
        from("import-socket", "importing a Unix socket", || {
            Ok(std::os::unix::net::UnixStream::pair()?.0.into())
        }),
        from("import-memfd", "importing a memfd of the right size", || {
            let fd = rustix::fs::memfd_create("conformance", rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&fd, BYTES)?;
            Ok(fd)
        }),
        from("import-dev-null", "importing /dev/null", || Ok(std::fs::File::open("/dev/null")?.into())),
        from("import-file", "importing a regular file", || Ok(tempfile::tempfile()?.into())),
        from("import-folder", "importing a folder", || Ok(std::fs::File::open("/")?.into())),
        Row::api(4, "import-closed-number", "importing a descriptor number that is not open", |stage| {
            let broker = stage.shared_without_context("broker")?;
            Ok(outcome(&broker.word(Request::ImportNumber { number: 999 })))
        }),
        Row::api(4, "import-minus-one", "importing the number -1", |stage| {
            let broker = stage.shared_without_context("broker")?;
            Ok(outcome(&broker.word(Request::ImportNumber { number: -1 })))
        }),
        Row::api(4, "import-twice", "importing one descriptor twice", |stage| {
            let (broker, fd) = scene(stage)?;
            let first = memory::import(&broker, fd.as_fd())?;
            let second = memory::import(&broker, fd.as_fd())?;
            let said = if first == second { "the same handle" } else { "two handles" };
            let releases = [first, second].map(|handle| outcome(&broker.tell(Request::Release { handle })));
            Ok(format!("{said}, releases {}", releases.join(", ")))
        }),
        Row::api(4, "import-own", "a process importing its own descriptor", |stage| {
            let solo = stage.solo()?;
            let (mapped, fd) = memory::shared_vmm(&solo, BYTES)?;
            let again = memory::import(&solo, fd.as_fd())?;
            let same = if again == mapped.handle { "the same handle" } else { "another handle" };
            let view = memory::map(&solo, again, BYTES)?;
            Ok(format!("{same}, bytes {}", memory::verify(&solo, view.ptr, BYTES)?))
        }),
        Row::api(4, "export-twice", "exporting one handle twice", |stage| {
            let solo = stage.solo()?;
            let handle = solo.word(Request::Create { bytes: BYTES, exportable: true })?;
            let first = solo.fd(Request::Export { handle })?;
            let second = solo.fd(Request::Export { handle })?;
            let mut views = Vec::new();
            for fd in [first, second] {
                let view = memory::import(&solo, fd.as_fd())?;
                views.push(outcome(&solo.tell(Request::Release { handle: view })));
            }
            Ok(format!("two descriptors, both import: {}", views.join(", ")))
        }),
        Row::api(4, "export-import", "exporting what was imported", |stage| {
            let (broker, fd) = scene(stage)?;
            let handle = memory::import(&broker, fd.as_fd())?;
            let exported = broker.fd(Request::Export { handle });
            broker.tell(Request::Release { handle })?;
            Ok(outcome(&exported))
        }),
        Row::api(4, "export-private", "exporting vmm memory made without the descriptor type", |stage| {
            let solo = stage.solo()?;
            let handle = solo.word(Request::Create { bytes: BYTES, exportable: false })?;
            Ok(outcome(&solo.fd(Request::Export { handle })))
        }),
        Row::api(4, "import-pool", "importing a memory pool's descriptor as vmm memory", |stage| {
            let solo = stage.solo()?;
            let pool = solo.word(Request::PoolCreate { exportable: true })?;
            let fd = solo.fd(Request::PoolExport { pool })?;
            Ok(outcome(&memory::import(&solo, fd.as_fd())))
        }),
    ]
}

fn of_creating() -> Vec<Row> {
    let create = |id: &str, says: &str, bytes| {
        Row::api(4, id, says, move |stage| {
            Ok(outcome(&stage.solo()?.word(Request::Create { bytes, exportable: true })))
        })
    };
    vec![
        Row::api(4, "granularity", "least granularity of vmm memory", |stage| {
            Ok(format!("{} bytes", stage.solo()?.word(Request::Granularity)?))
        }),
        create(
            "create-unaligned",
            "cuMemCreate of a size that is no multiple of the granularity",
            BYTES - 4096,
        ),
        create("create-zero", "cuMemCreate of 0 bytes", 0),
        create("create-too-large", "cuMemCreate of 1 PiB", 1 << 50),
        Row::api(4, "create-properties", "properties of memory made without the descriptor type", |stage| {
            let solo = stage.solo()?;
            let handle = solo.word(Request::Create { bytes: BYTES, exportable: false })?;
            solo.text(Request::Properties { handle })
        }),
        Row::api(4, "retain-handle", "cuMemRetainAllocationHandle of a pointer into a mapping", |stage| {
            let solo = stage.solo()?;
            let mapped = memory::vmm(&solo, BYTES, true)?;
            let handle = solo.word(Request::RetainHandle { ptr: mapped.ptr + MIB })?;
            let same = if handle == mapped.handle { "the same handle" } else { "another handle" };
            Ok(format!("{same}, release {}", outcome(&solo.tell(Request::Release { handle }))))
        }),
        Row::api(4, "retain-handle-legacy", "cuMemRetainAllocationHandle of cuMemAlloc memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&solo.word(Request::RetainHandle { ptr })))
        }),
        Row::api(4, "retain-handle-host", "cuMemRetainAllocationHandle of a host pointer", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::HostPointer)?;
            Ok(outcome(&solo.word(Request::RetainHandle { ptr })))
        }),
    ]
}

fn of_kernel() -> Vec<Row> {
    vec![
        Row::kernel(4, "descriptor-type", "what fstat says of an exported descriptor", |stage| {
            let (_, fd) = scene(stage)?;
            let stat = rustix::fs::fstat(&fd).map_err(|error| End::NotRun(error.to_string()))?;
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            Ok(format!("{kind:?} {major}:{minor}, size {}", stat.st_size))
        }),
        Row::kernel(4, "descriptor-link", "what /proc/self/fd says of it", |stage| {
            let (_, fd) = scene(stage)?;
            let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            let target = std::fs::read_link(link).map_err(|error| End::NotRun(error.to_string()))?;
            Ok(target.display().to_string())
        }),
        Row::kernel(
            3,
            "descriptor-attribution",
            "processes that nvidia-smi lists while a descriptor alone holds 512 MiB",
            |stage| {
                let exporter = stage.own(&here())?;
                let handle = exporter.word(Request::Create { bytes: 512 * MIB, exportable: true })?;
                let fd = exporter.fd(Request::Export { handle })?;
                exporter.kill();
                std::thread::sleep(std::time::Duration::from_millis(700));
                let query = ["--query-compute-apps=used_memory", "--format=csv,noheader,nounits"];
                let output = std::process::Command::new("nvidia-smi").args(query).output();
                drop(fd);
                let output = output.map_err(|error| End::NotRun(format!("nvidia-smi: {error}")))?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let largest = text.lines().filter_map(|line| line.trim().parse::<u64>().ok()).max();
                Ok(format!(
                    "largest {} MiB",
                    largest.map_or_else(|| "none".to_owned(), |mib| mib.to_string())
                ))
            },
        ),
    ]
}
