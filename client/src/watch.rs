//! Watching the buffers of the group.

use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::message::ClientBody;
use gpu_handoff_protocol::message::{Event, RequestId};

use crate::client::{Client, Shared};
use crate::deadline::after;
use crate::error::ClientError;
use crate::limits;

/// The events of the group's buffers: first [`Event::Appeared`] for each that is there, then [`Event::SnapshotDone`],
/// then changes as they happen. Ends when it is dropped.
///
/// When the node's daemon is replaced, the watch goes on: what came meanwhile has appeared, what went is
/// [`Event::Gone`] for [another reason](crate::EndReason::Other), and [`Event::SnapshotDone`] comes once more when all of
/// that was told. Notices of buffers that are being retired, and of orphans, may have been missed.
///
/// As an iterator it waits for each next event, and ends after the first error.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    request: RequestId,
    over: bool,
}

impl Client {
    /// Watches the buffers of the group.
    ///
    /// At most 8,192 events may be left unread; one more ends the watch with `WATCH_OVERFLOW`. Watch again then: a new
    /// watch begins with all that is there.
    ///
    /// ```no_run
    /// # use gpu_handoff_client::{Client, ClientError, Event};
    /// # fn watch(client: &Client) -> Result<(), ClientError> {
    /// for event in client.watch()? {
    ///     match event? {
    ///         Event::Appeared(buffer) => println!("{} from {}", buffer.facts.name, buffer.owner),
    ///         Event::Gone { id, reason } => println!("{id} is gone: {}", reason.as_str()),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When the connection is lost. A refusal of the node comes as the watch's first item.
    pub fn watch(&self) -> Result<Watch, ClientError> {
        let request = self.shared.connection.ask(ClientBody::Watch);
        let request = request.map_err(|fault| fault.while_doing("watch", "buffers"))?;
        Ok(Watch { shared: Arc::clone(&self.shared), request, over: false })
    }
}

impl Watch {
    /// The next event, waiting for it at most so long. `None`: there was none.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `WATCH_OVERFLOW`, after the events before it were read, and what a lost connection
    /// gives. After an error nothing more comes.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Event>, ClientError> {
        let event = self.shared.connection.event(self.request, after(timeout));
        self.over |= event.is_err();
        event.map_err(|fault| fault.while_doing("watch", "buffers"))
    }

    /// The next event, if there is one already.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn try_recv(&mut self) -> Result<Option<Event>, ClientError> {
        self.recv_timeout(Duration::ZERO)
    }
}

impl Iterator for Watch {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            if let Some(event) = self.recv_timeout(limits::WATCH_ROUND).transpose() {
                return Some(event);
            }
        }
        None
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.connection.forget(self.request);
    }
}
