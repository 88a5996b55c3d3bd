//! The client: connecting, and what all its parts share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gpu_handoff_cuda::leaving;
use gpu_handoff_protocol::message::{BrokerBody, Welcome};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::{
    APP_SOCKET_ENV, Code, DEFAULT_APP_SOCKET, PROTOCOL_VERSION, Refusal, limits as wire,
};

use crate::connection::{Connection, Way};
use crate::deadline::after;
use crate::error::{ClientError, Fault};
use crate::export::Exporter;
use crate::import::{CudaImporter, Importer};
use crate::limits;
use crate::memory::Memory;

/// A connection to the node, for publishing and acquiring buffers.
///
/// One client serves a whole process: clones share it, and its methods may be called from any thread. Connecting does
/// not load the CUDA driver; the first publish or acquire does.
///
/// When the node's daemon goes and another one comes, as in an update, the client connects to that by itself and has it
/// restore what this process leases and has published; calls wait meanwhile, each until its own deadline. What is not
/// restored is [lost](crate::LeaseState::Lost) alone. A call that was under way is made again; where its answer was on
/// the way, what it made ends by itself within seconds. After [`limits::RECONNECT`] without a daemon, or what
/// [`reconnect`](ClientBuilder::reconnect) says, the connection has ended.
///
/// The connection lives as long as any clone, [`Lease`](crate::Lease), [`Published`](crate::Published) or
/// [`Watch`](crate::Watch) of it, or until [`close`](Self::close). When it ends, everything that was published and
/// leased over it ends too. Drop all of them before you destroy the CUDA contexts that you acquired in, once no stream waits
/// for another's word any more: for such streams the [`Timeline`](crate::Timeline) and the connection live on.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gpu_handoff_client::{Acquire, Client};
/// use std::time::Duration;
///
/// let client = Client::connect()?;
/// println!("connected as {}", client.welcome().pod);
/// let weights = client.acquire(Acquire::named("weights")?.wait(Duration::from_secs(60)))?;
/// println!("{} bytes at {:#x}", weights.bytes(), weights.ptr());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

/// What clients, leases, publications and watches hold together.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) connection: Arc<Connection>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) welcome: Welcome,
    listener: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child has neither the threads nor a say in its parent's connection, and CUDA does not work in it.
        if !self.connection.is_own_process() {
            return self.keep_memory();
        }
        self.connection.end();
        // Neither does it work once the process is leaving, and its threads may be kept from it for ever.
        if leaving::is_closed() {
            return self.keep_memory();
        }
        if let Ok(mut listener) = self.listener.lock()
            && let Some(thread) = listener.take()
        {
            // A panic of that thread has been reported on standard error already.
            let _ = thread.join();
        }
        self.memory.orders().stop();
    }
}

impl Shared {
    /// Leaves what is mapped to the end of the process: one more count keeps it. Waits for no thread.
    fn keep_memory(&self) {
        std::mem::forget((Arc::clone(&self.memory), Arc::clone(&self.exporter)));
        if let Ok(mut listener) = self.listener.try_lock() {
            std::mem::forget(listener.take());
        }
    }
}

impl Client {
    /// Connects to the socket that `GPU_HANDOFF_SOCKET` names, or to `/run/gpu-handoff/app.sock`.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when nobody listens there, [`ClientError::Refused`] when the node does not serve this
    /// process.
    pub fn connect() -> Result<Self, ClientError> {
        Self::builder().connect()
    }

    /// Settings for a connection.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            socket: None,
            program: None,
            timeout: limits::CONNECT,
            reconnect: limits::RECONNECT,
            busy_poll: None,
        }
    }

    /// Who the node takes this process for, and what the node could do, when this client connected.
    #[must_use]
    pub fn welcome(&self) -> &Welcome {
        &self.shared.welcome
    }

    /// Ends the connection now, and with it every publication and lease. Memory of leases that are still held stays
    /// mapped until they are dropped. Streams that wait for words of others are set free, by the words themselves, which
    /// others may wait for too: let such streams finish first.
    pub fn close(self) {
        self.shared.connection.end();
    }

    /// Has the connection ended?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.connection.has_ended()
    }
}

/// Settings for a connection; see [`Client::builder`].
#[derive(Debug, Clone)]
#[must_use = "nothing is connected until `connect` is called"]
pub struct ClientBuilder {
    socket: Option<PathBuf>,
    program: Option<String>,
    timeout: Duration,
    reconnect: Duration,
    busy_poll: Option<bool>,
}

