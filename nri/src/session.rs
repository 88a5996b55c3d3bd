//! One connection to a runtime, over any stream of bytes.
//!
//! What comes while an answer waits to be written is read, and waits in a bounded queue: a runtime that cannot write makes no
//! container, of no pod. While the handler decides nothing is read, which is why that may wait for nothing.
//! Whatever is wrong ends the connection, and the next begins with all that there is.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use crate::client::Settings;
use crate::exchange::{Broken, Exchange, Phase};
use crate::handler::Handler;
use crate::limits;
use crate::mux::{Connection, Demux, MuxError, framed};
use crate::state::{Link, State};
use crate::ttrpc::{Frame, Frames, TooLong};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("the runtime closed the connection")]
    Closed,
    #[error("the runtime did not take the plugin within {} s", limits::REGISTRATION_TIME.as_secs())]
    Registration,
    #[error("the runtime did not say within {} s which containers there are", limits::SYNCHRONIZE_TIME.as_secs())]
    Synchronize,
    #[error("the runtime did not read an answer within {} s", limits::WRITE_TIME.as_secs())]
    NotRead,
    #[error(
        "the runtime asks more at a time than waits here ({} requests, {} bytes)",
        limits::REQUESTS,
        limits::REQUESTS_BYTES
    )]
    Flooded,
    #[error("the connection to the runtime failed")]
    Socket(#[source] io::Error),
    #[error("what the runtime sends cannot be taken apart")]
    Mux(#[from] MuxError),
    #[error("what the runtime sends cannot be read")]
    Frames(#[from] TooLong),
    #[error("it cannot be talked to the runtime")]
    Broken(#[from] Broken),
}

/// A message that waits, and the room that it takes.
#[derive(Debug)]
struct Waiting {
    connection: Connection,
    frame: Frame,
    _room: OwnedSemaphorePermit,
}

/// Registers and answers until it ends.
pub(crate) async fn run<S, H>(
    stream: S,
    who: &Settings,
    handler: &mut H,
    state: &watch::Sender<State>,
) -> Ended
where
    S: AsyncRead + AsyncWrite,
    H: Handler,
{
    let (reader, writer) = tokio::io::split(stream);
    let (queue, waiting) = mpsc::channel(limits::REQUESTS);
    let ended = tokio::select! {
        ended = read(reader, queue) => ended,
        ended = answer(writer, waiting, who, handler, state) => ended,
    };
    let Err(ended) = ended;
    ended
}

/// Reads for ever, also while an answer waits to be written.
async fn read(mut from: impl AsyncRead + Unpin, queue: Sender<Waiting>) -> Result<Never, Ended> {
    let room = Arc::new(Semaphore::new(limits::REQUESTS_BYTES));
    let (mut demux, mut plugin, mut runtime) = (Demux::default(), Frames::default(), Frames::default());
    let mut buffer = vec![0; limits::READ_BYTES];
    loop {
        let count = from.read(&mut buffer).await.map_err(failed)?;
        if count == 0 {
            return Err(Ended::Closed);
        }
        for piece in demux.feed(&buffer[..count])? {
            let connection = piece.connection;
            let frames = match connection {
                Connection::Plugin => &mut plugin,
                Connection::Runtime => &mut runtime,
            };
            for frame in frames.feed(&piece.bytes)? {
                let bytes = u32::try_from(frame.data.len()).unwrap_or(u32::MAX);
                let room = Arc::clone(&room).try_acquire_many_owned(bytes).map_err(|_| Ended::Flooded)?;
                let waiting = Waiting { connection, frame, _room: room };
                queue.try_send(waiting).map_err(|_| Ended::Flooded)?;
            }
        }
    }
}

async fn answer<H: Handler>(
    mut to: impl AsyncWrite + Unpin,
    mut waiting: Receiver<Waiting>,
    who: &Settings,
    handler: &mut H,
    state: &watch::Sender<State>,
) -> Result<Never, Ended> {
    state.send_modify(|state| state.set(Link::Registering));
    let mut exchange = Exchange::new(handler);
    let registration = Exchange::<H>::register(who.name(), who.index())?;
    write(&mut to, Connection::Runtime, &registration).await?;
    let mut until = Instant::now() + limits::REGISTRATION_TIME;
    loop {
        let serving = matches!(exchange.phase(), Phase::Serving(_));
        let next = tokio::select! {
            next = waiting.recv() => next.ok_or(Ended::Closed)?,
            () = sleep_until(until), if !serving => return Err(late(exchange.phase())),
        };
        let before = exchange.phase().clone();
        let began = Instant::now();
        let answer = exchange.take(next.connection, next.frame)?;
        let took = began.elapsed();
        if let Some(answer) = answer {
            write(&mut to, Connection::Plugin, &answer).await?;
        }
        if took > limits::SLOW_ANSWER {
            warn!(
                milliseconds = took.as_millis(),
                "the runtime, and with it every container, had to wait for an answer"
            );
        }
        if *exchange.phase() != before {
            until = Instant::now() + limits::SYNCHRONIZE_TIME;
        }
        tell(state, &exchange, &before, serving.then_some(took));
    }
}

/// Makes known what has changed.
fn tell<H: Handler>(
    state: &watch::Sender<State>,
    exchange: &Exchange<'_, H>,
    before: &Phase,
    took: Option<std::time::Duration>,
) {
    let phase = exchange.phase();
    state.send_if_modified(|state| {
        if let Some(took) = took {
            state.times.add(took);
        }
        if phase != before {
            state.set(match phase {
                Phase::Registering => Link::Registering,
                Phase::Synchronizing(runtime) => Link::Synchronizing(runtime.clone()),
                Phase::Serving(runtime) => Link::Serving(runtime.clone()),
            });
            state.connections += u64::from(matches!(phase, Phase::Serving(_)));
        }
        state.left_out = exchange.left_out();
        // An answer more is nothing to wake anybody for.
        phase != before
    });
}

fn late(phase: &Phase) -> Ended {
    match phase {
        Phase::Registering => Ended::Registration,
        Phase::Synchronizing(_) | Phase::Serving(_) => Ended::Synchronize,
    }
}

async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    connection: Connection,
    message: &[u8],
) -> Result<(), Ended> {
    let frames = framed(connection, message);
    let written = async {
        to.write_all(&frames).await?;
        to.flush().await
    };
    timeout(limits::WRITE_TIME, written).await.map_err(|_| Ended::NotRead)?.map_err(failed)
}

/// A runtime that dies before it has read everything resets the connection.
fn failed(error: io::Error) -> Ended {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ended::Closed,
        _ => Ended::Socket(error),
    }
}

/// What never comes.
enum Never {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjust::Adjustment;
    use crate::handler::Events;
    use crate::proto::nri as proto;
    use crate::runtime::Runtime;
    use crate::ttrpc::Request;
    use crate::view::{Container, Pod, Validation};
    use crate::{Settings, names};
    use prost::Message as _;
    use std::path::Path;
    use tokio::io::{DuplexStream, duplex};

    /// Agrees with everything.
    struct Agrees;

    impl Handler for Agrees {
        fn configured(&mut self, _: &Runtime) -> Events {
            Events::of_containers()
        }

        fn synchronized(&mut self, _: Vec<(Pod, Vec<Container>)>) {}

        fn create(&mut self, _: &Pod, _: &Container) -> Result<Adjustment, String> {
            Ok(Adjustment::default())
        }

        fn validate(&mut self, _: &Validation) -> Result<(), String> {
            Ok(())
        }

        fn start(&mut self, _: &Pod, _: &Container) -> Result<(), String> {
            Ok(())
        }
    }

    /// How a connection ends over which this comes and nothing is read, and when. The clock is the test's.
    async fn ends(calls: &[(&str, Vec<u8>)]) -> (Ended, std::time::Duration) {
        let (ours, mut theirs): (DuplexStream, DuplexStream) = duplex(4 << 10);
        for (place, (method, payload)) in calls.iter().enumerate() {
            let request = Request {
                service: names::PLUGIN.into(),
                method: (*method).into(),
                payload: payload.clone(),
                timeout_nano: 0,
            };
            let stream = u32::try_from(place * 2 + 1).unwrap();
            let frame = Frame::request(stream, &request).encode().unwrap();
            theirs.write_all(&framed(Connection::Plugin, &frame)).await.unwrap();
        }
        let began = Instant::now();
        let who = Settings::new(Path::new("/x"), "a", 1).unwrap();
        let ended = run(ours, &who, &mut Agrees, &watch::channel(State::default()).0).await;
        drop(theirs);
        (ended, began.elapsed())
    }

    fn part(more: bool) -> (&'static str, Vec<u8>) {
        (names::SYNCHRONIZE, proto::SynchronizeRequest { more, ..Default::default() }.encode_to_vec())
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_does_not_go_on_is_left() {
        let (ended, after) = ends(&[]).await;
        assert!(matches!(ended, Ended::Registration), "{ended}");
        assert_eq!(after.as_secs(), limits::REGISTRATION_TIME.as_secs());

        let configure = (names::CONFIGURE, vec![]);
        for calls in [vec![configure.clone()], vec![configure, part(true), part(true)]] {
            let (ended, after) = ends(&calls).await;
            assert!(matches!(ended, Ended::Synchronize), "{ended}");
            assert_eq!(after.as_secs(), limits::SYNCHRONIZE_TIME.as_secs());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_does_not_read_is_left() {
        // 31 refusals of 900 bytes are more than the pipe holds, and fewer than may wait.
        let name = "x".repeat(2_000);
        let (ours, mut theirs) = duplex(1 << 10);
        let mut bytes = Vec::new();
        for number in 0..31 {
            let request =
                Request { service: name.clone(), method: String::new(), payload: vec![], timeout_nano: 0 };
            let frame = Frame::request(number * 2 + 1, &request).encode().unwrap();
            bytes.extend(framed(Connection::Plugin, &frame));
        }
        let who = Settings::new(Path::new("/x"), "a", 1).unwrap();
        let (state, _) = watch::channel(State::default());
        let mut agrees = Agrees;
        let (ended, written) = tokio::join!(run(ours, &who, &mut agrees, &state), theirs.write_all(&bytes));
        written.expect("all of it is read, whatever is not answered");
        assert!(matches!(ended, Ended::NotRead), "{ended}");
    }
}
