//! A switch for one port: it reads vhost-user messages, and looks into the client's memory.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::RecvFlags;
use wire::virtio::vhost_user::{FLAG_NEED_REPLY, HEADER_LEN, Header, code};

/// A queue as the client has set it up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) size: u16,
    pub(crate) slots: u64,
    pub(crate) client: u64,
    pub(crate) switch: u64,
}

/// Messages of a client in one session.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) memory: Option<OwnedFd>,
    pub(crate) queues: BTreeMap<u32, Place>,
    pub(crate) features: u64,
    pub(crate) calls: BTreeMap<u32, OwnedFd>,
    pub(crate) errors: BTreeMap<u32, OwnedFd>,
    pub(crate) stops: usize,
}

fn reply(code: u32, value: u64) -> Vec<u8> {
    let head = [code, 5, 8].map(u32::to_ne_bytes).concat();
    [head, value.to_ne_bytes().to_vec()].concat()
}

impl Heard {
    /// Notes a message; returns the answer.
    fn hear(&mut self, head: Header, body: &[u8], fd: Option<OwnedFd>) -> Vec<u8> {
        let word = |at: usize| u32::from_ne_bytes(body[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(body[at..at + 8].try_into().unwrap());
        match head.code {
            code::GET_FEATURES => return reply(head.code, u64::MAX),
            code::GET_PROTOCOL_FEATURES => return reply(head.code, u64::MAX),
            // Four queues of 512 slots.
            code::GET_QUEUE_NUM => return reply(head.code, 512 << 32 | 4),
            code::GET_VRING_BASE => {
                self.stops += 1;
                return reply(head.code, 0);
            }
            code::SET_PROTOCOL_FEATURES => assert_eq!(long(0) >> 63, 1, "slot queues"),
            code::SET_FEATURES => self.features = long(0),
            code::SET_MEM_TABLE => self.memory = fd,
            code::SET_VRING_NUM => {
                self.queues.entry(word(0)).or_default().size = word(4) as u16;
            }
            code::SET_VRING_ADDR => {
                let place = self.queues.entry(word(0)).or_default();
                (place.slots, place.switch, place.client) = (long(8), long(16), long(24));
            }
            code::SET_VRING_CALL => drop(self.calls.insert(word(0), fd.unwrap())),
            code::SET_VRING_ERR => drop(self.errors.insert(word(0), fd.unwrap())),
            _ => {}
        }
        match head.flags & FLAG_NEED_REPLY {
            0 => Vec::new(),
            _ => reply(head.code, 0),
        }
    }

    /// Bytes of the client's memory.
    pub(crate) fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let memory = self.memory.as_ref().unwrap();
        rustix::io::pread(memory, &mut bytes, offset).unwrap();
        bytes
    }

    pub(crate) fn head(&self, queue: u32) -> u16 {
        u16::from_le_bytes(self.read(self.queues[&queue].client))
    }

    pub(crate) fn set_tail(&self, queue: u32, tail: u16) {
        let memory = self.memory.as_ref().unwrap();
        let at = self.queues[&queue].switch;
        rustix::io::pwrite(memory, &tail.to_le_bytes(), at).unwrap();
    }
}

/// Serves one session until the last queue is on; returns it with its socket.
pub(crate) fn session(mut socket: UnixStream, queues: usize) -> (Heard, UnixStream) {
    let mut heard = Heard::default();
    let mut enabled = 0;
    while enabled < queues {
        let mut fds = Vec::new();
        let mut head = [0; HEADER_LEN];
        let into = (&mut fds, sys::foreign::Author::new(None));
        let got = sys::descriptors::receive(&socket, &mut head, into, RecvFlags::empty());
        assert_eq!(got.unwrap().unwrap().bytes, HEADER_LEN);
        let head = Header::parse(head);
        let mut body = vec![0; head.size as usize];
        socket.read_exact(&mut body).unwrap();
        enabled += usize::from(head.code == code::SET_VRING_KICK);
        let answer = heard.hear(head, &body, fds.pop().map(sys::foreign::ForeignFd::vouch));
        socket.write_all(&answer).unwrap();
    }
    (heard, socket)
}
