//! Against a switch that is played here, byte by byte.

use std::io::Write;
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;

const ALL: u64 = u64::MAX;

/// Replies of the other end: a function from code and body to a reply's bytes.
type Script = fn(u32, &[u8]) -> Vec<u8>;

fn reply(code: u32, value: u64) -> Vec<u8> {
    [code, 5, 8]
        .map(u32::to_ne_bytes)
        .concat()
        .into_iter()
        .chain(value.to_ne_bytes())
        .collect()
}

/// An honest switch that offers everything.
fn honest(code: u32, _: &[u8]) -> Vec<u8> {
    match code {
        code::GET_FEATURES | code::GET_PROTOCOL_FEATURES => reply(code, ALL),
        code::GET_QUEUE_NUM => reply(code, 2),
        code::SET_PROTOCOL_FEATURES => Vec::new(),
        _ => reply(code, 0),
    }
}

fn front(socket: UnixStream) -> Front {
    let soon = Instant::now() + Duration::from_secs(20);
    Front::new(socket.into(), soon).unwrap()
}

/// Connects to a switch with this script, which returns the received codes.
fn connect(script: Script) -> (Front, JoinHandle<Vec<u32>>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let switch = std::thread::spawn(move || {
        let mut heard = Vec::new();
        let mut head = [0; HEADER_LEN];
        while theirs.read_exact(&mut head).is_ok() {
            let head = Header::parse(head);
            let mut body = vec![0; head.size as usize];
            theirs.read_exact(&mut body).unwrap();
            heard.push(head.code);
            // Who breaks the rules is left alone.
            let _ = theirs.write_all(&script(head.code, &body));
        }
        heard
    });
    (front(ours), switch)
}

fn event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

#[test]
fn a_whole_set_up() {
    let (mut front, switch) = connect(honest);
    let none = ProtocolFeatures::empty();
    assert_eq!(front.negotiate(Features::VERSION_1, none, 2).unwrap(), 2);
    let file = sys::file::fixed("test", 4096).unwrap();
    front.share(file.as_fd(), 4096).unwrap();
    let event = event();
    for index in 0..4 {
        let queue = Queue {
            size: 256,
            descriptors: 0,
            driver: 1024,
            device: 2048,
            kick: event.as_fd(),
            call: event.as_fd(),
            error: None,
        };
        front.start(index, &queue).unwrap();
    }
    front.settle().unwrap();
    assert!(front.unanswered.is_empty());
    drop(front);
    let heard = switch.join().unwrap();
    assert_eq!(heard[..4], [1, 15, 16, 17]);
    assert_eq!(
        heard[4..7],
        [code::SET_OWNER, code::SET_FEATURES, code::SET_MEM_TABLE]
    );
    assert_eq!(
        heard[7..13],
        [8, 10, 9, 13, 18, 12],
        "number, base, addresses, call, on, kick"
    );
    assert_eq!(heard.len(), 7 + 4 * 6);
}

#[test]
fn many_messages_do_not_wait_for_one_another() {
    let (mut front, switch) = connect(honest);
    for _ in 0..10_000 {
        front.notify(code::SET_OWNER, &[], None).unwrap();
    }
    front.settle().unwrap();
    drop(front);
    assert_eq!(switch.join().unwrap().len(), 10_000);
}

#[test]
fn a_switch_that_lacks_something_or_makes_no_sense_is_an_error() {
    let table: [(Script, &str); 7] = [
        (
            |code, _| reply(code, Features::VHOST_PROTOCOL_FEATURES.bits()),
            "does not offer features 0x100000000",
        ),
        (
            |code, body| match code {
                code::GET_PROTOCOL_FEATURES => reply(code, 1),
                _ => honest(code, body),
            },
            "lacks a protocol feature",
        ),
        (
            |code, body| match code {
                code::GET_QUEUE_NUM => reply(code, 1),
                _ => honest(code, body),
            },
            "1 queue pairs, not 2",
        ),
        (
            |code, body| match code {
                code::SET_FEATURES => reply(code, 1),
                _ => honest(code, body),
            },
            "refused message 2",
        ),
        (
            |code, body| honest(code + 1, body),
            "no answer to message 1",
        ),
        (
            |code, _| [code, 1, 8, 0, 0].map(u32::to_ne_bytes).concat(),
            "no answer to message 1",
        ),
        (
            |code, _| [code, 5, 9, 0, 0].map(u32::to_ne_bytes).concat(),
            "no answer to message 1",
        ),
    ];
    for (script, complaint) in table {
        let (mut front, _switch) = connect(script);
        let done = front.negotiate(Features::VERSION_1, ProtocolFeatures::empty(), 2);
        let error = done
            .and_then(|_| front.settle())
            .expect_err(complaint)
            .to_string();
        assert!(error.contains(complaint), "{complaint}: {error}");
    }
}

#[test]
fn a_switch_that_hangs_up_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut front = front(ours);
    drop(theirs);
    assert!(
        front
            .negotiate(Features::VERSION_1, ProtocolFeatures::empty(), 1)
            .is_err()
    );
}

#[test]
fn the_whole_set_up_has_one_deadline() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut front = Front::new(ours.into(), Instant::now()).unwrap();
    // What is there already is taken, what has to be waited for is not.
    (&theirs).write_all(&reply(1, ALL)).unwrap();
    (&theirs).write_all(&reply(15, ALL)[..7]).unwrap();
    let error = front
        .negotiate(Features::VERSION_1, ProtocolFeatures::empty(), 1)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    // Nor is room for what is to be sent.
    theirs.set_nonblocking(true).unwrap();
    let error = loop {
        if let Err(error) = front.send(1, VERSION, &[0; 4096], None) {
            break error;
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}
