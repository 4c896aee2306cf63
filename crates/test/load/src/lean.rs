//! A client so lean that the switch is the limit: guest ports driven by one polling thread.
//!
//! ```text
//!            port 0                        port 1            two sockets a pair, any pairs
//!   tx ring ---------> back end ---------> rx ring
//!   rx ring <--------- back end <--------- tx ring
//!        \____________ one thread ____________/
//! ```
//! Frames are written once, before the queues start, one to each slot of the transmit ring, and
//! each goes out again and again in place; receive buffers are offered again as soon as they come
//! back. While a run lasts nothing is allocated, and no system call is made unless the device asks
//! for a kick. Index updates are published a batch at a time. Without IN_ORDER slots are refilled
//! with whatever buffer the device returned.
//!
//! At a limited rate, [`Lean::paced`] sends on a schedule and measures the latency of each frame.
//!
//! The work of a real guest on each frame is optional and has its cost: [`LeanConfig::touch`] reads
//! the head of every received frame, [`LeanConfig::rewrite`] writes into every frame before it is
//! sent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use testkit::frontend::{FrontEnd, FrontError, FrontListener};
use testkit::net::HEADER_LEN;
use testkit::packets::mac;

mod bulk;
mod burst;
mod dialogues;
mod drive;
mod frames;
mod grants;
mod histogram;
mod memcpy;
mod null;
mod paced;
mod packed;
mod patch;
mod port;
mod probe;
mod ring;
mod segments;
mod singly;
mod slots;
mod span;
mod split;

#[cfg(test)]
mod tests;

pub use bulk::FRAME_LEN as SUPER_FRAME_LEN;
pub use burst::BurstReport;
pub use dialogues::{Dialogue, DialogueReport};
pub use frames::Head;
pub use grants::Grants;
pub use histogram::Histogram;
pub use memcpy::memcpy;
pub use null::NullBackEnd;
pub use paced::{Pace, PacedReport};
pub use probe::Probed;
pub use segments::{CONNECTIONS, Prepared, Segment};
pub use singly::SinglyReport;

use packed::Packed;
use port::Port;
use slots::Slots;
use split::Split;

/// Configuration of the client.
#[derive(Clone, Debug)]
pub struct LeanConfig {
    /// Sockets of the ports, an even number; ports 0 and 1 exchange frames, ports 2 and 3, and so
    /// on.
    pub sockets: Vec<PathBuf>,
    /// Listen on the sockets instead of dialling: for back ends that are clients.
    pub listen: bool,
    /// Packed rings, which the back end must then offer.
    pub packed: bool,
    /// Slot queues in netmap's format, which the back end must then offer.
    pub slots: bool,
    /// Take IN_ORDER where it is offered.
    pub in_order: bool,
    /// Entries of each queue, a power of two.
    pub queue_size: u16,
    /// Bytes of each frame from the Ethernet header on, without FCS; 42 at least.
    pub frame_len: u16,
    /// Bytes of a receive buffer; at least 12 more than a frame are taken, but for super-frames.
    pub rx_buffer: u32,
    /// Frames are TCP super-frames of 64 KiB, whatever `frame_len` says, every cache line of which
    /// is written before it is sent and all of which is read when it was received. They may lie in
    /// several receive buffers, of two whole cache lines or more each. `apart`, `flows`, `touch`
    /// and `rewrite` are without effect.
    pub bulk: bool,
    /// Frames start with a cache line and the virtio header ends the line before, as in DPDK's
    /// buffers, in place of both sharing a line, as in Linux's.
    pub apart: bool,
    /// UDP flows that each port goes through, 1 at least. Where the ring holds a whole number of
    /// rounds nothing is written for it, otherwise 4 bytes a frame.
    pub flows: u32,
    /// Heads that each port goes through, one after the other, in place of `flows`; 24 bytes are
    /// written for it in each frame.
    pub heads: Arc<[Head]>,
    /// Address of each port; by default of test guests 1, 2, ….
    pub macs: Vec<[u8; 6]>,
    /// Read the virtio header, the addresses and the ports of every received frame.
    pub touch: bool,
    /// Write the flow into every frame, also where it stands there already.
    pub rewrite: bool,
    /// Negotiate the event index where it is offered, as guests of Linux do; split rings only.
    pub event_index: bool,
    /// Frames published at once, at most half the queue size.
    pub batch: u16,
    /// Processor pauses after a round in which nothing moved: looking at the rings again and again
    /// takes their lines from the device that writes them.
    pub gap: u32,
    /// Most frames on their way from a port to its partner; none: as many as the rings take. At
    /// most half the queue size lets no correct switch drop a frame for want of a receive buffer.
    pub window: Option<u64>,
    /// CPU to run on.
    pub cpu: Option<usize>,
    /// Mappings of each port, or none for a port without an IOMMU; empty: no port has one. Where
    /// it is not empty, all buffers lie on pages of their own, and `apart` is without effect. Only
    /// [`Lean::run`] revokes mappings.
    pub grants: Vec<Option<Grants>>,
    /// How long to wait for the back end to connect and to answer.
    pub timeout: Duration,
    /// How long to wait for frames on their way before they count as lost.
    pub patience: Duration,
}

