//! Floods from a namespace: frames as fast as one core sends them, or at a rate, by a packet socket
//! without a queueing discipline.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::machine::pin;
use serde::Serialize;

use super::super::external::Namespace;

/// Frames of a system call.
const BATCH: usize = 64;
/// Where fields stand in a frame.
const IP: usize = 14;
const SOURCE: usize = IP + 12;
const PORTS: usize = IP + 20;
const FLAGS: usize = PORTS + 13;
const IP_CHECKSUM: usize = IP + 10;
const SYN: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The station that sends them.
pub(super) const FROM: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// Ports of a flow that is fixed.
const FIXED_PORTS: [u16; 2] = [1000, 9];
/// The source of a flow that is fixed.
const FIXED_SOURCE: [u8; 4] = [192, 0, 2, 1];

/// Fields that differ from frame to frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Kind {
    /// Nothing: one UDP flow.
    Fixed,
    /// The source address, of UDP.
    RandomSource,
    /// The source address and both ports, of UDP and TCP SYN in turn.
    RandomAll,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Fixed, Self::RandomSource, Self::RandomAll];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed flow",
            Self::RandomSource => "random source",
            Self::RandomAll => "random source and ports",
        }
    }
}

/// Destination of frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) mac: [u8; 6],
    pub(super) address: [u8; 4],
}

/// Frames of a flood.
#[derive(Debug, Clone)]
pub(super) enum Frames {
    /// Of this many bytes.
    Of(Kind, usize),
    /// UDP flows of 64 bytes in turn: source addresses and destination ports.
    Flows(Vec<([u8; 4], u16)>),
}

/// State of the sender and of those who look at it.
#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    sent: AtomicU64,
    first: OnceLock<Instant>,
}

