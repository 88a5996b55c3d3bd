//! The admission webhook: pods that ask to take part get what they need for it while they are created.
//!
//! What is added and what is denied is decided by `gpu-handoff-inject`, a pure function; here are the server that the API server
//! asks, the certificate that it trusts, and nothing else. The answers have no side effect.
//!
//! | concern | file |
//! |---|---|
//! | the command line | [`Args`] |
//! | wiring, start and stop | `serve.rs` |
//! | what is asked and answered | `review.rs`, `values.rs` |
//! | where it listens | `listen.rs` |
//! | HTTP: paths, sizes, times | `http.rs` |
//! | connections: TLS, how many, how long | `server.rs`, `crowd.rs`, `pulse.rs`, `paced.rs` |
//! | whether this replica should be asked | `ready.rs` |
//! | the administrator's settings, and their changes | `settings.rs` |
//! | certificates that it makes for itself | [`certificates`], `secret.rs` |
//! | the API server is told which to trust | `ca_bundle.rs` |
//! | certificates that somebody else makes | `files.rs` |
//! | names of Kubernetes objects | [`names`] |

mod args;
mod ca_bundle;
pub mod certificates;
mod crowd;
mod files;
mod http;
pub mod limits;
mod listen;
pub mod names;
mod paced;
mod pulse;
mod ready;
mod review;
mod secret;
mod serve;
mod server;
mod serving;
mod settings;
mod values;

pub use args::Args;
pub use files::PairError;
pub use secret::{SecretError, Store};
pub use serve::{Config, Tls, WebhookError, run, serve};
pub use serving::{Serving, ServingError};
pub use settings::SettingsError;
