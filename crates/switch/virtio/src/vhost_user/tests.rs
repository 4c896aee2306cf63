//! Fixtures of the tests: a back end that records its calls, and a front end that sends single
//! messages.

mod access_platform;
mod connection;
mod iotlb;
mod lifecycle;
mod negotiation;
mod quota;
mod record;
mod slots;
mod table;
mod threats;
mod waits;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memory::GuestMemory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use testkit::procfs;
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{ProtocolFeatures, code};

use super::message::{F_LOG_ALL, F_PROTOCOL_FEATURES};
use super::{Backend, Fault, Message, Offer, QueueSetup, QueueSummary, Reply, Session};

pub(super) const UVA: u64 = 0x7f00_0000_0000;
pub(super) const GPA: u64 = 0x10_0000;
pub(super) const MEM: u64 = 0x20_0000;

/// Notes every call as a line of text, and keeps what is running.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) events: Vec<String>,
    pub(super) running: BTreeMap<u16, QueueSetup>,
    pub(super) memory: Option<Arc<GuestMemory>>,
    /// Return value of `stop_queue`.
    pub(super) position: Option<u32>,
    /// Error of `start_queue`.
    pub(super) no_start: Option<String>,
    /// The file of translations.
    pub(super) iotlb: Option<sys::foreign::ForeignFd>,
}

impl Recorder {
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }
}

impl Backend for Recorder {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        let text = mem.as_ref().map_or("no memory".into(), |m| {
            let log = if m.log().is_some() { ", logged" } else { "" };
            format!("memory: {} regions{log}", m.regions().len())
        });
        self.events.push(text);
        self.memory = mem;
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        if let Some(reason) = &self.no_start {
            return Err(reason.clone());
        }
        assert_eq!(index, setup.index);
        let on = if setup.enabled { "enabled" } else { "disabled" };
        self.events
            .push(format!("start {index} at {:#x} {on}", setup.position));
        assert!(self.running.insert(index, setup).is_none(), "started twice");
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.events.push(format!("stop {index}"));
        assert!(self.running.remove(&index).is_some(), "was not running");
        self.position
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        assert!(self.running.contains_key(&index));
        self.events.push(format!("enable {index} {on}"));
    }

    fn set_call(&mut self, index: u16, call: Option<sys::foreign::ForeignFd>) {
        self.events.push(format!("call {index} {}", call.is_some()));
        self.running.get_mut(&index).expect("running").call = call;
    }

    fn queue_refused(&mut self, index: u16, reason: &str) {
        self.events.push(format!("refused {index}: {reason}"));
    }

    fn reset(&mut self) {
        assert!(self.running.is_empty());
        self.events.push("reset".into());
    }

    fn send_rarp(&mut self, mac: [u8; 6]) {
        self.events.push(format!("rarp {mac:x?}"));
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        if mtu > 9000 {
            return Err(format!("MTU {mtu} is too large"));
        }
        self.events.push(format!("mtu {mtu}"));
        Ok(())
    }

    fn keep_iotlb(&mut self, fd: BorrowedFd<'_>) {
        self.events.push("keep iotlb".into());
        self.iotlb = Some(fd.try_clone_to_owned().expect("a descriptor").into());
    }

    fn kept_iotlb(&mut self) -> Option<sys::foreign::ForeignFd> {
        let kept = self.iotlb.as_ref()?;
        Some(kept.try_clone().expect("a descriptor"))
    }

    fn end_access(&mut self) {
        self.events.push("end access".into());
    }

    fn retry(&mut self) {
        self.events.push("retry".into());
    }

    fn status_changed(&mut self, status: u8) {
        self.events.push(format!("status {status:#x}"));
    }
}

/// A session, its back end, and the sending side.
pub(super) struct Rig {
    pub(super) session: Session,
    pub(super) backend: Recorder,
}

pub(super) fn offered() -> Features {
    Features::VERSION_1 | Features::RING_PACKED | Features::RING_EVENT_IDX | Features::NET_MRG_RXBUF
}

impl Rig {
    /// A session in which nothing was said yet.
    pub(super) fn fresh() -> Self {
        let mut offer = Offer::new(offered(), 2);
        offer.mac = [2, 0, 0, 0, 0, 7];
        Rig {
            session: Session::new(offer),
            backend: Recorder::default(),
        }
    }

