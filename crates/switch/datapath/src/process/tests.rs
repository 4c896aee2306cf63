//! The session thread, one wait at a time: what becomes of events that one wait has found together.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use ipc::keeping::CRASH_RECORD_LEN;
use ipc::link::pair;
use ipc::switching::{Clients, Iommu, Role, WEIGHT};
use port::counters::SIZE;
use rustix::net::{RecvFlags, recv};
use wire::virtio::vhost_user::{FLAG_REPLY, HEADER_LEN, Header, VERSION, code};

use super::*;

const PORT: PortId = PortId(1);
/// A request and its answer: a header, and one with a value.
const REQUEST: usize = HEADER_LEN;
const ANSWER: usize = HEADER_LEN + 8;

/// A switch with a port, its front end, and the supervisor's end of the link.
struct World {
    process: Process,
    supervisor: Link<EventToSwitch, SwitchRequest>,
    front_end: UnixStream,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let (ours, theirs) = pair().unwrap();
        let supervisor = Link::new(ours);
        let counters = sys::file::fixed("counters", SIZE).unwrap();
        let slots = sys::file::fixed("slots", CRASH_RECORD_LEN).unwrap();
        let settings = SwitchSettings {
            workers: Some(1),
            ..SwitchSettings::default()
        };
        let settings = EventToSwitch::Start(settings);
        let fds = [counters.as_fd(), slots.as_fd()];
        supervisor.send(&settings, &fds).unwrap();
        let mut process = start(theirs, || Ok(())).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vm1.sock");
        let config = PortConfig {
            id: PORT,
            name: "vm1".into(),
            socket: path.to_string_lossy().into_owned(),
            role: Role::Server,
            queues: 1,
            mtu: None,
            weight: WEIGHT,
            mac: None,
            clients: Clients::VhostUser,
            iommu: Iommu::Offered,
        };
        let listener = OwnedFd::from(UnixListener::bind(&path).unwrap());
        process.add_port(config, Some(listener.into())).unwrap();
        let front_end = UnixStream::connect(&path).unwrap();
        front_end.set_nonblocking(true).unwrap();
        let mut world = Self {
            process,
            supervisor,
            front_end,
            _dir: dir,
        };
        world.process.run_once().unwrap();
        assert!(world.process.ports[&PORT].socket().is_some());
        world
    }

    fn says(&self, event: &EventToSwitch) {
        self.supervisor.send(event, &[]).unwrap();
    }

    /// The front end asks for the features.
    fn asks(&mut self) {
        let (code, flags, size) = (code::GET_FEATURES, VERSION, 0);
        let request = Header { code, flags, size }.to_bytes();
        assert_eq!(self.front_end.write(&request).unwrap(), REQUEST);
    }

    /// Returns how many answers the front end has.
    fn answers(&mut self) -> usize {
        let mut answer = [0; ANSWER];
        let mut count = 0;
        loop {
            match self.front_end.read(&mut answer) {
                Ok(read) => assert_eq!((read, answer[4] & FLAG_REPLY as u8), (ANSWER, 4)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return count;
                }
            }
            count += 1;
        }
    }

    /// Returns whether an answer waits for room in the connection, and the requests in it.
    fn waits(&self) -> (bool, usize) {
        let (socket, has_answer) = self.process.ports[&PORT].socket().unwrap();
        let mut bytes = [0; 1 << 16];
        let seen = recv(socket, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        (has_answer, seen.map_or(0, |(len, _)| len) / REQUEST)
    }

    /// Has one wait find `Quiesce` and an event of the connection, in this order.
    fn quiesces_and(&mut self, front_end: impl FnOnce(&mut Self)) {
        // What one wait has returned comes first in the next, if it is still there.
        self.says(&EventToSwitch::Resume);
        self.process.run_once().unwrap();
        self.says(&EventToSwitch::Quiesce);
        front_end(self);
        self.process.run_once().unwrap();
        assert!(self.process.quiesced);
    }

    fn resumes(&mut self) {
        self.says(&EventToSwitch::Resume);
        self.process.wait_for_supervisor().unwrap();
        self.process.run_once().unwrap();
    }
}

#[test]
fn a_switch_that_was_quiesced_leaves_a_request_of_the_same_wait_to_the_next() {
    let mut world = World::new();
    world.asks();
    world.process.run_once().unwrap();
    assert_eq!(world.answers(), 1);
    world.quiesces_and(World::asks);
    assert_eq!((world.waits(), world.answers()), ((false, 1), 0));
    world.resumes();
    assert_eq!((world.waits(), world.answers()), ((false, 0), 1));
}

#[test]
fn a_switch_that_was_quiesced_leaves_an_answer_of_the_same_wait_in_its_pipe() {
    let mut world = World::new();
    let mut asked = 0;
    while !world.waits().0 {
        world.asks();
        asked += 1;
        world.process.run_once().unwrap();
    }
    let mut answered = 0;
    world.quiesces_and(|world| answered = world.answers());
    assert_eq!((world.waits(), world.answers()), ((true, 0), 0));
    assert!(answered < asked);
    world.resumes();
    assert_eq!(answered + world.answers(), asked);
}
