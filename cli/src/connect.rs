//! The way to the node daemon, and what its user hears when that takes a while.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use gpu_handoff_client::{Client, ClientBuilder, ClientError};

use crate::failure::Failure;
use crate::limits;

/// Connects as the application of this pod would.
/// Most commands tell of one daemon: that this one is gone, their user wants to know.
pub(crate) fn once(socket: Option<PathBuf>) -> Result<Client, Failure> {
    Ok(connect(builder(socket).reconnect(Duration::ZERO))?)
}

/// Connects for as long as it takes, whatever becomes of the daemon meanwhile.
pub(crate) fn for_long(socket: Option<PathBuf>) -> Result<Client, Failure> {
    Ok(connect(builder(socket))?)
}

fn builder(socket: Option<PathBuf>) -> ClientBuilder {
    let builder = Client::builder().program("gpu-handoff").timeout(limits::CONNECT_TIME);
    match socket {
        Some(path) => builder.socket(path),
        None => builder,
    }
}

/// Connects, and says on standard error what is waited for once that is noticed.
fn connect(builder: ClientBuilder) -> Result<Client, ClientError> {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(limits::SILENT_TIME) == Err(RecvTimeoutError::Timeout) {
                let most = limits::CONNECT_TIME;
                // Standard error may be closed: then nobody wants to know.
                let _ = writeln!(
                    std::io::stderr(),
                    "waiting for the node daemon to answer, for at most {most:?} in all"
                );
            }
        });
        let outcome = builder.connect();
        drop(done);
        outcome
    })
}