/// A flood at work; it ends when dropped.
#[derive(Debug)]
pub(super) struct Flood {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Flood {
    /// Sends by this interface of the namespace, at most so many frames a second, on this core.
    pub(super) fn start(
        (from, interface): (&Namespace, &str),
        target: Target,
        frames: Frames,
        rate: Option<u32>,
        core: usize,
    ) -> Result<Self> {
        let socket = from.inside(|| packet_socket(interface))?;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("bench-flood".to_owned());
        let thread = thread.spawn(move || {
            pin(core)?;
            send(&socket, &seen, &mut Batch::new(target, frames), rate)
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Frames that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// When the first frame was sent.
    pub(super) fn first(&self) -> Option<Instant> {
        self.shared.first.get().copied()
    }

    /// Ends it; the number of frames.
    pub(super) fn end(mut self) -> Result<u64> {
        self.shared.ended.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("a flood has a thread")?;
        thread.join().ok().context("a thread panicked")??;
        Ok(self.sent())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that sends frames by an interface of this thread's namespace.
pub(super) fn packet_socket(interface: &str) -> Result<OwnedFd> {
    socket(interface, 0)
}

/// The same for frames of a protocol that arrive.
pub(super) fn socket(interface: &str, protocol: libc::c_int) -> Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    let protocol = u16::try_from(protocol)?.to_be();
    // SAFETY: the calls take integers, and pointers to values that live until they have returned;
    // the descriptor is new and has no other owner.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_PACKET, kind, 0);
        ensure!(fd >= 0, "a socket: {}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let index = libc::if_nametoindex(name.as_ptr());
        ensure!(index > 0, "no interface {interface}");
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = u16::try_from(libc::AF_PACKET)?;
        address.sll_protocol = protocol;
        address.sll_ifindex = i32::try_from(index)?;
        let one: libc::c_int = 1;
        let int = u32::try_from(size_of::<libc::c_int>())?;
        let len = u32::try_from(size_of::<libc::sockaddr_ll>())?;
        let bypass = (&raw const one).cast();
        let done = libc::setsockopt(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, bypass, int)
            == 0
            && libc::bind(fd, (&raw const address).cast(), len) == 0;
        ensure!(done, "{interface}: {}", std::io::Error::last_os_error());
        Ok(socket)
    }
}

/// Frames of a system call, in one piece of memory.
struct Batch {
    frames: Frames,
    len: usize,
    bytes: Vec<u8>,
    random: u64,
    next: usize,
}

impl Batch {
    fn new(target: Target, frames: Frames) -> Self {
        let len = match frames {
            Frames::Of(_, len) => len,
            Frames::Flows(_) => 64,
        };
        let mut bytes = vec![0; BATCH * len];
        for (index, frame) in bytes.chunks_exact_mut(len).enumerate() {
            let tcp = matches!(frames, Frames::Of(Kind::RandomAll, _)) && index % 2 == 1;
            write_head(frame, target, if tcp { TCP } else { UDP });
        }
        Self {
            frames,
            len,
            bytes,
            random: 0x9e37_79b9_7f4a_7c15,
            next: 0,
        }
    }

    /// Writes what differs from the frames before.
    fn refill(&mut self) {
        let Self {
            frames,
            len,
            bytes,
            random,
            next,
        } = self;
        match frames {
            Frames::Of(Kind::Fixed, _) => {}
            Frames::Of(kind, _) => {
                for frame in bytes.chunks_exact_mut(*len) {
                    let bits = draw(random).to_be_bytes();
                    frame[SOURCE..SOURCE + 4].copy_from_slice(&bits[..4]);
                    if *kind == Kind::RandomAll {
                        frame[PORTS..PORTS + 4].copy_from_slice(&bits[4..]);
                    }
                    sum_up(frame);
                }
            }
            Frames::Flows(flows) => {
                for frame in bytes.chunks_exact_mut(*len) {
                    let (source, port) = flows[*next % flows.len()];
                    *next += 1;
                    frame[SOURCE..SOURCE + 4].copy_from_slice(&source);
                    frame[PORTS + 2..PORTS + 4].copy_from_slice(&port.to_be_bytes());
                    sum_up(frame);
                }
            }
        }
    }
}

/// A step of xorshift64*.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Ethernet, IPv4 and the transport header; the checksum of UDP is 0, which is none.
fn write_head(frame: &mut [u8], target: Target, protocol: u8) {
    // Frames are shorter than 64 KiB.
    let ip_len = (frame.len() - IP) as u16;
    frame[..6].copy_from_slice(&target.mac);
    frame[6..12].copy_from_slice(&FROM);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[IP] = 0x45;
    frame[IP + 2..IP + 4].copy_from_slice(&ip_len.to_be_bytes());
    frame[IP + 8] = 64;
    frame[IP + 9] = protocol;
    frame[SOURCE..SOURCE + 4].copy_from_slice(&FIXED_SOURCE);
    frame[SOURCE + 4..SOURCE + 8].copy_from_slice(&target.address);
    for (port, at) in FIXED_PORTS.into_iter().zip([PORTS, PORTS + 2]) {
        frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    if protocol == TCP {
        frame[FLAGS - 1] = 5 << 4;
        frame[FLAGS] = SYN;
    } else {
        frame[PORTS + 4..PORTS + 6].copy_from_slice(&(ip_len - 20).to_be_bytes());
    }
    sum_up(frame);
}

/// The checksum of the IPv4 header.
fn sum_up(frame: &mut [u8]) {
    frame[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&[0, 0]);
    let words = frame[IP..IP + 20].chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let folded = !(sum as u16);
    frame[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&folded.to_be_bytes());
}

fn send(socket: &OwnedFd, shared: &Shared, batch: &mut Batch, rate: Option<u32>) -> Result<()> {
    if rate.is_some() {
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    }
    let len = batch.len;
    let piece = |frame: &mut [u8]| libc::iovec {
        iov_base: frame.as_mut_ptr().cast(),
        iov_len: frame.len(),
    };
    let mut pieces: Vec<libc::iovec> = batch.bytes.chunks_exact_mut(len).map(piece).collect();
    let head = |piece: &mut libc::iovec| {
        // SAFETY: zero is a value of this C structure: null pointers and lengths of 0.
        let mut head: libc::mmsghdr = unsafe { std::mem::zeroed() };
        head.msg_hdr.msg_iov = piece;
        head.msg_hdr.msg_iovlen = 1;
        head
    };
    let mut heads: Vec<libc::mmsghdr> = pieces.iter_mut().map(head).collect();
    let start = Instant::now();
    while !shared.ended.load(Ordering::Relaxed) {
        batch.refill();
        let _ = shared.first.get_or_init(Instant::now);
        // SAFETY: the heads describe pieces of `batch`, which outlives the call; the system reads
        // the pieces and writes the heads alone.
        let done =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), heads.as_mut_ptr(), BATCH as u32, 0) };
        let sent = match u64::try_from(done) {
            Ok(done) => shared.sent.fetch_add(done, Ordering::Relaxed) + done,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                let full = error.raw_os_error() == Some(libc::ENOBUFS);
                ensure!(full, "a flood: {error}");
                continue;
            }
        };
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(sent as f64 / f64::from(rate));
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target {
        mac: [2, 0, 0, 0, 0, 2],
        address: [10, 1, 0, 2],
    };

    fn frames(batch: &Batch) -> impl Iterator<Item = &[u8]> {
        batch.bytes.chunks_exact(batch.len)
    }

    fn is_whole(frame: &[u8]) -> bool {
        let words = frame[IP..IP + 20].chunks_exact(2);
        let sum: u32 = words
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn frames_have_correct_headers_and_differ_as_their_kind_says() {
        for kind in Kind::ALL {
            let mut batch = Batch::new(TARGET, Frames::Of(kind, 64));
            batch.refill();
            assert!(frames(&batch).all(is_whole));
            let mut sources: Vec<&[u8]> = frames(&batch).map(|f| &f[SOURCE..SOURCE + 4]).collect();
            sources.sort_unstable();
            sources.dedup();
            let expected = if kind == Kind::Fixed { 1 } else { BATCH };
            assert_eq!(sources.len(), expected);
            let syns = frames(&batch).filter(|f| f[IP + 9] == TCP && f[FLAGS] == SYN);
            let expected = if kind == Kind::RandomAll {
                BATCH / 2
            } else {
                0
            };
            assert_eq!(syns.count(), expected);
        }
    }

    #[test]
    fn flows_take_turns() {
        let flows = vec![([1, 2, 3, 4], 5), ([6, 7, 8, 9], 10)];
        let mut batch = Batch::new(TARGET, Frames::Flows(flows));
        batch.refill();
        assert!(frames(&batch).all(is_whole));
        let second = frames(&batch).nth(1).expect("a frame");
        assert_eq!(second[SOURCE..SOURCE + 4], [6, 7, 8, 9]);
        assert_eq!(second[PORTS + 2..PORTS + 4], [0, 10]);
    }
}
