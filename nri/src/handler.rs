//! Who answers the runtime.

use crate::adjust::Adjustment;
use crate::runtime::Runtime;
use crate::view::{Container, Pod, Validation};

/// Answers what a runtime asks.
///
/// It is called on the thread that reads the socket, and a node's runtime makes no container meanwhile, of no pod:
/// nothing in it waits.
pub trait Handler: Send {
    /// A runtime has taken us: what it is to ask. Everything before is forgotten; [`Self::synchronized`] follows.
    fn configured(&mut self, runtime: &Runtime) -> Events;

    /// All pods and their containers that the runtime has, except what is over.
    fn synchronized(&mut self, all: Vec<(Pod, Vec<Container>)>);

    /// A container is about to be made.
    ///
    /// # Errors
    /// It is not made; the text, cut to [`REFUSAL_BYTES`](crate::limits::REFUSAL_BYTES), is in the event that says so.
    fn create(&mut self, pod: &Pod, container: &Container) -> Result<Adjustment, String>;

    /// A container is about to be made as all plugins want it.
    ///
    /// # Errors
    /// It is not made, as with [`Self::create`].
    fn validate(&mut self, whole: &Validation) -> Result<(), String>;

    /// A container was made: its process is there ([`Container::pid`]), in its namespaces, and has run nothing of its
    /// own.
    ///
    /// # Errors
    /// The process is killed, which counts as an end of the container.
    fn start(&mut self, pod: &Pod, container: &Container) -> Result<(), String>;
}

/// What a plugin is asked. Never nothing: that would stand for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events(i32);

impl Events {
    const CREATE: i32 = 1 << 3;
    const START: i32 = 1 << 5;
    const VALIDATE: i32 = 1 << 13;

    /// When a container is made, and when it starts.
    #[must_use]
    pub fn of_containers() -> Self {
        Self(Self::CREATE | Self::START)
    }

    /// These, and whether what all plugins made of a container is right. Where the runtime cannot ask that, it is left
    /// out.
    #[must_use]
    pub fn and_validation(self) -> Self {
        Self(self.0 | Self::VALIDATE)
    }

    /// What may be sent to this runtime: one that does not know an event does not have the plugin.
    pub(crate) fn mask(self, runtime: &Runtime) -> i32 {
        if runtime.can().validates { self.0 } else { self.0 & !Self::VALIDATE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_does_not_know_validation_is_not_asked_for_it() {
        let new = Runtime { nri: "v0.12.3".into(), ..Runtime::default() };
        let old = Runtime { nri: "v0.8.0".into(), ..Runtime::default() };
        assert_eq!(Events::of_containers().and_validation().mask(&new), 8_232);
        assert_eq!(Events::of_containers().and_validation().mask(&old), 40);
        assert_eq!(Events::of_containers().mask(&new), 40);
    }
}
