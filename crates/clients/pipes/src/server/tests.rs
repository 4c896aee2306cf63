//! Ends that come, go and come back in any order.

use proptest::prelude::*;

use super::*;
use crate::message::tests::rings;

/// Descriptors are named by the instance of their memory and their place.
type Fd = (u128, usize);

struct World {
    server: Server<Fd>,
    out: Vec<Output<Fd>>,
    now_ms: u64,
}

fn register(id: u16, end: End, instance: u128) -> Vec<u8> {
    let register = Register {
        id,
        end,
        instance,
        slots: 0,
        program: *b"prog\x1b\0x\0\0\0\0\0\0\0\0\0",
    };
    register.to_bytes().to_vec()
}

fn memory(instance: u128) -> Offer {
    Offer {
        instance,
        rings: rings(),
    }
}

fn fds(instance: u128) -> Vec<Fd> {
    (0..3).map(|place| (instance, place)).collect()
}

impl World {
    fn new() -> Self {
        Self {
            server: Server::new(2048),
            out: Vec::new(),
            now_ms: 1000,
        }
    }

    fn connect(&mut self, conn: Conn) {
        let pid = 100 + conn as u32;
        self.server.connected(conn, pid, self.now_ms, &mut self.out);
    }

    fn send(&mut self, conn: Conn, bytes: &[u8], fds: Vec<Fd>) {
        self.server
            .received(conn, bytes, fds, self.now_ms, &mut self.out);
    }

    fn register(&mut self, conn: Conn, end: End, instance: u128) {
        self.connect(conn);
        self.send(conn, &register(1, end, instance), Vec::new());
    }

    fn offer(&mut self, conn: Conn, instance: u128) {
        self.send(conn, &memory(instance).to_bytes(), fds(instance));
    }

    fn close(&mut self, conn: Conn) {
        self.server.closed(conn, self.now_ms, &mut self.out);
    }

    /// Returns what was sent and closed since the last call, in words.
    fn said(&mut self) -> Vec<String> {
        let told = |output| match output {
            Output::Send(conn, Answer::Create(create), fds) => {
                assert_eq!((create.slots, fds.len()), (2048, 0));
                Some(format!("{conn} create"))
            }
            Output::Send(conn, Answer::Join(offer), with) => {
                assert_eq!((offer, with), (memory(offer.instance), fds(offer.instance)));
                Some(format!("{conn} join {}", offer.instance))
            }
            Output::Send(conn, Answer::Refused(reason), _) => Some(format!("{conn} {reason}")),
            Output::Close(conn) => Some(format!("{conn} closed")),
            Output::Log(_) => None,
        };
        std::mem::take(&mut self.out)
            .into_iter()
            .filter_map(told)
            .collect()
    }

    /// Returns the notes since the last call, in words.
    fn notes(&mut self) -> Vec<String> {
        let told = |output| match output {
            Output::Log(Note::Joined { id, end, status }) => Some(format!(
                "{} {} joins {} {id}",
                status.program,
                status.pid,
                end.as_str()
            )),
            Output::Log(Note::Left { id, end, status }) => {
                Some(format!("{} leaves {} {id}", status.pid, end.as_str()))
            }
            Output::Log(Note::Refused { pid, .. }) => Some(format!("{pid} refused")),
            _ => None,
        };
        std::mem::take(&mut self.out)
            .into_iter()
            .filter_map(told)
            .collect()
    }

    fn pipes(&self) -> Vec<PipeStatus> {
        self.server.pipes().collect()
    }
}

use End::{Master, Slave};

#[test]
fn the_first_end_makes_the_memory_and_the_second_joins() {
    let mut world = World::new();
    world.register(1, Master, 0);
    assert_eq!(world.said(), ["1 create"]);
    world.register(2, Slave, 0);
    assert_eq!(world.said(), [""; 0]);
    assert_eq!(world.pipes()[0].slots, None);
    world.offer(1, 7);
    assert_eq!(world.said(), ["1 join 7", "2 join 7"]);
    let [pipe] = &world.pipes()[..] else {
        panic!("one pipe")
    };
    assert_eq!(
        (pipe.id, pipe.slots, pipe.file_size),
        (1, Some(2048), Some(1 << 20))
    );
    let slave = EndStatus {
        pid: 102,
        program: "prog?".to_owned(),
        since_ms: 1000,
    };
    assert_eq!(pipe.ends[1], Some(slave));
    assert_eq!(world.server.descriptors(), 3);
    assert_eq!(world.server.next_expiry(), None);
}

