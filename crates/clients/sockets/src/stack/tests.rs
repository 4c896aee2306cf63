//! Two stacks, with a wire between them that is played here, in virtual time.

mod options;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use libc::{POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use proptest::prelude::*;
use wire::virtio::net::NetHeader;

use super::*;

/// Frames that a direction holds.
const ROOM: usize = 64;

#[derive(Default)]
struct Direction {
    frames: VecDeque<(NetHeader, Vec<u8>)>,
    /// Frames so far, and whether each is lost, in turn.
    count: usize,
    losses: Vec<bool>,
    longest: usize,
    bytes: usize,
}

/// One end of a wire.
struct End {
    to_us: Rc<RefCell<Direction>>,
    from_us: Rc<RefCell<Direction>>,
}

impl Wire for End {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let (header, bytes) = self.to_us.borrow_mut().frames.pop_front()?;
        *frame = bytes;
        Some(header)
    }

    fn has_room(&mut self) -> bool {
        self.from_us.borrow().frames.len() < ROOM
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, NetHeader)) -> R {
        let mut bytes = vec![0; len];
        let (result, header) = fill(&mut bytes);
        let mut direction = self.from_us.borrow_mut();
        direction.count += 1;
        direction.longest = direction.longest.max(len);
        direction.bytes += len;
        let count = direction.count;
        let turn = direction.losses.get(count % direction.losses.len().max(1));
        if !turn.copied().unwrap_or(false) {
            direction.frames.push_back((header, bytes));
        }
        result
    }
}

thread_local! {
    /// Numbers that the source of random ones gives next; after them, those of a sequence without
    /// order (splitmix64).
    static NUMBERS: RefCell<(VecDeque<u64>, u64)> = const { RefCell::new((VecDeque::new(), 7)) };
}

fn random() -> u64 {
    NUMBERS.with_borrow_mut(|(numbers, state)| {
        numbers.pop_front().unwrap_or_else(|| {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        })
    })
}

/// Two stacks, 10.0.0.1 and 10.0.0.2, and the time.
struct Pair {
    stacks: [Stack<End>; 2],
    now: Duration,
    wires: [Rc<RefCell<Direction>>; 2],
}

fn config(own: u8, buffer: usize) -> Config {
    let mut config = Config::new("/nowhere");
    config.addresses = vec![Network::parse(&format!("10.0.0.{own}/24")).unwrap()];
    config.mac = Some([2, 0, 0, 0, 0, own]);
    config.buffer = buffer;
    config
}

fn at(own: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, own], port))
}

impl Pair {
    fn new(buffer: usize) -> Self {
        let wires = [Rc::default(), Rc::default()];
        let [one, other] = &wires;
        let end = |to_us: &Rc<_>, from_us: &Rc<_>| End {
            to_us: Rc::clone(to_us),
            from_us: Rc::clone(from_us),
        };
        let now = Duration::from_secs(1000);
        let first = Stack::new(end(one, other), &config(1, buffer), random, now);
        let second = Stack::new(end(other, one), &config(2, buffer), random, now);
        Self {
            stacks: [first, second],
            now,
            wires,
        }
    }

    /// Lets both handle all there is.
    fn settle(&mut self) {
        while self.stacks.each_mut().map(|stack| stack.poll(self.now)) != [false; 2] {}
    }

    /// Lets time pass, to the next timer.
    fn pass(&mut self) {
        self.settle();
        let timers = self.stacks.each_mut().map(|stack| stack.delay(self.now));
        let next = timers.into_iter().flatten().min();
        let millisecond = Duration::from_millis(1);
        self.now += next.unwrap_or(millisecond).max(millisecond);
        self.settle();
    }

    fn pass_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.pass();
        }
    }

    /// A connection from the first to the second, and its ends.
    fn connected(&mut self) -> [Id; 2] {
        let listener = self.listener(80);
        let client = self.stacks[0].open(Kind::Stream).unwrap();
        let begun = self.stacks[0].connect(client, at(2, 80));
        assert_eq!(begun, Err(Errno::INPROGRESS));
        self.settle();
        let server = self.stacks[1].accept(listener).unwrap();
        [client, server]
    }

    fn listener(&mut self, port: u16) -> Id {
        let stack = &mut self.stacks[1];
        let listener = stack.open(Kind::Stream).unwrap();
        stack.bind(listener, at(2, port)).unwrap();
        stack.listen(listener, 511).unwrap();
        listener
    }
}

