//! The built library loaded as programs load it, without the vendor's header: what needs no second process.
//!
//! Each test runs in a process of its own (it starts itself again), because the library's state is the process's.

#![allow(unsafe_code, reason = "calls C functions by name")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use common::loaded::{alone, itself};

const MIB: usize = 1 << 20;
const BLOCK: usize = 2 * MIB;

#[test]
fn calls_before_init_and_without_context_say_so() {
    alone("calls_before_init_and_without_context_say_so", &[], |cuda| {
        let mut count = 0_usize;
        assert_eq!(cuda.call("cuDeviceGetCount", &[(&raw mut count).addr()]), 3);
        cuda.ok("cuInit", &[0]);
        assert_eq!(cuda.get("cuDeviceGetCount", &[]) & 0xffff_ffff, 1);
        assert_eq!(cuda.call("cuMemAlloc_v2", &[(&raw mut count).addr(), BLOCK]), 201);
        assert_eq!(cuda.call("cuMemAlloc_v2", &[0, BLOCK]), 201);
    });
}

#[test]
fn a_missing_directory_is_a_machine_without_gpus() {
    let variables = [("SIMCUDA_DIR", "/proc/nowhere/gpu")];
    alone("a_missing_directory_is_a_machine_without_gpus", &variables, |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 100);
    });
}

#[test]
fn capacity_is_enforced_and_comes_back() {
    alone("capacity_is_enforced_and_comes_back", &[("SIMCUDA_MEMORY_MIB", "8")], |cuda| {
        cuda.start();
        let (mut free, mut total, mut none) = (0_usize, 0_usize, 0_usize);
        let first = cuda.get("cuMemAlloc_v2", &[6 * MIB]);
        cuda.ok("cuMemGetInfo_v2", &[(&raw mut free).addr(), (&raw mut total).addr()]);
        assert_eq!((free, total), (2 * MIB, 8 * MIB));
        assert_eq!(cuda.call("cuMemAlloc_v2", &[(&raw mut none).addr(), 4 * MIB]), 2);
        cuda.ok("cuMemFree_v2", &[first]);
        let second = cuda.get("cuMemAlloc_v2", &[8 * MIB]);
        cuda.ok("cuMemFree_v2", &[second]);
    });
}

#[test]
fn small_allocations_share_a_block_and_keep_apart() {
    alone("small_allocations_share_a_block_and_keep_apart", &[], |cuda| {
        cuda.start();
        let (first, second) = (cuda.get("cuMemAlloc_v2", &[4096]), cuda.get("cuMemAlloc_v2", &[4096]));
        assert_eq!(second, first + 4096);
        assert_eq!(
            cuda.call("cuMemsetD8_v2", &[first, 1, 8192]),
            1,
            "a memset must not run into the neighbour"
        );
        cuda.ok("cuMemsetD8_v2", &[first, 1, 4096]);
        cuda.ok("cuMemsetD8_v2", &[second, 2, 4096]);
        let mut bytes = [0_u8; 4096];
        cuda.ok("cuMemcpyDtoH_v2", &[bytes.as_mut_ptr().addr(), first, bytes.len()]);
        assert_eq!(bytes, [1; 4096]);
        let (mut base, mut length) = (0_usize, 0_usize);
        cuda.ok("cuMemGetAddressRange_v2", &[(&raw mut base).addr(), (&raw mut length).addr(), second + 100]);
        assert_eq!((base, length), (second, 4096));
        cuda.ok("cuMemFree_v2", &[first]);
        assert_eq!(cuda.get("cuMemAlloc_v2", &[512]), first, "what was freed is used again");
    });
}

#[test]
fn a_stream_is_asynchronous_and_the_word_it_waits_for_sets_it_free() {
    alone("a_stream_is_asynchronous_and_the_word_it_waits_for_sets_it_free", &[], |cuda| {
        cuda.start();
        let word = cuda.get("cuMemAlloc_v2", &[4096]);
        cuda.ok("cuMemsetD8_v2", &[word, 0, 4096]);
        let (waiter, writer) = (cuda.get("cuStreamCreate", &[1]), cuda.get("cuStreamCreate", &[1]));
        let event = cuda.get("cuEventCreate", &[2]);
        cuda.ok("cuStreamWaitValue64_v2", &[waiter, word, 7, 0]);
        cuda.ok("cuMemsetD32Async", &[word + 64, 5, 1, waiter]);
        cuda.ok("cuEventRecord", &[event, waiter]);
        assert_eq!(cuda.call("cuStreamQuery", &[waiter]), 600);
        assert_eq!(cuda.call("cuEventQuery", &[event]), 600);
        cuda.ok("cuStreamWriteValue64_v2", &[writer, word, 7, 0]);
        cuda.ok("cuEventSynchronize", &[event]);
        let mut value = 0_u32;
        cuda.ok("cuMemcpyDtoH_v2", &[(&raw mut value).addr(), word + 64, 4]);
        assert_eq!(value, 5);
        cuda.ok("cuStreamDestroy_v2", &[waiter]);
        assert_eq!(cuda.call("cuStreamQuery", &[waiter]), 400);
    });
}

