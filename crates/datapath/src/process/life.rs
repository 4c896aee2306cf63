//! Whether all threads get on: the supervisor asks now and then, and ends a process that does not answer.
//!
//! The session thread answers when every worker has done what it was asked for before. It waits for none of them.
//! While the switch rests, it answers itself.

use channel::supervision::Ask;

use super::Process;

/// The supervisor's question.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Workers that have not shown yet that they live.
    waiting: usize,
}

impl Process {
    /// The supervisor asks.
    pub(super) fn ask_for_life(&mut self) {
        if self.resting {
            // Workers have nothing to do, and are not heard.
            return self.show_life();
        }
        self.life.waiting = self.workers.threads();
        self.workers.ask_for_life();
    }

    /// A worker gets on. The last one answers the supervisor.
    pub(super) fn worker_lives(&mut self) {
        self.life.waiting = self.life.waiting.saturating_sub(1);
        if self.life.waiting == 0 {
            self.show_life();
        }
    }

    fn show_life(&self) {
        if let Err(error) = self.supervisor.send(&Ask::Alive, &[]) {
            tracing::warn!("the supervisor does not listen: {error}");
        }
    }
}
