//! A back end of a few lines, which sends every frame back on the pair that it came from.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::driver::{Layout, QueueAddrs, QueueOptions};
use crate::features::{
    ALL_OFFLOADS, EVENT_IDX, IN_ORDER, INDIRECT_DESC, LOG_ALL, MQ, MRG_RXBUF, PROTOCOL_FEATURES,
    RING_PACKED, VERSION_1, protocol,
};
use crate::frontend::{FLAG_NEED_REPLY, FLAG_REPLY, FrontEnd, Message, VERSION, request};
use crate::guest_ram::{GuestRam, RamRegion, RegionSpec};
use crate::model::ModelDevice;
use crate::net::HEADER_LEN;
use crate::wait::LIMIT;

const OFFERED: u64 = VERSION_1
    | PROTOCOL_FEATURES
    | MRG_RXBUF
    | MQ
    | INDIRECT_DESC
    | EVENT_IDX
    | RING_PACKED
    | IN_ORDER
    | LOG_ALL
    | ALL_OFFLOADS;

#[derive(Default)]
struct Ring {
    size: u16,
    addrs: Option<QueueAddrs>,
    base: u32,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    enabled: bool,
    device: Option<ModelDevice>,
}

/// The straight-line back end: answers what the guest of these tests asks, panics on the rest.
struct Backend {
    peer: FrontEnd,
    features: u64,
    regions: Vec<Arc<RamRegion>>,
    rings: Vec<Ring>,
}