#[test]
fn two_gpus_have_their_own_memory_and_reach_each_other() {
    alone("two_gpus_have_their_own_memory_and_reach_each_other", &[("SIMCUDA_GPUS", "2")], |cuda| {
        cuda.start();
        let other = cuda.get("cuDevicePrimaryCtxRetain", &[1]);
        let near = cuda.get("cuMemAlloc_v2", &[BLOCK]);
        cuda.ok("cuCtxPushCurrent_v2", &[other]);
        let far = cuda.get("cuMemAlloc_v2", &[BLOCK]);
        assert_eq!(cuda.get("cuCtxGetDevice", &[]) & 0xffff_ffff, 1);
        cuda.ok("cuCtxPopCurrent_v2", &[0]);
        cuda.ok("cuMemsetD32_v2", &[near, 0x1234, BLOCK / 4]);
        cuda.ok("cuMemcpyDtoD_v2", &[far, near, BLOCK]);
        let mut value = 0_u32;
        cuda.ok("cuMemcpyDtoH_v2", &[(&raw mut value).addr(), far + BLOCK - 4, 4]);
        assert_eq!(value, 0x1234);
        for (address, ordinal) in [(near, 0), (far, 1)] {
            assert_eq!(cuda.get("cuPointerGetAttribute", &[9, address]) & 0xffff_ffff, ordinal);
        }
        let mut uuids = [[0_u8; 16]; 2];
        for (device, uuid) in uuids.iter_mut().enumerate() {
            cuda.ok("cuDeviceGetUuid_v2", &[uuid.as_mut_ptr().addr(), device]);
        }
        assert_ne!(uuids[0], uuids[1]);
    });
}

#[test]
fn the_variable_hides_and_orders_gpus() {
    let variables = [("SIMCUDA_GPUS", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")];
    alone("the_variable_hides_and_orders_gpus", &variables, |cuda| {
        cuda.start();
        assert_eq!(cuda.get("cuDeviceGetCount", &[]) & 0xffff_ffff, 2);
        let last = |device: usize| {
            let mut uuid = [0_u8; 16];
            cuda.ok("cuDeviceGetUuid_v2", &[uuid.as_mut_ptr().addr(), device]);
            uuid[15]
        };
        assert_eq!([last(0), last(1)], [2, 0]);
        let mut none = 0_usize;
        assert_eq!(cuda.call("cuDeviceGet", &[(&raw mut none).addr(), 2]), 101);
    });
}

#[test]
fn a_variable_that_names_nothing_leaves_no_gpu() {
    let variables = [("CUDA_VISIBLE_DEVICES", "")];
    alone("a_variable_that_names_nothing_leaves_no_gpu", &variables, |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 100);
    });
}

#[test]
fn a_released_handle_takes_the_program_down_as_it_does_on_the_driver() {
    let test = "a_released_handle_takes_the_program_down_as_it_does_on_the_driver";
    alone(test, &[], |cuda| {
        cuda.ok("cuInit", &[0]);
        let prop: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
        let handle = cuda.get("cuMemCreate", &[BLOCK, prop.as_ptr().addr(), 0]);
        cuda.ok("cuMemRelease", &[handle]);
        assert_eq!(cuda.call("cuMemRelease", &[handle]), 1);
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            cuda.get("cuMemExportToShareableHandle", &[handle, 1, 0]);
            return;
        }
        let child = itself(test).stdout(Stdio::null()).status().unwrap();
        assert_eq!(child.signal(), Some(libc::SIGSEGV), "{child}");
    });
}

/// The file of an exported event, which is removed when this is dropped.
struct EventFile(String);

