//! Scenarios on the real binaries: the demo, the benchmark and the conformance suite of the simulated driver.

pub mod conformance;
