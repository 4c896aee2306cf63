//! Forwards: ports of the host that lead to guests. The supervisor has made their sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ipc::driving::{ForwardProtocol, UserForward, UserNetwork};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, connect_unspec};
use usernet::Nanos;
use usernet::network::Network;
use usernet::services::Services;
use wire::MacAddr;

use super::calls;
use super::events::{Kind, Tag};
use super::sockets;

/// Time between two questions for a station (RFC 1122, section 2.3.2.1: at most one a second).
pub(super) const ASK_INTERVAL: Nanos = 1_000_000_000;

/// A forward with its socket.
#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) spec: UserForward,
    pub(crate) socket: OwnedFd,
}

/// A forward at work.
#[derive(Debug)]
struct OpenForward {
    spec: UserForward,
    socket: Arc<OwnedFd>,
    /// Its datagrams have their turn.
    is_queued: bool,
    /// The guest's station may be asked for again.
    ask_after: Nanos,
}

/// The guest that a forward leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum ForwardTarget {
    /// Address and station.
    Guest(SocketAddr, MacAddr),
    /// A guest with an unknown station, and whether it is time to ask for it.
    Ask(IpAddr, bool),
    /// None that is known.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Forwards {
    epoll: OwnedFd,
    network: Network,
    all: Vec<OpenForward>,
    serial: u32,
}

impl Forwards {
    pub(super) fn new(epoll: OwnedFd, network: Network) -> Self {
        Self {
            epoll,
            network,
            all: Vec::new(),
            serial: 0,
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
        let open = |Forward { spec, socket }| OpenForward {
            spec,
            socket: Arc::new(socket),
            is_queued: false,
            ask_after: 0,
        };
        self.all = forwards.into_iter().map(open).collect();
        for (at, forward) in (0..).zip(&self.all) {
            let tag = Tag::new(Kind::Forward, self.serial, at);
            // Connections are accepted one an event, datagrams are received until there is none.
            let events = match forward.spec.listen.protocol {
                ForwardProtocol::Tcp => EventFlags::IN,
                ForwardProtocol::Udp => {
                    let socket = forward.socket.as_fd();
                    calls::coalesce(socket);
                    let is_v4 = forward.spec.listen.address.is_ipv4();
                    calls::keep_errors(socket, is_v4, true)?;
                    EventFlags::IN | EventFlags::ET
                }
            };
            epoll::add(&self.epoll, &forward.socket, tag.data(), events)?;
        }
        Ok(())
    }

    /// Returns the forwards.
    pub(super) fn all(&self) -> impl Iterator<Item = &UserForward> {
        self.all.iter().map(|open| &open.spec)
    }

    /// Returns whether datagrams to this address are forwarded.
    pub(super) fn receives_at(&self, address: SocketAddr) -> bool {
        let mut all = self.all.iter().map(|open| open.spec.listen);
        all.any(|of| (of.protocol, of.address) == (ForwardProtocol::Udp, address))
    }

    fn open(&mut self, tag: Tag) -> Option<&mut OpenForward> {
        let is_current = tag.is_of(self.serial);
        let open = self.all.get_mut(tag.index() as usize);
        open.filter(|_| is_current)
    }

    /// Returns the protocol of the forward of an event.
    pub(super) fn protocol(&mut self, tag: Tag) -> Option<ForwardProtocol> {
        self.open(tag).map(|open| open.spec.listen.protocol)
    }

    /// Sets whether datagrams have their turn; returns whether they had, `true` too for a forward
    /// that is no more.
    pub(super) fn set_queued(&mut self, tag: Tag, is_queued: bool) -> bool {
        self.open(tag)
            .is_none_or(|open| std::mem::replace(&mut open.is_queued, is_queued))
    }

    /// Returns the socket for datagrams, and where it listens.
    pub(super) fn receiver(&mut self, tag: Tag) -> Option<(Arc<OwnedFd>, SocketAddr)> {
        let open = self.open(tag)?;
        Some((open.socket.clone(), open.spec.listen.address))
    }

    /// Accepts the next connection of an event. The caller resets one that leads to no guest.
    pub(super) fn accept(&mut self, tag: Tag) -> Option<(OwnedFd, SocketAddr)> {
        let open = self.open(tag)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer) = acceptfrom_with(&open.socket, flags).ok()?;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let is_ready = sockets::prepare(&socket).is_ok();
        match peer.filter(|_| is_ready) {
            Some(peer) => Some((socket, peer)),
            None => {
                let _ = connect_unspec(&socket);
                None
            }
        }
    }

    /// The host itself is the gateway to guests.
    pub(super) fn seen(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let gateway = match peer.ip() {
            ip if !ip.is_loopback() => ip,
            IpAddr::V4(_) => self.network.gateway().into(),
            IpAddr::V6(_) => self.network.gateway6()?.into(),
        };
        Some(SocketAddr::new(gateway, peer.port()))
    }

    /// Returns the guest that a forward leads to, with an address of the IP version of its peer.
    pub(super) fn guest(
        &mut self,
        tag: Tag,
        desired: &UserNetwork,
        services: &Services,
        now: Nanos,
    ) -> ForwardTarget {
        let Some(open) = self.open(tag) else {
            return ForwardTarget::Nothing;
        };
        let spec = &open.spec;
        let Some(ip) = address_of(spec, desired, services) else {
            return ForwardTarget::Nothing;
        };
        match station_of(ip, desired, services, now) {
            Some(station) => ForwardTarget::Guest(SocketAddr::new(ip, spec.port), station),
            None => {
                let is_due = now >= open.ask_after;
                if is_due {
                    open.ask_after = now.saturating_add(ASK_INTERVAL);
                }
                ForwardTarget::Ask(ip, is_due)
            }
        }
    }
}

/// Returns the station of a guest's address, if it is known.
pub(super) fn station_of(
    ip: IpAddr,
    desired: &UserNetwork,
    services: &Services,
    now: Nanos,
) -> Option<MacAddr> {
    let mut guests = desired.guests.iter();
    let listed = guests.find(|of| of.addresses.contains(&ip));
    let listed = listed.and_then(|of| of.mac).map(MacAddr);
    listed.or_else(|| services.station(ip, now))
}

/// Returns the address of the guest that a forward leads to.
pub(super) fn address_of(
    forward: &UserForward,
    desired: &UserNetwork,
    services: &Services,
) -> Option<IpAddr> {
    let is_v4 = forward.listen.address.is_ipv4();
    let is_same = |address: &IpAddr| address.is_ipv4() == is_v4;
    if let Ok(address) = forward.to.parse::<IpAddr>() {
        return Some(address).filter(is_same);
    }
    let mut guests = desired.guests.iter();
    let guest = guests.find(|guest| guest.name == forward.to)?;
    let listed = guest.addresses.iter().copied().find(is_same);
    listed.or_else(|| {
        let mac = guest.mac.map(MacAddr)?;
        let lease = services.leases().iter().find(|lease| lease.mac == mac)?;
        Some(IpAddr::V4(lease.address)).filter(is_same)
    })
}