impl EventFile {
    fn of(handle: &[u8; 64]) -> Self {
        let word = |at: usize| u32::from_le_bytes(handle[at..at + 4].try_into().unwrap());
        let (pid, number, uid) = (word(0), word(4), word(8));
        let file = format!("/dev/shm/cuda.shm.{uid:x}.{pid:x}.{number:x}");
        assert!(std::fs::exists(&file).unwrap(), "{file} is not there");
        Self(file)
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

#[test]
fn waiting_for_the_event_of_a_dead_process_ends() {
    const DISABLE_TIMING_INTERPROCESS: usize = 6;
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Handle([u8; 64]);
    let test = "waiting_for_the_event_of_a_dead_process_ends";
    alone(test, &[], |cuda| {
        cuda.start();
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            let word = cuda.get("cuMemAlloc_v2", &[4096]);
            cuda.ok("cuMemsetD8_v2", &[word, 0, 4096]);
            let stream = cuda.get("cuStreamCreate", &[1]);
            cuda.ok("cuStreamWaitValue64_v2", &[stream, word, 1, 0]);
            let event = cuda.get("cuEventCreate", &[DISABLE_TIMING_INTERPROCESS]);
            cuda.ok("cuEventRecord", &[event, stream]);
            let mut handle = Handle([0; 64]);
            cuda.ok("cuIpcGetEventHandle", &[(&raw mut handle).addr(), event]);
            println!("\nHANDLE {}", handle.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            // Until it is killed.
            std::thread::sleep(common::PATIENCE);
            return;
        }
        let mut recorder = itself(test).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(recorder.stdout.take().unwrap()).lines().map_while(Result::ok);
        let hex = lines.into_iter().find_map(|line| line.strip_prefix("HANDLE ").map(str::to_owned)).unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        let handle = Handle(std::array::from_fn(byte));
        // Killed, it does not take the event's file away itself.
        let _file = EventFile::of(&handle.0);
        // SAFETY: the vendor's signature, whose second argument is 64 bytes by value.
        let open: extern "C" fn(*mut usize, Handle) -> u32 =
            unsafe { std::mem::transmute(cuda.symbol("cuIpcOpenEventHandle")) };
        let mut event = 0_usize;
        assert_eq!(open(&raw mut event, handle), 0);
        let stream = cuda.get("cuStreamCreate", &[1]);
        cuda.ok("cuStreamWaitEvent", &[stream, event, 0]);
        assert_eq!(cuda.call("cuEventQuery", &[event]), 600);
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        assert_eq!(cuda.call("cuEventSynchronize", &[event]), 400);
        assert_eq!(cuda.call("cuEventQuery", &[event]), 400);
        assert_eq!(cuda.call("cuStreamSynchronize", &[stream]), 400);
    });
}

#[test]
fn a_released_context_takes_its_allocations_along() {
    alone("a_released_context_takes_its_allocations_along", &[("SIMCUDA_MEMORY_MIB", "8")], |cuda| {
        cuda.start();
        cuda.get("cuMemAlloc_v2", &[6 * MIB]);
        cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
        cuda.start();
        cuda.get("cuMemAlloc_v2", &[8 * MIB]);
    });
}

#[test]
fn an_exported_descriptor_outlives_handle_and_mapping() {
    alone("an_exported_descriptor_outlives_handle_and_mapping", &[], |cuda| {
        cuda.ok("cuInit", &[0]);
        let prop: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
        let handle = cuda.get("cuMemCreate", &[BLOCK, prop.as_ptr().addr(), 0]);
        let fd = i32::try_from(cuda.get("cuMemExportToShareableHandle", &[handle, 1, 0])).unwrap();
        // SAFETY: the call gave this descriptor to its caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        cuda.ok("cuMemRelease", &[handle]);
        let again = cuda.get(
            "cuMemImportFromShareableHandle",
            &[usize::try_from(std::os::fd::AsRawFd::as_raw_fd(&fd)).unwrap(), 1],
        );
        drop(fd);
        let address = cuda.get("cuMemAddressReserve", &[BLOCK, 0, 0, 0]);
        cuda.ok("cuMemMap", &[address, BLOCK, 0, again, 0]);
        let dir = std::env::var_os("SIMCUDA_DIR").unwrap();
        let dump = gpu_handoff_simcuda::dump::Dump::read(dir.as_ref()).unwrap();
        let [allocation] = &dump.allocations[..] else { panic!("{dump:?}") };
        assert_eq!(
            (allocation.kind, allocation.bytes, allocation.process_less),
            ("vmm", BLOCK as u64, false)
        );
        let [holder] = &allocation.holders[..] else { panic!("{allocation:?}") };
        assert_eq!(
            (holder.pid, holder.mapped_bytes, holder.descriptors),
            (std::process::id(), BLOCK as u64, 0)
        );
    });
}

/// What `fstat` tells that two exports have in common and other files do not: type, permissions and mark, file system.
fn look(file: &OwnedFd) -> (u32, u64) {
    let stat = std::fs::File::from(file.try_clone().unwrap()).metadata().unwrap();
    (std::os::unix::fs::MetadataExt::mode(&stat), std::os::unix::fs::MetadataExt::dev(&stat))
}

#[test]
fn exports_look_alike_and_like_nothing_else() {
    alone("exports_look_alike_and_like_nothing_else", &[], |cuda| {
        cuda.ok("cuInit", &[0]);
        let export = |bytes: usize| {
            let prop: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
            let handle = cuda.get("cuMemCreate", &[bytes, prop.as_ptr().addr(), 0]);
            let fd = i32::try_from(cuda.get("cuMemExportToShareableHandle", &[handle, 1, 0])).unwrap();
            // SAFETY: the call gave this descriptor to its caller.
            unsafe { OwnedFd::from_raw_fd(fd) }
        };
        let ours = look(&export(BLOCK));
        assert_eq!(look(&export(4 * BLOCK)), ours);
        // SAFETY: the name is a C string; the descriptor, checked to be one, is this caller's.
        let memfd = unsafe {
            let fd = libc::memfd_create(c"other".as_ptr(), 0);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        let dir = std::path::PathBuf::from(std::env::var_os("SIMCUDA_DIR").unwrap());
        let beside = std::fs::File::create_new(dir.join("alloc/beside")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(ours.0 & 0o777);
        beside.set_permissions(mode).unwrap();
        std::fs::remove_file(dir.join("alloc/beside")).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for other in [memfd, beside.into(), null.into(), tempfile::tempfile().unwrap().into()] {
            assert_ne!(look(&other), ours, "{other:?}");
        }
    });
}
