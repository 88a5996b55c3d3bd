//! What the handles of a timeline hold together.

use std::sync::Arc;

use super::line::Line;

/// The application's hold on a timeline in one context. When it is let go of, the words stay mapped for as long as
/// streams wait for them: somebody must set those free if the writer dies.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Line>);

impl Hold {
    pub(crate) fn new(line: Line) -> Self {
        Self(Arc::new(line))
    }

    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.shared.memory.orders().keep_while_waited_for(&self.0, None);
    }
}
