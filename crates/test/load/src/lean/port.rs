//! One port: two rings with their buffers, and its session.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use super::bulk;
use super::frames::Frames;
use super::grants::{Access, Granted, Grants};
use super::patch::Patch;
use super::ring::{Buffers, Ring, RingOptions};
use super::segments::{Segment, Template, Templates};
use super::{Deadline, LeanConfig, LeanError, LeanPort};
use testkit::features::{
    ACCESS_PLATFORM, EVENT_IDX, IN_ORDER, MRG_RXBUF, PROTOCOL_FEATURES, RING_PACKED, VERSION_1,
    protocol,
};
use testkit::frontend::{Event, FrontEnd, VringAddr};
use testkit::guest_ram::{EDGE, GuestRam, RegionSpec};
use testkit::iommu::PAGE;
use testkit::net::HEADER_LEN;

/// Start of the port's memory in its guest.
const MEMORY: u64 = 1 << 32;
const RX: u32 = 0;
const TX: u32 = 1;

/// A kick that may be owed.
#[derive(Debug)]
struct Bell {
    kick: Event,
    call: Event,
    owed: bool,
    /// Look for a request once after each offer, as a guest does.
    once: bool,
    /// Nanoseconds in the system calls of kicks, with `once`.
    kicking: u64,
}

impl Bell {
    fn new(once: bool) -> std::io::Result<Self> {
        Ok(Self {
            kick: Event::new()?,
            call: Event::new()?,
            owed: false,
            once,
            kicking: 0,
        })
    }

    /// Kicks when something was offered since the last kick and the device asks for it. It is
    /// called again and again, so a request that is seen late is not lost; with `once` a barrier
    /// sees to that: either the request is seen here, or the device sees the buffers (virtio 1.3
    /// section 2.7.13.4.1).
    #[inline]
    fn settle(&mut self, ring: &mut impl Ring) -> u64 {
        if !self.owed {
            return 0;
        }
        if self.once {
            fence(SeqCst);
        }
        let desired = ring.wants_kick();
        self.owed = !desired && !self.once;
        if desired && self.once {
            let before = Instant::now();
            self.kick.signal();
            self.kicking += before.elapsed().as_nanos() as u64;
        } else if desired {
            self.kick.signal();
        }
        desired.into()
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
    /// Frames sent and given up as lost.
    pub(super) given_up: u64,
    gap: u32,
    touch: bool,
    patch: Patch,
    /// Of a port that sends super-frames.
    bulk: Option<(bulk::Writer, bulk::Reader)>,
    /// Of a port behind an IOMMU.
    grants: Option<Box<Granted>>,
    /// Buffers that came back, while their mappings are revoked.
    back: Vec<u16>,
}

fn negotiate(
    front: &mut FrontEnd,
    config: &LeanConfig,
    grants: Option<Grants>,
) -> Result<u64, LeanError> {
    let mut required = VERSION_1 | PROTOCOL_FEATURES;
    if config.packed {
        required |= RING_PACKED;
    }
    if config.bulk {
        required |= bulk::FEATURES;
    }
    if grants.is_some() {
        required |= ACCESS_PLATFORM;
    }
    let missing = required & !front.get_features()?;
    if missing != 0 {
        return Err(LeanError::Missing(missing));
    }
    let in_order = if config.in_order { IN_ORDER } else { 0 };
    let event_index = if config.event_index { EVENT_IDX } else { 0 };
    let optional = in_order | event_index | MRG_RXBUF;
    let slots = if config.slots {
        protocol::SLOT_QUEUES
    } else {
        0
    };
    let channel = grants.map_or(0, |_| protocol::BACKEND_REQ);
    let protocol = protocol::REPLY_ACK | slots | channel;
    Ok(front.negotiate(required | optional, protocol)?)
}

impl<R: Ring> Port<R> {
    /// Port number `index` over a fresh connection, running.
    pub(super) fn open(
        mut front: FrontEnd,
        index: usize,
        config: &LeanConfig,
    ) -> Result<Self, LeanError> {
        let grants = config.grants.get(index).copied().flatten();
        let features = negotiate(&mut front, config, grants)?;
        let mut port = Self::new(index, config, features)?;
        front.set_mem_table(&port.ram)?;
        if let Some(mode) = grants {
            let frames = [
                (&port.rx_frames, port.rx.size()),
                (&port.tx_frames, port.tx.size()),
            ];
            let mut granted = Granted::new(mode, &mut front, &port.ram, frames)?;
            granted.tell_lasting()?;
            port.grants = Some(Box::new(granted));
        }
        let shift = grants.map(Grants::shift);
        let address = |gpa| shift.map_or_else(|| port.ram.user_address(gpa), |shift| gpa + shift);
        start(&mut front, RX, (&address, &port.rx), &port.rx_bell)?;
        start(&mut front, TX, (&address, &port.tx), &port.tx_bell)?;
        if let Some(grants) = &mut port.grants {
            grants.tell_lasting()?;
        }
        for queue in [RX, TX] {
            front.set_vring_enable(queue, true)?;
        }
        port.begin()?;
        // An answer proves that all of it was worked through.
        front.get_features()?;
        port._front = Some(front);
        Ok(port)
    }

