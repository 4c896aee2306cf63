//! Streams between the guests of a peer, any number and in any direction, by one thread: some send
//! as much as their queues take, some at a pace, with the time in each frame.
//!
//! ```text
//! frame   source port: 1000 + number of the stream     payload: when it was sent, if it is paced
//! ```
//! Between any two streams that flood, paced ones and receivers have their turn, so that what is
//! measured of them hardly depends on the number of others.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use load::lean::Histogram;
use testkit::frontend::{FrontEnd, FrontListener};
use testkit::guest::GuestPair;
use testkit::net::NetHeader;
use testkit::packets::{Flow, mac, rarp, tcp_super, udp};
use testkit::{FakeGuest, GuestConfig};

use crate::peers::Peer;
use crate::stop;
use e2e::machine::pin;

/// A back end that dials does so again after some seconds.
const DIALLED: Duration = Duration::from_secs(30);
/// Entries of a queue.
const QUEUE: u16 = 256;
/// Frames that a stream sends in its turn, and that a guest takes.
const BATCH: usize = 32;
const TAKEN: usize = 64;
/// Longer than any frame.
const FRAME: usize = 66_000;
/// Headers in front of the payload, of UDP and of TCP over IPv4.
const UDP_HEADERS: usize = 42;
const TCP_HEADERS: usize = 54;
/// Bytes of payload in a segment of a super-frame, and segments.
const SEGMENT: usize = 1460;
const SEGMENTS: usize = 44;
/// The first source port, and where it stands in a frame.
const FIRST_PORT: u16 = 1000;
const PORT_AT: usize = 34;
const ETHER_TYPE_AT: usize = 12;
const IPV4: [u8; 2] = [8, 0];
/// The protocol of an IPv4 packet.
const PROTOCOL_AT: usize = 23;
/// Time for what is on its way to arrive.
const REST: Duration = Duration::from_millis(20);

/// The size of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// So many bytes from the Ethernet header on.
    Bytes(usize),
    /// A TCP super-frame of 64 KiB, which counts as its segments.
    Super,
}

/// Frames from one guest to another, both counted from 0.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) from: usize,
    /// Queue pair of the sender.
    pub(crate) pair: usize,
    pub(crate) to: usize,
    /// Sizes in turn.
    pub(crate) sizes: Vec<Size>,
    /// Frames a second; as many as possible without it.
    pub(crate) pace: Option<f64>,
}

impl Stream {
    /// A stream that floods.
    pub(crate) fn flood(from: usize, to: usize, sizes: &[Size]) -> Self {
        Self {
            from,
            pair: 0,
            to,
            sizes: sizes.to_vec(),
            pace: None,
        }
    }
}

/// Results of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    /// Frames sent, and due and not sent.
    pub(crate) sent: u64,
    pub(crate) unsent: u64,
    pub(crate) received: u64,
    /// Bits of the frames received, as on the wire without preamble and checksum.
    pub(crate) bits: u64,
    /// Of a stream with a pace, in nanoseconds.
    pub(crate) latency: Histogram,
    /// How long it took.
    pub(crate) seconds: f64,
}

impl Carried {
    pub(crate) fn rate(&self) -> f64 {
        self.bits as f64 / self.seconds.max(1e-9)
    }
}

/// The queues of a guest.
enum Nic {
    Pairs {
        pairs: Vec<GuestPair>,
        _front: Option<FrontEnd>,
    },
    Tap(File),
}

