//! First messages for new processes of a pair.

use std::io;
use std::os::fd::AsFd;

use channel::link;
use channel::supervision::SupervisorEvent;

use super::Supervisor;
use super::child::Child;

impl Supervisor {
    /// Sets up a new switch; the saved sessions follow.
    ///
    /// # Errors
    /// It cannot receive.
    pub(super) fn set_up_switch(&mut self) -> io::Result<()> {
        let start = SupervisorEvent::StartSwitch(self.settings.clone());
        let fds = [self.counters.as_fd(), self.thread_slots.as_fd()];
        self.switch.send(&start, &fds)?;
        self.saved_sessions.queue_all();
        Ok(())
    }

    /// Sets up a new control process of the serving pair.
    ///
    /// # Errors
    /// One of them cannot receive.
    pub(super) fn set_up_control(&mut self) -> io::Result<()> {
        self.set_up(&self.control, &self.switch, false)
    }

    /// Sets up a new control process, and links it with the switch.
    ///
    /// # Errors
    /// One of them cannot receive.
    pub(super) fn set_up(&self, control: &Child, switch: &Child, frozen: bool) -> io::Result<()> {
        let (switch_end, control_end) = link::pair()?;
        switch.send(&SupervisorEvent::ControlLink, &[switch_end.as_fd()])?;
        let start = SupervisorEvent::StartControl {
            runtime_dir: self.runtime_dir.display().to_string(),
            frozen,
        };
        let fds = [
            control_end.as_fd(),
            self.api.as_fd(),
            self.state.as_fd(),
            self.counters.as_fd(),
        ];
        control.send(&start, &fds)
    }
}
