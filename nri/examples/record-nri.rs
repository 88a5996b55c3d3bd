//! Stands between a plugin and a real runtime, and keeps what both say. Ends with an interrupt, or with the runtime.
//!
//! ```sh
//! record-nri SOCKET FOLDER    # from_runtime.bin and from_plugin.bin in FOLDER
//! ```
//!
//! What the plugin answers is in `tests/recorded/handler.rs`: the tests play the runtime's half again and expect the plugin's.

#![allow(unreachable_pub, dead_code, reason = "the handler's module is written for the tests")]

#[path = "../tests/recorded/handler.rs"]
mod handler;

use std::io;
use std::path::Path;

use gpu_handoff_nri::{Settings, State, serve};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(folder), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: record-nri SOCKET FOLDER".into());
    };
    let folder = Path::new(&folder);
    let between = folder.join("between.sock");
    let listener = UnixListener::bind(&between)?;
    let settings = Settings::new(&between, "gpu-handoff", 90)?;
    let recorded = async {
        let (plugin, _) = listener.accept().await?;
        let runtime = UnixStream::connect(&socket).await?;
        let (plugin_reads, plugin_writes) = plugin.into_split();
        let (runtime_reads, runtime_writes) = runtime.into_split();
        tokio::select! {
            ended = hand_on(plugin_reads, runtime_writes, folder.join("from_plugin.bin")) => ended,
            ended = hand_on(runtime_reads, plugin_writes, folder.join("from_runtime.bin")) => ended,
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    };
    tokio::select! {
        ended = recorded => ended?,
        () = serve(settings, handler::ByName::default(), watch::channel(State::default()).0, std::future::pending()) => {}
    }
    std::fs::remove_file(between)?;
    Ok(())
}

/// Hands on what comes, once it is on disk.
async fn hand_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    kept: impl AsRef<Path>,
) -> io::Result<()> {
    let mut kept = File::create(kept).await?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        kept.write_all(&bytes[..count]).await?;
        kept.flush().await?;
        to.write_all(&bytes[..count]).await?;
    }
}