impl Nic {
    /// Sends a frame, unless the queue is full.
    fn send(&mut self, pair: usize, frame: &[u8], header: &NetHeader) -> Result<bool> {
        match self {
            Self::Pairs { pairs, .. } => {
                let pair = pairs.get_mut(pair).context("a queue pair")?;
                let staged = pair.stage(frame, header)?;
                pair.flush();
                Ok(staged)
            }
            Self::Tap(tap) => match tap.write(frame) {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Takes a frame, if there is one.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool> {
        match self {
            Self::Pairs { pairs, .. } => {
                for pair in pairs {
                    if pair.try_recv_into(frame)?.is_some() {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Tap(tap) => {
                frame.resize(FRAME, 0);
                match tap.read(frame) {
                    Ok(len) => {
                        frame.truncate(len);
                        Ok(true)
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// A stream in a run.
struct Running {
    stream: Stream,
    frames: Vec<(Vec<u8>, NetHeader)>,
    next: usize,
    due: f64,
    carried: Carried,
}

impl Running {
    /// The first of the guests has the number `first`, counted from 1.
    fn new(number: usize, stream: &Stream, first: usize) -> Result<Self> {
        let number = u16::try_from(number)?;
        let guest = |index: usize| u8::try_from(first + index);
        let flow = Flow::v4(guest(stream.from)?, guest(stream.to)?);
        let flow = flow.ports(FIRST_PORT + number, 2000);
        let frames = stream.sizes.iter().map(|size| match size {
            Size::Super => tcp_super(&flow, 1, &[0; SEGMENTS * SEGMENT], SEGMENT as u16),
            Size::Bytes(len) => {
                let payload = vec![0; len.saturating_sub(UDP_HEADERS)];
                (udp(&flow, &payload), NetHeader::default())
            }
        });
        Ok(Self {
            frames: frames.collect(),
            stream: stream.clone(),
            next: 0,
            due: 0.0,
            carried: Carried::default(),
        })
    }

    /// Sends the next frame; false when the queue is full.
    fn send(&mut self, nic: &mut Nic, epoch: Instant) -> Result<bool> {
        let index = self.next % self.frames.len();
        let (frame, header) = &mut self.frames[index];
        if self.stream.pace.is_some() {
            let nanoseconds = nanoseconds_since(epoch);
            frame[UDP_HEADERS..UDP_HEADERS + 8].copy_from_slice(&nanoseconds.to_ne_bytes());
        }
        let sent = nic.send(self.stream.pair, frame, header)?;
        if sent {
            self.next += 1;
            self.carried.sent += 1;
        }
        Ok(sent)
    }

    /// Sends a frame of a stream with a pace, if it is due after so many seconds.
    fn keep_pace(&mut self, nic: &mut Nic, seconds: f64, epoch: Instant) -> Result<()> {
        let Some(pace) = self.stream.pace else {
            return Ok(());
        };
        if seconds >= self.due {
            self.due += 1.0 / pace;
            if !self.send(nic, epoch)? {
                self.carried.unsent += 1;
            }
        }
        Ok(())
    }

    /// Sends as much as there is room for, at most a batch.
    fn flood(&mut self, nic: &mut Nic, epoch: Instant) -> Result<()> {
        for _ in 0..BATCH {
            if !self.send(nic, epoch)? {
                break;
            }
        }
        Ok(())
    }
}

fn nanoseconds_since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The number of a frame's stream, its bits on the wire, and the time in it.
fn read(frame: &[u8]) -> Option<(usize, u64, u64)> {
    if frame.get(ETHER_TYPE_AT..ETHER_TYPE_AT + 2)? != IPV4 {
        return None;
    }
    let port = frame.get(PORT_AT..PORT_AT + 2)?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    let stream = usize::from(port.checked_sub(FIRST_PORT)?);
    let bytes = match frame[PROTOCOL_AT] {
        testkit::packets::TCP => {
            let payload = frame.len().saturating_sub(TCP_HEADERS);
            payload + payload.div_ceil(SEGMENT) * TCP_HEADERS
        }
        _ => frame.len(),
    };
    let stamp = frame.get(UDP_HEADERS..UDP_HEADERS + 8);
    let stamp = stamp
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_ne_bytes);
    Some((stream, 8 * bytes as u64, stamp))
}

/// A guest at each port of a peer, or at some of them.
pub(crate) struct Guests {
    nics: Vec<Nic>,
    /// The number of the first guest.
    first: usize,
    core: usize,
    frame: Vec<u8>,
    /// The beginning of the time in frames, which may wait from one run to the next.
    epoch: Instant,
}

impl Guests {
    /// Attaches guests with so many queue pairs, whose thread is on this core. A switch that learns
    /// then sees all addresses.
    pub(crate) fn attach(peer: &Peer, pairs: u16, core: usize) -> Result<Self> {
        let ports = peer.taps().map_or(peer.sockets().len(), <[File]>::len);
        Self::attach_some(peer, pairs, core, 0..ports)
    }

    /// The same at these ports, counted from 0, each with the number after its port's.
    pub(crate) fn attach_some(
        peer: &Peer,
        pairs: u16,
        core: usize,
        ports: Range<usize>,
    ) -> Result<Self> {
        let first = ports.start + 1;
        let nics: Result<Vec<Nic>> = match peer.taps() {
            Some(taps) => taps[ports]
                .iter()
                .map(|tap| Ok(Nic::Tap(tap.try_clone()?)))
                .collect(),
            None => {
                let listen = |path| {
                    let listen = peer.client_listens();
                    listen.then(|| FrontListener::bind(path)).transpose()
                };
                let paths = &peer.sockets()[ports];
                // All listen before the first is waited for: back ends call in any order.
                let listeners: Result<Vec<_>, _> =
                    paths.iter().map(|path| listen(path.as_path())).collect();
                let attached = paths.iter().zip(listeners?).zip(first..);
                attached
                    .map(|((path, listener), number)| {
                        attach(path, listener, pairs, u8::try_from(number)?)
                    })
                    .collect()
            }
        };
        let mut guests = Self {
            nics: nics?,
            first,
            core,
            frame: Vec::new(),
            epoch: Instant::now(),
        };
        guests.announce()?;
        Ok(guests)
    }

    /// Sends each guest's address to all others, until the first guest has those of all: a switch
    /// may take its time to notice a port.
    fn announce(&mut self) -> Result<()> {
        let others = self.nics.len() - 1;
        stop::try_wait("frames of all guests arrive", DIALLED, || {
            for (nic, number) in self.nics.iter_mut().zip(self.first..) {
                // A queue that is still full has such frames in it.
                let address = mac(u8::try_from(number)?);
                nic.send(0, &rarp(address), &NetHeader::default())?;
            }
            stop::sleep(REST)?;
            let mut heard = 0;
            while self.nics[0].receive(&mut self.frame)? {
                heard += 1;
            }
            Ok((heard >= others).then_some(()))
        })?;
        self.drain()
    }

    /// Takes all frames that are there, and forgets them.
    fn drain(&mut self) -> Result<()> {
        for nic in &mut self.nics {
            while nic.receive(&mut self.frame)? {}
        }
        Ok(())
    }

    /// Runs streams for a time.
    pub(crate) fn run(&mut self, streams: &[Stream], time: Duration) -> Result<Vec<Carried>> {
        stop::check()?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                pin(self.core)?;
                self.run_here(streams, time)
            });
            thread.join().ok().context("a thread panicked")?
        })
    }

    fn run_here(&mut self, streams: &[Stream], time: Duration) -> Result<Vec<Carried>> {
        let numbered = streams.iter().enumerate();
        let running: Result<Vec<Running>> = numbered
            .map(|(number, stream)| Running::new(number, stream, self.first))
            .collect();
        let mut running = running?;
        let paced: Vec<usize> = (0..running.len())
            .filter(|&index| running[index].stream.pace.is_some())
            .collect();
        let mut receivers: Vec<usize> = streams.iter().map(|stream| stream.to).collect();
        receivers.sort_unstable();
        receivers.dedup();
        let start = Instant::now();
        while start.elapsed() < time {
            for index in 0..running.len() {
                for &paced in &paced {
                    let from = running[paced].stream.from;
                    let seconds = start.elapsed().as_secs_f64();
                    running[paced].keep_pace(&mut self.nics[from], seconds, self.epoch)?;
                }
                if running[index].stream.pace.is_none() {
                    let from = running[index].stream.from;
                    running[index].flood(&mut self.nics[from], self.epoch)?;
                }
                self.receive(&receivers, &mut running)?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let carried = running.into_iter().map(|running| Carried {
            seconds,
            ..running.carried
        });
        Ok(carried.collect())
    }

    fn receive(&mut self, receivers: &[usize], running: &mut [Running]) -> Result<()> {
        for &receiver in receivers {
            for _ in 0..TAKEN {
                if !self.nics[receiver].receive(&mut self.frame)? {
                    break;
                }
                let Some((stream, bits, stamp)) = read(&self.frame) else {
                    continue;
                };
                let Some(running) = running.get_mut(stream) else {
                    continue;
                };
                running.carried.received += 1;
                running.carried.bits += bits;
                if running.stream.pace.is_some() {
                    let now = nanoseconds_since(self.epoch);
                    running.carried.latency.record(now.saturating_sub(stamp));
                }
            }
        }
        Ok(())
    }
}

fn attach(path: &Path, listener: Option<FrontListener>, pairs: u16, number: u8) -> Result<Nic> {
    stop::check()?;
    let config = GuestConfig {
        queue_size: QUEUE,
        pairs,
        busy: true,
        timeout: DIALLED,
        ..GuestConfig::default().guest(number)
    };
    let guest = match listener {
        Some(listener) => FakeGuest::accept(&listener, config),
        None => FakeGuest::connect(path, config),
    };
    let mut guest = guest.with_context(|| format!("guest {number} is not attached"))?;
    guest.wait_link()?;
    let (front, pairs) = guest.into_parts();
    Ok(Nic::Pairs {
        pairs,
        _front: front,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_made() {
        let mut streams = vec![Stream::flood(0, 1, &[Size::Super]); 8];
        streams[7].sizes = vec![Size::Bytes(64), Size::Bytes(1514)];
        let running = Running::new(7, &streams[7], 1).unwrap();
        let bits: Vec<_> = running
            .frames
            .iter()
            .map(|(frame, _)| read(frame))
            .collect();
        assert_eq!(bits, [Some((7, 512, 0)), Some((7, 12_112, 0))]);
        let running = Running::new(3, &streams[3], 1).unwrap();
        let (stream, bits, _) = read(&running.frames[0].0).unwrap();
        assert_eq!(
            (stream, bits),
            (3, 44 * 1514 * 8),
            "a super-frame is its segments"
        );
        assert_eq!(read(&rarp(mac(1))), None);
    }
}
