//! What options do.

use super::*;

const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 80);

impl Pair {
    fn set(&mut self, stack: usize, id: Id, change: impl FnOnce(&mut Options)) {
        let mut options = self.stacks[stack].options(id).unwrap();
        change(&mut options);
        self.stacks[stack].set_options(id, options).unwrap();
    }

    /// Lets time pass, and no more than that.
    fn pass_exactly(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let timers = self.stacks.each_mut().map(|stack| stack.delay(self.now));
            let next = timers.into_iter().flatten().min().unwrap_or(time);
            self.now = until.min(self.now + next.max(Duration::from_millis(1)));
            self.settle();
        }
    }

    fn lose_all(&mut self) {
        for wire in &self.wires {
            wire.borrow_mut().losses = vec![true];
        }
    }

    /// Sockets of the second stack that share port 80.
    fn sharing(&mut self, kind: Kind, count: usize) -> Vec<Id> {
        let open = |_| {
            let id = self.stacks[1].open(kind).unwrap();
            self.set(1, id, |options| options.reuse_port = true);
            self.stacks[1].bind(id, at(2, 80)).unwrap();
            if kind == Kind::Stream {
                self.stacks[1].listen(id, 64).unwrap();
            }
            id
        };
        (0..count).map(open).collect()
    }

    fn connect(&mut self, to: SocketAddr) -> Id {
        let client = self.stacks[0].open(Kind::Stream).unwrap();
        let begun = self.stacks[0].connect(client, to);
        assert_eq!(begun, Err(Errno::INPROGRESS));
        client
    }
}

#[test]
fn the_end_of_a_connection_has_its_cause() {
    type Change = fn(&mut Options);
    let keep_alive: Change = |options| {
        options.keep_alive = Some(KeepAlive {
            idle: Duration::from_secs(10),
            answer: Duration::from_secs(6),
        });
    };
    let user_timeout: Change = |options| options.user_timeout = Some(Duration::from_secs(5));
    for (change, sends, until) in [
        (user_timeout, true, 6),
        (keep_alive, false, 17),
        (
            (|options| {
                options.keep_alive = Some(KeepAlive {
                    idle: Duration::from_secs(10),
                    answer: Duration::from_secs(600),
                });
                options.user_timeout = Some(Duration::from_secs(11));
            }) as Change,
            false,
            12,
        ),
    ] {
        let mut pair = Pair::new(65536);
        let [client, _] = pair.connected();
        pair.set(0, client, change);
        pair.lose_all();
        if sends {
            pair.stacks[0].send(client, b"nothing", None).unwrap();
        }
        pair.pass_exactly(Duration::from_secs(until - 2));
        assert_eq!(pair.stacks[0].take_error(client), None);
        pair.pass_exactly(Duration::from_secs(2));
        assert_eq!(pair.stacks[0].take_error(client), Some(Errno::TIMEDOUT));
    }
    // A reset is none, though there is a time.
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    pair.set(0, client, user_timeout);
    pair.set(1, server, |options| options.abort = true);
    pair.stacks[1].close(server);
    pair.settle();
    assert_eq!(pair.stacks[0].take_error(client), Some(Errno::CONNRESET));
}

#[test]
fn a_connection_that_is_kept_alive_lasts_while_its_peer_answers() {
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    pair.set(0, client, |options| {
        options.keep_alive = Some(KeepAlive {
            idle: Duration::from_secs(10),
            answer: Duration::from_secs(6),
        });
    });
    pair.pass_for(Duration::from_secs(100));
    assert_eq!(pair.stacks[0].take_error(client), None);
    assert_eq!(pair.stacks[0].send(client, b"yes", None), Ok(3));
    pair.settle();
    assert_eq!(pair.stacks[1].queued(server).0, 3);
}

#[test]
fn a_syn_is_given_up_after_its_time() {
    let mut pair = Pair::new(65536);
    pair.lose_all();
    let client = pair.stacks[0].open(Kind::Stream).unwrap();
    pair.set(0, client, |options| {
        options.syn_time = Some(Duration::from_secs(3));
    });
    let begun = pair.stacks[0].connect(client, at(2, 80));
    assert_eq!(begun, Err(Errno::INPROGRESS));
    pair.pass_exactly(Duration::from_secs(2));
    assert_eq!(pair.stacks[0].take_error(client), None);
    pair.pass_exactly(Duration::from_secs(2));
    assert_eq!(pair.stacks[0].take_error(client), Some(Errno::TIMEDOUT));
}