    /// A port without a session; `begin` is to follow.
    pub(super) fn new(index: usize, config: &LeanConfig, features: u64) -> Result<Self, LeanError> {
        let size = config.queue_size;
        let (me, partner) = (config.mac(index), config.mac(index ^ 1));
        let (frame_len, tx_size, least) = if config.bulk {
            (bulk::FRAME_LEN, size.min(bulk::SLOTS), 0)
        } else {
            (config.frame_len, size, config.frame_len)
        };
        let apart = config.apart && !config.bulk;
        let paged = if config.grants.is_empty() {
            0
        } else {
            PAGE as u32
        };
        let with_header = |len: u16| u32::from(len) + HEADER_LEN as u32;
        let tx_len = with_header(frame_len);
        let rx_len = config.rx_buffer.max(with_header(least));
        let each = |count: u16, len| u64::from(count) * u64::from(len + 320u32 + paged);
        let room = each(tx_size, tx_len) + each(size, rx_len) + 8 * EDGE;
        let spec = RegionSpec::at(MEMORY, room.next_multiple_of(2 << 20));
        let ram = GuestRam::memfd(&[spec])?;
        let frames = |buffers| match config.grants[..] {
            [] => Frames::new(&ram, buffers, apart, me),
            _ => Frames::paged(&ram, buffers, me),
        };
        let rx_frames = frames((size, rx_len));
        let tx_frames = frames((tx_size, tx_len));
        let bulk = if config.bulk {
            let writer = bulk::Writer::fill(&tx_frames, (&ram, tx_size), [me, partner]);
            Some((writer, bulk::Reader::default()))
        } else {
            tx_frames.fill(&ram, size, config.flows, partner);
            None
        };
        let ring = |frames: &Frames, size, writable| {
            let options = RingOptions {
                size,
                writable,
                in_order: features & IN_ORDER != 0,
                event_index: features & EVENT_IDX != 0,
            };
            let grants = config.grants.get(index).copied().flatten();
            let buffers = frames.buffers();
            let gpa = buffers.gpa + grants.map_or(0, Grants::shift);
            R::new(&ram, Buffers { gpa, ..buffers }, options)
        };
        // An event index answers a question only once.
        let once = R::EVENT_INDEX || features & EVENT_IDX != 0;
        // Out of order a slot's buffer, and with it its flow, is the device's choice.
        let whole_rounds = u32::from(size).is_multiple_of(config.flows);
        let patch = if !config.heads.is_empty() {
            let all = Arc::clone(&config.heads);
            Patch::Heads { all, next: 0 }
        } else if config.rewrite || !whole_rounds {
            let of = config.flows;
            Patch::Flows { of, next: 0 }
        } else {
            Patch::Nothing
        };
        Ok(Self {
            rx: ring(&rx_frames, size, true),
            tx: ring(&tx_frames, tx_size, false),
            rx_frames,
            tx_frames,
            rx_bell: Bell::new(once)?,
            tx_bell: Bell::new(once)?,
            ram,
            _front: None,
            features,
            counts: LeanPort::default(),
            batch: config.batch,
            window: config.most_on_the_way(),
            given_up: 0,
            gap: config.gap,
            touch: config.touch,
            patch,
            bulk,
            grants: None,
            back: Vec::new(),
        })
    }

