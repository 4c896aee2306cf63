//! A whole guest in one call: memory, NIC and vhost-user session.
//!
//! ```no_run
//! use std::time::Duration;
//! use testkit::{FakeGuest, GuestConfig, packets};
//!
//! # fn main() -> Result<(), testkit::guest::GuestError> {
//! let mut guest = FakeGuest::connect("/tmp/port.sock".as_ref(), GuestConfig::default())?;
//! guest.wait_link()?;
//! guest.send(&packets::udp(&packets::Flow::v4(1, 2), b"hello"))?;
//! let answer = guest.recv(Duration::from_secs(1))?;
//! # drop(answer);
//! # Ok(())
//! # }
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::features::{
    CSUM, GUEST_CSUM, GUEST_OFFLOADS, HOST_OFFLOADS, LOG_ALL, RING_PACKED, protocol,
};
use crate::frontend::{DirtyFile, FrontEnd, FrontError, FrontListener, VringAddr, wait_any};
use crate::guest_ram::{GuestRam, RegionSpec};
use crate::iommu::{Iommu, IommuConfig, Lie};
use crate::net::{NetHeader, NicFault, Received};

mod config;
mod pair;

#[cfg(test)]
mod tests;

pub use config::GuestConfig;
pub use pair::{GuestPair, PairStats};

