//! Segmentation offloads of an interface, which may be switched off while its driver runs. The
//! frames stay right, because the system cuts super-frames itself then; but they cost more, which
//! an operator has to be able to see.

use std::io;
use std::time::{Duration, Instant};

use super::interface::Control;

/// Time between two looks at an interface.
const INTERVAL: Duration = Duration::from_secs(1);

/// A segmentation offload of interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Its name in the table of the kernel (`netdev_features_strings`).
    feature: &'static str,
    /// Its name in the output of `ethtool -k`.
    name: &'static str,
    /// The effect of its absence, as a sentence without a full stop.
    effect: &'static str,
}

impl Offload {
    /// Returns what to say when it was switched at an interface.
    #[must_use]
    pub fn notice(self, interface: &str, is_on: bool) -> String {
        let Self { name, effect, .. } = self;
        match is_on {
            true => format!("offload {name} of interface {interface} is on again"),
            false => format!("offload {name} of interface {interface} is off: {effect}"),
        }
    }
}

const OFFLOADS: [Offload; 4] = [
    Offload {
        feature: "tx-tcp-segmentation",
        name: "tx-tcp-segmentation",
        effect: "the kernel itself cuts super-frames of TCP over IPv4 for it to single frames",
    },
    Offload {
        feature: "tx-tcp6-segmentation",
        name: "tx-tcp6-segmentation",
        effect: "the kernel itself cuts super-frames of TCP over IPv6 for it to single frames",
    },
    Offload {
        feature: "tx-udp-segmentation",
        name: "tx-udp-segmentation",
        effect: "the kernel itself cuts super-frames of UDP for it to single frames",
    },
    Offload {
        feature: "tx-generic-segmentation",
        name: "generic-segmentation-offload",
        effect: "programs of the host send single frames to it, but for super-frames that it cuts",
    },
];

/// Offloads of one interface at the last look.
#[derive(Debug)]
pub(super) struct Offloads {
    /// Numbers of the features; none where the kernel does not have one.
    numbers: [Option<usize>; OFFLOADS.len()],
    are_on: [bool; OFFLOADS.len()],
    next: Instant,
}

impl Offloads {
    /// The offloads that an interface has now.
    ///
    /// # Errors
    /// There is no such interface, or it does not report its features.
    pub(super) fn of(interface: &str, control: &Control) -> io::Result<Self> {
        let features = OFFLOADS.map(|offload| offload.feature);
        let numbers = control.feature_numbers(interface, features)?;
        let mut offloads = Self {
            numbers,
            are_on: [false; OFFLOADS.len()],
            next: Instant::now() + INTERVAL,
        };
        offloads.are_on = offloads.look(interface, control)?;
        Ok(offloads)
    }

    fn look(&self, interface: &str, control: &Control) -> io::Result<[bool; OFFLOADS.len()]> {
        let active = control.active_features(interface)?;
        Ok(self
            .numbers
            .map(|number| number.is_some_and(|number| active.has(number))))
    }

    /// Returns the offloads that changed since the last look, and whether they are on now; nothing
    /// while no look is due, or the interface is gone.
    pub(super) fn changes(
        &mut self,
        interface: &str,
        control: &Control,
        now: Instant,
    ) -> Vec<(Offload, bool)> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + INTERVAL;
        match self.look(interface, control) {
            Ok(are_on) => self.note(are_on),
            Err(_) => Vec::new(),
        }
    }

    fn note(&mut self, are_on: [bool; OFFLOADS.len()]) -> Vec<(Offload, bool)> {
        let before = std::mem::replace(&mut self.are_on, are_on);
        let states = OFFLOADS.into_iter().zip(before.into_iter().zip(are_on));
        let changed = states.filter(|(_, (before, is_on))| before != is_on);
        changed
            .map(|(offload, (_, is_on))| (offload, is_on))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_returned_once() {
        let mut offloads = Offloads {
            numbers: [None; OFFLOADS.len()],
            are_on: [true, true, true, false],
            next: Instant::now(),
        };
        assert_eq!(offloads.note([true, true, true, false]), []);
        let without_udp = [true, true, false, false];
        assert_eq!(offloads.note(without_udp), [(OFFLOADS[2], false)]);
        assert_eq!(offloads.note(without_udp), []);
        let back = offloads.note([true; OFFLOADS.len()]);
        assert_eq!(back, [(OFFLOADS[2], true), (OFFLOADS[3], true)]);
    }

    #[test]
    fn the_kernel_knows_the_offloads_by_their_names() {
        let control = Control::new().unwrap();
        let mut offloads = Offloads::of("lo", &control).unwrap();
        assert!(offloads.numbers.iter().all(Option::is_some), "{offloads:?}");
        let due = offloads.next;
        offloads.are_on = offloads.are_on.map(|is_on| !is_on);
        let early = due - Duration::from_millis(1);
        assert_eq!(offloads.changes("lo", &control, early), []);
        assert_eq!(offloads.changes("lo", &control, due).len(), OFFLOADS.len());
        assert_eq!(offloads.changes("lo", &control, due), []);
        assert!(Offloads::of("no-such-if0", &control).is_err());
        let later = due + INTERVAL;
        assert_eq!(offloads.changes("no-such-if0", &control, later), []);
    }
}
