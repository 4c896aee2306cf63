//! A queue pair with its event files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{GuestConfig, GuestError};
use crate::frontend::Event;
use crate::guest_ram::GuestRam;
use crate::net::{NetHeader, NetOptions, NetPair, Received};

/// Counts of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairStats {
    /// Frames sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Buffers that they filled.
    pub buffers: u64,
    /// Kicks given, both queues.
    pub kicks: u64,
    /// Calls taken, both queues; several may have been merged into one.
    pub calls: u64,
}

impl PairStats {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            buffers: self.buffers + other.buffers,
            kicks: self.kicks + other.kicks,
            calls: self.calls + other.calls,
        }
    }
}

/// A running queue pair; can be moved to a thread of its own.
#[derive(Debug)]
pub struct GuestPair {
    /// The queues and buffers.
    pub nic: NetPair,
    /// Kicks of the receive queue.
    pub rx_kick: Event,
    /// Calls for the receive queue.
    pub rx_call: Event,
    /// Kicks of the transmit queue.
    pub tx_kick: Event,
    /// Calls for the transmit queue.
    pub tx_call: Event,
    /// Counts so far.
    pub stats: PairStats,
    busy: bool,
    timeout: Duration,
}

impl GuestPair {
    pub(super) fn new(ram: &GuestRam, net: NetOptions, config: &GuestConfig) -> io::Result<Self> {
        Ok(Self {
            nic: NetPair::new(ram, net),
            rx_kick: Event::new()?,
            rx_call: Event::new()?,
            tx_kick: Event::new()?,
            tx_call: Event::new()?,
            stats: PairStats::default(),
            busy: config.busy,
            timeout: config.timeout,
        })
    }

    fn fds<'a>(
        &self,
        kick: &'a Event,
        call: &'a Event,
    ) -> (Option<BorrowedFd<'a>>, Option<BorrowedFd<'a>>) {
        // Busy guests still hand a kick file over: a back end need not poll by itself.
        (Some(kick.as_fd()), (!self.busy).then_some(call.as_fd()))
    }

    pub(super) fn rx_fds(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        self.fds(&self.rx_kick, &self.rx_call)
    }

    pub(super) fn tx_fds(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        self.fds(&self.tx_kick, &self.tx_call)
    }

    /// After the start of the queues: offers receive buffers and kicks once for what may already
    /// wait.
    pub(super) fn begin(&mut self) {
        self.nic.tx.set_notifications(false);
        if self.busy {
            self.nic.rx.set_notifications(false);
        } else {
            self.nic.rx.set_notifications(true);
        }
        self.nic.offer();
        self.rx_kick.signal();
        self.tx_kick.signal();
        self.stats.kicks += 2;
    }

    /// Offers receive buffers and kicks when the device wants it.
    pub fn offer(&mut self) {
        if self.nic.offer() {
            self.rx_kick.signal();
            self.stats.kicks += 1;
        }
    }

    /// Publishes staged frames and kicks when the device wants it.
    pub fn flush(&mut self) {
        self.nic.tx.publish();
        if self.nic.tx.needs_kick() {
            self.tx_kick.signal();
            self.stats.kicks += 1;
        }
    }

    /// Stages a frame for the next [`GuestPair::flush`]; false when the queue is full.
    ///
    /// # Errors
    /// When the device broke a rule.
    pub fn stage(&mut self, frame: &[u8], header: &NetHeader) -> Result<bool, GuestError> {
        let staged = self.nic.stage(frame, header)?;
        self.stats.sent += u64::from(staged);
        Ok(staged)
    }

    /// Sends a frame; waits for room.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] when the queue stays full.
    pub fn send(&mut self, frame: &[u8], header: &NetHeader) -> Result<(), GuestError> {
        let end = Instant::now() + self.timeout;
        while !self.stage(frame, header)? {
            self.flush();
            self.await_room(end)?;
        }
        self.flush();
        Ok(())
    }

    fn await_room(&mut self, end: Instant) -> Result<(), GuestError> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GuestError::Timeout("room in the transmit queue"));
        }
        if self.busy {
            std::thread::yield_now();
            return Ok(());
        }
        if !self.nic.tx.set_notifications(true) {
            self.stats.calls += u64::from(self.tx_call.wait(left) > 0);
        }
        self.nic.tx.set_notifications(false);
        Ok(())
    }

    /// Waits until the device has taken and returned every frame sent.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] when it has not within the guest's timeout.
    pub fn drain(&mut self) -> Result<(), GuestError> {
        let end = Instant::now() + self.timeout;
        loop {
            self.nic.reclaim()?;
            if self.nic.tx.outstanding() == 0 {
                return Ok(());
            }
            self.await_room(end)?;
        }
    }

    /// The next packet, if one is there.
    ///
    /// # Errors
    /// When the device broke a rule.
    pub fn try_recv(&mut self) -> Result<Option<Received>, GuestError> {
        let mut frame = Vec::new();
        let taken = self.try_recv_into(&mut frame)?;
        Ok(taken.map(|(header, buffers)| Received {
            frame,
            header,
            buffers,
        }))
    }

    /// As [`GuestPair::try_recv`], with the frame in the caller's buffer.
    ///
    /// # Errors
    /// When the device broke a rule.
    pub fn try_recv_into(
        &mut self,
        frame: &mut Vec<u8>,
    ) -> Result<Option<(NetHeader, u16)>, GuestError> {
        let taken = self.nic.receive_into(frame)?;
        if let Some((_, buffers)) = taken {
            self.stats.received += 1;
            self.stats.buffers += u64::from(buffers);
            if self.nic.auto_refill {
                self.offer();
            }
        }
        Ok(taken)
    }

    /// The next packet of this pair; none after `timeout`.
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
            if self.busy {
                std::thread::yield_now();
            } else if !self.arm_rx() {
                self.stats.calls += u64::from(self.rx_call.wait(left) > 0);
            }
        }
    }

    /// Asks for a call at the next packet; true when one is there already.
    pub fn arm_rx(&mut self) -> bool {
        self.nic.rx.set_notifications(true)
    }

    pub(super) fn take_calls(&mut self) {
        self.stats.calls += u64::from(self.rx_call.take() > 0);
    }
}