impl Default for LeanConfig {
    fn default() -> Self {
        Self {
            sockets: Vec::new(),
            listen: false,
            packed: false,
            slots: false,
            in_order: true,
            queue_size: 1024,
            frame_len: 64,
            rx_buffer: 2048,
            bulk: false,
            apart: false,
            flows: 1,
            heads: Arc::default(),
            macs: Vec::new(),
            touch: false,
            rewrite: false,
            event_index: false,
            batch: 32,
            gap: 0,
            window: None,
            cpu: None,
            grants: Vec::new(),
            timeout: Duration::from_secs(10),
            patience: Duration::from_millis(100),
        }
    }
}

impl LeanConfig {
    fn check(&self, ports: usize) -> Result<(), LeanError> {
        let rules = [
            (
                ports > 0 && ports.is_multiple_of(2),
                "an even number of ports",
            ),
            (
                self.queue_size.is_power_of_two() && self.queue_size <= 32768,
                "a queue size that is a power of two",
            ),
            (
                self.batch > 0 && self.batch <= self.queue_size / 2,
                "a batch of at most half the queue",
            ),
            (
                self.frame_len >= frames::MIN_LEN,
                "frames of 42 bytes or more",
            ),
            (self.flows > 0, "a flow at least"),
            (
                !(self.event_index && (self.packed || self.slots)),
                "a split ring for the event index",
            ),
            (
                !(self.slots && (self.packed || self.bulk)),
                "slot queues or packed ones, and small frames in slot queues",
            ),
            (
                !self.bulk || (self.rx_buffer >= 128 && self.rx_buffer.is_multiple_of(64)),
                "receive buffers of two or more whole cache lines",
            ),
            (
                !self.bulk || self.most_on_the_way() >= u64::from(self.batch),
                "a window of a batch or more, and of no more super-frames than there are buffers",
            ),
            (
                self.heads.is_empty() || !(self.bulk || self.touch || self.rewrite),
                "heads or flows, not both",
            ),
            (
                self.window.is_none_or(|w| w >= self.batch.into()),
                "a window of a batch or more",
            ),
            (
                self.macs.is_empty() || self.macs.len() == ports,
                "an address for each port",
            ),
            (
                self.grants.is_empty()
                    || (self.grants.len() == ports && !self.slots && !self.in_order),
                "mappings for each port, and virtqueues that are not in order",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(LeanError::Config(rule)),
            None => Ok(()),
        }
    }

    /// Most frames on their way from a port to its partner. There are receive buffers for all
    /// super-frames.
    fn most_on_the_way(&self) -> u64 {
        let window = self.window.unwrap_or(u64::MAX);
        if !self.bulk {
            return window;
        }
        let len = u32::from(bulk::FRAME_LEN) + HEADER_LEN as u32;
        let buffers = u32::from(self.queue_size).saturating_sub(self.batch.into());
        let received = buffers / len.div_ceil(self.rx_buffer.max(1));
        let sent = self.queue_size.min(bulk::SLOTS);
        window.min(sent.into()).min(received.into())
    }

    fn mac(&self, port: usize) -> [u8; 6] {
        let given = self.macs.get(port).copied();
        given.unwrap_or_else(|| mac(port as u8 + 1))
    }
}

/// Failure that ends the client.
#[derive(Debug, thiserror::Error)]
pub enum LeanError {
    /// The configuration is invalid.
    #[error("the client needs {0}")]
    Config(&'static str),
    /// The session failed.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The back end does not offer what is needed.
    #[error("the back end does not offer features {0:#x}")]
    Missing(u64),
    /// The device broke a rule of the queues.
    #[error("the device broke a rule: {0}")]
    Device(&'static str),
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this time; what is still on its way then is waited for, but counts for loss only.
    Elapsed(Duration),
    /// Every port has sent this many frames and received its partner's, or has timed out.
    Sent(u64),
}

/// Counts of one port in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeanPort {
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Bytes received, without virtio headers.
    pub bytes: u64,
    /// Kicks given, both queues.
    pub kicks: u64,
    /// Nanoseconds in the system calls of kicks, where each offer is asked about once.
    pub kicking: u64,
    /// With `touch` or `bulk`: received frames that were not sent to this port, or not whole.
    pub strange: u64,
    /// Sum of the flow numbers of all frames sent, as far as they were counted: with `rewrite`, or
    /// where flows do not fit the ring.
    pub flows_sent: u64,
    /// With `touch`: sum of the flow numbers of all frames received.
    pub flows_received: u64,
    /// With `bulk`: sum of the payload of all frames sent, as words of eight bytes, modulo 2^64.
    pub payload_sent: u64,
    /// Payload bytes of all frames received.
    pub payload_received: u64,
    /// With `bulk`: nanoseconds spent writing and reading payload.
    pub working: u64,
    /// UPDATE and INVALIDATE messages sent, of a port with an IOMMU.
    pub mappings: u64,
    /// MISS messages received, of a port with an IOMMU.
    pub misses: u64,
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct LeanReport {
    /// How long it took.
    pub elapsed: Duration,
    /// Share of the rounds over all ports in which nothing could be sent or received, 0 to 1: near
    /// 0 the client is the limit, else the switch is. Only of a run for a time.
    pub idle: f64,
    /// Frames sent in that time, all ports.
    pub sent: u64,
    /// Frames received in that time, all ports.
    pub received: u64,
    /// Frames sent and never received, waiting afterwards included.
    pub lost: u64,
    /// The ports one by one.
    pub ports: Vec<LeanPort>,
}

impl LeanReport {
    /// Million frames received a second.
    #[must_use]
    pub fn mpps(&self) -> f64 {
        self.received as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

impl LeanReport {
    /// GiB received a second, without virtio headers.
    #[must_use]
    pub fn gib_per_second(&self) -> f64 {
        let bytes: u64 = self.ports.iter().map(|port| port.bytes).sum();
        bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / f64::from(1 << 30)
    }

    /// Share of the time in which payload was written or read, 0 to 1, of a run with `bulk`: near 1
    /// the client is the limit.
    #[must_use]
    pub fn working(&self) -> f64 {
        let nanos: u64 = self.ports.iter().map(|port| port.working).sum();
        nanos as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

#[derive(Debug)]
enum Ports {
    Split(Vec<Port<Split>>),
    Packed(Vec<Port<Packed>>),
    Slots(Vec<Port<Slots>>),
}

/// Pairs of connected ports.
#[derive(Debug)]
pub struct Lean {
    config: LeanConfig,
    ports: Ports,
    /// Zero of the times in frames.
    epoch: Instant,
    /// The number of the next connection of [`Lean::dialogues`].
    next: u32,
}

impl Lean {
    /// Connects all ports, in order, and starts their queues.
    ///
    /// # Errors
    /// When a session fails or a feature is missing.
    pub fn connect(config: LeanConfig) -> Result<Self, LeanError> {
        config.check(config.sockets.len())?;
        let timeout = config.timeout;
        let fronts: Result<Vec<_>, FrontError> = if config.listen {
            // All listen before the first is waited for: back ends call in any order.
            let bound: std::io::Result<Vec<_>> = config
                .sockets
                .iter()
                .map(|path| FrontListener::bind(path))
                .collect();
            bound?.iter().map(|l| l.accept(timeout)).collect()
        } else {
            let dial = |path: &PathBuf| FrontEnd::connect(path, timeout);
            config.sockets.iter().map(dial).collect()
        };
        Self::over(fronts?, config)
    }

    /// Starts the queues of ports over fresh connections.
    ///
    /// # Errors
    /// As [`Lean::connect`].
    pub fn over(fronts: Vec<FrontEnd>, config: LeanConfig) -> Result<Self, LeanError> {
        config.check(fronts.len())?;
        let ports = if config.packed {
            Ports::Packed(open_all(fronts, &config)?)
        } else if config.slots {
            Ports::Slots(open_all(fronts, &config)?)
        } else {
            Ports::Split(open_all(fronts, &config)?)
        };
        Ok(Self::new(config, ports))
    }

    fn new(config: LeanConfig, ports: Ports) -> Self {
        Self {
            config,
            ports,
            epoch: Instant::now(),
            next: 0,
        }
    }

    /// `count` ports in front of nothing but a thread that gives buffers back, without a session
    /// and without touching a frame (never super-frames): what the client could do if the switch
    /// cost nothing. The thread runs on `cpu` until it is dropped.
    ///
    /// # Errors
    /// When memory or thread cannot be had.
    pub fn null(
        config: LeanConfig,
        count: usize,
        cpu: Option<usize>,
    ) -> Result<(Self, NullBackEnd), LeanError> {
        config.check(count)?;
        let config = LeanConfig {
            in_order: true,
            bulk: false,
            ..config
        };
        let (ports, back) = if config.packed {
            let (ports, back) = null::start(count, &config, cpu)?;
            (Ports::Packed(ports), back)
        } else if config.slots {
            let (ports, back) = null::start(count, &config, cpu)?;
            (Ports::Slots(ports), back)
        } else {
            let (ports, back) = null::start(count, &config, cpu)?;
            (Ports::Split(ports), back)
        };
        Ok((Self::new(config, ports), back))
    }

    /// Agreed features of each port.
    #[must_use]
    pub fn features(&self) -> Vec<u64> {
        match &self.ports {
            Ports::Split(ports) => ports.iter().map(|p| p.features).collect(),
            Ports::Packed(ports) => ports.iter().map(|p| p.features).collect(),
            Ports::Slots(ports) => ports.iter().map(|p| p.features).collect(),
        }
    }

    /// Sends and receives on this thread, on the configured CPU, until the end that is asked for.
    ///
    /// # Errors
    /// When the device broke a rule, or the thread cannot be moved to its CPU.
    pub fn run(&mut self, until: Until) -> Result<LeanReport, LeanError> {
        let _pinned = self.config.cpu.map(Pinned::to).transpose()?;
        match &mut self.ports {
            Ports::Split(ports) => drive::run(ports, until, self.config.patience),
            Ports::Packed(ports) => drive::run(ports, until, self.config.patience),
            Ports::Slots(ports) => drive::run(ports, until, self.config.patience),
        }
    }

    /// After this, ports 0, 2, … send to their partners, and those only receive.
    pub fn one_way(&mut self) {
        match &mut self.ports {
            Ports::Split(ports) => drive::one_way(ports),
            Ports::Packed(ports) => drive::one_way(ports),
            Ports::Slots(ports) => drive::one_way(ports),
        }
    }

    /// Exchanges super-frames in bursts for `time`, on this thread, on the configured CPU: while
    /// the back end moves a burst, payload is neither written nor read.
    ///
    /// # Errors
    /// As [`Lean::run`], without `bulk`, and when frames are lost.
    pub fn bursts(&mut self, time: Duration) -> Result<BurstReport, LeanError> {
        if !self.config.bulk {
            return Err(LeanError::Config("super-frames for bursts"));
        }
        let _pinned = self.config.cpu.map(Pinned::to).transpose()?;
        let window = self.config.most_on_the_way() as u16;
        let times = [time, self.config.patience];
        match &mut self.ports {
            Ports::Split(ports) => burst::run(ports, window, times),
            Ports::Packed(ports) => burst::run(ports, window, times),
            Ports::Slots(ports) => burst::run(ports, window, times),
        }
    }
}

fn open_all<R: ring::Ring>(
    fronts: Vec<FrontEnd>,
    config: &LeanConfig,
) -> Result<Vec<Port<R>>, LeanError> {
    let fronts = fronts.into_iter().enumerate();
    fronts
        .map(|(i, front)| Port::open(front, i, config))
        .collect()
}

/// The calling thread on one CPU, until this goes.
struct Pinned(CpuSet);

impl Pinned {
    fn to(cpu: usize) -> std::io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Time that is looked at now and then only.
struct Deadline(Instant);

impl Deadline {
    fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    fn passed(&self) -> bool {
        Instant::now() >= self.0
    }
}
