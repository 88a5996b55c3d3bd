//! The broker is killed, and what was alive comes back; what is forged, foreign or over does not.
//!
//! Every test runs the real node, broker, GPU worker and a simulated GPU in a directory of its own. In `whole` the
//! sidecars and applications are real too; in `forged` and `flood` the test itself is a sidecar and its applications, so that it can
//! say what real ones never would.

mod flood;
mod forged;
mod lasting;
mod stage;
mod whole;
