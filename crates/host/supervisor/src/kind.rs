//! Kinds of processes and their messages.

use std::fmt;

use ipc::supervision::{
    ControlRequest, DriverRequest, EventToControl, EventToDriver, EventToSwitch, Request,
    SwitchRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Kind of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Decides.
    Control,
    /// Forwards.
    Switch,
    /// Moves frames between an interface and the switch.
    Driver,
}

impl Kind {
    /// Returns the name of its executable file.
    pub(crate) const fn binary(self) -> &'static str {
        match self {
            Kind::Control => "lasthop-control",
            Kind::Switch => "lasthop-switch",
            Kind::Driver => "lasthop-driver",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Control => "control",
            Kind::Switch => "switch",
            Kind::Driver => "driver",
        })
    }
}

/// Kind of a process as a type, with its messages: what is received from a process can only be a
/// request of its kind.
pub(crate) trait Role {
    /// The kind.
    const KIND: Kind;
    /// Messages of the process.
    type Request: Request;
    /// Messages to it.
    type Event: Serialize + DeserializeOwned;
    /// Requests its end.
    const STOP: Self::Event;
    /// Asks whether all its threads are alive.
    const PING: Self::Event;
}

/// Control.
pub(crate) enum Control {}
/// The switch.
pub(crate) enum Switch {}
/// A driver.
pub(crate) enum Driver {}

impl Role for Control {
    const KIND: Kind = Kind::Control;
    type Request = ControlRequest;
    type Event = EventToControl;
    const STOP: EventToControl = EventToControl::Stop;
    const PING: EventToControl = EventToControl::Ping;
}

impl Role for Switch {
    const KIND: Kind = Kind::Switch;
    type Request = SwitchRequest;
    type Event = EventToSwitch;
    const STOP: EventToSwitch = EventToSwitch::Stop;
    const PING: EventToSwitch = EventToSwitch::Ping;
}

impl Role for Driver {
    const KIND: Kind = Kind::Driver;
    type Request = DriverRequest;
    type Event = EventToDriver;
    const STOP: EventToDriver = EventToDriver::Stop;
    const PING: EventToDriver = EventToDriver::Ping;
}
