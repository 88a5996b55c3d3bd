//! The client library of gpu-handoff: publish GPU buffers and acquire those of other pods.
