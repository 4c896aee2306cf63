//! Ephemeral ports of the host (`net.ipv4.ip_local_port_range`) that flows of guests take, divided
//! among the guests.
//!
//! A mapping of UDP has its port alone: all take from one supply. Connections of TCP to different
//! destinations may have the same port, so each destination, an address and a port, has a supply of
//! its own. A flow whose socket is that of a forward, or was accepted, takes none.

use std::collections::HashMap;
use std::net::SocketAddr;

use wire::MacAddr;

use super::table::{Entry, Reserve};
use crate::Secret;

/// A supply of ports: that of connections to a destination, or that of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Supply {
    /// To this destination, as the guest sees it.
    Tcp(SocketAddr),
    Udp,
}

impl Supply {
    /// The supply of a flow's port.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        match entry {
            Entry::Tcp(flow) => flow.has_connected().then_some(Self::Tcp(entry.ends().peer)),
            Entry::Udp(_) => entry.forwarded().is_none().then_some(Self::Udp),
        }
    }
}

/// Ports that guests have of a supply.
#[derive(Debug)]
struct PortCounts {
    all: u32,
    /// Those of guests beyond the shares that are kept for them.
    beyond: u32,
    guests: HashMap<MacAddr, u32, Secret>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ports {
    /// Ports of a supply.
    bound: u32,
    secret: Secret,
    supplies: HashMap<Supply, PortCounts, Secret>,
}

/// Ports of each supply that are kept for each guest with a known station: half of all at most.
fn share(bound: u32, reserve: &Reserve) -> u32 {
    bound / 2 / reserve.known().max(1)
}

impl Ports {
    pub(super) fn new(bound: u32, secret: Secret) -> Self {
        Self {
            bound,
            secret,
            supplies: HashMap::with_hasher(secret),
        }
    }

    /// Divides anew, after a change of the bound or of the known stations. Flows keep their ports.
    pub(super) fn divide(&mut self, bound: u32, reserve: &Reserve) {
        self.bound = bound;
        let share = share(bound, reserve);
        for taken in self.supplies.values_mut() {
            let all = taken.guests.iter();
            let beyond = all.map(|(station, own)| own.saturating_sub(reserve.of(*station, share)));
            taken.beyond = beyond.sum();
        }
    }

    /// Returns whether a guest may have one more port: one of its share, or of the rest. It may
    /// have at most as many of the rest as are left. So one that takes all it can leaves some for
    /// others, known or not.
    pub(super) fn has_room(&self, supply: Supply, station: MacAddr, reserve: &Reserve) -> bool {
        let taken = self.supplies.get(&supply);
        let (all, beyond) = taken.map_or((0, 0), |taken| (taken.all, taken.beyond));
        let own = taken.and_then(|taken| taken.guests.get(&station).copied());
        let (own, share) = (own.unwrap_or(0), share(self.bound, reserve));
        let rest = self.bound - share * reserve.known();
        let kept = reserve.of(station, share);
        all < self.bound && (own < kept || own - kept < rest.saturating_sub(beyond))
    }

    /// A guest has taken a port.
    pub(super) fn take(&mut self, supply: Supply, station: MacAddr, reserve: &Reserve) {
        let share = share(self.bound, reserve);
        let taken = self.supplies.entry(supply).or_insert_with(|| PortCounts {
            all: 0,
            beyond: 0,
            guests: HashMap::with_hasher(self.secret),
        });
        let own = taken.guests.entry(station).or_default();
        taken.beyond += u32::from(*own >= reserve.of(station, share));
        *own += 1;
        taken.all += 1;
    }

    /// A guest has given a port back.
    pub(super) fn give_back(&mut self, supply: Supply, station: MacAddr, reserve: &Reserve) {
        let share = share(self.bound, reserve);
        let Some(taken) = self.supplies.get_mut(&supply) else {
            return;
        };
        let Some(own) = taken.guests.get_mut(&station) else {
            return;
        };
        *own -= 1;
        taken.all -= 1;
        taken.beyond -= u32::from(*own >= reserve.of(station, share));
        if *own == 0 {
            taken.guests.remove(&station);
        }
        if taken.all == 0 {
            self.supplies.remove(&supply);
        }
    }
}
