//! The gpu-handoff command.
