//! The node daemon of gpu-handoff.
