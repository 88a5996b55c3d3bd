//! Order of GPU work between pods, and sets: on the real plugin and real sidecars, with applications that are held back,
//! killed and forked, on a simulated GPU in a directory of its own.

mod dropped;
mod fork;
mod late;
mod lost;
mod orders;
mod rings;
mod sets;
mod stage;
