//! Super-frames in bursts: the speed of a back end that never waits.
//!
//! ```text
//! this thread   writes a window of frames at each port | publishes all | looks at the rings only | reads all
//! back end                                               moves all of them
//!                                                        <----- busy ----->
//! ```
//! Payload is neither written nor read while the back end works, so the client is never the limit,
//! and yet every byte was written by one core and is read by another.

use std::time::{Duration, Instant};

use super::bulk;
use super::port::Port;
use super::ring::Ring;
use super::{Deadline, LeanError};
use testkit::net::HEADER_LEN;

/// Received buffers of each port, with their bytes.
type Held = Vec<Vec<(u16, u32)>>;

/// Results of bursts.
#[derive(Clone, Copy, Debug, Default)]
pub struct BurstReport {
    /// Bytes that arrived, without virtio headers.
    pub bytes: u64,
    /// From the publication of each burst to the arrival of its last frame, all bursts added.
    pub busy: Duration,
}

impl BurstReport {
    /// GiB moved in a second in which there was something to move.
    #[must_use]
    pub fn gib_per_busy_second(&self) -> f64 {
        self.bytes as f64 / self.busy.as_secs_f64().max(1e-9) / f64::from(1 << 30)
    }
}

/// See [`super::Lean::bursts`].
pub(super) fn run<R: Ring>(
    ports: &mut [Port<R>],
    window: u16,
    [time, patience]: [Duration; 2],
) -> Result<BurstReport, LeanError> {
    let end = Deadline::after(time);
    let mut held: Held = ports.iter().map(|_| Vec::new()).collect();
    let mut report = BurstReport::default();
    while !end.passed() {
        for port in ports.iter_mut() {
            wait_for_room(port, window, patience)?;
            port.write(window);
        }
        let begin = Instant::now();
        ports.iter_mut().for_each(|port| port.publish(window));
        wait_for_frames(ports, &mut held, u64::from(window), patience)?;
        report.busy += begin.elapsed();
        report.bytes += ports.len() as u64 * u64::from(window) * u64::from(bulk::FRAME_LEN);
        for (port, held) in ports.iter_mut().zip(&mut held) {
            port.read_held(held)?;
        }
    }
    Ok(report)
}

/// The back end may return what it has sent a little later than it delivers it.
fn wait_for_room<R: Ring>(
    port: &mut Port<R>,
    frames: u16,
    patience: Duration,
) -> Result<(), LeanError> {
    let end = Deadline::after(patience);
    while !port.has_room(frames)? {
        if end.passed() {
            return Err(LeanError::Device("transmit buffers do not come back"));
        }
        port.idle();
    }
    Ok(())
}

/// Waits until each port has all bytes of this many frames.
fn wait_for_frames<R: Ring>(
    ports: &mut [Port<R>],
    held: &mut Held,
    frames: u64,
    patience: Duration,
) -> Result<(), LeanError> {
    let whole = frames * (u64::from(bulk::FRAME_LEN) + HEADER_LEN as u64);
    let end = Deadline::after(patience);
    for (index, held) in held.iter_mut().enumerate() {
        while held.iter().map(|(_, len)| u64::from(*len)).sum::<u64>() < whole {
            if end.passed() {
                return Err(LeanError::Device("super-frames of a burst are lost"));
            }
            ports.iter_mut().for_each(Port::idle);
            ports[index].hold(held)?;
        }
    }
    Ok(())
}