#[test]
fn a_connection_from_its_beginning_to_its_end() {
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    assert_eq!(pair.stacks[0].ready(client, POLLIN | POLLOUT), POLLOUT);
    assert_eq!(pair.stacks[0].peer(client), Ok(at(2, 80)));
    assert_eq!(pair.stacks[1].local(server), Ok(at(2, 80)));
    assert_eq!(pair.stacks[1].peer(server), pair.stacks[0].local(client));
    assert_eq!(pair.stacks[0].send(client, b"question", None), Ok(8));
    pair.settle();
    let mut bytes = [0; 100];
    let stack = &mut pair.stacks[1];
    assert_eq!(stack.ready(server, POLLIN), POLLIN);
    assert_eq!(stack.queued(server).0, 8);
    assert_eq!(stack.receive(server, &mut bytes, true).unwrap().len, 8);
    assert_eq!(
        stack.receive(server, &mut bytes[..3], false).unwrap().len,
        3
    );
    assert_eq!(
        stack.receive(server, &mut bytes[3..], false).unwrap().len,
        5
    );
    assert_eq!(&bytes[..8], b"question");
    assert_eq!(stack.receive(server, &mut bytes, false), Err(Errno::AGAIN));
    // A half that is closed does not close the other.
    pair.stacks[0].shutdown(client, false, true).unwrap();
    pair.settle();
    let stack = &mut pair.stacks[1];
    for peek in [true, false] {
        assert_eq!(stack.receive(server, &mut bytes, peek).unwrap().len, 0);
    }
    let all = POLLIN | POLLOUT | POLLRDHUP;
    assert_eq!(stack.ready(server, all), all);
    assert_eq!(stack.send(server, b"answer", None), Ok(6));
    pair.settle();
    let stack = &mut pair.stacks[0];
    assert_eq!(stack.send(client, b"more", None), Err(Errno::PIPE));
    assert_eq!(stack.receive(client, &mut bytes, false).unwrap().len, 6);
    pair.stacks[1].close(server);
    pair.settle();
    let stack = &mut pair.stacks[0];
    assert_eq!(stack.receive(client, &mut bytes, false).unwrap().len, 0);
    assert_ne!(stack.ready(client, 0) & POLLHUP, 0);
    stack.close(client);
    assert_eq!(stack.ready(client, POLLIN), libc::POLLNVAL);
    pair.pass_for(Duration::from_secs(20));
    for stack in &mut pair.stacks {
        assert!(stack.close_all(), "nothing is left to send");
        stack.poll(pair.now);
        assert!(stack.orphans.is_empty(), "ended connections are forgotten");
    }
}

#[test]
fn a_port_without_a_listener_refuses_and_a_host_that_is_not_there_does_not_answer() {
    let mut pair = Pair::new(65536);
    let stack = &mut pair.stacks[0];
    let refused = stack.open(Kind::Stream).unwrap();
    let lost = stack.open(Kind::Stream).unwrap();
    let away = stack.open(Kind::Stream).unwrap();
    assert_eq!(stack.connect(refused, at(2, 81)), Err(Errno::INPROGRESS));
    assert_eq!(stack.connect(lost, at(9, 81)), Err(Errno::INPROGRESS));
    let far = SocketAddr::from(([192, 0, 2, 1], 80));
    assert_eq!(stack.connect(lost, at(9, 81)), Err(Errno::ALREADY));
    pair.settle();
    let stack = &mut pair.stacks[0];
    assert_ne!(stack.ready(refused, POLLOUT) & POLLOUT, 0);
    assert_eq!(stack.take_error(refused), Some(Errno::CONNREFUSED));
    assert_eq!(stack.take_error(refused), None);
    // A connection that has failed is none: no call waits for it, and another attempt may succeed.
    let mut bytes = [0; 9];
    assert_eq!(
        stack.receive(refused, &mut bytes, false),
        Err(Errno::NOTCONN)
    );
    assert_eq!(stack.send(refused, b"lost", None), Err(Errno::PIPE));
    assert_eq!(stack.connect(refused, at(2, 81)), Err(Errno::INPROGRESS));
    pair.settle();
    let stack = &mut pair.stacks[0];
    assert_eq!(
        stack.receive(refused, &mut bytes, false),
        Err(Errno::CONNREFUSED)
    );
    assert_eq!(stack.ready(lost, POLLOUT), 0);
    assert_eq!(stack.send(lost, b"early", None), Err(Errno::AGAIN));
    // Without a route the stack sends nothing.
    assert_eq!(stack.connect(away, far), Err(Errno::INPROGRESS));
    pair.pass_for(Duration::from_secs(200));
    assert_eq!(pair.stacks[0].take_error(lost), Some(Errno::TIMEDOUT));
}

