//! The few kernel calls of gpu-handoff that rustix lacks: peer pidfds, and spawning a process into namespaces of its own.
