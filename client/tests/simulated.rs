//! The client's CUDA side, in real processes on the simulated driver: what is published here is read there, what is
//! not needed any more is unmapped, and nothing is left over.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

mod common;

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Node;
use gpu_handoff_client::{
    Access, Acquire, Buffer, Client, ClientError, Code, DeviceUuid, ExportedFd, Kind, LeaseState,
    VmmAllocation,
};
use gpu_handoff_cuda::{Device, Driver, LegacyAllocation, Status, ops, status};

const MIB: u64 = 1 << 20;

fn first() -> (Driver, Device) {
    let driver = Driver::load().unwrap();
    (driver, driver.devices().unwrap()[0])
}

fn say(line: impl std::fmt::Display) {
    println!("SAYS {line}");
    io::stdout().flush().unwrap();
}

/// Waits for a line on standard input.
fn told() {
    io::stdin().read_line(&mut String::new()).unwrap();
}

/// A role with the lines that it says.
struct Role {
    child: Child,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl Role {
    fn start(node: &Node, name: &str) -> Self {
        let mut child = node.role(name);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn says(&mut self) -> String {
        let mut said = self.lines.by_ref().map(|line| line.unwrap());
        let found = said.find_map(|line| line.split_once("SAYS ").map(|(_, said)| said.to_owned()));
        found.unwrap_or_else(|| panic!("{}", self.complaint()))
    }

    fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn complaint(&mut self) -> String {
        io::read_to_string(self.child.stderr.take().unwrap()).unwrap()
    }

    fn ends(mut self) {
        self.lines.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success(), "{}", self.complaint());
    }
}

#[test]
fn what_one_process_publishes_another_reads() {
    let node = Node::start();
    if !node.has_simulator() {
        return;
    }
    let mut publisher = Role::start(&node, "role_publisher");
    assert_eq!(publisher.says(), "published vmm, vmm part, legacy pointer, vmm pointer");
    let mut importer = Role::start(&node, "role_importer");
    assert_eq!(importer.says(), "whole: Vmm 4194304 bytes, 11111111");
    assert_eq!(importer.says(), "part: Vmm 4096 bytes, 22222222");
    assert_eq!(importer.says(), "tensor: Legacy 1024 bytes, 33333333");
    assert_eq!(importer.says(), "mapped: Vmm 8192 bytes, 44444444");
    assert_eq!(importer.says(), "write refused, same address again");
    assert_eq!(node.leases(), 1, "one lease is held");
    publisher.tell();
    assert_eq!(publisher.says(), "retired whole, 1 left");
    assert_eq!(importer.says(), "the owner wants it back, the bytes are still there");
    publisher.tell();
    assert_eq!(publisher.says(), "drop errors 0");
    assert_eq!(importer.says(), "drop errors 0");
    publisher.ends();
    importer.ends();
}

#[test]
#[ignore = "a role"]
fn role_publisher() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let memory = VmmAllocation::create(driver, device, 3 * MIB).unwrap();
        let memory = memory.map(Access::ReadWrite, device).unwrap();
        ops::memset_d32(driver, memory.ptr(), 0x1111_1111, MIB).unwrap();
        ops::memset_d32(driver, memory.ptr() + MIB, 0x2222_2222, 1024).unwrap();
        ops::memset_d32(driver, memory.ptr() + 2 * MIB, 0x4444_4444, 2048).unwrap();
        let tensor = LegacyAllocation::create(driver, MIB).unwrap();
        ops::memset_d32(driver, tensor.ptr() + 512, 0x3333_3333, 256).unwrap();
        ops::synchronize(driver).unwrap();

