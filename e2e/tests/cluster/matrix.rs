//! Public bug reports about sharing GPU memory between pods, each asked of this ground, by its number in the table of facts.
//!
//! What the driver is to answer was measured on an H200, in namespaces made by hand; here real pods ask. Reports about what
//! gpu-handoff is to do about it run with it on the cluster; two of them are in `identity`, with all else about who a process is.

mod driver;
mod held;
mod interior;
mod shm;

use crate::play::{Scenario, not_run};

pub(crate) fn all() -> Vec<Scenario> {
    [driver::all(), held::all(), interior::all(), shm::all(), left_out()].into_iter().flatten().collect()
}

fn left_out() -> Vec<Scenario> {
    vec![
        not_run(
            "matrix_02_a_slow_plugin_of_the_runtime",
            "no pod may ask yet for what the plugin adjusts: torch, nccl",
        ),
        not_run("matrix_23_labels_of_sockets", "these nodes have no SELinux"),
    ]
}
