//! The few kernel calls of gpu-handoff that rustix lacks.
//!
//! | concern | file |
//! |---|---|
//! | which process connected a socket | [`peer`] |
//! | the numbers of processes that are not used twice | [`pidfs`] |
//! | which processes a process started | [`processes`] |
//! | which number the next process of a PID namespace gets | `last_pid` |
//! | a packet with every descriptor that came along | [`receive`] |
//! | socket options | [`options`] |
//! | starting a process in namespaces of its own, as a container runtime would | [`isolate`] |
//! | starting a process without any privilege | [`unprivileged`] |
//! | IPC namespaces that no process has to be in | [`namespaces`] |
//! | what System V's calls have made in one | [`sysv`] |
//! | who makes which file on a file system | [`fanotify`] |
//! | a filter of a process's own system calls | `filter` |
//! | random numbers | `random` |
//! | descriptors that a tokio runtime watches | `registered` |
#![allow(
    unsafe_code,
    reason = "socket options, unknown control messages, the steps between fork and exec, a fork that a filter lets pass, IPC namespaces and what is in them, fanotify, and tokio's registration have no safe wrapper"
)]

pub mod fanotify;
#[cfg(feature = "filter")]
pub mod filter;
pub mod isolate;
#[cfg(feature = "filter")]
pub mod last_pid;
pub mod namespaces;
pub mod options;
pub mod peer;
pub mod pidfs;
pub mod processes;
#[cfg(feature = "random")]
pub mod random;
pub mod receive;
#[cfg(feature = "tokio")]
pub mod registered;
pub mod sysv;
#[cfg(test)]
mod testing;
pub mod unprivileged;