impl Backend {
    fn spawn(socket: UnixStream) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let peer = FrontEnd::over(socket, LIMIT).expect("a socket");
            let rings = (0..4).map(|_| Ring::default()).collect();
            let mut backend = Self {
                peer,
                features: 0,
                regions: vec![],
                rings,
            };
            loop {
                if backend.wait() {
                    match backend.peer.receive() {
                        Ok(message) => backend.handle(message),
                        Err(_) => return,
                    }
                }
                (0..2).for_each(|pair| backend.echo(pair * 2));
            }
        })
    }

    /// Sleeps until a message (true) or a kick comes; nothing else wakes it, so a missing kick
    /// shows.
    fn wait(&self) -> bool {
        let kicks = self.rings.iter().filter_map(|r| r.kick.as_ref());
        let mut fds = vec![PollFd::new(self.peer.socket(), PollFlags::IN)];
        fds.extend(kicks.map(|k| PollFd::new(k, PollFlags::IN)));
        let limit = Timespec::try_from(LIMIT).expect("a short time");
        assert!(
            poll(&mut fds, Some(&limit)).expect("poll") > 0,
            "a guest fell asleep"
        );
        let message = !fds[0].revents().is_empty();
        for kick in self.rings.iter().filter_map(|r| r.kick.as_ref()) {
            let _ = rustix::io::read(kick, &mut [0; 8]);
        }
        message
    }

    fn answer(&self, code: u32, body: &[u8]) {
        let flags = VERSION | FLAG_REPLY;
        self.peer
            .send_raw(code, flags, body.len() as u32, body, &[])
            .expect("a listening guest");
    }

    fn handle(&mut self, mut message: Message) {
        let u32_at =
            |at: usize| u32::from_le_bytes(message.body[at..at + 4].try_into().expect("4"));
        let u64_at =
            |at: usize| u64::from_le_bytes(message.body[at..at + 8].try_into().expect("8"));
        let spec = |at: usize| RegionSpec {
            gpa: u64_at(at),
            size: u64_at(at + 8),
            uva: u64_at(at + 16),
            file_offset: u64_at(at + 24),
        };
        let index = message.body.first().map_or(0, |i| usize::from(*i));
        let code = message.request;
        match code {
            request::GET_FEATURES => return self.answer(code, &OFFERED.to_le_bytes()),
            request::GET_PROTOCOL_FEATURES => {
                let offered =
                    protocol::REPLY_ACK | protocol::CONFIGURE_MEM_SLOTS | protocol::LOG_SHMFD;
                return self.answer(code, &offered.to_le_bytes());
            }
            request::GET_VRING_BASE => {
                let base = self.rings[index].device.take().map_or(0, |d| d.base());
                return self.answer(code, &[index as u32, base].map(u32::to_le_bytes).concat());
            }
            request::SET_LOG_BASE => return self.answer(code, &[]),
            request::SET_FEATURES => self.features = u64_at(0),
            request::SET_PROTOCOL_FEATURES | request::SET_OWNER => {}
            request::SET_MEM_TABLE => {
                assert_eq!(u32_at(0) as usize, message.fds.len());
                let specs: Vec<RegionSpec> =
                    (0..message.fds.len()).map(|i| spec(8 + 32 * i)).collect();
                self.regions = message.fds.drain(..).zip(specs).map(map).collect();
            }
            request::ADD_MEM_REG => {
                let spec = spec(8);
                self.regions.push(map((message.fds.remove(0), spec)));
            }
            request::SET_VRING_NUM => self.rings[index].size = u32_at(4) as u16,
            request::SET_VRING_BASE => self.rings[index].base = u32_at(4),
            request::SET_VRING_ADDR => {
                let user = [8, 24, 16].map(u64_at);
                let [desc, driver, device] = user.map(|uva| self.guest(uva));
                self.rings[index].addrs = Some(QueueAddrs {
                    desc,
                    driver,
                    device,
                });
            }
            request::SET_VRING_CALL => self.rings[index].call = message.fds.pop(),
            request::SET_VRING_KICK => {
                self.rings[index].kick = message.fds.pop();
                self.start(index);
            }
            request::SET_VRING_ENABLE => self.rings[index].enabled = u32_at(4) == 1,
            other => panic!("request {other}"),
        }
        if message.flags & FLAG_NEED_REPLY != 0 {
            self.answer(code, &0u64.to_le_bytes());
        }
    }

    fn guest(&self, uva: u64) -> u64 {
        let spec = self
            .regions
            .iter()
            .map(|r| r.spec())
            .find(|s| uva.wrapping_sub(s.uva) < s.size);
        let spec = spec.expect("an address in a region");
        uva - spec.uva + spec.gpa
    }

    fn start(&mut self, index: usize) {
        let has = |bit| self.features & bit != 0;
        let ring = &mut self.rings[index];
        let options = QueueOptions {
            layout: if has(RING_PACKED) {
                Layout::Packed
            } else {
                Layout::Split
            },
            size: ring.size,
            event_idx: has(EVENT_IDX),
            in_order: has(IN_ORDER),
        };
        let ram = GuestRam::of(self.regions.clone());
        let mut device = ModelDevice::new(ram, options, ring.addrs.expect("SET_VRING_ADDR before"));
        device.resume(ring.base);
        device.want_kicks(true);
        ring.device = Some(device);
    }

    /// From-guest queue `rx + 1` to to-guest queue `rx`.
    fn echo(&mut self, rx: usize) {
        let (left, right) = self.rings.split_at_mut(rx + 1);
        let (to, from) = (&mut left[rx], &mut right[0]);
        let (Some(to_guest), Some(from_guest)) = (&mut to.device, &mut from.device) else {
            return;
        };
        if !to.enabled || !from.enabled {
            return;
        }
        from_guest.want_kicks(false);
        loop {
            while bounce(from_guest, to_guest) {}
            // Asked for the next kick, the queue must be looked at once more.
            from_guest.want_kicks(true);
            if !bounce(from_guest, to_guest) {
                break;
            }
        }
        for ring in [to, from] {
            let device = ring.device.as_mut().expect("just used");
            if let (true, Some(call)) = (device.needs_notify(), &ring.call) {
                rustix::io::write(call.as_fd(), &1u64.to_ne_bytes()).expect("an eventfd");
            }
        }
    }
}

/// One frame from a transmit to a receive queue; false when there is none.
fn bounce(from_guest: &mut ModelDevice, to_guest: &mut ModelDevice) -> bool {
    let Some(chain) = from_guest.pop() else {
        return false;
    };
    let mut bytes = chain.read(&from_guest.ram);
    from_guest.push(&chain, 0);
    bytes[HEADER_LEN - 2..HEADER_LEN].copy_from_slice(&[1, 0]);
    let target = to_guest.pop().expect("a receive buffer");
    assert_eq!(target.write(&to_guest.ram, &bytes), bytes.len());
    to_guest.push(&target, bytes.len() as u32);
    true
}

fn map((fd, spec): (OwnedFd, RegionSpec)) -> Arc<RamRegion> {
    Arc::new(RamRegion::from_fd(fd, spec).expect("a mappable region"))
}

/// Connects to a back end that sends every frame back. Its thread ends with the connection.
///
/// # Panics
/// When the system has no sockets left.
#[must_use]
pub fn connection() -> (FrontEnd, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let front = FrontEnd::over(ours, LIMIT).expect("a socket");
    (front, Backend::spawn(theirs))
}
