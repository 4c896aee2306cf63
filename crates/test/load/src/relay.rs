//! A vhost-user back end that is one thread between the queues of a guest and a descriptor of
//! frames, as QEMU's own is between a guest and a TAP device.
//!
//! ```text
//!            +--------------------------- loop ---------------------------+
//! message?   | answer it                                     (vhost-user) |
//! kick?      | copy all frames of the guest, write each to the descriptor |
//! frame?     | copy all frames of the descriptor to the guest, interrupt  |
//! nothing:   | sleep                                                      |
//!            +------------------------------------------------------------+
//! ```
//! It has one queue pair with split rings, the header of virtio 1.0 and no offloads, and it is for
//! guests of tests: one that breaks a rule ends it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use testkit::features::{PROTOCOL_FEATURES, VERSION_1, protocol};
use testkit::frontend::{
    Event, FLAG_NEED_REPLY, FLAG_REPLY, FrontEnd, FrontError, FrontListener, Message, VERSION,
    request,
};
use testkit::guest_ram::{GuestRam, RamRegion, RegionSpec};
use testkit::net::HEADER_LEN;

/// How long a guest may take to connect.
const CONNECTS: Duration = Duration::from_secs(10);
/// Bytes of the longest frame.
const FRAME: usize = 65_535 + 14;
/// Flags of a descriptor and of an available ring (virtio 1.3 sections 2.7.5 and 2.7.6).
const NEXT: u16 = 1;
const NO_INTERRUPT: u16 = 1;
/// In SET_VRING_KICK and SET_VRING_CALL.
const INDEX: u32 = 0xff;
/// The queues: frames to the guest, and from it.
const TO_GUEST: usize = 0;
const FROM_GUEST: usize = 1;