    /// Counts since the port came up, with those of its IOMMU.
    pub(super) fn all_counts(&self) -> LeanPort {
        let messages = self.grants.as_ref().map(|grants| grants.counts());
        let messages = messages.unwrap_or_default();
        LeanPort {
            mappings: messages.mappings,
            misses: messages.misses,
            ..self.counts
        }
    }

    /// The port's IOMMU.
    pub(super) fn grants(&mut self) -> Option<&mut Granted> {
        self.grants.as_deref_mut()
    }

    /// Offers all receive buffers and kicks both queues once, for what the device may have missed.
    pub(super) fn begin(&mut self) -> Result<(), LeanError> {
        self.offer_rx()?;
        for bell in [&mut self.rx_bell, &mut self.tx_bell] {
            bell.kick.signal();
            self.counts.kicks += 1;
        }
        Ok(())
    }

    /// Takes what came and offers its buffers again; whether anything did.
    #[inline]
    pub(super) fn receive(&mut self) -> Result<bool, LeanError> {
        if let Some(grants) = &mut self.grants {
            grants.look()?;
        }
        if self.bulk.is_some() {
            return self.receive_bulk();
        }
        let touch = self.touch;
        self.receive_with(|frames, counts, id| {
            if touch {
                match frames.touch(id) {
                    Some(flow) => counts.flows_received += u64::from(flow),
                    None => counts.strange += 1,
                }
            }
        })
    }

