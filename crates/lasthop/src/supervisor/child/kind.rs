//! The kinds of processes, and what each may ask for.

use std::fmt;

use channel::supervision::Ask;

/// Which process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::supervisor) enum Kind {
    /// Decides.
    Control,
    /// Forwards.
    Switch,
    /// Moves frames between an interface and the switch.
    Driver,
}

impl Kind {
    /// Whether a request is one that such a child makes. Neither control nor the switch has to be trusted with what only the
    /// other one needs: paths, interfaces, descriptors of guests.
    pub(in crate::supervisor) fn may_ask(self, ask: &Ask) -> bool {
        let asker = match ask {
            Ask::Ready
            | Ask::Listen { .. }
            | Ask::Unlisten { .. }
            | Ask::Processes
            | Ask::ProcessUsage
            | Ask::Drivers(_)
            | Ask::DriverStates
            | Ask::InterfaceAddresses
            | Ask::Bereft
            | Ask::Events { .. }
            | Ask::WatchGuests(_)
            | Ask::WatchedGuests
            | Ask::Dials(_)
            | Ask::SocketDirs
            | Ask::ListenFor { .. }
            | Ask::Frozen => Kind::Control,
            Ask::Dial { .. }
            | Ask::DialPath { .. }
            | Ask::Keep { .. }
            | Ask::KeepRecord { .. }
            | Ask::Forget { .. }
            | Ask::Rested { .. }
            | Ask::GoesOn { .. } => Kind::Switch,
            Ask::Pong(_) | Ask::DriverEnds { .. } => Kind::Driver,
            Ask::Alive => return self != Kind::Driver,
        };
        self == asker
    }

    /// The name of its executable file.
    pub(in crate::supervisor) fn binary(self) -> &'static str {
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
    fn nobody_asks_for_what_is_anothers() {
        let path = || "/somewhere".to_owned();
        let port = PortId(1);
        assert!(Kind::Control.may_ask(&Ask::Alive) && Kind::Switch.may_ask(&Ask::Alive));
        assert!(!Kind::Driver.may_ask(&Ask::Alive));
        assert!(Kind::Control.may_ask(&Ask::Frozen) && !Kind::Switch.may_ask(&Ask::Frozen));
        let rested = Ask::Rested { at_ns: 0 };
        assert!(Kind::Switch.may_ask(&rested) && !Kind::Control.may_ask(&rested));
        for ask in [
            Ask::Listen { path: path() },
            Ask::Drivers(Vec::new()),
            Ask::Dials(Vec::new()),
        ] {
            assert!(Kind::Control.may_ask(&ask));
            assert!(!Kind::Switch.may_ask(&ask) && !Kind::Driver.may_ask(&ask));
        }
        let path = path();
        for ask in [
            Ask::Dial { port },
            Ask::DialPath { port, path },
            Ask::Forget { port },
        ] {
            assert!(Kind::Switch.may_ask(&ask));
            assert!(!Kind::Control.may_ask(&ask) && !Kind::Driver.may_ask(&ask));
        }
    }
}