#[test]
fn a_close_with_unread_bytes_is_a_reset() {
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    pair.stacks[0].send(client, b"unread", None).unwrap();
    pair.settle();
    pair.stacks[1].close(server);
    pair.settle();
    let stack = &mut pair.stacks[0];
    assert_eq!(
        stack.receive(client, &mut [0; 9], false),
        Err(Errno::CONNRESET)
    );
    assert_eq!(stack.receive(client, &mut [0; 9], false).unwrap().len, 0);
    assert_eq!(stack.send(client, b"more", None), Err(Errno::PIPE));
}

#[test]
fn an_idle_connection_lasts() {
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    pair.now += Duration::from_secs(100_000);
    pair.settle();
    assert_eq!(pair.stacks[0].send(client, b"again", None), Ok(5));
    pair.settle();
    assert_eq!(pair.stacks[1].queued(server).0, 5);
    // Of a peer that does not answer any more.
    for wire in &pair.wires {
        wire.borrow_mut().losses = vec![true];
    }
    pair.stacks[0].send(client, b"nothing", None).unwrap();
    pair.pass_for(Duration::from_secs(1000));
    assert_eq!(pair.stacks[0].take_error(client), Some(Errno::TIMEDOUT));
}

#[test]
fn many_connections_at_once_are_all_taken() {
    let mut pair = Pair::new(8192);
    let listener = pair.listener(80);
    let clients: Vec<Id> = (0..100)
        .map(|_| {
            let client = pair.stacks[0].open(Kind::Stream).unwrap();
            let begun = pair.stacks[0].connect(client, at(2, 80));
            assert_eq!(begun, Err(Errno::INPROGRESS));
            client
        })
        .collect();
    pair.settle();
    for client in &clients {
        assert_eq!(pair.stacks[0].take_error(*client), None);
        assert_eq!(pair.stacks[0].ready(*client, POLLOUT), POLLOUT);
    }
    for _ in &clients {
        pair.stacks[1].accept(listener).unwrap();
    }
    assert_eq!(pair.stacks[1].accept(listener), Err(Errno::AGAIN));
    assert_eq!(pair.stacks[1].ready(listener, POLLIN), 0);
}

#[test]
fn the_last_socket_but_one_is_the_last() {
    let mut pair = Pair::new(4096);
    let stack = &mut pair.stacks[0];
    for _ in 0..MOST {
        stack.open(Kind::Stream).unwrap();
    }
    assert_eq!(stack.open(Kind::Datagram), Err(Errno::MFILE));
    stack.close(7);
    assert_eq!(stack.open(Kind::Datagram), Ok(7));
}