        let client = Client::connect().unwrap();
        let named = |name| Buffer::named(name).unwrap();
        let whole = client.publish(named("whole").vmm(&memory).read_only()).unwrap();
        client.publish(named("part").vmm(&memory).range(MIB, 4096)).unwrap();
        client.publish(named("tensor").pointer(tensor.ptr() + 512, 1024)).unwrap();
        client.publish(named("mapped").pointer(memory.ptr() + 2 * MIB, 8192)).unwrap();
        say("published vmm, vmm part, legacy pointer, vmm pointer");
        told();
        say(format_args!("retired whole, {} left", whole.retire(Duration::from_secs(5)).unwrap()));
        told();
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
#[ignore = "a role"]
fn role_importer() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let client = Client::connect().unwrap();
        let acquire = |name| client.acquire(Acquire::named(name).unwrap()).unwrap();
        let word = |ptr| {
            let mut word = [0; 4];
            ops::read(driver, ptr, &mut word).unwrap();
            u32::from_le_bytes(word)
        };
        for name in ["whole", "part", "tensor", "mapped"] {
            let lease = acquire(name);
            let kind: Kind = lease.info().facts.kind;
            say(format_args!("{name}: {kind:?} {} bytes, {:x}", lease.bytes(), word(lease.ptr())));
        }
        let whole = acquire("whole");
        let refused = ops::memset_d32(driver, whole.ptr(), 0, 1).is_err();
        let ptr = whole.ptr();
        whole.release().unwrap();
        let whole = acquire("whole");
        assert!(refused && whole.ptr() == ptr);
        say("write refused, same address again");
        let start = Instant::now();
        while !matches!(whole.state(), LeaseState::Ended(_)) {
            assert!(start.elapsed() < Duration::from_secs(30), "no notice");
            std::thread::yield_now();
        }
        assert_eq!(word(whole.ptr()), 0x1111_1111);
        drop(whole);
        assert!(ops::read(driver, ptr, &mut [0; 4]).is_err(), "still mapped");
        say("the owner wants it back, the bytes are still there");
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
fn what_cannot_be_done_is_said_and_leaves_nothing() {
    let node = Node::start();
    if !node.has_simulator() {
        return;
    }
    let mut role = Role::start(&node, "role_refused");
    assert_eq!(role.says(), "without a context: acquire x: no CUDA context is current on this thread");
    assert_eq!(role.says(), "private vmm memory: NOT_EXPORTABLE");
    assert_eq!(role.says(), "a host pointer: NOT_EXPORTABLE");
    assert_eq!(role.says(), "more than there is: SIZE_MISMATCH");
    assert_eq!(role.says(), "not GPU memory: the driver refused cuMemImportFromShareableHandle");
    assert_eq!(role.says(), "drop errors 0");
    role.ends();
    assert_eq!(node.leases(), 0, "the lease that could not be mapped was given back");
}

#[test]
#[ignore = "a role"]
fn role_refused() {
    let (driver, device) = first();
    let client = Client::connect().unwrap();
    let acquire = || client.acquire(Acquire::named("x").unwrap());
    say(format_args!("without a context: {}", acquire().unwrap_err()));
    {
        let _context = device.retain_primary_context().unwrap();
        let private = VmmAllocation::create_private(driver, device, MIB).unwrap();
        let private = private.map(Access::ReadWrite, device).unwrap();
        let code = |buffer| client.publish(buffer).unwrap_err().code().unwrap_or(Code::Unknown(0));
        let named = || Buffer::named("x").unwrap();
        say(format_args!("private vmm memory: {}", code(named().vmm(&private))));
        let word = 0_u64;
        say(format_args!("a host pointer: {}", code(named().pointer((&raw const word).addr() as u64, 8))));
        let tensor = LegacyAllocation::create(driver, MIB).unwrap();
        say(format_args!("more than there is: {}", code(named().pointer(tensor.ptr(), MIB + 1))));
        publish_forgery(&client, device.uuid());
        match acquire().unwrap_err() {
            ClientError::Cuda { source, .. } => {
                assert_ne!(source.status, Status::SUCCESS);
                say(format_args!("not GPU memory: the driver refused {}", source.call));
            }
            other => say(other),
        }
    }
    drop(client);
    say(format_args!("drop errors {}", status::drop_errors()));
}

/// Publishes a descriptor that is none of GPU memory, which a real node would refuse.
fn publish_forgery(client: &Client, device: DeviceUuid) {
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    let forgery = Arc::new(ExportedFd { fd, bytes: 2 * MIB, device });
    client.publish(Buffer::named("x").unwrap().exported(forgery)).unwrap();
}
