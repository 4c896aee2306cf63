//! Kinds of processes and their permitted requests.

use std::fmt;

use channel::supervision::SupervisorRequest;

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
    /// Returns whether a process of this kind may make a request. Control and switch are not
    /// trusted with the requests of each other: paths, interfaces, descriptors of guests.
    pub(crate) fn may_request(self, request: &SupervisorRequest) -> bool {
        let requester = match request {
            SupervisorRequest::Ready
            | SupervisorRequest::Listen { .. }
            | SupervisorRequest::Unlisten { .. }
            | SupervisorRequest::Processes
            | SupervisorRequest::ProcessUsage
            | SupervisorRequest::Drivers(_)
            | SupervisorRequest::UserNetworks(_)
            | SupervisorRequest::AllUserFigures
            | SupervisorRequest::UserTable { .. }
            | SupervisorRequest::DriverStates
            | SupervisorRequest::InterfaceAddresses
            | SupervisorRequest::InterfaceSpeeds
            | SupervisorRequest::Rooms(_)
            | SupervisorRequest::CpuWeights(_)
            | SupervisorRequest::CpuWeightErrors
            | SupervisorRequest::DriverCalls
            | SupervisorRequest::KernelDrops
            | SupervisorRequest::SwitchGone
            | SupervisorRequest::Events { .. }
            | SupervisorRequest::WatchGuests(_)
            | SupervisorRequest::WatchedGuests
            | SupervisorRequest::FoundVcpus
            | SupervisorRequest::Dials(_)
            | SupervisorRequest::SocketDirs
            | SupervisorRequest::ForwardReach
            | SupervisorRequest::SharedSockets
            | SupervisorRequest::ListenFor { .. }
            | SupervisorRequest::ListenAs { .. }
            | SupervisorRequest::Frozen => Kind::Control,
            SupervisorRequest::Dial { .. }
            | SupervisorRequest::StoreDescriptor { .. }
            | SupervisorRequest::StoreSession { .. }
            | SupervisorRequest::DropSession { .. }
            | SupervisorRequest::Quiesced { .. }
            | SupervisorRequest::Serving { .. } => Kind::Switch,
            SupervisorRequest::Pong(_)
            | SupervisorRequest::DriverPong { .. }
            | SupervisorRequest::DriverEnds { .. }
            | SupervisorRequest::VhostRefused { .. }
            | SupervisorRequest::KeepFlows(_)
            | SupervisorRequest::DropFlows(_)
            | SupervisorRequest::NextFlows
            | SupervisorRequest::NextForwards
            | SupervisorRequest::NetworkDenied
            | SupervisorRequest::UserFigures(_)
            | SupervisorRequest::UserPage(_) => Kind::Driver,
            SupervisorRequest::Heartbeat => return self != Kind::Driver,
        };
        self == requester
    }

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

#[cfg(test)]
mod tests {
    use port::PortId;

    use super::*;

    #[test]
    fn requests_of_other_kinds_are_refused() {
        let path = || "/somewhere".to_owned();
        let port = PortId(1);
        assert!(
            Kind::Control.may_request(&SupervisorRequest::Heartbeat)
                && Kind::Switch.may_request(&SupervisorRequest::Heartbeat)
        );
        assert!(!Kind::Driver.may_request(&SupervisorRequest::Heartbeat));
        assert!(
            Kind::Control.may_request(&SupervisorRequest::Frozen)
                && !Kind::Switch.may_request(&SupervisorRequest::Frozen)
        );
        let quiesced = SupervisorRequest::Quiesced { at_ns: 0 };
        assert!(Kind::Switch.may_request(&quiesced) && !Kind::Control.may_request(&quiesced));
        for request in [
            SupervisorRequest::Listen { path: path() },
            SupervisorRequest::Drivers(Vec::new()),
            SupervisorRequest::Dials(Vec::new()),
        ] {
            assert!(Kind::Control.may_request(&request));
            assert!(!Kind::Switch.may_request(&request) && !Kind::Driver.may_request(&request));
        }
        for request in [
            SupervisorRequest::Dial { port },
            SupervisorRequest::DropSession { port },
        ] {
            assert!(Kind::Switch.may_request(&request));
            assert!(!Kind::Control.may_request(&request) && !Kind::Driver.may_request(&request));
        }
    }
}