#[test]
fn ports_are_taken_once() {
    let mut pair = Pair::new(4096);
    let listener = pair.listener(80);
    let stack = &mut pair.stacks[1];
    assert_eq!(stack.bind(listener, at(2, 81)), Err(Errno::INVAL));
    let other = stack.open(Kind::Stream).unwrap();
    assert_eq!(stack.bind(other, at(1, 80)), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(stack.bind(other, at(2, 80)), Err(Errno::ADDRINUSE));
    let any = SocketAddr::from(([0, 0, 0, 0], 80));
    assert_eq!(stack.bind(other, any), Err(Errno::ADDRINUSE));
    let datagrams = stack.open(Kind::Datagram).unwrap();
    stack.bind(datagrams, any).unwrap();
    assert_eq!(stack.local(datagrams), Ok(any));
    assert_eq!(stack.listen(datagrams, 1), Err(Errno::OPNOTSUPP));
    assert_eq!(stack.accept(other), Err(Errno::INVAL));
    stack
        .bind(other, SocketAddr::from(([0, 0, 0, 0], 0)))
        .unwrap();
    assert!(stack.local(other).unwrap().port() >= PORTS.0);
}

/// The ports of new sockets that are bound to none, or connect.
fn given_ports(stack: &mut Stack<End>, kind: Kind, connects: bool, count: usize) -> Vec<u16> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let ports = (0..count).map(|_| {
        let id = stack.open(kind).unwrap();
        let (given, expected) = match (connects, kind) {
            (false, _) => (stack.bind(id, any), Ok(())),
            (true, Kind::Datagram) => (stack.connect(id, at(2, 53)), Ok(())),
            (true, Kind::Stream) => (stack.connect(id, at(2, 80)), Err(Errno::INPROGRESS)),
        };
        assert_eq!(given, expected);
        stack.local(id).unwrap().port()
    });
    ports.collect()
}

#[test]
fn a_port_is_the_random_one_or_the_next_that_is_free() {
    let (first, last) = PORTS;
    let count = u64::from(last - first) + 1;
    for kind in [Kind::Stream, Kind::Datagram] {
        for connects in [false, true] {
            let mut pair = Pair::new(4096);
            let numbers = [5, 20_000, 5, count - 1, 2 * count - 1, count + 7];
            NUMBERS.with_borrow_mut(|all| all.0 = numbers.into());
            let given = given_ports(&mut pair.stacks[0], kind, connects, 6);
            let expected = [5, 20_000, 6, count - 1, 0, 7];
            assert_eq!(given, expected.map(|n| first + n as u16), "{connects}");
        }
    }
}

/// One who sees the port of a socket knows nothing of the next.
#[test]
fn ports_of_one_socket_after_the_other_are_not_sequential() {
    for kind in [Kind::Stream, Kind::Datagram] {
        for connects in [false, true] {
            let mut pair = Pair::new(4096);
            let ports = given_ports(&mut pair.stacks[0], kind, connects, 32);
            let steps = ports.windows(2).map(|pair| pair[1].abs_diff(pair[0]));
            let close = steps.filter(|step| *step < 16).count();
            assert!(close < 4, "{ports:?}");
        }
    }
}

#[test]
fn datagrams_keep_their_bounds_and_senders() {
    let mut pair = Pair::new(65536);
    let server = pair.stacks[1].open(Kind::Datagram).unwrap();
    pair.stacks[1].bind(server, at(2, 53)).unwrap();
    let stack = &mut pair.stacks[0];
    let client = stack.open(Kind::Datagram).unwrap();
    assert_eq!(stack.send(client, b"lost", None), Err(Errno::DESTADDRREQ));
    assert_eq!(stack.peer(client), Err(Errno::NOTCONN));
    stack.connect(client, at(2, 53)).unwrap();
    assert_eq!(stack.send(client, b"one", None), Ok(3));
    assert_eq!(stack.send(client, &[7; 1472], None), Ok(1472));
    assert_eq!(stack.send(client, &[7; 1473], None), Err(Errno::MSGSIZE));
    assert_eq!(stack.send(client, b"", None), Ok(0));
    let own = stack.local(client).unwrap();
    pair.settle();
    let mut bytes = [0; 2000];
    let stack = &mut pair.stacks[1];
    let first = stack.receive(server, &mut bytes[..2], false).unwrap();
    assert_eq!((first.len, first.whole, first.from), (2, 3, Some(own)));
    let lens = [0; 2].map(|_| stack.receive(server, &mut bytes, false).unwrap().len);
    assert_eq!(lens, [1472, 0]);
    assert_eq!(stack.receive(server, &mut bytes, false), Err(Errno::AGAIN));
    // A connected socket hears its peer only.
    let other = stack.open(Kind::Datagram).unwrap();
    assert_eq!(stack.send(other, b"stranger", Some(own)), Ok(8));
    assert_eq!(stack.send(server, b"peer", Some(own)), Ok(4));
    pair.settle();
    let stack = &mut pair.stacks[0];
    let heard = stack.receive(client, &mut bytes, false).unwrap();
    assert_eq!((heard.len, heard.from), (4, Some(at(2, 53))));
    let everywhere = SocketAddr::from(([255; 4], 67));
    let refused = stack.send(client, b"all", Some(everywhere));
    assert_eq!(refused, Err(Errno::ACCESS));
}