/// A running back end; it ends when it is dropped, or when its guest leaves.
#[derive(Debug)]
pub struct Relay {
    stop: Arc<Event>,
    thread: Option<JoinHandle<Result<(), FrontError>>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.signal();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Relay {
    /// Listens on `path` for one guest. A read of `frames`, which must not block, takes one frame,
    /// and a write gives one; what is not taken is lost.
    ///
    /// # Errors
    /// The path cannot be bound, or there is no thread.
    pub fn start(path: &Path, frames: OwnedFd) -> io::Result<Self> {
        let listener = FrontListener::bind(path)?;
        let stop = Arc::new(Event::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("relay".to_owned());
        let thread = thread.spawn(move || {
            let front = listener.accept(CONNECTS)?;
            Back::new(front, frames).run(&stopped)
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

/// The session with a guest.
struct Back {
    /// Our end of the session's socket.
    socket: FrontEnd,
    frames: OwnedFd,
    ram: Option<GuestRam>,
    queues: [Queue; 2],
    buffer: Vec<u8>,
}

/// The device's half of a split ring.
#[derive(Default)]
struct Queue {
    size: u16,
    /// Guest addresses.
    table: u64,
    available: u64,
    used: u64,
    position: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    is_enabled: bool,
}

impl Queue {
    fn runs(&self) -> bool {
        self.is_enabled && self.kick.is_some() && self.size > 0
    }

    /// The first descriptor of the next buffer.
    fn next(&self, ram: &GuestRam) -> Option<u16> {
        let at = self.position % self.size;
        (ram.load_u16(self.available + 2) != self.position)
            .then(|| ram.load_u16(self.available + 4 + 2 * u64::from(at)))
    }

    /// The pieces of a buffer: address and bytes.
    fn pieces(&self, ram: &GuestRam, head: u16) -> Vec<(u64, usize)> {
        let (mut pieces, mut next) = (Vec::new(), Some(head));
        while let Some(descriptor) = next
            && pieces.len() < usize::from(self.size)
        {
            let at = self.table + 16 * u64::from(descriptor);
            pieces.push((ram.load_u64(at), ram.load_u32(at + 8) as usize));
            let chains = ram.load_u16(at + 12) & NEXT != 0;
            next = chains.then(|| ram.load_u16(at + 14));
        }
        pieces
    }

    /// Returns a buffer, with the bytes written to it.
    fn give_back(&mut self, ram: &GuestRam, head: u16, written: u32) {
        let at = self.used + 4 + 8 * u64::from(self.position % self.size);
        ram.store_u32(at, head.into());
        ram.store_u32(at + 4, written);
        self.position = self.position.wrapping_add(1);
        ram.store_u16(self.used + 2, self.position);
    }

    /// Interrupts the guest, unless it wants none.
    fn interrupt(&self, ram: &GuestRam) {
        fence(Ordering::SeqCst);
        if ram.load_u16(self.available) & NO_INTERRUPT == 0
            && let Some(call) = &self.call
        {
            // An event that is full is signalled already.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }
}

impl Back {
    fn new(socket: FrontEnd, frames: OwnedFd) -> Self {
        Self {
            socket,
            frames,
            ram: None,
            queues: Default::default(),
            buffer: vec![0; HEADER_LEN + FRAME],
        }
    }

    fn run(mut self, stop: &Event) -> Result<(), FrontError> {
        loop {
            let [stops, asked, kicked, arrived] = self.sleep(stop)?;
            if stops {
                return Ok(());
            }
            if asked {
                match self.socket.receive() {
                    Err(FrontError::Closed) => return Ok(()),
                    message => self.answer(message?)?,
                }
            }
            if kicked {
                self.send();
            }
            if arrived {
                self.receive();
            }
        }
    }

    /// Waits for the end, a message, a kick or a frame.
    fn sleep(&self, stop: &Event) -> io::Result<[bool; 4]> {
        let nothing = self.socket.socket().as_fd();
        let fd = |fd: Option<BorrowedFd<'_>>| fd.map_or(PollFlags::empty(), |_| PollFlags::IN);
        let sends = &self.queues[FROM_GUEST];
        let kick = sends.kick.as_ref().filter(|_| sends.runs());
        let kick = kick.map(AsFd::as_fd);
        let frames = self.queues[TO_GUEST].runs().then(|| self.frames.as_fd());
        let wanted = [Some(stop.as_fd()), Some(nothing), kick, frames];
        let mut fds = wanted.map(|one| PollFd::from_borrowed_fd(one.unwrap_or(nothing), fd(one)));
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let ended = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let mut index = 0;
        Ok(fds.map(|fd| {
            index += 1;
            wanted[index - 1].is_some() && fd.revents().intersects(ended)
        }))
    }

    /// Writes the frames of the guest.
    fn send(&mut self) {
        let (Some(ram), queue) = (&self.ram, &mut self.queues[FROM_GUEST]) else {
            return;
        };
        if let Some(kick) = &queue.kick {
            // Its count says nothing.
            let _ = rustix::io::read(kick, &mut [0_u8; 8]);
        }
        let mut is_any = false;
        while let Some(head) = queue.next(ram) {
            self.buffer.clear();
            for (at, len) in queue.pieces(ram, head) {
                ram.read_onto(at, len, &mut self.buffer);
            }
            if let Some(frame) = self.buffer.get(HEADER_LEN..) {
                let _ = rustix::io::write(&self.frames, frame);
            }
            queue.give_back(ram, head, 0);
            is_any = true;
        }
        if is_any {
            queue.interrupt(ram);
        }
    }

    /// Gives the guest the frames that have come.
    fn receive(&mut self) {
        let (Some(ram), queue) = (&self.ram, &mut self.queues[TO_GUEST]) else {
            return;
        };
        let mut is_any = false;
        loop {
            self.buffer.resize(HEADER_LEN + FRAME, 0);
            let len = match rustix::io::read(&self.frames, &mut self.buffer[HEADER_LEN..]) {
                Ok(len) if len > 0 => len,
                Err(Errno::INTR) => continue,
                _ => break,
            };
            let Some(head) = queue.next(ram) else {
                continue;
            };
            self.buffer[..HEADER_LEN].fill(0);
            // Buffers of this frame.
            self.buffer[HEADER_LEN - 2] = 1;
            let mut left = &self.buffer[..HEADER_LEN + len];
            for (at, len) in queue.pieces(ram, head) {
                let (now, later) = left.split_at(len.min(left.len()));
                ram.write(at, now);
                left = later;
            }
            let written = HEADER_LEN + len - left.len();
            queue.give_back(ram, head, written as u32);
            is_any = true;
        }
        if is_any {
            queue.interrupt(ram);
        }
    }

    /// Does what a message says (vhost-user specification, "Front-end message types").
    fn answer(&mut self, mut message: Message) -> Result<(), FrontError> {
        let answer = match message.request {
            request::GET_FEATURES => Some(VERSION_1 | PROTOCOL_FEATURES),
            request::GET_PROTOCOL_FEATURES => Some(protocol::REPLY_ACK),
            request::GET_QUEUE_NUM => Some(1),
            request::SET_MEM_TABLE => {
                self.ram = Some(memory(&mut message)?);
                None
            }
            _ => {
                self.set_queue(&mut message);
                None
            }
        };
        let asks = message.flags & FLAG_NEED_REPLY != 0;
        if let Some(value) = answer.or(asks.then_some(0)) {
            let (code, flags) = (message.request, VERSION | FLAG_REPLY);
            let body = value.to_le_bytes();
            let len = body.len() as u32;
            self.socket.send_raw(code, flags, len, &body, &[])?;
        }
        Ok(())
    }

    /// Messages about a queue begin with its number.
    fn set_queue(&mut self, message: &mut Message) {
        let (words, _) = message.body.as_chunks::<4>();
        let number = |at: usize| words.get(at).map_or(0, |word| u32::from_le_bytes(*word));
        let queue = &mut self.queues[usize::from(number(0) & INDEX == 1)];
        match message.request {
            request::SET_VRING_NUM => queue.size = number(1) as u16,
            request::SET_VRING_BASE => queue.position = number(1) as u16,
            request::SET_VRING_ADDR => {
                let ram = self.ram.as_ref();
                let address = |at| {
                    let user = u64::from(number(at)) | u64::from(number(at + 1)) << 32;
                    ram.map_or(0, |ram| guest_address(ram, user))
                };
                (queue.table, queue.used, queue.available) = (address(2), address(4), address(6));
            }
            request::SET_VRING_KICK => queue.kick = message.fds.pop(),
            request::SET_VRING_CALL => queue.call = message.fds.pop(),
            request::SET_VRING_ENABLE => queue.is_enabled = number(1) != 0,
            _ => {}
        }
    }
}

/// The memory of SET_MEM_TABLE.
fn memory(message: &mut Message) -> io::Result<GuestRam> {
    let body = message.body.get(8..).unwrap_or_default();
    let (entries, _) = body.as_chunks::<32>();
    let regions = entries.iter().zip(message.fds.drain(..));
    let one = |(entry, file): (&[u8; 32], OwnedFd)| {
        let (fields, _) = entry.as_chunks::<8>();
        let field = |at: usize| u64::from_le_bytes(fields[at]);
        let spec = RegionSpec {
            gpa: field(0),
            size: field(1),
            uva: field(2),
            file_offset: field(3),
        };
        RamRegion::from_fd(file, spec).map(Arc::new)
    };
    Ok(GuestRam::of(regions.map(one).collect::<io::Result<_>>()?))
}

/// The guest's address of what the front end has at `user`; 0 for what is no guest memory.
fn guest_address(ram: &GuestRam, user: u64) -> u64 {
    let mut specs = ram.regions().iter().map(|region| region.spec());
    let spec = specs.find(|spec| user.wrapping_sub(spec.uva) < spec.size);
    spec.map_or(0, |spec| user - spec.uva + spec.gpa)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use testkit::net::NetHeader;
    use testkit::packets::{Flow, udp};
    use testkit::{FakeGuest, GuestConfig};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn frames_go_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let relay = Relay::start(&path, theirs).unwrap();
        let mut guest = FakeGuest::connect(&path, GuestConfig::default()).unwrap();
        for round in 0..1000_u16 {
            let sent = udp(&Flow::v4(1, 2), &round.to_le_bytes());
            guest.pairs[0].send(&sent, &NetHeader::default()).unwrap();
            let mut got = [0; 100];
            let mut fds = [PollFd::new(&ours, PollFlags::IN)];
            let limit = rustix::event::Timespec::try_from(LIMIT).unwrap();
            assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "round {round}");
            let len = rustix::io::read(&ours, &mut got).unwrap();
            assert_eq!(got[..len], sent);
            rustix::io::write(&ours, &sent).unwrap();
            let frame = guest.pairs[0].recv(LIMIT).unwrap().expect("a frame");
            assert_eq!(frame.frame, sent);
        }
        drop(guest);
        drop(relay);
    }
}
