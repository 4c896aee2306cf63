//! Interfaces that the switch itself serves, without a process.
//!
//! ```text
//! switch dials       it gets copies of the queues
//! interface lost     the switch reports that and closes its copies; the interface is opened again
//!                    when it dials
//! port changed       the switch is asked to close its copies, and dials: perhaps a process serves
//!                    the interface then
//! port removed       the switch is asked to close its copies; the name of an own interface is free
//!                    at once
//! switch dies        its successor gets copies with the saved sessions, before it serves, unless
//!                    the switch has crashed again and again while it served the port
//! upgrade            likewise the next switch, before it takes over
//! ```
//!
//! The switch is not trusted with more than the queues: its reasons are made printable, and
//! messages about an interface that it does not have any more are ignored, because they may cross
//! ours.

#[cfg(test)]
mod tests;

use interfaces::device::{Device, OpenError};
use ipc::driving::{Choice, DriverSpec, InterfaceStart};
use ipc::supervision::EventToSwitch;
use model::{Event, EventKind, PortState};
use port::PortId;
use sys::foreign::ForeignFd;

use super::Reply;
use super::dial::Connection;

/// Whether the switch has the interface.
#[derive(Debug, Default)]
pub(super) struct InSwitch {
    has_interface: bool,
    /// The next switch gets it without a dial.
    is_offered: bool,
    /// Why it must close the interface; not sent yet.
    close: Option<&'static str>,
}

impl InSwitch {
    /// Returns the state as the supervisor before has passed it.
    pub(super) fn of_predecessor(has_interface: bool) -> Self {
        Self {
            has_interface,
            ..Self::default()
        }
    }

    pub(super) fn has_interface(&self) -> bool {
        self.has_interface
    }

    /// Notes that the switch has no copies any more. Returns whether it had some.
    pub(super) fn lose(&mut self) -> bool {
        std::mem::take(self).has_interface
    }

    /// Decides whether the next switch gets the interface without a dial.
    pub(super) fn offer(&mut self, is_offered: bool) {
        self.is_offered = is_offered;
    }

    pub(super) fn is_offered(&self) -> bool {
        self.is_offered
    }

    /// Notes that the switch has copies.
    pub(super) fn note_given(&mut self) {
        self.has_interface = true;
    }

    /// Has the switch close its copies, if it has some, and dial again.
    pub(super) fn close(&mut self, reason: &'static str) {
        if self.has_interface {
            self.close = Some(reason);
        }
    }

    /// Takes the request to close the copies, if there is one.
    pub(super) fn take_close(&mut self, port: PortId) -> Option<Reply> {
        let reason = self.close.take()?.to_owned();
        tracing::info!("the switch dials again: {reason}");
        Some(Reply {
            event: EventToSwitch::CloseInterface { port, reason },
            fds: Vec::new(),
        })
    }
}

/// Returns copies of the queues for the switch.
///
/// # Errors
/// The system's refusal.
pub(super) fn copies(device: &mut Device, choice: Choice) -> Result<Connection, OpenError> {
    let given = device.hand_over(choice)?;
    if !given.uso {
        tracing::info!("no UDP segmentation offload: each datagram is a frame");
    }
    let start = InterfaceStart {
        back_end: given.back_end,
        uso: given.uso,
    };
    let queues = given.queues.into_iter().map(ForeignFd::from);
    Ok(Connection::Interface(start, queues.collect()))
}

/// Returns whether the switch serves the open interface of a port.
pub(super) fn is_for_switch(spec: &DriverSpec, device: &Device) -> bool {
    let choice = spec.kind.interface().map(|of| of.choice);
    !spec.process && choice.is_some_and(|choice| device.fits_switch(choice))
}

/// Returns the event that a port is refused, because the switch has crashed while it served it.
pub(super) fn refusal(spec: &DriverSpec, reason: String) -> Event {
    let what = EventKind::Port {
        port: spec.name.to_string(),
        state: PortState::Faulted,
        reason: Some(reason),
    };
    ipc::audit::logged(what, 0)
}
