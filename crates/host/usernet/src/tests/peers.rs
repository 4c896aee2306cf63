//! Peers and guests that reset or stall at any byte, in virtual time. Those that close a half or
//! send urgent data are in `streams.rs`.

use smoltcp::socket::tcp::State;

use super::guest::Guest;
use super::host::{Host, Socket};
use super::settings;
use crate::{SocketEvent, Translator};

/// Bytes each way.
const LEN: usize = 3000;
/// Places in them.
const PLACES: [usize; 10] = [0, 1, 2, 3, 535, 536, 1459, 1460, 1461, 2999];

/// A guest and a host without loss between them.
struct Pair {
    guest: Guest,
    host: Host,
    millis: u64,
}

impl Pair {
    fn new(window: usize, buffer: usize) -> Self {
        let script = vec![7; LEN];
        let socket = Socket {
            buffer,
            script: script.clone(),
            closes_after: usize::MAX,
            ..Socket::default()
        };
        Self {
            guest: Guest::new(1, script, window),
            host: Host::new(Translator::new(settings()), 0, socket),
            millis: 0,
        }
    }

    /// Time passes, and each end reads and sends so many bytes.
    fn step(&mut self, millis: u64, guest_reads: usize, server_reads: usize, server_sends: usize) {
        self.millis += millis;
        assert!(self.millis < 1_000_000, "no end");
        self.host.now = self.millis * 1_000_000;
        let frames = std::mem::take(&mut self.host.frames);
        self.guest.queues.to_guest.extend(frames);
        self.guest.step(self.millis as i64, guest_reads);
        for frame in std::mem::take(&mut self.guest.queues.from_guest) {
            self.host.frame(&frame);
        }
        self.host.step(server_reads, server_sends);
        self.host.serve(16);
    }

    fn is_whole(&self) -> bool {
        self.guest.read.len() == LEN && self.host.socket.read.len() == LEN
    }
}

#[test]
fn a_peer_resets_at_any_byte() {
    for place in PLACES {
        let mut pair = Pair::new(65_536, 65_536);
        while pair.guest.read.len() < place || pair.host.flow.is_none() {
            let left = place - pair.host.socket.arrived;
            pair.step(1, LEN, LEN, left.min(700));
        }
        pair.step(1, LEN, LEN, 0);
        pair.host.event(SocketEvent::Reset);
        assert_eq!(pair.host.socket.closed, Some(false), "{place}");
        assert!(pair.host.translator.is_empty());
        pair.step(1, LEN, LEN, 0);
        assert_eq!(pair.guest.state(), State::Closed, "{place}");
    }
}

#[test]
fn a_guest_resets_at_any_byte() {
    for place in PLACES {
        let mut pair = Pair::new(65_536, 65_536);
        while pair.host.socket.read.len() < place || pair.host.flow.is_none() {
            let left = place - pair.host.socket.read.len();
            pair.step(1, LEN, left, 10);
        }
        pair.guest.abort();
        pair.step(1, 0, 0, 0);
        assert_eq!(pair.host.socket.closed, Some(true), "{place}");
        assert!(pair.host.translator.is_empty());
    }
}

#[test]
fn a_peer_stalls_at_any_byte() {
    for place in PLACES {
        let mut pair = Pair::new(65_536, 600);
        while pair.host.socket.read.len() < place {
            let left = place - pair.host.socket.read.len();
            pair.step(1, LEN, left, 10);
        }
        // Ten minutes, in which the guest probes the closed window.
        (0..6000).for_each(|_| pair.step(100, LEN, 0, 0));
        assert_eq!(pair.host.socket.closed, None);
        (0..2000).for_each(|_| pair.step(1, LEN, 200, 200));
        assert!(pair.is_whole(), "{place}");
    }
}

#[test]
fn a_guest_stalls_at_any_byte() {
    for place in PLACES {
        let mut pair = Pair::new(600, 65_536);
        while pair.guest.read.len() < place {
            let left = place - pair.guest.read.len();
            pair.step(1, left, LEN, 200);
        }
        // Ten minutes, in which the guest's window is probed ever more seldom.
        (0..6000).for_each(|_| pair.step(100, 0, LEN, 200));
        assert_eq!(pair.host.socket.closed, None);
        // That does not count when it opens.
        (0..300).for_each(|_| pair.step(1, 200, LEN, 200));
        assert!(pair.is_whole(), "{place}");
    }
}