#[test]
fn a_new_end_gets_the_memory_that_the_other_has() {
    let mut world = World::new();
    world.register(1, Slave, 0);
    world.offer(1, 7);
    world.register(2, Master, 0);
    world.close(1);
    assert_eq!(world.said(), ["1 create", "1 join 7", "2 join 7"]);
    world.register(3, Slave, 0);
    assert_eq!(world.said(), ["3 join 7"]);
    world.close(2);
    world.close(3);
    assert_eq!(world.pipes(), []);
    assert_eq!(world.server.descriptors(), 0);
    world.register(4, Slave, 0);
    assert_eq!(world.said(), ["4 create"], "the pipe is forgotten");
}

#[test]
fn ends_come_back_in_any_order_to_a_server_that_knows_nothing() {
    for ends in [[Master, Slave], [Slave, Master]] {
        let mut world = World::new();
        world.register(1, ends[0], 7);
        world.offer(1, 7);
        world.register(2, ends[1], 7);
        assert_eq!(world.said(), ["1 create", "1 join 7", "2 join 7"]);
    }
    // Both at once: each is asked, and the second offer is not needed.
    let mut world = World::new();
    world.register(1, Master, 7);
    world.register(2, Slave, 7);
    world.offer(2, 7);
    assert_eq!(world.said(), ["1 create", "2 create"]);
    world.offer(1, 7);
    assert_eq!(world.said(), ["1 join 7", "2 join 7"]);
}

#[test]
fn memory_from_before_has_precedence() {
    // The new one was first, and has to wait for the one that comes back.
    let mut world = World::new();
    world.register(1, Master, 0);
    world.register(2, Slave, 7);
    world.offer(1, 8);
    assert_eq!(world.said(), ["1 create", "2 create"]);
    world.offer(2, 7);
    assert_eq!(world.said(), ["1 join 7", "2 join 7"]);
    // It goes before it has offered.
    let mut world = World::new();
    world.register(1, Master, 0);
    world.register(2, Slave, 7);
    world.offer(1, 8);
    world.close(2);
    assert_eq!(world.said(), ["1 create", "2 create", "1 join 8"]);
    // It comes too late.
    world.register(3, Slave, 7);
    let refused = "3 another process has made this pipe anew meanwhile";
    assert_eq!(world.said(), [refused, "3 closed"]);
    world.register(4, Slave, 8);
    assert_eq!(world.said(), ["4 join 8"]);
}

#[test]
fn two_ends_with_different_memory_are_not_joined() {
    let mut world = World::new();
    world.register(1, Master, 7);
    world.register(2, Slave, 8);
    world.offer(1, 7);
    world.offer(2, 8);
    let said = world.said();
    let refused = "2 another process has made this pipe anew meanwhile";
    assert_eq!(
        said,
        ["1 create", "2 create", "1 join 7", refused, "2 closed"]
    );
}

#[test]
fn an_end_has_one_connection() {
    let mut world = World::new();
    world.register(1, Master, 0);
    world.register(2, Master, 0);
    assert_eq!(
        world.said(),
        ["1 create", "2 another process has this end", "2 closed"]
    );
    world.offer(1, 7);
    world.register(3, Master, 7);
    let said = world.said();
    assert_eq!(
        said,
        ["1 join 7", "3 another process has this end", "3 closed"]
    );
}

#[test]
fn the_next_end_is_asked_when_the_first_does_not_offer() {
    let mut world = World::new();
    world.register(1, Master, 0);
    world.now_ms += 10;
    world.register(2, Slave, 0);
    assert_eq!(world.server.next_expiry(), Some(6000));
    world.now_ms = 5999;
    world.server.expire(world.now_ms, &mut world.out);
    assert_eq!(world.said(), ["1 create"]);
    world.now_ms = 6000;
    world.server.expire(world.now_ms, &mut world.out);
    assert_eq!(world.said(), ["1 it took too long", "1 closed", "2 create"]);
    world.close(2);
    assert_eq!(world.pipes(), []);
}

#[test]
fn messages_out_of_place_end_the_connection() {
    let mut world = World::new();
    world.connect(1);
    world.offer(1, 7);
    world.register(2, Master, 0);
    world.send(2, &register(1, Master, 0), Vec::new());
    let place = "the message is not in its place";
    let said = world.said();
    assert_eq!(said[..2], [format!("1 {place}"), "1 closed".to_owned()]);
    assert_eq!(
        said[2..],
        [
            "2 create".to_owned(),
            format!("2 {place}"),
            "2 closed".to_owned()
        ]
    );
    world.register(3, Master, 0);
    world.send(3, &memory(7).to_bytes(), fds(7)[..2].to_vec());
    world.connect(4);
    world.send(4, &register(1, Master, 0), fds(7));
    world.connect(5);
    world.send(5, b"GET /", Vec::new());
    world.register(6, Slave, 0);
    world.offer(6, 7);
    world.offer(6, 7);
    world.register(8, Slave, 7);
    world.offer(8, 9);
    assert_eq!(
        world.said(),
        [
            "3 create",
            "3 the message has other descriptors",
            "3 closed",
            "4 the message has other descriptors",
            "4 closed",
            "5 the message is of another version",
            "5 closed",
            "6 create",
            "6 join 7",
            "6 the end was not asked for memory",
            "6 closed",
            "8 create",
            "8 the end has registered with other memory",
            "8 closed",
        ]
    );
    assert_eq!(world.pipes(), []);
}

