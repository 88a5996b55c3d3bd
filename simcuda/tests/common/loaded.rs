//! The built library loaded as programs load it, without the vendor's header.
//!
//! Each test runs in a process of its own (it starts itself again), because the library's state is the process's.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unsafe_code, reason = "calls C functions by name")]

use std::ffi::{CString, c_void};
use std::process::Command;

use super::Machine;

/// The loaded library.
pub(crate) struct Cuda(*mut c_void);

impl Cuda {
    pub(crate) fn load() -> Self {
        let path = CString::new(super::library().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: the library has no constructors; the handle is never closed.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self(handle)
    }

    pub(crate) fn symbol(&self, name: &str) -> *mut c_void {
        let symbol = CString::new(name).unwrap();
        // SAFETY: the handle is open and the name a C string.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "{name} is missing");
        address
    }

    /// Calls a function whose arguments are all integers or pointers, passed as words.
    pub(crate) fn call(&self, name: &str, words: &[usize]) -> u32 {
        let address = self.symbol(name);
        type Any = extern "C" fn(usize, usize, usize, usize, usize) -> u32;
        // SAFETY: every call takes at most five words in the C calling convention and ignores those beyond its own.
        let function: Any = unsafe { std::mem::transmute(address) };
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        function(word(0), word(1), word(2), word(3), word(4))
    }

    pub(crate) fn ok(&self, name: &str, words: &[usize]) {
        assert_eq!(self.call(name, words), 0, "{name}");
    }

    /// A call whose first argument takes one word back.
    pub(crate) fn get(&self, name: &str, words: &[usize]) -> usize {
        let mut value = 0_usize;
        let all: Vec<_> = std::iter::once((&raw mut value).addr()).chain(words.iter().copied()).collect();
        self.ok(name, &all);
        value
    }

    pub(crate) fn start(&self) {
        self.ok("cuInit", &[0]);
        let context = self.get("cuDevicePrimaryCtxRetain", &[0]);
        self.ok("cuCtxSetCurrent", &[context]);
    }
}

/// Runs the body of a test in a fresh process with a machine of its own.
pub(crate) fn alone(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Cuda)) {
    if std::env::var("SIMCUDA_TEST_ALONE").is_ok_and(|name| name == test) {
        return body(&Cuda::load());
    }
    let machine = Machine::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env("SIMCUDA_TEST_ALONE", test)
        .env("SIMCUDA_DIR", machine.gpu())
        .env_remove("CUDA_VISIBLE_DEVICES");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(machine.dump().allocations.is_empty(), "the process ended, so nothing is held");
}

/// This very test as another process of the same machine, which knows its part by `SIMCUDA_TEST_ROLE`.
pub(crate) fn itself(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("SIMCUDA_TEST_ROLE", "other");
    command
}