#[test]
fn a_full_buffer_of_datagrams_takes_none_until_half_of_it_is_empty() {
    let mut pair = Pair::new(65536);
    let stack = &mut pair.stacks[0];
    let socket = stack.open(Kind::Datagram).unwrap();
    stack.connect(socket, at(2, 53)).unwrap();
    assert_eq!(stack.ready(socket, POLLOUT), POLLOUT);
    // The neighbour is not known yet: all of them wait.
    while stack.send(socket, &[7; 1472], None) == Ok(1472) {}
    assert_eq!(stack.ready(socket, POLLOUT), 0);
    pair.settle();
    assert_eq!(pair.stacks[0].ready(socket, POLLOUT), POLLOUT);
    let mut small = Pair::new(4096);
    let stack = &mut small.stacks[0];
    let socket = stack.open(Kind::Datagram).unwrap();
    stack.mtu = 9000;
    let sent = stack.send(socket, &[7; 4097], Some(at(2, 53)));
    assert_eq!(sent, Err(Errno::MSGSIZE), "it would never fit");
}

#[test]
fn a_datagram_leaves_though_its_socket_is_closed_at_once() {
    let mut pair = Pair::new(65536);
    let server = pair.stacks[1].open(Kind::Datagram).unwrap();
    pair.stacks[1].bind(server, at(2, 53)).unwrap();
    let stack = &mut pair.stacks[0];
    for own in [2, 9] {
        // Neither neighbour is known yet.
        let client = stack.open(Kind::Datagram).unwrap();
        assert_eq!(stack.send(client, b"last", Some(at(own, 53))), Ok(4));
        stack.close(client);
    }
    assert!(!stack.close_all());
    pair.settle();
    let received = pair.stacks[1].receive(server, &mut [0; 9], false);
    assert_eq!(received.map(|received| received.len), Ok(4));
    pair.pass_for(Duration::from_secs(4));
    assert!(
        pair.stacks[0].close_all(),
        "a neighbour that is not there ends no program later"
    );
}

#[test]
fn a_neighbour_that_is_not_there_holds_up_no_other() {
    let mut pair = Pair::new(65536);
    let listener = pair.listener(80);
    let server = pair.stacks[1].open(Kind::Datagram).unwrap();
    pair.stacks[1].bind(server, at(2, 53)).unwrap();
    let stack = &mut pair.stacks[0];
    let [dead, socket] = [0; 2].map(|_| stack.open(Kind::Datagram).unwrap());
    assert_eq!(stack.send(dead, b"lost", Some(at(9, 53))), Ok(4));
    let lost = stack.open(Kind::Stream).unwrap();
    assert_eq!(stack.connect(lost, at(8, 80)), Err(Errno::INPROGRESS));
    pair.pass_for(Duration::from_millis(1500));
    // smoltcp asks for one of those two again before it would for a third.
    let stack = &mut pair.stacks[0];
    let client = stack.open(Kind::Stream).unwrap();
    assert_eq!(stack.connect(client, at(2, 80)), Err(Errno::INPROGRESS));
    assert_eq!(stack.send(socket, b"found", Some(at(2, 53))), Ok(5));
    assert_eq!(stack.send(dead, b"behind", Some(at(2, 53))), Ok(6));
    pair.pass_for(Duration::from_millis(200));
    assert_eq!(pair.stacks[0].ready(client, POLLOUT), POLLOUT);
    assert!(pair.stacks[1].accept(listener).is_ok());
    let mut bytes = [0; 9];
    let received = pair.stacks[1].receive(server, &mut bytes, false);
    assert_eq!(received.map(|received| received.len), Ok(5));
    // One that was received is there yet when those behind the first one are lost.
    let own = SocketAddr::new(at(1, 0).ip(), pair.stacks[0].local(dead).unwrap().port());
    assert_eq!(pair.stacks[1].send(server, b"here", Some(own)), Ok(4));
    pair.pass_for(Duration::from_secs(4));
    let stack = &mut pair.stacks[0];
    assert_eq!(stack.queued(dead), (4, 0));
    for peek in [true, false] {
        let received = stack.receive(dead, &mut bytes, peek).unwrap();
        assert_eq!((received.len, received.from), (4, Some(at(2, 53))));
    }
    assert_eq!(stack.receive(dead, &mut bytes, false), Err(Errno::AGAIN));
    assert_eq!(stack.send(dead, b"again", Some(at(2, 53))), Ok(5));
    pair.pass_for(Duration::from_secs(2));
    let received = pair.stacks[1].receive(server, &mut bytes, false);
    assert_eq!(received.map(|received| received.len), Ok(5));
}

