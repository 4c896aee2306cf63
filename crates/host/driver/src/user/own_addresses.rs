//! The host's own addresses, which guests reach by none of their names.
//!
//! The system is asked where a packet to an address would go (rtnetlink(7), `RTM_GETROUTE`): to
//! this host itself, to all hosts of a network, or by a way to another host. So an address counts
//! that no interface has, but a route of type `local` makes the host's, in IPv4 and IPv6 alike.
//! That is no question of what a socket can be bound to: with `ip_nonlocal_bind` that is any
//! address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use usernet::Nanos;

/// How long an address counts as one that is not the host's.
const KNOWN: Nanos = 1_000_000_000;
/// Maximum number of such addresses.
const KNOWN_MAX: usize = 1024;

/// Lengths of `struct nlmsghdr` (`linux/netlink.h`), `struct rtmsg` (`linux/rtnetlink.h`), and of
/// both in a row.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const HEAD: usize = HEADER + ROUTE;
/// Place of the type of a route in an answer.
const TYPE: usize = HEADER + 7;
/// Room for an answer: a route has at most one next hop, and metrics.
const ANSWER: usize = 4096;
/// Answers to questions before that are passed by.
const OLD_ANSWERS: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct OwnAddresses {
    routes: Result<OwnedFd, Errno>,
    /// Number of the last question.
    number: u32,
    /// Addresses that are not the host's, and until when that holds.
    others: HashMap<IpAddr, Nanos>,
}

impl OwnAddresses {
    /// Asks in the network namespace of this thread. Where the system permits no such questions, no
    /// address is known to be another host's, and guests reach none.
    pub(super) fn new() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        // No protocol is `NETLINK_ROUTE`.
        let routes = socket_with(family, kind, flags, None);
        if let Err(error) = &routes {
            tracing::warn!(
                "guests reach no outside, since AF_NETLINK is not permitted \
                 (RestrictAddressFamilies= of systemd): {error}"
            );
        }
        Self {
            routes,
            number: 0,
            others: HashMap::new(),
        }
    }

    /// Returns whether packets to an address stay on this host, or go to all hosts of a network.
    ///
    /// # Errors
    /// The system has no way to it, or does not say.
    pub(super) fn contains(&mut self, address: IpAddr, now: Nanos) -> Result<bool, Errno> {
        if self.others.get(&address).is_some_and(|until| now < *until) {
            return Ok(false);
        }
        if self.route(address)? != libc::RTN_UNICAST {
            return Ok(true);
        }
        if self.others.len() >= KNOWN_MAX {
            self.others.clear();
        }
        self.others.insert(address, now.saturating_add(KNOWN));
        Ok(false)
    }

    /// Returns the type of the route to an address (`rtm_type`).
    fn route(&mut self, to: IpAddr) -> Result<u8, Errno> {
        self.number = self.number.wrapping_add(1);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let routes = self.routes.as_ref().map_err(|error| *error)?;
        send(routes, &question(to, self.number), flags)?;
        let mut answer = [0; ANSWER];
        for _ in 0..OLD_ANSWERS {
            // The system has answered before the first call returned.
            let (len, _) = recv(routes, &mut answer[..], RecvFlags::DONTWAIT)?;
            if let Some(found) = route_of(&answer[..len], self.number) {
                return found;
            }
        }
        Err(Errno::PROTO)
    }
}

/// Returns the question for the route to an address.
fn question(to: IpAddr, number: u32) -> Vec<u8> {
    let (family, bytes) = match to {
        IpAddr::V4(to) => (libc::AF_INET, to.octets().to_vec()),
        IpAddr::V6(to) => (libc::AF_INET6, to.octets().to_vec()),
    };
    let mut route = [0; ROUTE];
    (route[0], route[1]) = (family as u8, bytes.len() as u8 * 8);
    let destination = 4 + bytes.len() as u16;
    let parts = [
        &u32::from(HEAD as u16 + destination).to_ne_bytes()[..],
        &libc::RTM_GETROUTE.to_ne_bytes(),
        &(libc::NLM_F_REQUEST as u16).to_ne_bytes(),
        &number.to_ne_bytes(),
        // From no port of the sender's: the system fills it in.
        &[0; 4],
        &route,
        &destination.to_ne_bytes(),
        &libc::RTA_DST.to_ne_bytes(),
        &bytes,
    ];
    parts.concat()
}

/// Returns the type of a route in the answer to a question; `None`: it is to another one.
fn route_of(answer: &[u8], number: u32) -> Option<Result<u8, Errno>> {
    let part = |at: usize| answer.get(at..at + 4)?.first_chunk::<4>();
    let [low, high, ..] = *part(4)?;
    if u32::from_ne_bytes(*part(8)?) != number {
        return None;
    }
    match u16::from_ne_bytes([low, high]) {
        libc::RTM_NEWROUTE => Some(Ok(*answer.get(TYPE)?)),
        _ => {
            let error = i32::from_ne_bytes(*part(HEADER)?);
            Some(Err(Errno::from_raw_os_error(-error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_to_the_last_question() {
        let answer = |kind: u16, number: u32, rest: &[u8]| {
            let [a, b] = kind.to_ne_bytes();
            let head = [
                &[0, 0, 0, 0, a, b, 0, 0][..],
                &number.to_ne_bytes(),
                &[0; 4],
            ];
            [&head.concat()[..], rest].concat()
        };
        let route = [2, 32, 0, 0, 254, 0, 0, libc::RTN_LOCAL, 0, 0, 0, 0];
        let of = |kind, number, rest: &[u8]| route_of(&answer(kind, number, rest), 7);
        assert_eq!(of(libc::RTM_NEWROUTE, 7, &route), Some(Ok(libc::RTN_LOCAL)));
        assert_eq!(of(libc::RTM_NEWROUTE, 6, &route), None);
        assert_eq!(of(libc::RTM_NEWROUTE, 7, &route[..7]), None, "cut short");
        let error = (-Errno::NETUNREACH.raw_os_error()).to_ne_bytes();
        let found = of(libc::NLMSG_ERROR as u16, 7, &error);
        assert_eq!(found, Some(Err(Errno::NETUNREACH)));
        assert_eq!(route_of(&[], 7), None);
    }
}