    /// All protocol features, split queues, memory.
    pub(super) fn ready() -> Self {
        let mut rig = Rig::fresh();
        rig.protocol(ProtocolFeatures::all());
        rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
        rig.memory();
        rig.backend.take();
        rig
    }

    /// As `ready`, of a guest with an IOMMU.
    pub(super) fn translated() -> Self {
        let offer = Offer::new(offered() | Features::ACCESS_PLATFORM, 2);
        let mut rig = Rig {
            session: Session::new(offer),
            backend: Recorder::default(),
        };
        rig.protocol(ProtocolFeatures::all());
        let features = Features::VERSION_1 | Features::ACCESS_PLATFORM;
        rig.features(features, F_PROTOCOL_FEATURES);
        rig.memory();
        rig.backend.take();
        rig
    }

    /// As `ready`, with queue 0 running.
    pub(super) fn running() -> Self {
        let mut rig = Rig::ready();
        rig.set_up(0);
        assert_eq!(rig.backend.take(), ["start 0 at 0x0 disabled"]);
        rig
    }

    pub(super) fn send(
        &mut self,
        code: u32,
        payload: impl Into<Vec<u8>>,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Fault> {
        self.message(code, false, payload.into(), fds)
    }

    pub(super) fn message(
        &mut self,
        code: u32,
        need_reply: bool,
        payload: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Fault> {
        let message = Message {
            code,
            need_reply,
            payload,
        };
        let handled = self.session.handle(message, fds, &mut self.backend);
        self.check_summary();
        handled
    }

    /// The summary of the queues is that of their status.
    #[track_caller]
    fn check_summary(&self) {
        let (info, mut summary) = (self.session.info(), QueueSummary::default());
        for queue in &info.queues {
            summary.add(queue.running, queue.enabled, queue.fault.is_some());
        }
        assert_eq!(self.session.queue_summary(), summary);
        assert_eq!(self.session.last_refusal(), info.last_refusal.as_deref());
    }

    /// Sends a message that is not answered.
    #[track_caller]
    pub(super) fn tell(&mut self, code: u32, payload: impl Into<Vec<u8>>, fds: Vec<OwnedFd>) {
        let reply = self.send(code, payload, fds).expect("no fault");
        assert!(reply.is_none(), "not answered");
    }

    /// Sends a message that asks for an acknowledgement, and returns that.
    #[track_caller]
    pub(super) fn ack(&mut self, code: u32, payload: impl Into<Vec<u8>>, fds: Vec<OwnedFd>) -> u64 {
        let reply = self
            .message(code, true, payload.into(), fds)
            .expect("no fault");
        as_u64(&reply.expect("an acknowledgement"))
    }

    /// Sends a message and returns the payload of its answer.
    #[track_caller]
    pub(super) fn ask(&mut self, code: u32, payload: impl Into<Vec<u8>>) -> Vec<u8> {
        self.send(code, payload, vec![])
            .expect("no fault")
            .expect("an answer")
            .payload
    }

    /// Sends a message that ends the connection, and returns the reason.
    #[track_caller]
    pub(super) fn fault(
        &mut self,
        code: u32,
        payload: impl Into<Vec<u8>>,
        fds: Vec<OwnedFd>,
    ) -> String {
        self.send(code, payload, fds)
            .expect_err("a fault")
            .to_string()
    }

    pub(super) fn protocol(&mut self, features: ProtocolFeatures) {
        self.tell(
            code::SET_PROTOCOL_FEATURES,
            u64s(&[features.bits()]),
            vec![],
        );
    }

    pub(super) fn features(&mut self, features: Features, more: u64) {
        self.tell(code::SET_FEATURES, u64s(&[features.bits() | more]), vec![]);
    }

    pub(super) fn logging(&mut self, on: bool) {
        let log = if on { F_LOG_ALL } else { 0 };
        self.features(Features::VERSION_1, F_PROTOCOL_FEATURES | log);
    }

    pub(super) fn memory(&mut self) {
        let payload = mem_table(&[[GPA, MEM, UVA, 0]]);
        self.tell(code::SET_MEM_TABLE, payload, vec![memfd(MEM)]);
    }

    pub(super) fn call(&mut self, index: u64) {
        self.tell(code::SET_VRING_CALL, u64s(&[index]), vec![event()]);
    }

    pub(super) fn kick(&mut self, index: u64) {
        self.tell(code::SET_VRING_KICK, u64s(&[index]), vec![event()]);
    }

    /// Everything that starts a queue of 256 entries, in QEMU's order.
    pub(super) fn set_up(&mut self, index: u16) {
        self.call(index.into());
        self.tell(code::SET_VRING_NUM, state(index.into(), 256), vec![]);
        self.tell(code::SET_VRING_BASE, state(index.into(), 0), vec![]);
        self.tell(code::SET_VRING_ADDR, addr(index, 0), vec![]);
        self.kick(index.into());
    }

    pub(super) fn state_of(&self, index: usize) -> String {
        self.session.info().queues[index].state.clone()
    }
}

pub(super) fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub(super) fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub(super) fn as_u64(reply: &Reply) -> u64 {
    u64::from_ne_bytes(reply.payload.as_slice().try_into().expect("8 bytes"))
}

pub(super) fn state(index: u32, num: u32) -> Vec<u8> {
    u32s(&[index, num])
}

/// Areas of queue `index`, each on pages of its own; `flags` as in `SET_VRING_ADDR`.
pub(super) fn addr(index: u16, flags: u32) -> Vec<u8> {
    let base = UVA + u64::from(index) * 0x8000;
    addr_at(index, flags, [base, base + 0x4000, base + 0x2000])
}

/// Descriptors, used ring, available ring, in the order of the message.
pub(super) fn addr_at(index: u16, flags: u32, areas: [u64; 3]) -> Vec<u8> {
    let mut payload = u32s(&[index.into(), flags]);
    payload.extend(u64s(&areas));
    payload.extend(u64s(&[0xabc000]));
    payload
}

/// Regions as guest address, size, user address, offset.
pub(super) fn mem_table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut payload = u32s(&[regions.len() as u32, 0]);
    for region in regions {
        payload.extend(u64s(region));
    }
    payload
}

pub(super) fn single(region: [u64; 4]) -> Vec<u8> {
    [u64s(&[0]), u64s(&region)].concat()
}

pub(super) fn inflight(size: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut payload = u64s(&[size, offset]);
    payload.extend(queues.to_ne_bytes());
    payload.extend(queue_size.to_ne_bytes());
    payload.extend([0; 4]);
    payload
}

pub(super) fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, size).expect("its size");
    fd
}