impl ClientBuilder {
    /// The socket to connect to.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// The name of this program in the node's log, at most 64 bytes. Else the name of the executable.
    pub fn program(mut self, name: impl Into<String>) -> Self {
        self.program = Some(name.into());
        self
    }

    /// How long connecting may take, the node's welcome included; 30 s if not set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long another broker is looked for when the node daemon's goes, as it does when it is updated; 30 s if not
    /// set, zero: not at all.
    pub fn reconnect(mut self, patience: Duration) -> Self {
        self.reconnect = patience;
        self
    }

    /// Whether a thread that waits for a buffer, and hears that it is about to be published, polls for it for at most
    /// [`limits::AWAKE`] instead of sleeping. If not set, where this process may use at least
    /// [`limits::AWAKE_PROCESSORS`] processors.
    pub fn busy_poll(mut self, polls: bool) -> Self {
        self.busy_poll = Some(polls);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when nobody listens there, [`ClientError::Refused`] when the node does not serve this
    /// process.
    pub fn connect(self) -> Result<Client, ClientError> {
        self.connect_with(Box::new(CudaImporter))
    }

    pub(crate) fn connect_with(self, importer: Box<dyn Importer>) -> Result<Client, ClientError> {
        let path = self.socket.unwrap_or_else(default_socket);
        let socket = SeqPacket::connect(&path)
            .map_err(|source| ClientError::Connect { path: path.clone(), source })?;
        let program = cut(self.program.unwrap_or_else(executable));
        let polls = self.busy_poll.unwrap_or_else(has_processors_to_spare);
        let way = Way { path: path.clone(), program, patience: self.reconnect, polls };
        greet(socket, way, self.timeout, importer)
            .map(|shared| Client { shared: Arc::new(shared) })
            .map_err(|fault| fault.while_doing("connect to", path.display()))
    }
}

/// Says hello, and starts to listen once welcome.
fn greet(
    socket: SeqPacket,
    way: Way,
    timeout: Duration,
    importer: Box<dyn Importer>,
) -> Result<Shared, Fault> {
    let memory = Arc::new(Memory::new(importer));
    let hello = way.hello();
    let connection = Connection::new(socket, way, Arc::clone(&memory) as _).map_err(Fault::Io)?;
    let connection = Arc::new(connection);
    let deadline = after(timeout);
    let welcome = match connection.call(hello, deadline) {
        Ok(BrokerBody::Welcome(welcome)) => check_version(welcome),
        // Refused with the hello's number or with 0, the node will not serve this process.
        Err(Fault::Lost(Some(refusal))) => Err(Fault::Refused(refusal)),
        Ok(_) => Err(Fault::unexpected("a welcome")),
        Err(other) => Err(other),
    };
    let listener = welcome.and_then(|welcome| {
        connection.welcome(welcome.instance)?;
        Ok((welcome, connection.listen().map_err(Fault::Io)?))
    });
    let (welcome, listener) = listener.inspect_err(|_| connection.end())?;
    let listener = Mutex::new(Some(listener));
    Ok(Shared { connection, memory, exporter: Arc::default(), welcome, listener })
}

/// A node serves older clients, so only another major version is not understood.
pub(crate) fn check_version(welcome: Welcome) -> Result<Welcome, Fault> {
    if welcome.version.0 == PROTOCOL_VERSION.0 {
        return Ok(welcome);
    }
    let text = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let (wanted, found) = (text(PROTOCOL_VERSION), text(welcome.version));
    Err(Refusal::new(Code::UnsupportedVersion).compared_with("protocol version", wanted, found).into())
}

fn default_socket() -> PathBuf {
    std::env::var_os(APP_SOCKET_ENV)
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from(DEFAULT_APP_SOCKET), PathBuf::from)
}

fn has_processors_to_spare() -> bool {
    std::thread::available_parallelism().is_ok_and(|found| found.get() >= limits::AWAKE_PROCESSORS)
}

fn executable() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(Path::file_name);
    name.map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Cuts a program's name at its limit, on a character border.
fn cut(mut name: String) -> String {
    let end = name.floor_char_boundary(wire::CLIENT_NAME_BYTES);
    name.truncate(end);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_program_name_is_cut_on_a_character_border() {
        assert_eq!(cut("x".to_owned()), "x");
        let long = cut("ä".repeat(64));
        assert_eq!(long.len(), wire::CLIENT_NAME_BYTES);
    }
}
