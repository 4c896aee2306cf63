//! The additional socket for metrics.

use std::net::SocketAddr;

use api::v1::DesiredState;
use ipc::supervision;

/// The prefix of a path.
const UNIX: &str = "unix:";

/// A socket for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsSocket<'a> {
    /// With a path.
    Unix(&'a str),
    /// With an address.
    Tcp(SocketAddr),
}

impl<'a> MetricsSocket<'a> {
    /// Parses the value of `listen`.
    pub(super) fn of(listen: &'a str) -> Option<Self> {
        match listen.strip_prefix(UNIX) {
            Some(path) => Some(Self::Unix(path)),
            None => listen.parse().ok().map(Self::Tcp),
        }
    }
}

/// Returns whether an address is a loopback address with a port.
pub(super) fn is_own(address: &SocketAddr) -> bool {
    address.ip().is_loopback() && address.port() != 0
}

/// Returns the socket of a checked state for [`supervision::SocketRequest::Listen`].
#[must_use]
pub fn metrics_socket(state: &DesiredState) -> Option<String> {
    match MetricsSocket::of(state.metrics.listen.as_deref()?)? {
        MetricsSocket::Unix(path) => Some(path.to_owned()),
        MetricsSocket::Tcp(address) => Some(supervision::tcp_path(address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_host_are_own() {
        let own = |text: &str| match MetricsSocket::of(text) {
            Some(MetricsSocket::Tcp(address)) => is_own(&address),
            _ => false,
        };
        for good in ["127.0.0.1:9464", "127.1.2.3:1", "[::1]:9464"] {
            assert!(own(good), "{good}");
        }
        for bad in [
            "0.0.0.0:9464",
            "[::]:9464",
            "10.0.0.1:9464",
            "127.0.0.1:0",
            "localhost:1",
            ":9464",
            "9464",
            "",
        ] {
            assert!(!own(bad), "{bad}");
        }
        assert_eq!(
            MetricsSocket::of("unix:m.sock"),
            Some(MetricsSocket::Unix("m.sock"))
        );
    }
}