#[test]
fn listening_sockets_share_connections() {
    let mut pair = Pair::new(4096);
    let listeners = pair.sharing(Kind::Stream, 3);
    let alone = pair.stacks[1].open(Kind::Stream).unwrap();
    assert_eq!(pair.stacks[1].bind(alone, at(2, 80)), Err(Errno::ADDRINUSE));
    let mut counts = [0; 3];
    for _ in 0..5 {
        let clients: Vec<_> = (0..6).map(|_| pair.connect(at(2, 80))).collect();
        pair.settle();
        for client in clients {
            assert_eq!(pair.stacks[0].ready(client, POLLOUT), POLLOUT);
            pair.stacks[0].close(client);
        }
        for (listener, count) in listeners.iter().zip(&mut counts) {
            while pair.stacks[1].ready(*listener, POLLIN) != 0 {
                let accepted = pair.stacks[1].accept(*listener).unwrap();
                pair.stacks[1].close(accepted);
                *count += 1;
            }
        }
    }
    assert_eq!(counts, [10; 3]);
    // Those that are left have the share of one that goes.
    pair.stacks[1].close(listeners[0]);
    pair.settle();
    let client = pair.connect(at(2, 80));
    pair.settle();
    assert_eq!(pair.stacks[0].ready(client, POLLOUT), POLLOUT);
}

#[test]
fn bound_sockets_share_datagrams_by_their_sender() {
    let mut pair = Pair::new(8192);
    let mut sockets = pair.sharing(Kind::Datagram, 3);
    let clients: Vec<_> = (0..30)
        .map(|_| pair.stacks[0].open(Kind::Datagram).unwrap())
        .collect();
    // One of them is heard by a socket of its own.
    pair.stacks[0].bind(clients[0], at(1, 999)).unwrap();
    sockets.extend(pair.sharing(Kind::Datagram, 1));
    pair.stacks[1].connect(sockets[3], at(1, 999)).unwrap();
    let mut receivers = std::collections::BTreeMap::new();
    let mut bytes = [0; 9];
    for _ in 0..2 {
        for client in &clients {
            pair.stacks[0]
                .send(*client, b"hello", Some(at(2, 80)))
                .unwrap();
            pair.settle();
        }
        for (place, socket) in sockets.iter().enumerate() {
            while pair.stacks[1].ready(*socket, POLLIN) != 0 {
                let received = pair.stacks[1].receive(*socket, &mut bytes, false);
                let from = received.unwrap().from.unwrap();
                let before = receivers.insert(from.port(), place);
                assert!(before.is_none_or(|before| before == place));
            }
        }
    }
    assert_eq!(receivers.len(), 30);
    assert_eq!(receivers.remove(&999), Some(3));
    for place in 0..3 {
        assert!(receivers.values().any(|own| *own == place), "{place}");
    }
    assert!(!receivers.values().any(|own| *own == 3));
}

#[test]
fn the_last_of_the_sockets_that_reuse_an_address_has_its_datagrams() {
    let mut pair = Pair::new(8192);
    let open = |pair: &mut Pair, address| {
        let id = pair.stacks[1].open(Kind::Datagram).unwrap();
        pair.set(1, id, |options| options.reuse_address = true);
        pair.stacks[1].bind(id, address).unwrap();
        id
    };
    let [first, last] = [ANY, ANY].map(|address| open(&mut pair, address));
    let client = pair.stacks[0].open(Kind::Datagram).unwrap();
    let send = |pair: &mut Pair| {
        pair.stacks[0].send(client, b"x", Some(at(2, 80))).unwrap();
        pair.settle();
    };
    send(&mut pair);
    let queued = |pair: &Pair, id| pair.stacks[1].queued(id).0;
    assert_eq!((queued(&pair, first), queued(&pair, last)), (0, 1));
    // One at the address itself comes before those at all.
    let here = open(&mut pair, at(2, 80));
    send(&mut pair);
    assert_eq!((queued(&pair, last), queued(&pair, here)), (1, 1));
}

