//! The client of the Linux bridge: a thread on each core, each with a TAP device of its own. There
//! is no way to give a TAP device more than one frame with a system call.
//!
//! A thread writes frames and reads those of the other. The bridge works inside of these calls, so
//! it has both cores, less what the threads need themselves.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::{Client, replay};
use crate::stop;
use e2e::machine::pin;

/// Frames written between two looks at what arrived.
pub(super) const BURST: u32 = 32;
/// Longer than any frame.
pub(super) const BUFFER: usize = 10_000;

/// Two TAP devices, which frames cross in both directions while it is asked for figures.
pub(crate) struct TapClient {
    cores: [usize; 2],
    taps: [File; 2],
    frames: [Vec<u8>; 2],
}

impl TapClient {
    pub(crate) fn new(cores: [usize; 2], taps: &[File]) -> Result<Self> {
        let [first, second] = taps else {
            bail!("this client has two TAP devices")
        };
        Ok(Self {
            cores,
            taps: [first.try_clone()?, second.try_clone()?],
            frames: [Vec::new(), Vec::new()],
        })
    }

    /// Frames that arrived in a second.
    fn run(&self, time: Duration) -> Result<f64> {
        stop::check()?;
        let end = Instant::now() + time;
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|index| {
                let (tap, frame) = (&self.taps[index], &self.frames[index]);
                let core = self.cores[index];
                scope.spawn(move || {
                    pin(core)?;
                    exchange(tap, frame, end)
                })
            });
            let mut sum = 0.0;
            for thread in threads {
                sum += thread.join().ok().context("a thread panicked")??;
            }
            Ok(sum / time.as_secs_f64())
        })
    }
}

/// Sends `frame` until `end`; the number of frames that came meanwhile.
fn exchange(mut tap: &File, frame: &[u8], end: Instant) -> Result<f64> {
    let mut buffer = vec![0; BUFFER];
    let mut arrived = 0.0;
    while Instant::now() < end {
        for _ in 0..BURST {
            if !done(tap.write(frame)).context("a TAP device takes no frame")? {
                break;
            }
        }
        while done(tap.read(&mut buffer)).context("a TAP device gives no frame")? {
            arrived += 1.0;
        }
    }
    Ok(arrived)
}

/// Returns whether a call moved a frame; it may be that there was none, or no room.
pub(super) fn done(outcome: io::Result<usize>) -> io::Result<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

impl Client for TapClient {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        let [first, second] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let size = u16::try_from(size)?;
        self.frames = [
            replay::frame(size, 0, first, second),
            replay::frame(size, 0, second, first),
        ];
        Ok(())
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        Ok(self.run(window)? / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_and_empty_devices_are_no_errors() {
        assert!(matches!(done(Ok(64)), Ok(true)));
        assert!(matches!(done(Err(ErrorKind::WouldBlock.into())), Ok(false)));
        assert!(done(Err(ErrorKind::PermissionDenied.into())).is_err());
    }
}
