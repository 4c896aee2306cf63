//! A back end that does nothing: the other half of the rings, in a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use super::port::Port;
use super::ring::Ring;
use super::span::Span;
use super::{LeanConfig, LeanError, Pinned};
use testkit::features::IN_ORDER;
use testkit::net::HEADER_LEN;

/// Buffers moved at once.
const BATCH: u16 = 64;

/// The device's half of an in-order ring.
pub(super) trait Device: Send + 'static {
    /// Buffers that wait, up to `most`.
    fn waiting(&mut self, most: u16) -> u16;
    /// Uses the next `n` buffers, at least one, with `written` bytes in each when it is for the
    /// guest.
    fn give(&mut self, n: u16, written: Option<u32>);
    /// Declines kicks.
    fn begin(&mut self);
}

#[derive(Debug)]
pub(super) struct SplitDevice {
    pub(super) avail: Span,
    pub(super) used: Span,
    pub(super) size: u16,
    pub(super) position: u16,
}

impl SplitDevice {
    pub(super) fn new(avail: Span, used: Span, size: u16) -> Self {
        Self {
            avail,
            used,
            size,
            position: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct PackedDevice {
    pub(super) desc: Span,
    pub(super) device: Span,
    pub(super) size: u16,
    pub(super) position: u32,
}

impl PackedDevice {
    pub(super) fn new(desc: Span, device: Span, size: u16) -> Self {
        Self {
            desc,
            device,
            size,
            position: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct SlotsDevice {
    pub(super) slots: Span,
    pub(super) driver: Span,
    pub(super) device: Span,
    pub(super) size: u16,
    pub(super) position: u16,
}

/// The thread that stands for a switch; dropping it ends it.
#[derive(Debug)]
pub struct NullBackEnd {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for NullBackEnd {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// One direction: a port's transmit ring and its partner's receive ring.
struct Way<D>(D, D);

impl<D: Device> Way<D> {
    fn carry(&mut self, written: u32) -> bool {
        let n = self.0.waiting(BATCH);
        let n = if n > 0 { self.1.waiting(n) } else { 0 };
        if n > 0 {
            self.1.give(n, Some(written));
            self.0.give(n, None);
        }
        n > 0
    }
}

/// Ports without sessions, and the thread behind them.
pub(super) fn start<R: Ring>(
    count: usize,
    config: &LeanConfig,
    cpu: Option<usize>,
) -> Result<(Vec<Port<R>>, NullBackEnd), LeanError> {
    let mut ports = (0..count)
        .map(|i| Port::<R>::new(i, config, IN_ORDER))
        .collect::<Result<Vec<_>, _>>()?;
    let mut ways: Vec<_> = (0..count)
        .map(|i| Way(ports[i].tx.device(), ports[i ^ 1].rx.device()))
        .collect();
    for way in &mut ways {
        way.0.begin();
        way.1.begin();
    }
    ports.iter_mut().try_for_each(Port::begin)?;
    let written = u32::from(config.frame_len) + HEADER_LEN as u32;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().spawn(move || {
        // A thread that may run anywhere is a slower one, not a wrong one.
        let _pinned = cpu.and_then(|cpu| Pinned::to(cpu).ok());
        while !stopped.load(Relaxed) {
            for way in &mut ways {
                if !way.carry(written) {
                    std::hint::spin_loop();
                }
            }
        }
    })?;
    let back = NullBackEnd {
        stop,
        thread: Some(thread),
    };
    Ok((ports, back))
}
