//! smoltcp as a guest's TCP.

use std::collections::VecDeque;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Address};

use super::GUEST;

/// The guest's queues.
#[derive(Default)]
pub(super) struct Queues {
    pub(super) to_guest: VecDeque<Vec<u8>>,
    pub(super) from_guest: VecDeque<Vec<u8>>,
}

pub(super) struct Received(Vec<u8>);
pub(super) struct Sender<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sender<'_>)> {
        let frame = self.to_guest.pop_front()?;
        Some((Received(frame), Sender(&mut self.from_guest)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sender<'_>> {
        Some(Sender(&mut self.from_guest))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// A guest with one connection.
pub(super) struct Guest {
    pub(super) queues: Queues,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    script: Vec<u8>,
    sent: usize,
    pub(super) read: Vec<u8>,
    closed: bool,
}

impl Guest {
    pub(super) fn new(seed: u64, script: Vec<u8>, window: usize) -> Self {
        let mut queues = Queues::default();
        let mut config = Config::new(EthernetAddress(GUEST.0).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut queues, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let own = IpCidr::new(IpAddress::v4(10, 0, 2, 15), 24);
            addresses.push(own).unwrap();
        });
        let router = Ipv4Address::new(10, 0, 2, 2);
        interface
            .routes_mut()
            .add_default_ipv4_route(router)
            .unwrap();
        let buffer = |len| tcp::SocketBuffer::new(vec![0; len]);
        let mut socket = tcp::Socket::new(buffer(window), buffer(65_536));
        let remote = (IpAddress::v4(93, 184, 216, 34), 80);
        socket.connect(interface.context(), remote, 40_000).unwrap();
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self {
            queues,
            interface,
            sockets,
            handle,
            script,
            sent: 0,
            read: Vec::new(),
            closed: false,
        }
    }

    /// The program reads `read` bytes and writes what fits; TCP does what is due.
    pub(super) fn step(&mut self, millis: i64, read: usize) {
        let now = Instant::from_millis(millis);
        self.interface
            .poll(now, &mut self.queues, &mut self.sockets);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        if socket.can_recv() {
            let mut bytes = vec![0; read];
            let len = socket.recv_slice(&mut bytes).unwrap_or(0);
            self.read.extend(&bytes[..len]);
        }
        if socket.can_send() && self.sent < self.script.len() {
            self.sent += socket.send_slice(&self.script[self.sent..]).unwrap_or(0);
        }
        if self.sent == self.script.len() && socket.may_send() && !self.closed {
            self.closed = true;
            socket.close();
        }
        self.interface
            .poll(now, &mut self.queues, &mut self.sockets);
    }

    /// Resets the connection.
    pub(super) fn abort(&mut self) {
        self.sockets.get_mut::<tcp::Socket<'_>>(self.handle).abort();
    }

    /// Whether bytes are unacknowledged and no timer runs. A TCP has one then (RFC 6298, section
    /// 5.1); smoltcp 0.14 stops it in rare orders of acknowledgements and windows.
    pub(super) fn has_stopped_its_timer(&mut self, millis: i64) -> bool {
        let waits = self
            .sockets
            .get::<tcp::Socket<'_>>(self.handle)
            .send_queue()
            > 0;
        let now = Instant::from_millis(millis);
        waits && self.interface.poll_at(now, &self.sockets).is_none()
    }

    pub(super) fn state(&self) -> tcp::State {
        self.sockets.get::<tcp::Socket<'_>>(self.handle).state()
    }
}
