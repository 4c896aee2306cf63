//! Forwards: connections to ports of the host that lead to guests. The supervisor has made their
//! listening sockets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use channel::driving::{UserForward, UserNetwork};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, connect_unspec, sockopt};
use usernet::network::Network;
use usernet::services::Leases;
use wire::packet::L3;
use wire::{MacAddr, Parsed, SNAPSHOT};

use super::events::{Kind, Tag};

/// Most stations whose addresses are remembered.
const STATIONS_MAX: usize = 4096;

/// A forward with its listening socket.
#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) spec: UserForward,
    pub(crate) socket: OwnedFd,
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: OwnedFd,
    pub(super) guest: SocketAddr,
    pub(super) station: MacAddr,
    /// The other end as the guest is to see it.
    pub(super) peer: SocketAddr,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Forwards {
    epoll: OwnedFd,
    network: Network,
    all: Vec<Forward>,
    serial: u32,
    /// Stations of guests that chose their addresses themselves, by their ARP packets.
    stations: HashMap<IpAddr, MacAddr>,
}

impl Forwards {
    pub(super) fn new(epoll: OwnedFd, network: Network) -> Self {
        Self {
            epoll,
            network,
            all: Vec::new(),
            serial: 0,
            stations: HashMap::new(),
        }
    }

    /// Listens by these forwards, in place of those before.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn set(&mut self, forwards: Vec<Forward>) -> Result<(), Errno> {
        for old in &self.all {
            // The supervisor has a descriptor too, so that closing ours would not end the events.
            epoll::delete(&self.epoll, &old.socket)?;
        }
        self.serial = self.serial.wrapping_add(1);
        self.all = forwards;
        for (at, forward) in (0..).zip(&self.all) {
            let tag = Tag::new(Kind::Forward, self.serial, at);
            epoll::add(&self.epoll, &forward.socket, tag.data(), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Remembers the station of a guest by its ARP packet.
    pub(super) fn learn(&mut self, frame: &[u8]) {
        let parsed = Parsed::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len());
        if let L3::Arp {
            sender_mac,
            sender_ip,
            ..
        } = parsed.l3
            && sender_mac == parsed.src
            && self.network.may_be_guest(sender_ip.into())
        {
            if self.stations.len() >= STATIONS_MAX {
                self.stations.clear();
            }
            self.stations.insert(sender_ip.into(), sender_mac);
        }
    }

    /// Accepts the next connection of an event; one that leads to no known guest is reset.
    pub(super) fn accept(
        &self,
        tag: Tag,
        desired: &UserNetwork,
        leases: &Leases,
    ) -> Option<Accepted> {
        let forward = self.all.get(tag.index() as usize);
        let forward = forward.filter(|_| tag.is_of(self.serial))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer) = acceptfrom_with(&forward.socket, flags).ok()?;
        let found = peer.and_then(|peer| {
            let peer = SocketAddr::try_from(peer).ok()?;
            let guest = address_of(&forward.spec, desired, leases, peer.is_ipv4())?;
            let station = self.station_of(guest, desired, leases)?;
            Some((guest, station, self.seen(peer)?))
        });
        let options = sockopt::set_tcp_nodelay(&socket, true)
            .and_then(|()| sockopt::set_socket_oobinline(&socket, true));
        let Some((guest, station, peer)) = found.filter(|_| options.is_ok()) else {
            let _ = connect_unspec(&socket);
            return None;
        };
        Some(Accepted {
            socket,
            guest: SocketAddr::new(guest, forward.spec.port),
            station,
            peer,
        })
    }

    /// The host itself is the gateway to guests.
    fn seen(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let gateway = match peer.ip() {
            ip if !ip.is_loopback() => ip,
            IpAddr::V4(_) => self.network.gateway().into(),
            IpAddr::V6(_) => self.network.gateway6()?.into(),
        };
        Some(SocketAddr::new(gateway, peer.port()))
    }

    fn station_of(&self, guest: IpAddr, desired: &UserNetwork, leases: &Leases) -> Option<MacAddr> {
        let leased = leases
            .iter()
            .find(|lease| IpAddr::V4(lease.address) == guest);
        let listed = || {
            let mut guests = desired.guests.iter();
            let listed = guests.find(|of| of.addresses.contains(&guest))?;
            listed.mac.map(MacAddr)
        };
        let leased = leased.map(|lease| lease.mac);
        leased
            .or_else(listed)
            .or_else(|| self.stations.get(&guest).copied())
    }
}

/// Returns the address of the guest that a forward leads to, of the version of its peer.
fn address_of(
    forward: &UserForward,
    desired: &UserNetwork,
    leases: &Leases,
    is_v4: bool,
) -> Option<IpAddr> {
    let is_same = |address: &IpAddr| address.is_ipv4() == is_v4;
    if let Ok(address) = forward.to.parse::<IpAddr>() {
        return Some(address).filter(is_same);
    }
    let guest = desired
        .guests
        .iter()
        .find(|guest| guest.name == forward.to)?;
    let listed = guest.addresses.iter().copied().find(is_same);
    listed.or_else(|| {
        let mac = guest.mac.map(MacAddr)?;
        let lease = leases.iter().find(|lease| lease.mac == mac)?;
        Some(IpAddr::V4(lease.address)).filter(is_same)
    })
}
