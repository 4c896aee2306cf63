//! Class of the frames that no access list gives one: by DSCP, where the sender's port is trusted.

use port::PortId;
use serde::{Deserialize, Serialize};
use wire::{EtherType, FlowKey, FlowMask};

/// The number of the class that frames have without any other.
pub const DEFAULT_CLASS: u8 = 0;

/// A class and where it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassOrigin {
    /// A rule of the sender's access lists.
    FromGuest,
    /// A rule of the receiver's access lists.
    ToGuest,
    /// The rule that let the connection in.
    Connection,
    /// The DSCP of the packet.
    Dscp(u8),
}

/// Classes of DSCPs, and the ports whose DSCPs count.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DscpClasses {
    /// DSCP and class, in ascending order of the DSCP. Others are of the default class.
    classes: Vec<(u8, u8)>,
    /// In ascending order.
    trusted: Vec<PortId>,
}

impl DscpClasses {
    /// Returns the classes of DSCPs (0 to 63), of which packets from these ports get theirs. Of two
    /// classes of one DSCP the first counts.
    #[must_use]
    pub fn new(
        classes: impl IntoIterator<Item = (u8, u8)>,
        trusted: impl IntoIterator<Item = PortId>,
    ) -> Self {
        let mut classes: Vec<_> = classes.into_iter().collect();
        classes.sort_by_key(|(dscp, _)| *dscp);
        classes.dedup_by_key(|(dscp, _)| *dscp);
        let mut trusted: Vec<_> = trusted.into_iter().collect();
        trusted.sort_unstable();
        trusted.dedup();
        Self { classes, trusted }
    }

    /// Returns whether the DSCPs of a port's packets count.
    pub(crate) fn trusts(&self, port: PortId) -> bool {
        !self.classes.is_empty() && self.trusted.binary_search(&port).is_ok()
    }

    /// Returns the class of a key's packets with their DSCP, if there is one, and the bits on which
    /// that depends.
    pub(crate) fn of(&self, key: &FlowKey) -> (Option<(u8, u8)>, FlowMask) {
        if !self.trusts(PortId(key.in_port())) {
            return (None, FlowMask::NONE);
        }
        let mask = FlowMask::NONE.with_ethertype();
        if !matches!(key.ethertype(), EtherType::IPV4 | EtherType::IPV6) {
            return (None, mask);
        }
        let dscp = key.tos() >> 2;
        let found = self.classes.binary_search_by_key(&dscp, |(dscp, _)| *dscp);
        let class = found.ok().and_then(|at| self.classes.get(at)).copied();
        (class.map(|(dscp, class)| (class, dscp)), mask.with_dscp())
    }

    /// Returns the ports whose packets these classes may give another class than the former ones.
    pub(crate) fn changed<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = PortId> + 'a {
        let ports = self.trusted.iter().chain(&old.trusted).copied();
        let same = self.classes == old.classes;
        ports.filter(move |port| !same || self.trusts(*port) != old.trusts(*port))
    }
}
