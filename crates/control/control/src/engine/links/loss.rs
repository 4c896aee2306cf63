//! The report that control ends because the switch is gone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ipc::link::Link;
use ipc::supervision::{ControlRequest, EventToControl};
use rustix::event::PollFlags;

/// Watches whether the switch has closed its end of the link, so that the supervisor counts the
/// death of the switch, and not the end of control that follows from it.
pub(in crate::engine) struct SwitchLoss {
    switch: OwnedFd,
    supervisor: Link<ControlRequest, EventToControl>,
}

impl SwitchLoss {
    /// Keeps copies of both links.
    ///
    /// # Errors
    /// The system's refusal.
    pub(in crate::engine) fn new(switch: &impl AsFd, supervisor: &impl AsFd) -> io::Result<Self> {
        Ok(Self {
            switch: switch.as_fd().try_clone_to_owned()?,
            supervisor: Link::new(supervisor.as_fd().try_clone_to_owned()?),
        })
    }

    /// Passes on the result of control's work. If it has failed and the switch is gone, the
    /// supervisor is informed first, whatever the error is: it may be one of a message, of a reply
    /// that did not come, or of a change that was refused.
    pub(in crate::engine) fn reported<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() && self.has_happened() {
            // If the supervisor is gone, the report has no receiver.
            let _ = self.supervisor.send(&ControlRequest::SwitchGone, &[]);
        }
        done
    }

    fn has_happened(&self) -> bool {
        let state = sys::wait::ready(&self.switch, PollFlags::IN, Some(Instant::now()));
        state.is_ok_and(|state| state.contains(PollFlags::HUP))
    }
}