#[test]
fn an_event_is_counted_once_and_the_programs_own_calls_are_none() {
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    let before = pair.stacks[1].changes(server);
    pair.stacks[0].send(client, b"1234", None).unwrap();
    pair.settle();
    let after = pair.stacks[1].changes(server);
    assert!(after > before);
    pair.stacks[1].receive(server, &mut [0; 2], false).unwrap();
    pair.pass_for(Duration::from_secs(1));
    assert_eq!(pair.stacks[1].changes(server), after);
    pair.stacks[0].send(client, b"5678", None).unwrap();
    pair.settle();
    assert!(pair.stacks[1].changes(server) > after);
}

#[test]
fn ipv6_beside_ipv4() {
    let mut pair = Pair::new(65536);
    for (own, stack) in (1..).zip(&mut pair.stacks) {
        let address = Network::parse(&format!("fd00::{own}/64")).unwrap();
        stack
            .interface
            .update_ip_addrs(|all| all.push(cidr(address)).unwrap());
    }
    let listener = pair.stacks[1].open(Kind::Stream).unwrap();
    let any = SocketAddr::from(([0, 0, 0, 0], 80));
    pair.stacks[1].bind(listener, any).unwrap();
    pair.stacks[1].listen(listener, 1).unwrap();
    let to: SocketAddr = "[fd00::2]:80".parse().unwrap();
    let client = pair.stacks[0].open(Kind::Stream).unwrap();
    assert_eq!(pair.stacks[0].connect(client, to), Err(Errno::INPROGRESS));
    pair.pass_for(Duration::from_secs(3));
    let server = pair.stacks[1].accept(listener).unwrap();
    assert_eq!(pair.stacks[1].local(server), Ok(to));
    assert_eq!(pair.stacks[0].send(client, &[1; 20_000], None), Ok(20_000));
    let (mut bytes, mut got) = (vec![0; 65536], 0);
    while got < 20_000 {
        pair.pass();
        let received = pair.stacks[1].receive(server, &mut bytes, false);
        got += received.map_or(0, |received| received.len);
    }
}

#[test]
fn small_messages_without_delay_do_not_fill_queues() {
    const MESSAGE: usize = 128;
    const COUNT: usize = 300;
    let mut pair = Pair::new(65536);
    let [client, server] = pair.connected();
    let options = Options {
        no_delay: true,
        ..Options::default()
    };
    pair.stacks[0].set_options(client, options).unwrap();
    for _ in 0..COUNT {
        let stack = &mut pair.stacks[0];
        assert_eq!(stack.send(client, &[1; MESSAGE], None), Ok(MESSAGE));
        stack.poll(pair.now);
    }
    let waiting = pair.wires[1].borrow().frames.len();
    assert!((8..60).contains(&waiting), "{waiting} frames");
    // All arrives without a timer.
    pair.settle();
    assert_eq!(pair.stacks[1].queued(server).0, COUNT * MESSAGE);
}

