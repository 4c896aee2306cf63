//! Where the forwards of user ports may listen. The supervisor binds their sockets with its rights,
//! in the network of the host, and control may be compromised, so the start decides, as for the
//! directories of [`crate::sockets`]:
//!
//! * on the forwards of the configuration with which Lasthop was started;
//! * on loopback addresses, on the addresses of these forwards, and on those of `[switch]
//!   forward_addresses`, from port 1024 on: the ports of the host's own services are below
//!   (ip(7), `ip_unprivileged_port_start`);
//! * in Lasthop's own network namespace, and in those that ports of that configuration name.
//!
//! [`ForwardReach::permit`] is the only source of [`PermittedListen`], without which no socket is
//! bound.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::driving::Listen;
use crate::names::Namespace;

/// The first port that forwards may have which are not in the configuration of the start.
const FIRST_PORT: u16 = 1024;

/// Permitted places of forwards.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ForwardReach {
    /// Forwards of the start.
    listens: Vec<Listen>,
    /// Addresses, besides those of loopback.
    addresses: Vec<IpAddr>,
    /// Network namespaces, besides the supervisor's.
    namespaces: Vec<Namespace>,
}

/// A place where a forward may listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermittedListen(Listen);

impl PermittedListen {
    /// Returns the place.
    #[must_use]
    pub fn get(self) -> Listen {
        self.0
    }
}

/// Refusal of a place, in a network namespace that is not permitted, if that is why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenRefusal(Option<Namespace>);

impl fmt::Display for ListenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(netns) = &self.0 {
            write!(f, "in network namespace {netns}: ")?;
        }
        write!(
            f,
            "neither a port from {FIRST_PORT} on of loopback or of an address that Lasthop was \
             started with, nor a forward of the start"
        )
    }
}

impl std::error::Error for ListenRefusal {}

impl ForwardReach {
    /// Returns the places that a configuration with these forwards, `forward_addresses` and network
    /// namespaces permits.
    #[must_use]
    pub fn new(listens: Vec<Listen>, more: &[IpAddr], namespaces: Vec<Namespace>) -> Self {
        let own = listens.iter().map(|listen| listen.address.ip());
        let mut addresses: Vec<_> = own.chain(more.iter().copied()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self {
            listens,
            addresses,
            namespaces,
        }
    }

    /// Checks whether a forward may listen there, in a network namespace, or the supervisor's own.
    ///
    /// # Errors
    /// It may not.
    pub fn permit(
        &self,
        listen: Listen,
        netns: Option<&Namespace>,
    ) -> Result<PermittedListen, ListenRefusal> {
        let (ip, port) = (listen.address.ip(), listen.address.port());
        let is_known = ip.is_loopback() || self.addresses.contains(&ip);
        let is_permitted = self.listens.contains(&listen) || is_known && port >= FIRST_PORT;
        match netns {
            Some(netns) if !self.namespaces.contains(netns) => {
                Err(ListenRefusal(Some(netns.clone())))
            }
            _ if is_permitted => Ok(PermittedListen(listen)),
            _ => Err(ListenRefusal(None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driving::ForwardProtocol;

    fn listen(protocol: ForwardProtocol, address: &str) -> Listen {
        let address = address.parse().unwrap();
        Listen { protocol, address }
    }

    fn tcp(address: &str) -> Listen {
        listen(ForwardProtocol::Tcp, address)
    }

    #[test]
    fn forwards_listen_where_the_start_permits() {
        let none = ForwardReach::default();
        let start = ForwardReach::new(
            vec![tcp("192.0.2.1:80"), tcp("[2001:db8::1]:8080")],
            &["192.0.2.9".parse().unwrap()],
            Vec::new(),
        );
        for loopback in ["127.0.0.1:1024", "127.9.9.9:2222", "[::1]:65535"] {
            assert!(none.permit(tcp(loopback), None).is_ok(), "{loopback}");
        }
        for anywhere in [
            "0.0.0.0:8080",
            "[::]:8080",
            "127.0.0.1:22",
            "127.0.0.1:0",
            "[::1]:1023",
            "[::ffff:127.0.0.1]:22",
            "192.0.2.1:8080",
        ] {
            let refused = none.permit(tcp(anywhere), None).unwrap_err().to_string();
            assert!(
                refused.starts_with("neither a port from 1024 on"),
                "{anywhere}: {refused}"
            );
        }
        for permitted in ["192.0.2.1:80", "192.0.2.1:8080", "192.0.2.9:8080"] {
            let permitted = tcp(permitted);
            assert_eq!(start.permit(permitted, None).unwrap().get(), permitted);
        }
        for beyond in [
            "192.0.2.1:443",
            "192.0.2.9:80",
            "192.0.2.2:8080",
            "0.0.0.0:8080",
        ] {
            assert!(start.permit(tcp(beyond), None).is_err(), "{beyond}");
        }
        let other_protocol = listen(ForwardProtocol::Udp, "192.0.2.1:80");
        assert!(start.permit(other_protocol, None).is_err());
    }

    #[test]
    fn other_network_namespaces_are_the_starts() {
        let [blue, red] = ["blue", "/proc/7/ns/net"].map(|n| n.parse::<Namespace>().unwrap());
        let reach = ForwardReach::new(Vec::new(), &[], vec![blue.clone()]);
        let loopback = tcp("127.0.0.1:2222");
        assert!(reach.permit(loopback, Some(&blue)).is_ok());
        let refused = reach.permit(loopback, Some(&red)).unwrap_err().to_string();
        assert!(refused.contains("namespace /proc/7/ns/net"), "{refused}");
    }
}
