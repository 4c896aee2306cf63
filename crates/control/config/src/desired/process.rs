//! Ports for processes: netmap and memif.

use api::v1::{Iommu, PortKind, PortSpec};
use ipc::sockets::SocketType;
use ipc::switching::Clients;

use super::at::{At, number};
use super::invalid::{Invalid, Place, expect};

/// Slots of a ring, a power of two: netmap's least useful number, and the most of VALE and memif.
const SLOTS: std::ops::RangeInclusive<u16> = 64..=4096;
/// Ring pairs of a netmap port, as of VALE ports.
const RING_PAIRS: std::ops::RangeInclusive<u16> = 1..=16;
/// Slots of a ring by default, as of VALE ports.
const DEFAULT_SLOTS: u16 = 1024;
/// Longest secret, in bytes: the field of memif's INIT message.
const SECRET_MAX: usize = 24;

/// Returns the path of a port's socket: the configured one, or the default of ports for processes.
pub(super) fn socket_of(port: &PortSpec) -> String {
    match port.socket.as_str() {
        "" if port.kind.is_for_process() => format!("{}.{}", port.name, port.kind.as_str()),
        socket => socket.to_owned(),
    }
}

/// Fills in the defaults.
pub(crate) fn normalise(port: &mut PortSpec) {
    port.socket = socket_of(port);
    match port.kind {
        PortKind::Netmap => drop(port.slots.get_or_insert(DEFAULT_SLOTS)),
        _ => drop(port.id.get_or_insert(0)),
    }
}

/// Checks the keys of ports for processes; others do not have them.
pub(super) fn check(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    if let Some(slots) = port.slots {
        self::slots(At(place, "slots"), slots)?;
    }
    if port.kind == PortKind::Netmap {
        let at = At(place, "queues");
        number(at, port.queues, &RING_PAIRS, expect::RING_PAIRS)?;
    }
    let secret = port.secret.as_ref().map(|secret| secret.as_str().len());
    match secret {
        Some(length) if !(1..=SECRET_MAX).contains(&length) => {
            Err(At(place, "secret").wrong(expect::SECRET, format!("{length} bytes")))
        }
        _ => Ok(()),
    }
}

/// Checks the number of slots of a ring.
pub(super) fn slots(at: At, slots: u16) -> Result<(), Invalid> {
    if SLOTS.contains(&slots) && slots.is_power_of_two() {
        Ok(())
    } else {
        Err(at.wrong(expect::SLOTS, slots.to_string()))
    }
}

/// Returns the type of the socket on which Lasthop listens for a port.
#[must_use]
pub fn socket_type_of(port: &PortSpec) -> SocketType {
    clients_of(port).socket_type()
}

/// Returns what a checked port offers its clients about an IOMMU: nothing, unless these are guests.
#[must_use]
pub fn iommu_of(port: &PortSpec) -> Iommu {
    match port.kind {
        PortKind::VhostUser => port.iommu,
        PortKind::Uplink | PortKind::Tap | PortKind::Netmap | PortKind::Memif | PortKind::User => {
            Iommu::Off
        }
    }
}

/// Returns the clients of a normalised port.
#[must_use]
pub fn clients_of(port: &PortSpec) -> Clients {
    match port.kind {
        PortKind::Netmap => Clients::Netmap {
            slots: port.slots.unwrap_or(DEFAULT_SLOTS),
        },
        PortKind::Memif => Clients::Memif {
            id: port.id.unwrap_or_default(),
            secret: port.secret.clone(),
        },
        PortKind::VhostUser | PortKind::Uplink | PortKind::Tap | PortKind::User => {
            Clients::VhostUser
        }
    }
}
