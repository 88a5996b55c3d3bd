//! What is said over one connection to a runtime: what comes, and what is answered. No socket, no clock.
//!
//! ```text
//! Registering ─ Configure ─▶ Synchronizing ─ Synchronize, its last part ─▶ Serving
//! ```
//! The answer to our registration may come after Configure: the runtime does not wait for itself.

use prost::Message as _;
use tracing::debug;

use crate::gathering::Gathering;
use crate::handler::Handler;
use crate::mux::Connection;
use crate::proto::nri as proto;
use crate::runtime::Runtime;
use crate::ttrpc::{Frame, Kind, Request, Response, Status, TooLong, code};
use crate::view::{Container, Pod};
use crate::{limits, names};

/// The stream of the one call that we make.
const REGISTRATION: u32 = 1;

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The runtime has not said who it is.
    Registering,
    /// It has not said all that there is.
    Synchronizing(Runtime),
    /// It has.
    Serving(Runtime),
}

/// Nothing more can be said.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Broken {
    /// The runtime does not have us.
    #[error("the runtime refuses the registration: {message} (code {code})")]
    Refused {
        /// gRPC's code.
        code: i32,
        /// What the runtime says.
        message: String,
    },
    /// It answered something else.
    #[error("the answer to the registration cannot be read")]
    Unreadable(#[source] prost::DecodeError),
    /// An answer of ours.
    #[error("an answer cannot be sent")]
    Answer(#[source] TooLong),
}

/// One connection.
#[derive(Debug)]
pub struct Exchange<'h, H> {
    handler: &'h mut H,
    phase: Phase,
    /// The runtime's last stream.
    last: u32,
    gathering: Gathering,
    left_out: u64,
}

type Answer = Result<Vec<u8>, Status>;

impl<'h, H: Handler> Exchange<'h, H> {
    /// Begins one, which says nothing by itself but [`Self::register`].
    pub fn new(handler: &'h mut H) -> Self {
        Self { handler, phase: Phase::Registering, last: 0, gathering: Gathering::default(), left_out: 0 }
    }

    /// How far it has come.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// How many pods and containers the last Synchronize had too many.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What is said first, over [`Connection::Runtime`].
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn register(name: &str, index: &str) -> Result<Vec<u8>, Broken> {
        let who = proto::RegisterPluginRequest { plugin_name: name.to_owned(), plugin_idx: index.to_owned() };
        let request = Request {
            service: names::RUNTIME.to_owned(),
            method: names::REGISTER_PLUGIN.to_owned(),
            payload: who.encode_to_vec(),
            timeout_nano: 0,
        };
        Frame::request(REGISTRATION, &request).encode().map_err(Broken::Answer)
    }

    /// Takes what has come, and says what is answered, over [`Connection::Plugin`].
    ///
    /// # Errors
    /// When there is nothing more to say. A request that makes no sense is answered with an error instead.
    pub fn take(&mut self, connection: Connection, frame: Frame) -> Result<Option<Vec<u8>>, Broken> {
        match (connection, frame.kind) {
            (Connection::Plugin, Kind::Request) => {
                let stream = frame.stream;
                let response = match self.asked(frame) {
                    Ok(payload) => Response { status: None, payload },
                    Err(status) => Response { status: Some(status), payload: Vec::new() },
                };
                Frame::response(stream, &response).encode().map(Some).map_err(Broken::Answer)
            }
            (Connection::Runtime, Kind::Response) if frame.stream == REGISTRATION => {
                let response = Response::decode(frame.data.as_slice()).map_err(Broken::Unreadable)?;
                match response.status {
                    Some(Status { code, message }) if code != code::OK => {
                        Err(Broken::Refused { code, message })
                    }
                    _ => Ok(None),
                }
            }
            (connection, kind) => {
                debug!(?connection, ?kind, stream = frame.stream, "a message of the runtime is passed over");
                Ok(None)
            }
        }
    }