#[test]
fn much_at_once_goes_as_super_frames() {
    let mut pair = Pair::new(1 << 20);
    let [client, server] = pair.connected();
    let mut sent = 0;
    let mut received = 0;
    let mut bytes = vec![0; 1 << 20];
    while received < 10 << 20 {
        sent += pair.stacks[0]
            .send(client, &[1; 1 << 18], None)
            .unwrap_or(0);
        pair.pass();
        let got = pair.stacks[1].receive(server, &mut bytes, false);
        received += got.map_or(0, |got| got.len);
    }
    assert!(sent >= received);
    let longest = pair.wires[1].borrow().longest;
    assert_eq!(longest, crate::device::LONGEST);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every byte arrives once and in order, whatever is lost.
    #[test]
    fn bytes_arrive_in_order(
        losses in proptest::collection::vec(proptest::bool::weighted(0.15), 1..40),
        chunks in proptest::collection::vec(1..9000usize, 1..30),
        room in 1..9000usize,
    ) {
        let mut pair = Pair::new(16384);
        let [client, server] = pair.connected();
        // Not all frames: nothing arrives then.
        let losses: Vec<bool> = losses.into_iter().chain([false; 3]).collect();
        for wire in &pair.wires {
            wire.borrow_mut().losses.clone_from(&losses);
        }
        let all: Vec<u8> = (0..chunks.iter().sum::<usize>()).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut next, mut got) = (0, 0, Vec::<u8>::new());
        let mut bytes = vec![0; room];
        let mut idle = 0;
        while got.len() < all.len() {
            let end = (sent + chunks[next % chunks.len()]).min(all.len());
            if let Ok(len) = pair.stacks[0].send(client, &all[sent..end], None) {
                sent += len;
                next += 1;
            }
            pair.pass();
            match pair.stacks[1].receive(server, &mut bytes, false) {
                Ok(received) => {
                    got.extend_from_slice(&bytes[..received.len]);
                    idle = 0;
                }
                Err(error) => {
                    prop_assert_eq!(error, Errno::AGAIN);
                    idle += 1;
                    prop_assert!(idle < 20_000, "{} of {}", got.len(), all.len());
                }
            }
        }
        prop_assert!(got == all);
    }
}

/// A window that is announced is taken, whatever a program reads: nothing is sent twice.
#[test]
fn windows_in_units_of_several_bytes_are_taken_as_they_are_announced() {
    const BYTES: usize = 32 << 20;
    let mut pair = Pair::new(256 << 10);
    let [client, server] = pair.connected();
    let mut options = pair.stacks[0].options(client).unwrap();
    options.no_delay = true;
    pair.stacks[0].set_options(client, options).unwrap();
    let mut numbers = wire::hash::SplitMix64(1);
    let (mut sent, mut got) = (0, 0);
    let message = vec![0; 65_536];
    let mut room = vec![0; 256 << 10];
    while got < BYTES {
        let (was_sent, was_got) = (sent, got);
        for _ in 0..4 {
            let len = message.len().min(BYTES - sent);
            sent += pair.stacks[0]
                .send(client, &message[..len], None)
                .unwrap_or(0);
            pair.stacks[0].poll(pair.now);
            // A part of the frames has come, and is acknowledged, when the next ones leave.
            let way = Rc::clone(&pair.wires[1]);
            let come = numbers.below(way.borrow().frames.len() as u64 + 1) as usize;
            let later = way.borrow_mut().frames.split_off(come);
            pair.stacks[1].poll(pair.now);
            way.borrow_mut().frames.extend(later);
            // Little is read, and then all: the window is full, and then as wide as it can be.
            let len = match numbers.below(8) {
                0 => room.len(),
                _ => 1 + numbers.below(30_000) as usize,
            };
            let received = pair.stacks[1].receive(server, &mut room[..len], false);
            got += received.map_or(0, |received| received.len);
        }
        if (sent, got) == (was_sent, was_got) {
            pair.pass();
        }
    }
    // Headers of TCP over IPv4; only that of the SYN has options.
    let direction = pair.wires[1].borrow();
    let sent = direction.bytes - direction.count * (14 + 20 + 20);
    assert!(sent < BYTES + 40, "{} bytes were sent twice", sent - BYTES);
}
