//! One port: two rings with their buffers, and its session.

use std::os::fd::AsFd;

use super::frames::Frames;
use super::ring::{Ring, RingOptions};
use super::{LeanConfig, LeanError, LeanPort};
use crate::features::{IN_ORDER, MRG_RXBUF, PROTOCOL_FEATURES, RING_PACKED, VERSION_1, protocol};
use crate::frontend::{Event, FrontEnd, VringAddr};
use crate::guest_ram::{EDGE, GuestRam, RegionSpec};
use crate::net::HEADER_LEN;

/// Where the port's memory starts in its guest.
const MEMORY: u64 = 1 << 32;
const RX: u32 = 0;
const TX: u32 = 1;

/// A kick that may be owed.
#[derive(Debug)]
struct Bell {
    kick: Event,
    call: Event,
    owed: bool,
}

impl Bell {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            kick: Event::new()?,
            call: Event::new()?,
            owed: false,
        })
    }

    /// Kicks when something was offered since the last kick and the device asks for it. It is called again
    /// and again, so a request that is seen late is not lost.
    #[inline]
    fn settle(&mut self, ring: &impl Ring) -> u64 {
        if !self.owed || !ring.wants_kick() {
            return 0;
        }
        self.owed = false;
        self.kick.signal();
        1
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Port<R> {
    pub(super) rx: R,
    pub(super) tx: R,
    rx_frames: Frames,
    tx_frames: Frames,
    rx_bell: Bell,
    tx_bell: Bell,
    ram: GuestRam,
    /// Keeps the session open.
    _front: Option<FrontEnd>,
    /// Agreed features.
    pub(super) features: u64,
    /// Counts since the port came up.
    pub(super) counts: LeanPort,
    batch: u16,
    pub(super) window: u64,
    gap: u32,
    touch: bool,
    /// Write the flow into each frame.
    patch: bool,
    flows: u32,
    flow: u32,
}

fn negotiate(front: &mut FrontEnd, config: &LeanConfig) -> Result<u64, LeanError> {
    let mut required = VERSION_1 | PROTOCOL_FEATURES;
    if config.packed {
        required |= RING_PACKED;
    }
    let missing = required & !front.get_features()?;
    if missing != 0 {
        return Err(LeanError::Missing(missing));
    }
    let optional = if config.in_order { IN_ORDER } else { 0 };
    Ok(front.negotiate(required | optional | MRG_RXBUF, protocol::REPLY_ACK)?)
}

impl<R: Ring> Port<R> {
    /// Port number `index` over a fresh connection, running.
    pub(super) fn open(
        mut front: FrontEnd,
        index: usize,
        config: &LeanConfig,
    ) -> Result<Self, LeanError> {
        let features = negotiate(&mut front, config)?;
        let mut port = Self::new(index, config, features, features & IN_ORDER != 0)?;
        front.set_mem_table(&port.ram)?;
        let size = config.queue_size;
        start(&mut front, RX, (&port.ram, &port.rx, size), &port.rx_bell)?;
        start(&mut front, TX, (&port.ram, &port.tx, size), &port.tx_bell)?;
        for queue in [RX, TX] {
            front.set_vring_enable(queue, true)?;
        }
        port.begin();
        // An answer proves that all of it was worked through.
        front.get_features()?;
        port._front = Some(front);
        Ok(port)
    }

    /// A port without a session; `begin` is to follow.
    pub(super) fn new(
        index: usize,
        config: &LeanConfig,
        features: u64,
        in_order: bool,
    ) -> Result<Self, LeanError> {
        let size = config.queue_size;
        let (me, partner) = (config.mac(index), config.mac(index ^ 1));
        let tx_len = u32::from(config.frame_len) + HEADER_LEN as u32;
        let rx_len = config.rx_buffer.max(tx_len);
        let room = u64::from(size) * u64::from(tx_len + rx_len + 640) + 8 * EDGE;
        let spec = RegionSpec::at(MEMORY, room.next_multiple_of(2 << 20));
        let ram = GuestRam::memfd(&[spec])?;
        let rx_frames = Frames::new(&ram, (size, rx_len), config.apart, me);
        let tx_frames = Frames::new(&ram, (size, tx_len), config.apart, me);
        tx_frames.fill(&ram, size, config.flows, partner);
        let ring = |frames: &Frames, writable| {
            let options = RingOptions {
                size,
                writable,
                in_order,
            };
            R::new(&ram, frames.buffers(), options)
        };
        // Out of order a slot's buffer, and with it its flow, is the device's choice.
        let whole_rounds = u32::from(size).is_multiple_of(config.flows);
        Ok(Self {
            rx: ring(&rx_frames, true),
            tx: ring(&tx_frames, false),
            rx_frames,
            tx_frames,
            rx_bell: Bell::new()?,
            tx_bell: Bell::new()?,
            ram,
            _front: None,
            features,
            counts: LeanPort::default(),
            batch: config.batch,
            window: config.window.unwrap_or(u64::MAX),
            gap: config.gap,
            touch: config.touch,
            patch: config.rewrite || !whole_rounds,
            flows: config.flows,
            flow: 0,
        })
    }

    /// Offers all receive buffers and kicks both queues once, for what the device may have missed.
    pub(super) fn begin(&mut self) {
        self.rx.offer(self.rx.free());
        for bell in [&mut self.rx_bell, &mut self.tx_bell] {
            bell.kick.signal();
            self.counts.kicks += 1;
        }
    }

    /// Takes what came and offers its buffers again; whether anything did.
    #[inline]
    pub(super) fn receive(&mut self) -> Result<bool, LeanError> {
        let (counts, frames, touch) = (&mut self.counts, &self.rx_frames, self.touch);
        let mut bytes = 0u64;
        let n = self.rx.take(|id, len| {
            bytes += u64::from(len);
            if touch {
                match frames.touch(id) {
                    Some(flow) => counts.flows_received += u64::from(flow),
                    None => counts.strange += 1,
                }
            }
        })?;
        if n == 0 {
            return Ok(false);
        }
        counts.received += u64::from(n);
        // A length below the header is the device's fault; the sum cannot wrap by it unnoticed.
        counts.bytes += bytes
            .checked_sub(u64::from(n) * HEADER_LEN as u64)
            .ok_or(LeanError::Device("less written than a virtio header"))?;
        let free = self.rx.free();
        if free >= self.batch {
            self.rx.offer(free);
            self.rx_bell.owed = true;
            counts.kicks += self.rx_bell.settle(&self.rx);
        }
        Ok(true)
    }

    /// Sends a batch, or `most` when that is less; whether there was room for it.
    #[inline]
    pub(super) fn send(&mut self, most: u64) -> Result<bool, LeanError> {
        let n = most.min(self.batch.into()) as u16;
        if n == 0 {
            return Ok(false);
        }
        if self.tx.free() < n {
            self.tx.reclaim()?;
            if self.tx.free() < n {
                return Ok(false);
            }
        }
        if self.patch {
            self.patch(n);
        }
        self.tx.offer(n);
        self.counts.sent += u64::from(n);
        self.tx_bell.owed = true;
        self.counts.kicks += self.tx_bell.settle(&self.tx);
        Ok(true)
    }

    fn patch(&mut self, n: u16) {
        for ahead in 0..n {
            let flow = self.flow;
            self.tx_frames.set_flow(self.tx.buffer(ahead), flow);
            self.counts.flows_sent += u64::from(flow);
            self.flow = if flow + 1 < self.flows { flow + 1 } else { 0 };
        }
    }

    /// Frames sent at once.
    pub(super) fn batch(&self) -> u16 {
        self.batch
    }

    /// Pauses after a round without work.
    pub(super) fn gap(&self) -> u32 {
        self.gap
    }

    /// Nothing to do: looks again for requests of the device.
    #[inline]
    pub(super) fn idle(&mut self) {
        self.counts.kicks += self.rx_bell.settle(&self.rx) + self.tx_bell.settle(&self.tx);
    }
}

/// Sets a queue up and starts it, as QEMU does.
fn start<R: Ring>(
    front: &mut FrontEnd,
    index: u32,
    (ram, ring, size): (&GuestRam, &R, u16),
    bell: &Bell,
) -> Result<(), LeanError> {
    let addrs = ring.addrs();
    front.set_vring_num(index, size.into())?;
    front.set_vring_base(index, R::FIRST_BASE)?;
    front.set_vring_addr(
        index,
        &VringAddr {
            desc: ram.user_address(addrs.desc),
            used: ram.user_address(addrs.device),
            avail: ram.user_address(addrs.driver),
            log: None,
        },
    )?;
    front.set_vring_call(index, Some(bell.call.as_fd()))?;
    front.set_vring_kick(index, Some(bell.kick.as_fd()))?;
    Ok(())
}