    fn asked(&mut self, frame: Frame) -> Answer {
        if frame.stream.is_multiple_of(2) || frame.stream <= self.last {
            return Err(status(code::INVALID_ARGUMENT, "a stream's number must be odd, and rise"));
        }
        self.last = frame.stream;
        if frame.flags != 0 {
            return Err(status(code::UNIMPLEMENTED, "there are no calls with more than one message"));
        }
        let request: Request = read(&frame.data)?;
        if request.service != names::PLUGIN {
            return Err(status(code::UNIMPLEMENTED, "there is no such service"));
        }
        self.answer(&request.method, &request.payload)
    }

    fn answer(&mut self, method: &str, payload: &[u8]) -> Answer {
        match (method, &self.phase) {
            (names::CONFIGURE, _) => self.configure(read(payload)?),
            (names::SHUTDOWN, _) => Ok(Vec::new()),
            (_, Phase::Registering) => Err(status(code::FAILED_PRECONDITION, "the plugin is not configured")),
            (names::SYNCHRONIZE, Phase::Synchronizing(runtime) | Phase::Serving(runtime)) => {
                let runtime = runtime.clone();
                self.synchronize(runtime, read(payload)?)
            }
            (names::CREATE_CONTAINER, _) => self.create(read(payload)?),
            (names::VALIDATE_CONTAINER_ADJUSTMENT, _) => self.validate(read(payload)?),
            (names::START_CONTAINER, _) => self.start(read(payload)?),
            _ => Err(status(code::UNIMPLEMENTED, "there is no such call")),
        }
    }

    fn configure(&mut self, said: proto::ConfigureRequest) -> Answer {
        let runtime = Runtime::from(said);
        let events = self.handler.configured(&runtime).mask(&runtime);
        self.gathering = Gathering::default();
        self.phase = Phase::Synchronizing(runtime);
        Ok(proto::ConfigureResponse { events }.encode_to_vec())
    }

    fn synchronize(&mut self, runtime: Runtime, part: proto::SynchronizeRequest) -> Answer {
        let more = part.more;
        self.gathering.add(part);
        if !more {
            let gathered = std::mem::take(&mut self.gathering).finish();
            self.left_out = gathered.left_out;
            self.handler.synchronized(gathered.all);
            self.phase = Phase::Serving(runtime);
        }
        Ok(proto::SynchronizeResponse { more }.encode_to_vec())
    }

    fn create(&mut self, asked: proto::CreateContainerRequest) -> Answer {
        let (pod, container) = both(asked.pod, asked.container)?;
        let adjustment = self.handler.create(&pod, &container).map_err(|why| refusal(&why))?;
        adjustment.encode().map_err(|error| refusal(&error.to_string()))
    }

    fn validate(&mut self, asked: proto::ValidateContainerAdjustmentRequest) -> Answer {
        if asked.container.is_none() {
            return Err(without_container());
        }
        let answer = match self.handler.validate(&asked.into()) {
            Ok(()) => proto::ValidateContainerAdjustmentResponse::default(),
            Err(why) => proto::ValidateContainerAdjustmentResponse { reject: true, reason: shortened(&why) },
        };
        Ok(answer.encode_to_vec())
    }

    fn start(&mut self, asked: proto::StartContainerRequest) -> Answer {
        let (pod, container) = both(asked.pod, asked.container)?;
        self.handler.start(&pod, &container).map_err(|why| refusal(&why))?;
        Ok(proto::StartContainerResponse {}.encode_to_vec())
    }
}

/// A container without a pod is answered too: it is no member's.
fn both(
    pod: Option<proto::PodSandbox>,
    container: Option<proto::Container>,
) -> Result<(Pod, Container), Status> {
    let container = container.ok_or_else(without_container)?;
    Ok((pod.unwrap_or_default().into(), container.into()))
}

fn read<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes)
        .map_err(|error| status(code::INVALID_ARGUMENT, &format!("the request cannot be read: {error}")))
}

fn without_container() -> Status {
    status(code::INVALID_ARGUMENT, "the request names no container")
}

fn refusal(why: &str) -> Status {
    status(code::UNKNOWN, why)
}

fn status(code: i32, message: &str) -> Status {
    Status { code, message: shortened(message) }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(limits::REFUSAL_BYTES)].to_owned()
}

#[cfg(test)]
mod tests;
