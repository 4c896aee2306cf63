//! What new processes of the pair are told first.

use std::io;
use std::os::fd::AsFd;

use channel::link;
use channel::supervision::Tell;

use super::Supervisor;
use super::child::Child;

impl Supervisor {
    /// Gives a new switch what it starts with; what was kept follows.
    ///
    /// # Errors
    /// It does not listen.
    pub(super) fn introduce_switch(&mut self) -> io::Result<()> {
        let start = Tell::StartSwitch(self.settings.clone());
        let fds = [self.counters.as_fd(), self.marks.as_fd()];
        self.switch.tell(&start, &fds)?;
        self.deposits.pack();
        Ok(())
    }

    /// Gives a new control process of the pair that serves what it starts with.
    ///
    /// # Errors
    /// One of them does not listen.
    pub(super) fn introduce_control(&mut self) -> io::Result<()> {
        self.introduce(&self.control, &self.switch, false)
    }

    /// Gives a new control process all it needs, and the switch a link to it.
    ///
    /// # Errors
    /// One of them does not listen.
    pub(super) fn introduce(
        &self,
        control: &Child,
        switch: &Child,
        frozen: bool,
    ) -> io::Result<()> {
        let (switch_end, control_end) = link::pair()?;
        switch.tell(&Tell::ControlLink, &[switch_end.as_fd()])?;
        let start = Tell::StartControl {
            runtime_dir: self.runtime_dir.display().to_string(),
            frozen,
        };
        let fds = [
            control_end.as_fd(),
            self.api.as_fd(),
            self.state.as_fd(),
            self.counters.as_fd(),
        ];
        control.tell(&start, &fds)
    }
}
