//! The per-pod agent of gpu-handoff: the pod's door to the node daemon.
