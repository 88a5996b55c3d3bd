//! Who may publish and acquire what: the policy of gpu-handoff as plain data and pure decisions.
