//! Public bug reports about sharing GPU memory between pods, each asked of this ground, by its number in the table of facts.
//!
//! What the driver is to answer was measured on an H200, in namespaces made by hand; here real pods ask. Reports about what
//! gpu-handoff is to do about it become scenarios when it runs on the cluster.

mod driver;
mod held;
mod shm;

use crate::play::{Scenario, not_run};

pub(crate) fn all() -> Vec<Scenario> {
    [driver::all(), held::all(), shm::all(), left_out()].into_iter().flatten().collect()
}

fn left_out() -> Vec<Scenario> {
    vec![
        not_run("matrix_02_a_slow_plugin_of_the_runtime", "gpu-handoff has no NRI plugin yet"),
        not_run(
            "matrix_07_a_handle_of_an_interior_pointer",
            "offset and size are the client's matter, which does not run on the cluster yet",
        ),
        not_run("matrix_14_an_impersonating_mount", "nothing of gpu-handoff reads cgroups or mounts"),
        not_run("matrix_15_paths_of_cgroups", "nothing of gpu-handoff reads cgroups or mounts"),
        not_run("matrix_23_labels_of_sockets", "nothing of gpu-handoff makes sockets on the cluster yet"),
    ]
}
