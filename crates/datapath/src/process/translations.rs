//! Translations that queues of guests with an IOMMU lack: when the front ends are asked, and when
//! their answers are read.

use std::time::Instant;

use port::PortId;

use super::Process;
use crate::ports::crash_record;
use crate::process::attach::Attachment;

impl Process {
    /// Asks the front end of a port for translations.
    pub(super) fn serve_misses(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let served = crash_record::serve(Some(id));
        port.ask(&self.workers);
        port.watch_translations(&self.epoll);
        drop(served);
        self.report_phase(id);
    }

    /// Reads the answers of a port's front end, after its messages: it may have sent an UPDATE
    /// before an answer.
    pub(super) fn serve_channel(&mut self, id: PortId) {
        self.serve_connection(id);
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let served = crash_record::serve(Some(id));
        port.read_answers(&self.workers);
        port.watch_translations(&self.epoll);
        drop(served);
        self.report_phase(id);
    }

    /// The time at which the first question to a front end ends without an answer.
    pub(super) fn next_question(&self) -> Option<Instant> {
        let questions = self.ports.values();
        questions.filter_map(Attachment::next_question).min()
    }

    /// Ends questions that have not been answered in time.
    pub(super) fn questions_due(&mut self) {
        let now = Instant::now();
        let is_due = |port: &Attachment| port.next_question().is_some_and(|at| at <= now);
        let due = self.ports.iter().filter(|(_, port)| is_due(port));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.serve_misses(id);
        }
    }
}
