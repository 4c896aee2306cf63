//! Options of sockets.

use std::time::Duration;

use smoltcp::iface::SocketSet;
use smoltcp::socket::tcp;
use smoltcp::wire::IpVersion;

use super::{Body, Slot};
use crate::device::Mark;

/// The family of a socket that has one only.
pub type Family = IpVersion;

/// How long a connection may be idle, and what comes then (tcp(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// `TCP_KEEPIDLE`: time between two probes.
    pub idle: Duration,
    /// `TCP_KEEPINTVL` times `TCP_KEEPCNT`: time for an answer.
    pub answer: Duration,
}

/// Options of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `TCP_QUICKACK`.
    pub quick_ack: bool,
    /// `SO_KEEPALIVE`.
    pub keep_alive: Option<KeepAlive>,
    /// `TCP_USER_TIMEOUT`.
    pub user_timeout: Option<Duration>,
    /// `TCP_SYNCNT`, as a time.
    pub syn_time: Option<Duration>,
    /// `IP_TTL`; 0: the default.
    pub hop_limit: u8,
    /// `IP_TOS`, `IPV6_TCLASS`.
    pub traffic_class: u8,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `SO_LINGER` with a time of 0: a close resets the connection.
    pub abort: bool,
    /// `SO_BROADCAST`.
    pub broadcast: bool,
    /// `AF_INET`, `IPV6_V6ONLY`: the only family.
    pub only: Option<Family>,
    /// `SO_RCVBUF` and `SO_SNDBUF`, bytes; none: those of the port.
    pub buffers: (Option<usize>, Option<usize>),
}

/// Notes which frames have a traffic class, for the device.
pub(super) fn mark_frames(
    marks: &mut Vec<Mark>,
    slots: &[Option<Slot>],
    sockets: &SocketSet<'static>,
) {
    marks.clear();
    for socket in slots.iter().flatten() {
        let class = socket.options.traffic_class;
        let Some(bound) = socket.bound.filter(|_| class != 0) else {
            continue;
        };
        let peer = match &socket.body {
            Body::Stream(stream) => stream.connection().and_then(|handle| {
                let socket = sockets.get::<tcp::Socket<'_>>(handle);
                socket.remote_endpoint()
            }),
            Body::Datagrams(_) => None,
        };
        marks.push(Mark {
            is_stream: socket.body.is_stream(),
            port: bound.port,
            peer,
            class,
        });
    }
    // Those of a connection before those of the socket that listens at its port.
    marks.sort_by_key(|mark| mark.peer.is_none());
}
