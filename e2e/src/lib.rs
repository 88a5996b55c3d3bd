//! Scenarios on the real binaries: the demo, the benchmark and the conformance suite of the simulated driver.
//!
//! | concern | file |
//! |---|---|
//! | the application in a pod | [`agent`], driven through [`app`] |
//! | everybody is killed, again and again | [`soak`] |
//! | a pod: a sidecar and applications in namespaces of their own | [`pod`] |
//! | a node: the real plugin with static members | [`node`] |
//! | which GPU: the real one or the simulator | [`gpu`] |
//! | where the binaries are | [`folder`] |
//! | what processes take of the machine | [`footprint`] |
//! | what the driver answers, in processes and in pods | [`conformance`] |
//!
//! Scenarios on a Kubernetes cluster are in `tests/cluster`.

pub mod agent;
pub mod app;
pub mod bench;
pub mod conformance;
pub mod demo;
pub mod folder;
pub mod footprint;
pub mod gpu;
pub mod node;
pub mod pod;
pub mod rough;
pub mod scratch;
pub mod soak;
pub mod wait;