#[test]
fn sockets_of_one_family_each_have_one_port() {
    let mut pair = Pair::new(8192);
    for (own, stack) in (1..).zip(&mut pair.stacks) {
        let address = Network::parse(&format!("fd00::{own}/64")).unwrap();
        stack
            .interface
            .update_ip_addrs(|all| all.push(cidr(address)).unwrap());
    }
    for kind in [Kind::Stream, Kind::Datagram] {
        let own = [Family::Ipv4, Family::Ipv6].map(|family| {
            let id = pair.stacks[1].open(kind).unwrap();
            pair.set(1, id, |options| options.only = Some(family));
            pair.stacks[1].bind(id, ANY).unwrap();
            if kind == Kind::Stream {
                pair.stacks[1].listen(id, 8).unwrap();
            }
            id
        });
        let both = pair.stacks[1].open(kind).unwrap();
        assert_eq!(pair.stacks[1].bind(both, ANY), Err(Errno::ADDRINUSE));
        let six: SocketAddr = "[fd00::2]:80".parse().unwrap();
        for (at, to) in [(1, six), (0, self::at(2, 80)), (1, six)] {
            match kind {
                Kind::Stream => drop(pair.connect(to)),
                Kind::Datagram => {
                    let client = pair.stacks[0].open(kind).unwrap();
                    pair.stacks[0].send(client, b"x", Some(to)).unwrap();
                }
            }
            pair.pass_for(Duration::from_secs(3));
            assert_eq!(
                pair.stacks[1].ready(own[1 - at], POLLIN),
                0,
                "{kind:?} {to}"
            );
            assert_eq!(
                pair.stacks[1].ready(own[at], POLLIN),
                POLLIN,
                "{kind:?} {to}"
            );
            match kind {
                Kind::Stream => drop(pair.stacks[1].accept(own[at]).unwrap()),
                Kind::Datagram => {
                    pair.stacks[1].receive(own[at], &mut [0; 9], false).unwrap();
                }
            }
        }
    }
}

#[test]
fn frames_have_the_traffic_class_of_their_socket() {
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    let datagrams = pair.stacks[0].open(Kind::Datagram).unwrap();
    pair.set(0, client, |options| options.traffic_class = 0xb8);
    let classes = |pair: &mut Pair, wire: usize| {
        let wire = pair.wires[wire].borrow();
        let ip = wire
            .frames
            .iter()
            .filter(|(_, frame)| frame[12..14] == [8, 0]);
        ip.map(|(_, frame)| frame[15]).collect::<Vec<_>>()
    };
    pair.stacks[0].send(client, b"x", None).unwrap();
    pair.stacks[0]
        .send(datagrams, b"x", Some(at(2, 9)))
        .unwrap();
    pair.stacks[0].poll(pair.now);
    assert_eq!(classes(&mut pair, 1), [0xb8, 0]);
    pair.settle();
    pair.set(0, datagrams, |options| options.traffic_class = 0x28);
    pair.stacks[0]
        .send(datagrams, b"x", Some(at(2, 9)))
        .unwrap();
    pair.stacks[0].poll(pair.now);
    assert_eq!(classes(&mut pair, 1), [0x28]);
    pair.stacks[1].send(server, b"y", None).unwrap();
    pair.settle();
    assert_eq!(pair.stacks[0].queued(client).0, 1, "checksums are right");
}

#[test]
fn buffers_have_the_bytes_that_are_set_before() {
    let mut pair = Pair::new(65536);
    let client = pair.stacks[0].open(Kind::Stream).unwrap();
    pair.set(0, client, |options| {
        options.buffers = (Some(5000), Some(9000))
    });
    assert_eq!(pair.stacks[0].buffers(client), (5000, 9000));
    let listener = pair.listener(80);
    let begun = pair.stacks[0].connect(client, at(2, 80));
    assert_eq!(begun, Err(Errno::INPROGRESS));
    pair.settle();
    assert_eq!(pair.stacks[0].send(client, &[1; 20_000], None), Ok(9000));
    pair.set(0, client, |options| options.buffers = (None, None));
    assert_eq!(pair.stacks[0].buffers(client), (5000, 9000));
    let server = pair.stacks[1].accept(listener).unwrap();
    assert_eq!(pair.stacks[1].send(server, &[1; 20_000], None), Ok(20_000));
    pair.settle();
    // A window may be a unit narrower.
    assert!((4990..=5000).contains(&pair.stacks[0].queued(client).0));
    let datagrams = pair.stacks[0].open(Kind::Datagram).unwrap();
    pair.set(0, datagrams, |options| options.buffers.0 = Some(4096));
    assert_eq!(pair.stacks[0].buffers(datagrams), (4096, 65536));
}