    /// As [`Port::receive`], with a look at the buffer of every frame.
    #[inline]
    pub(super) fn receive_with(
        &mut self,
        mut look: impl FnMut(&Frames, &mut LeanPort, u16),
    ) -> Result<bool, LeanError> {
        let (counts, frames) = (&mut self.counts, &self.rx_frames);
        let revokes = self.grants.as_ref().is_some_and(|grants| grants.revokes());
        let back = &mut self.back;
        let mut bytes = 0u64;
        let n = self.rx.take(|id, len| {
            bytes += u64::from(len);
            look(frames, counts, id);
            if revokes {
                back.push(id);
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
        self.refill()?;
        Ok(true)
    }

    /// As [`Port::receive`], of frames in as many buffers as it takes.
    fn receive_bulk(&mut self) -> Result<bool, LeanError> {
        let (counts, frames) = (&mut self.counts, &self.rx_frames);
        let Some((_, reader)) = &mut self.bulk else {
            return Ok(false);
        };
        let begin = Instant::now();
        let revokes = self.grants.as_ref().is_some_and(|grants| grants.revokes());
        let back = &mut self.back;
        let n = self.rx.take(|id, len| {
            reader.take(frames, counts, id, len);
            if revokes {
                back.push(id);
            }
        })?;
        if n > 0 {
            counts.working += begin.elapsed().as_nanos() as u64;
            self.refill()?;
        }
        Ok(n > 0)
    }

    /// Offers all receive buffers that are free.
    fn offer_rx(&mut self) -> Result<(), LeanError> {
        let free = self.rx.free();
        if let Some(grants) = &mut self.grants {
            let ids = (0..free).map(|ahead| self.rx.buffer(ahead));
            grants.give(Access::Write, ids)?;
        }
        self.rx.offer(free);
        Ok(())
    }

    /// Offers the buffers that came back, when there are enough of them.
    #[inline]
    fn refill(&mut self) -> Result<(), LeanError> {
        if let Some(grants) = &mut self.grants {
            for id in self.back.drain(..) {
                grants.take(Access::Write, id)?;
            }
        }
        if self.rx.free() >= self.batch {
            self.offer_rx()?;
            self.rx_bell.owed = true;
            self.counts.kicks += self.rx_bell.settle(&mut self.rx);
        }
        Ok(())
    }

    /// Sends a batch, or `most` when that is less; whether there was room for it.
    #[inline]
    pub(super) fn send(&mut self, most: u64) -> Result<bool, LeanError> {
        let n = most.min(self.batch.into()) as u16;
        if n == 0 || !self.has_room(n)? {
            return Ok(false);
        }
        self.patch(n);
        self.write(n);
        if let Some(grants) = &mut self.grants {
            let ids = (0..n).map(|ahead| self.tx.buffer(ahead));
            grants.give(Access::Read, ids)?;
        }
        self.publish(n);
        Ok(true)
    }

    /// Returns whether `n` frames can be sent.
    #[inline]
    pub(super) fn has_room(&mut self, n: u16) -> Result<bool, LeanError> {
        if self.tx.free() < n {
            self.reclaim()?;
        }
        Ok(self.tx.free() >= n)
    }

    /// Frames that were sent and whose buffers have not come back.
    pub(super) fn tx_outstanding(&self) -> u16 {
        self.tx.size() - self.tx.free()
    }

    /// Waits until all of them have come back.
    pub(super) fn wait_for_buffers(&mut self, patience: Duration) -> Result<(), LeanError> {
        let end = Deadline::after(patience);
        while self.tx_outstanding() > 0 {
            if end.passed() {
                return Err(LeanError::Device("transmit buffers do not come back"));
            }
            self.idle();
            self.reclaim()?;
        }
        Ok(())
    }

    /// The buffers of the receive and of the transmit ring.
    #[cfg(test)]
    pub(super) fn buffers(&self) -> [&Frames; 2] {
        [&self.rx_frames, &self.tx_frames]
    }

    /// Entries of the transmit ring.
    pub(super) fn entries(&self) -> u16 {
        self.tx.size()
    }

    /// Takes back the buffers of frames that were sent.
    pub(super) fn reclaim(&mut self) -> Result<(), LeanError> {
        let Some(grants) = self.grants.as_mut().filter(|grants| grants.revokes()) else {
            self.tx.reclaim()?;
            return Ok(());
        };
        self.tx.take(|id, _| self.back.push(id))?;
        let mut back = self.back.drain(..);
        back.try_for_each(|id| grants.take(Access::Read, id))
    }

    /// Writes the payload of the next `n` super-frames; nothing where frames are small.
    #[inline]
    pub(super) fn write(&mut self, n: u16) {
        let Some((writer, _)) = &mut self.bulk else {
            return;
        };
        let begin = Instant::now();
        for ahead in 0..n {
            let start = self.tx_frames.start(self.tx.buffer(ahead));
            let sum = writer.write(self.tx_frames.memory(), start);
            let total = &mut self.counts.payload_sent;
            *total = total.wrapping_add(sum);
        }
        self.counts.working += begin.elapsed().as_nanos() as u64;
    }

    /// Offers the next `n` frames to the device at once.
    #[inline]
    pub(super) fn publish(&mut self, n: u16) {
        self.tx.offer(n);
        self.counts.sent += u64::from(n);
        self.tx_bell.owed = true;
        self.counts.kicks += self.tx_bell.settle(&mut self.tx);
    }

    /// Adds the buffers that came to `held`, without a look into them.
    pub(super) fn hold(&mut self, held: &mut Vec<(u16, u32)>) -> Result<(), LeanError> {
        self.rx.take(|id, len| held.push((id, len)))?;
        Ok(())
    }

    /// Reads the super-frames in these buffers and offers the buffers again.
    pub(super) fn read_held(&mut self, held: &mut Vec<(u16, u32)>) -> Result<(), LeanError> {
        if let Some((_, reader)) = &mut self.bulk {
            for (id, len) in held.drain(..) {
                reader.take(&self.rx_frames, &mut self.counts, id, len);
            }
            self.refill()?;
        }
        Ok(())
    }

    #[inline]
    fn patch(&mut self, n: u16) {
        let ring = (&self.tx_frames, &self.tx);
        self.patch.write(ring, n, &mut self.counts);
    }

    /// Sends the next of these frames, as many as a batch has; whether any was sent.
    #[inline]
    pub(super) fn send_segments(
        &mut self,
        frames: &mut VecDeque<(u32, Segment)>,
        templates: &Templates,
    ) -> Result<bool, LeanError> {
        let n = frames.len().min(self.batch.into()) as u16;
        if n == 0 || !self.has_room(n)? {
            return Ok(false);
        }
        for (ahead, (number, segment)) in frames.drain(..usize::from(n)).enumerate() {
            let id = self.tx.buffer(ahead as u16);
            let template = templates.of(segment);
            template.write(&self.tx_frames, id, number);
        }
        self.publish(n);
        Ok(true)
    }

    /// After this, frames are of this kind, and of so many connections in turn. None may be on its
    /// way.
    pub(super) fn repeat(&mut self, template: &Template, connections: u32) {
        let size = self.tx.size();
        for id in 0..size {
            template.write(&self.tx_frames, id, u32::from(id) % connections);
        }
        self.patch = if u32::from(size).is_multiple_of(connections) {
            Patch::Nothing
        } else {
            Patch::Connections {
                template: *template,
                of: connections,
                next: 0,
            }
        };
    }

    /// Sends one frame with a time in it; whether there was room for it.
    #[inline]
    pub(super) fn send_stamped(&mut self, time: u64) -> Result<bool, LeanError> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        if matches!(self.patch, Patch::Heads { .. }) {
            self.patch(1);
        }
        self.tx_frames.set_stamp(self.tx.buffer(0), time);
        self.tx.offer(1);
        self.counts.sent += 1;
        self.tx_bell.owed = true;
        self.counts.kicks += self.tx_bell.settle(&mut self.tx);
        Ok(true)
    }

    /// Returns whether frames are long enough for [`Port::send_stamped`].
    pub(super) fn takes_stamps(&self) -> bool {
        self.bulk.is_none() && self.tx_frames.takes_stamps()
    }

    /// Ask the device once after each offer whether it wants a kick, as a guest does, or again and
    /// again.
    pub(super) fn kick_once(&mut self, once: bool) {
        let event_index = R::EVENT_INDEX || self.features & EVENT_IDX != 0;
        for bell in [&mut self.rx_bell, &mut self.tx_bell] {
            bell.once = once || event_index;
            self.counts.kicking += std::mem::take(&mut bell.kicking);
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
        self.counts.kicks += self.rx_bell.settle(&mut self.rx) + self.tx_bell.settle(&mut self.tx);
    }
}

/// Sets a queue up and starts it, as QEMU does.
fn start<R: Ring>(
    front: &mut FrontEnd,
    index: u32,
    (address, ring): (&impl Fn(u64) -> u64, &R),
    bell: &Bell,
) -> Result<(), LeanError> {
    let addrs = ring.addrs();
    front.set_vring_num(index, ring.size().into())?;
    front.set_vring_base(index, R::FIRST_BASE)?;
    front.set_vring_addr(
        index,
        &VringAddr {
            desc: address(addrs.desc),
            used: address(addrs.device),
            avail: address(addrs.driver),
            log: None,
        },
    )?;
    front.set_vring_call(index, Some(bell.call.as_fd()))?;
    front.set_vring_kick(index, Some(bell.kick.as_fd()))?;
    Ok(())
}
