//! Fixtures of the tests: a back end that notes its calls and keeps descriptors as the supervisor
//! does, and a client that sends single messages.

mod connection;
mod messages;
mod order;
mod record;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memory::GuestMemory;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use testkit::memif::{AddRing, COOKIE, add_region, name};
use virtio::vhost_user::{Backend, Fault, Message, QueueSetup, Reply};

use crate::message::{PAYLOAD_LEN, code};
use crate::{Offer, Session};

pub(super) const SECRET: &str = "swordfish";
/// Bytes of the region of the rings: not a multiple of a page, as DPDK's are not.
pub(super) const SIZE: u64 = 0x1_0080;
/// Where the first ring of each direction lies, of 64 descriptors.
pub(super) const RINGS: [u32; 2] = [0x800, 0];

/// Notes every call as a line of text, and keeps what is running.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) events: Vec<String>,
    pub(super) running: BTreeMap<u16, QueueSetup>,
    pub(super) memory: Option<Arc<GuestMemory>>,
    pub(super) kept: BTreeMap<u64, sys::foreign::ForeignFd>,
    /// Error of `start_queue`.
    pub(super) no_start: Option<String>,
}

impl Recorder {
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }
}

impl Backend for Recorder {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        let count = |m: &Arc<GuestMemory>| format!("memory: {} regions", m.regions().len());
        self.events
            .push(mem.as_ref().map_or("no memory".into(), count));
        self.memory = mem;
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        if let Some(reason) = &self.no_start {
            return Err(reason.clone());
        }
        assert_eq!(index, setup.index);
        let call = if setup.call.is_some() { "call" } else { "kick" };
        self.events.push(format!("start {index} with {call}"));
        assert!(self.running.insert(index, setup).is_none(), "started twice");
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.events.push(format!("stop {index}"));
        assert!(self.running.remove(&index).is_some(), "was not running");
        None
    }

    fn enable_queue(&mut self, _: u16, _: bool) {
        panic!("memif has no disabled queues");
    }

    fn set_call(&mut self, _: u16, _: Option<sys::foreign::ForeignFd>) {
        panic!("memif does not change interrupts");
    }

    fn queue_refused(&mut self, index: u16, reason: &str) {
        self.events.push(format!("refused {index}: {reason}"));
    }

    fn keep(&mut self, number: u64, fd: BorrowedFd<'_>) {
        let fd = fd.try_clone_to_owned().expect("a descriptor");
        assert!(
            self.kept.insert(number, fd.into()).is_none(),
            "a number twice"
        );
    }
}

pub(super) fn offer() -> Offer {
    Offer {
        program: "Lasthop".into(),
        port: "cnf1".into(),
        id: 7,
        secret: Some(SECRET.into()),
        queue_pairs: 2,
    }
}

/// A memory file whose rings have their cookie.
pub(super) fn rings_file() -> OwnedFd {
    let file = memfd(SIZE);
    for ring in RINGS {
        write(&file, ring, &COOKIE.to_ne_bytes());
    }
    file
}

pub(super) fn memfd(size: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, size).expect("a size");
    file
}

pub(super) fn write(file: &OwnedFd, at: u32, bytes: &[u8]) {
    rustix::io::pwrite(file, bytes, at.into()).expect("written");
}

pub(super) fn event() -> OwnedFd {
    sys::event::create().expect("an eventfd")
}

pub(super) fn spec() -> testkit::memif::Spec {
    testkit::memif::Spec {
        id: 7,
        secret: SECRET.into(),
        program: "dpdk 22.11".into(),
        log2_size: 6,
        ..testkit::memif::Spec::default()
    }
}

/// The `ADD_RING` of a direction that is right for a file of `rings_file`.
pub(super) fn ring(from_client: bool) -> AddRing {
    AddRing {
        flags: from_client.into(),
        index: 0,
        region: 0,
        offset: RINGS[usize::from(from_client)],
        log2_size: 6,
        private_header: 0,
    }
}

/// A session, its back end, and the sending side.
pub(super) struct Rig {
    pub(super) session: Session,
    pub(super) backend: Recorder,
    pub(super) file: OwnedFd,
}

/// One message with its descriptor.
pub(super) type Step = (u32, Vec<u8>, Option<OwnedFd>);

impl Rig {
    /// A session in which nothing was said yet.
    pub(super) fn fresh() -> Self {
        Self {
            session: Session::new(offer()),
            backend: Recorder::default(),
            file: rings_file(),
        }
    }

    /// All messages of a good client, in order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let file = self.file.try_clone().expect("a descriptor");
        vec![
            (code::INIT, spec().init(), None),
            (code::ADD_REGION, add_region(0, SIZE), Some(file)),
            (code::ADD_RING, ring(true).payload(), Some(event())),
            (code::ADD_RING, ring(false).payload(), Some(event())),
            (code::CONNECT, name("memif0/0"), None),
        ]
    }

    /// As `fresh`, with the first messages said.
    pub(super) fn after(count: usize) -> Self {
        let mut rig = Self::fresh();
        for (code, payload, fd) in rig.steps().into_iter().take(count) {
            rig.send(code, payload, fd).expect("a good message");
        }
        rig
    }

    /// A connected client.
    pub(super) fn connected() -> Self {
        let mut rig = Self::after(5);
        assert!(rig.session.sent(&mut rig.backend));
        rig
    }

    pub(super) fn send(
        &mut self,
        code: u32,
        payload: impl Into<Vec<u8>>,
        fd: Option<OwnedFd>,
    ) -> Result<Option<Reply>, Fault> {
        let fds = fd.into_iter().collect();
        self.session
            .handle(message(code, payload), fds, &mut self.backend)
    }

    /// Sends a message that ends the connection, and returns the reason.
    #[track_caller]
    pub(super) fn fault(
        &mut self,
        code: u32,
        payload: impl Into<Vec<u8>>,
        fd: Option<OwnedFd>,
    ) -> String {
        let fault = self.send(code, payload, fd).expect_err("a fault");
        fault.to_string()
    }
}

pub(super) fn message(code: u32, payload: impl Into<Vec<u8>>) -> Message {
    let mut payload = payload.into();
    payload.resize(PAYLOAD_LEN, 0);
    Message {
        code,
        need_reply: false,
        payload,
    }
}

/// The descriptors that a session holds, of those that it was given.
pub(super) fn files(rig: &Rig) -> usize {
    rig.session.record().1.len()
}