/// Failure that ends a guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The session failed.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// The device broke a rule of the queues or of the NIC.
    #[error(transparent)]
    Nic(#[from] NicFault),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The back end does not offer what the configuration requires.
    #[error("the back end does not offer features {0:#x}")]
    Missing(u64),
    /// Nothing happened in time.
    #[error("timed out waiting for {0}")]
    Timeout(&'static str),
    /// The guest is disconnected.
    #[error("the guest is not connected")]
    Disconnected,
}

/// A running guest.
#[derive(Debug)]
pub struct FakeGuest {
    front: Option<FrontEnd>,
    ram: GuestRam,
    config: GuestConfig,
    features: u64,
    /// The queue pairs.
    pub pairs: Vec<GuestPair>,
    /// Bases that the back end returned when it was stopped in good order.
    bases: Option<Vec<u32>>,
}

impl FakeGuest {
    /// Connects to a listening back end and brings the NIC up.
    ///
    /// # Errors
    /// When the session fails or required features are missing.
    pub fn connect(path: &Path, config: GuestConfig) -> Result<Self, GuestError> {
        Self::over(FrontEnd::connect(path, config.timeout)?, config)
    }

    /// Waits for a back end to call on `listener` and brings the NIC up.
    ///
    /// # Errors
    /// As [`FakeGuest::connect`].
    pub fn accept(listener: &FrontListener, config: GuestConfig) -> Result<Self, GuestError> {
        Self::over(listener.accept(config.timeout)?, config)
    }

    /// As [`FakeGuest::connect`], for a guest with an IOMMU, which the back end must then offer.
    ///
    /// # Errors
    /// As [`FakeGuest::connect`].
    pub fn connect_translated(
        path: &Path,
        config: GuestConfig,
        iommu: IommuConfig,
    ) -> Result<Self, GuestError> {
        let front = FrontEnd::connect(path, config.timeout)?;
        Self::bring_up(front, config.translated(), Some(iommu))
    }

    /// Brings the NIC up over a fresh connection.
    ///
    /// # Errors
    /// As [`FakeGuest::connect`].
    pub fn over(front: FrontEnd, config: GuestConfig) -> Result<Self, GuestError> {
        Self::bring_up(front, config, None)
    }

    fn bring_up(
        mut front: FrontEnd,
        config: GuestConfig,
        iommu: Option<IommuConfig>,
    ) -> Result<Self, GuestError> {
        let features = negotiate(&mut front, &config)?;
        let mut ram = config.ram()?;
        if let Some(iommu) = iommu {
            let iommu = Iommu::new(&ram, iommu);
            iommu.attach(&mut front)?;
            ram = ram.behind(&iommu);
        }
        let mut guest = Self {
            front: Some(front),
            ram,
            config,
            features,
            pairs: Vec::new(),
            bases: None,
        };
        // First, because mappings are sent as they are made.
        guest.share_memory()?;
        guest.pairs = guest.new_pairs()?;
        guest.start(&vec![
            guest.first_base();
            usize::from(guest.config.pairs) * 2
        ])?;
        Ok(guest)
    }

    /// The session.
    ///
    /// # Errors
    /// [`GuestError::Disconnected`] after `disconnect` or `crash`.
    pub fn front(&mut self) -> Result<&mut FrontEnd, GuestError> {
        self.front.as_mut().ok_or(GuestError::Disconnected)
    }

    /// The guest's memory.
    #[must_use]
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// The guest's IOMMU.
    ///
    /// # Panics
    /// When the guest has none.
    #[must_use]
    pub fn iommu(&self) -> &Arc<Iommu> {
        self.ram.iommu().expect("a guest with an IOMMU")
    }

    /// Takes `count` receive buffers of the first pair from the device, while it may be writing to
    /// them, and gives them back on other pages at the same addresses. Begins with those that it
    /// uses next. The old pages are watched.
    ///
    /// # Panics
    /// As [`FakeGuest::iommu`].
    pub fn replace_buffers(&self, count: usize) {
        let iommu = self.iommu();
        // No buffer is denied meanwhile: the device would return it unused.
        iommu.lie(Some(Lie::Late));
        self.revoke_buffers(count);
        iommu.lie(None);
        iommu.answer_held();
    }

    /// As [`FakeGuest::replace_buffers`], with whatever answers are set now ([`Iommu::lie`]).
    ///
    /// # Panics
    /// As [`FakeGuest::iommu`].
    ///
    /// [`Iommu::lie`]: crate::iommu::Iommu::lie
    pub fn revoke_buffers(&self, count: usize) {
        let (iommu, pair) = (self.iommu(), &self.pairs[0]);
        for n in 0..count {
            let next = pair.stats.buffers as usize + n;
            if let Some((addr, len)) = pair.nic.offered_buffer(next) {
                iommu.revoke(addr, len);
                iommu.restore(addr, len);
            }
        }
    }

    /// Negotiated features.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The guest's address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.config.mac
    }

    /// The base of a queue that was never used.
    fn first_base(&self) -> u32 {
        if self.features & RING_PACKED != 0 {
            0x8000_8000
        } else {
            0
        }
    }

    fn share_memory(&mut self) -> Result<(), GuestError> {
        let ram = self.ram.clone();
        let slots = self.config.memory_slots;
        let front = self.front()?;
        if slots && front.protocol & protocol::CONFIGURE_MEM_SLOTS != 0 {
            for region in ram.regions() {
                front.add_mem_reg(region)?;
            }
            return Ok(());
        }
        Ok(front.set_mem_table(&ram)?)
    }

    /// Starts and enables all queues at these bases, two for each pair.
    fn start(&mut self, bases: &[u32]) -> Result<(), GuestError> {
        let front = self.front.as_mut().ok_or(GuestError::Disconnected)?;
        let queues = 0..self.pairs.len() as u32 * 2;
        if self.config.enables_first {
            for index in queues.clone() {
                front.set_vring_enable(index, true)?;
            }
        }
        for (first, pair) in (0..).step_by(2).zip(&self.pairs) {
            let (rx, tx) = (first, first + 1);
            front.start_vring(
                rx,
                (&self.ram, &pair.nic.rx),
                bases[rx as usize],
                pair.rx_fds(),
            )?;
            front.start_vring(
                tx,
                (&self.ram, &pair.nic.tx),
                bases[tx as usize],
                pair.tx_fds(),
            )?;
        }
        if !self.config.enables_first {
            for index in queues {
                front.set_vring_enable(index, true)?;
            }
        }
        self.pairs.iter_mut().for_each(GuestPair::begin);
        Ok(())
    }

    /// Stops all queues in good order and returns their bases, two for each pair.
    ///
    /// # Errors
    /// When the session fails.
    pub fn stop(&mut self) -> Result<Vec<u32>, GuestError> {
        let count = self.pairs.len() as u32 * 2;
        let front = self.front()?;
        let bases = (0..count)
            .map(|i| front.get_vring_base(i))
            .collect::<Result<_, _>>();
        Ok(bases?)
    }

    /// Waits until the back end has handled all messages, the start of the queues included:
    /// messages are handled in order, so a reply proves it.
    ///
    /// # Errors
    /// When the session fails.
    pub fn wait_link(&mut self) -> Result<(), GuestError> {
        self.front()?.get_features()?;
        Ok(())
    }

    /// Sends a frame on the first pair as it is, without offloads; waits for room.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] when the queue stays full.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), GuestError> {
        self.pairs[0].send(frame, &NetHeader::default())
    }

    /// Sends a frame with an offload header on pair `pair`; waits for room.
    ///
    /// # Errors
    /// As [`FakeGuest::send`].
    pub fn send_on(
        &mut self,
        pair: usize,
        frame: &[u8],
        header: &NetHeader,
    ) -> Result<(), GuestError> {
        self.pairs[pair].send(frame, header)
    }

    /// The next packet from any pair; none after `timeout`.
    ///
    /// # Errors
    /// When the device broke a rule.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Received>, GuestError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(got) = self.try_recv()? {
                return Ok(Some(got));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.await_call(left);
        }
    }

    fn try_recv(&mut self) -> Result<Option<Received>, GuestError> {
        for pair in &mut self.pairs {
            if let Some(got) = pair.try_recv()? {
                return Ok(Some(got));
            }
        }
        Ok(None)
    }

    fn await_call(&mut self, timeout: Duration) {
        if self.config.busy {
            return std::thread::yield_now();
        }
        // Every pair must be asked, so no short circuit.
        let ready = self
            .pairs
            .iter_mut()
            .filter_map(|p| p.arm_rx().then_some(()))
            .count()
            > 0;
        let events: Vec<_> = self.pairs.iter().map(|p| &p.rx_call).collect();
        if !ready && wait_any(&events, timeout) {
            self.pairs.iter_mut().for_each(GuestPair::take_calls);
        }
    }

    /// Everything that is there now, from all pairs.
    ///
    /// # Errors
    /// When the device broke a rule.
    pub fn recv_all(&mut self) -> Result<Vec<Received>, GuestError> {
        std::iter::from_fn(|| self.try_recv().transpose()).collect()
    }

    /// Exactly `count` packets.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] when fewer came in `timeout`, counted for all of them.
    pub fn recv_count(
        &mut self,
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<Received>, GuestError> {
        let end = Instant::now() + timeout;
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            all.push(self.recv(left)?.ok_or(GuestError::Timeout("packets"))?);
        }
        Ok(all)
    }

    /// Returns the counts since the guest started, summed over the pairs.
    #[must_use]
    pub fn stats(&self) -> PairStats {
        self.pairs
            .iter()
            .map(|p| p.stats)
            .fold(PairStats::default(), PairStats::plus)
    }

    /// Reboots: stops all queues, takes all buffers back and starts from scratch on the same
    /// session.
    ///
    /// # Errors
    /// When the session fails.
    pub fn reset(&mut self) -> Result<(), GuestError> {
        self.stop()?;
        self.pairs.iter_mut().for_each(|p| p.nic.reset());
        let bases = vec![self.first_base(); self.pairs.len() * 2];
        self.start(&bases)
    }

    /// Another driver takes the card over: queues are stopped, and new ones start elsewhere, with
    /// buffers of their own. Behind an IOMMU no mapping of the old driver is left, and no
    /// INVALIDATE says so: QEMU does not listen while queues are stopped. It sends the features
    /// again.
    ///
    /// # Errors
    /// When the session fails.
    pub fn change_driver(&mut self) -> Result<(), GuestError> {
        self.stop()?;
        self.ram.iommu().into_iter().for_each(|i| i.forget_all());
        let features = self.features;
        self.front()?.set_features(features)?;
        self.pairs = self.new_pairs()?;
        let bases = vec![self.first_base(); self.pairs.len() * 2];
        self.start(&bases)
    }

    fn new_pairs(&self) -> Result<Vec<GuestPair>, GuestError> {
        let net = || self.config.net(self.features);
        let pairs = (0..self.config.pairs).map(|_| GuestPair::new(&self.ram, net(), &self.config));
        Ok(pairs.collect::<Result<_, _>>()?)
    }

    /// Stops all queues in good order and closes the session; buffers stay where they are.
    ///
    /// # Errors
    /// When the session fails.
    pub fn disconnect(&mut self) -> Result<(), GuestError> {
        self.bases = Some(self.stop()?);
        self.hang_up();
        Ok(())
    }

    /// Closes the session without a word, as a VMM does that was killed.
    pub fn crash(&mut self) {
        self.hang_up();
        self.bases = None;
    }

    fn hang_up(&mut self) {
        self.front = None;
        self.ram.iommu().into_iter().for_each(|i| i.detach());
    }

    /// Reconnects with rings and buffers as they are. After an orderly disconnect queues continue
    /// where they stopped; otherwise everything unfinished is submitted again.
    ///
    /// # Errors
    /// As [`FakeGuest::connect`].
    pub fn reconnect(&mut self, path: &Path) -> Result<(), GuestError> {
        self.reconnect_over(FrontEnd::connect(path, self.config.timeout)?)
    }

    /// As [`FakeGuest::reconnect`], over any connection.
    ///
    /// # Errors
    /// As [`FakeGuest::connect`], and when the back end offers less than before.
    pub fn reconnect_over(&mut self, mut front: FrontEnd) -> Result<(), GuestError> {
        let config = GuestConfig {
            features: self.features,
            required: self.features,
            ..self.config.clone()
        };
        negotiate(&mut front, &config)?;
        let iommu = self.ram.iommu().map(Arc::clone);
        if let Some(iommu) = &iommu {
            iommu.attach(&mut front)?;
        }
        self.front = Some(front);
        self.share_memory()?;
        iommu.iter().for_each(|iommu| iommu.tell_all());
        let bases = self.bases.take().unwrap_or_else(|| self.resume_bases());
        self.start(&bases)
    }

    fn resume_bases(&self) -> Vec<u32> {
        self.pairs
            .iter()
            .flat_map(|p| [p.nic.rx.resume_base(), p.nic.tx.resume_base()])
            .collect()
    }

    /// Hot-plugs a memory region; buffers allocated afterwards may be there.
    ///
    /// # Errors
    /// When the session fails or memory cannot be had.
    pub fn plug(&mut self, spec: RegionSpec) -> Result<(), GuestError> {
        self.ram = self.ram.plugged(spec)?;
        let ram = self.ram.clone();
        let slots = self.config.memory_slots;
        let front = self.front()?;
        if slots && front.protocol & protocol::CONFIGURE_MEM_SLOTS != 0 {
            front.add_mem_reg(ram.regions().last().expect("a region was just added"))?;
        } else {
            front.set_mem_table(&ram)?;
        }
        self.pairs.iter_mut().for_each(|p| p.nic.set_ram(&ram));
        Ok(())
    }

    /// Takes the region at this guest address out; nothing of the driver may lie there.
    ///
    /// # Errors
    /// As all requests.
    pub fn unplug(&mut self, gpa: u64) -> Result<(), GuestError> {
        let regions = self.ram.regions().iter();
        let spec = regions.map(|r| r.spec()).find(|spec| spec.gpa == gpa);
        self.ram = self.ram.unplugged(gpa);
        let ram = self.ram.clone();
        let slots = self.config.memory_slots;
        let front = self.front()?;
        match spec {
            Some(spec) if slots && front.protocol & protocol::CONFIGURE_MEM_SLOTS != 0 => {
                front.rem_mem_reg(&spec)?;
            }
            _ => front.set_mem_table(&ram)?,
        }
        self.pairs.iter_mut().for_each(|p| p.nic.set_ram(&ram));
        Ok(())
    }

    /// Starts dirty logging as QEMU does at the start of a migration: log file, LOG_ALL, and
    /// addresses with a log address for the used rings.
    ///
    /// # Errors
    /// When the session fails.
    pub fn start_log(&mut self) -> Result<DirtyFile, GuestError> {
        let end = self
            .ram
            .regions()
            .iter()
            .map(|r| r.spec().gpa + r.spec().size)
            .max()
            .unwrap_or(0);
        let log = DirtyFile::new(end, 0)?;
        let features = self.features | LOG_ALL;
        let front = self.front()?;
        front.set_log_base(&log)?;
        front.set_features(features)?;
        self.set_used_ring_log(true)?;
        Ok(log)
    }

    /// Sends the addresses of all queues again, with a log address for the used ring or without, as
    /// QEMU does when a migration begins or is given up.
    ///
    /// # Errors
    /// When the session fails.
    pub fn set_used_ring_log(&mut self, on: bool) -> Result<(), GuestError> {
        let front = self.front.as_mut().ok_or(GuestError::Disconnected)?;
        for (first, pair) in (0..).step_by(2).zip(&self.pairs) {
            for (index, queue) in [(first, &pair.nic.rx), (first + 1, &pair.nic.tx)] {
                let addr = VringAddr::of(&self.ram, queue);
                front.set_vring_addr(
                    index,
                    &VringAddr {
                        log: on.then_some(self.ram.physical(queue.addrs().device)),
                        ..addr
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Gives the parts away, so that pairs can run in threads of their own; the session ends when
    /// the front end is dropped.
    #[must_use]
    pub fn into_parts(self) -> (Option<FrontEnd>, Vec<GuestPair>) {
        (self.front, self.pairs)
    }
}

/// Agrees on features; those that need CSUM go when it is not offered (virtio 1.3 section 5.1.3.1).
fn negotiate(front: &mut FrontEnd, config: &GuestConfig) -> Result<u64, GuestError> {
    let offered = front.get_features()?;
    let missing = config.required & !offered;
    if missing != 0 {
        return Err(GuestError::Missing(missing));
    }
    let mut desired = config.features;
    if offered & desired & CSUM == 0 {
        desired &= !HOST_OFFLOADS;
    }
    if offered & desired & GUEST_CSUM == 0 {
        desired &= !GUEST_OFFLOADS;
    }
    Ok(front.negotiate(desired, config.protocol)?)
}