#[test]
fn the_number_of_connections_and_pipes_is_bounded() {
    let mut world = World::new();
    for conn in 0..=MAX_WAITING as u64 {
        world.connect(conn);
    }
    assert_eq!(world.said(), ["0 closed"]);
    assert_eq!(world.server.connections().count(), MAX_WAITING);
    for id in 0..=MAX_PIPES as u16 {
        let conn = 100 + u64::from(id);
        world.connect(conn);
        world.send(conn, &register(id, Slave, 0), Vec::new());
    }
    let said = world.said();
    assert!(said.contains(&"164 there are 64 pipes at this socket".to_owned()));
    assert_eq!(world.pipes().len(), MAX_PIPES);
}

#[test]
fn ends_that_come_and_go_are_noted() {
    let mut world = World::new();
    world.register(1, Master, 0);
    world.offer(1, 7);
    world.register(2, Master, 0);
    world.close(1);
    let notes = world.notes();
    assert_eq!(
        notes,
        [
            "prog? 101 joins master 1",
            "102 refused",
            "101 leaves master 1"
        ]
    );
}

/// A step of one of some clients.
#[derive(Clone, Copy, Debug)]
enum Step {
    Connect,
    Register(u16, End, u128),
    Offer(u128),
    Garbage,
    Close,
    Wait(u64),
    /// The server is started anew: it knows nothing, and all connections are closed.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![Just(Master), Just(Slave)];
    prop_oneof![
        4 => Just(Step::Connect),
        6 => (0..2u16, end, 0..3u128).prop_map(|(id, end, it)| Step::Register(id, end, it)),
        6 => (1..4u128).prop_map(Step::Offer),
        1 => Just(Step::Garbage),
        2 => Just(Step::Close),
        2 => (0..6000u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Joined ends of a pipe have the same memory, each end is joined once, and the server holds
    /// connections and descriptors only of what is there.
    #[test]
    fn no_order_of_steps_breaks_it(steps in prop::collection::vec((0..6u64, step()), 0..120)) {
        let mut world = World::new();
        let mut open: BTreeMap<u64, Conn> = BTreeMap::new();
        let mut joined: BTreeMap<Conn, u128> = BTreeMap::new();
        let mut next = 1;
        for (client, step) in steps {
            match (step, open.get(&client).copied()) {
                (Step::Connect, None) => {
                    open.insert(client, next);
                    world.connect(next);
                    next += 1;
                }
                (Step::Register(id, end, instance), Some(conn)) => {
                    world.send(conn, &register(id, end, instance), Vec::new());
                }
                (Step::Offer(instance), Some(conn)) => world.offer(conn, instance),
                (Step::Garbage, Some(conn)) => world.send(conn, &[1, 2, 3], Vec::new()),
                (Step::Close, Some(conn)) => {
                    open.remove(&client);
                    joined.remove(&conn);
                    world.close(conn);
                }
                (Step::Wait(ms), _) => {
                    world.now_ms += ms;
                    world.server.expire(world.now_ms, &mut world.out);
                }
                (Step::Restart, _) => {
                    world = World::new();
                    open.clear();
                    joined.clear();
                }
                _ => {}
            }
            for output in std::mem::take(&mut world.out) {
                match output {
                    Output::Send(conn, Answer::Join(offer), with) => {
                        prop_assert_eq!(with, fds(offer.instance));
                        prop_assert_eq!(joined.insert(conn, offer.instance), None);
                    }
                    Output::Close(conn) => {
                        open.retain(|_, one| *one != conn);
                        joined.remove(&conn);
                    }
                    _ => {}
                }
            }
            let known: Vec<Conn> = world.server.connections().collect();
            let mut expected: Vec<Conn> = open.values().copied().collect();
            expected.sort_unstable();
            let mut sorted = known.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, expected);
            for pipe in world.server.pipes.values() {
                let ends = pipe.ends.iter().flatten();
                prop_assert!(ends.clone().count() > 0, "a pipe without ends is forgotten");
                for end in ends {
                    let is_joined = matches!(end.phase, Phase::Joined);
                    let memory = pipe.memory.as_ref().map(|memory| memory.offer.instance);
                    let has = joined.get(&end.conn).copied();
                    prop_assert_eq!(has, memory.filter(|_| is_joined));
                }
            }
            prop_assert_eq!(
                world.server.next_expiry().is_some_and(|at| at + 6000 < world.now_ms),
                false
            );
        }
    }
}