pub(super) fn socket() -> OwnedFd {
    let (one, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    one.into()
}

pub(super) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
}

/// The writing end of a pipe to give away, and the reading end to watch it with.
pub(super) fn watched() -> (OwnedFd, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    (write, read)
}

/// An eventfd to give away, and an epoll set that holds it while a descriptor of it is open
/// anywhere.
pub(super) fn watched_event() -> (OwnedFd, OwnedFd) {
    let (event, set) = (
        event(),
        epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set"),
    );
    epoll::add(
        &set,
        &event,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )
    .expect("room");
    (event, set)
}

/// Returns whether every descriptor of the eventfd in the set is closed.
pub(super) fn is_event_closed(set: &OwnedFd) -> bool {
    let info = format!("/proc/self/fdinfo/{}", set.as_raw_fd());
    let info = std::fs::read_to_string(info).expect("the set's fdinfo");
    !info.lines().any(|line| line.starts_with("tfd:"))
}

/// Returns whether every copy of the other end is closed.
pub(super) fn is_closed(watch: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).expect("poll");
    fds[0].revents().contains(PollFlags::HUP)
}

/// Runs a test of this crate again, in a process of its own, of which everything can be counted.
pub(super) fn alone(name: &str, test: fn()) {
    const CHILD: &str = "LASTHOP_VIRTIO_TEST";
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let output = std::process::Command::new(std::env::current_exe().expect("a path"))
        .args([
            "--exact",
            &format!("vhost_user::tests::{name}"),
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{output:?}"
    );
}

/// Requests that give a queue a descriptor.
pub(super) const DESCRIPTORS: [u32; 3] = [
    code::SET_VRING_KICK,
    code::SET_VRING_CALL,
    code::SET_VRING_ERR,
];

/// Descriptors and mappings of this process.
pub(super) fn held() -> (Option<u64>, usize) {
    let own = std::process::id();
    (procfs::descriptors(own), procfs::mappings(own))
}
