//! The client of the kernel as a router: connections between two TAP devices, with a system call
//! for each frame.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::machine::pin;
use load::lean::{Prepared, Segment};

use super::Client;
use super::tap::{BUFFER, BURST, done};
use crate::peers::{Peer, router};
use crate::plan::Plan;
use crate::stop;

/// Connections that are opened at the same time: fewer than wait in a device.
const TOGETHER: u32 = 64;
/// How long their frames may take.
const ARRIVE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct RoutedClient {
    cores: [usize; 2],
    taps: [File; 2],
    count: u32,
    frames: Vec<Prepared>,
}

impl RoutedClient {
    pub(crate) fn new(plan: &Plan, peer: &Peer, count: u32) -> Result<Self> {
        let Some([first, second]) = peer.taps() else {
            bail!("this client has two TAP devices")
        };
        Ok(Self {
            cores: plan.cores,
            taps: [first.try_clone()?, second.try_clone()?],
            count,
            frames: Vec::new(),
        })
    }

    /// Opens all connections.
    fn establish(&mut self, size: u16) -> Result<()> {
        let most = router::most().unwrap_or(u32::MAX);
        ensure!(self.count < most, "the kernel tracks {most} connections");
        for first in (0..self.count).step_by(TOGETHER as usize) {
            let numbers = first..self.count.min(first + TOGETHER);
            for segment in [Segment::Syn, Segment::SynAck, Segment::Ack] {
                let mut frame = prepared(segment, size)?;
                let [from, to] = self.ways(segment);
                for number in numbers.clone() {
                    let sent = done((&*from).write(frame.of(number)))?;
                    ensure!(sent, "a TAP device has no room");
                }
                receive(to, numbers.len())?;
            }
        }
        Ok(())
    }

    /// The device that the segment goes to, and the one that it comes from.
    fn ways(&self, segment: Segment) -> [&File; 2] {
        let [client, server] = &self.taps;
        if segment.is_of_client() {
            [client, server]
        } else {
            [server, client]
        }
    }

    /// Frames that arrived in a second.
    fn run(&mut self, time: Duration) -> Result<f64> {
        stop::check()?;
        let (end, count) = (Instant::now() + time, self.count);
        let (taps, cores) = (&self.taps, self.cores);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, frame) in self.frames.iter_mut().enumerate() {
                threads.push(scope.spawn(move || {
                    pin(cores[index])?;
                    exchange(&taps[index], (frame, count), end)
                }));
            }
            let mut sum = 0.0;
            for thread in threads {
                sum += thread.join().ok().context("a thread panicked")??;
            }
            Ok(sum / time.as_secs_f64())
        })
    }
}

fn prepared(segment: Segment, size: u16) -> Result<Prepared> {
    Prepared::new(segment, size, [1, 2]).context("frames are too short")
}

/// Takes this number of frames.
fn receive(mut tap: &File, count: usize) -> Result<()> {
    let (mut buffer, mut left) = (vec![0; BUFFER], count);
    let end = Instant::now() + ARRIVE;
    while left > 0 {
        if done(tap.read(&mut buffer))? {
            left -= 1;
        } else {
            ensure!(Instant::now() < end, "{left} frames of {count} are lost");
        }
    }
    Ok(())
}

/// Sends frames of this number of connections in turn until `end`; the number of frames that came
/// meanwhile.
fn exchange(mut tap: &File, (frame, count): (&mut Prepared, u32), end: Instant) -> Result<f64> {
    let mut buffer = vec![0; BUFFER];
    let (mut arrived, mut next) = (0.0, 0);
    while Instant::now() < end {
        for _ in 0..BURST {
            if !done(tap.write(frame.of(next))).context("a TAP device takes no frame")? {
                break;
            }
            next = (next + 1) % count;
        }
        while done(tap.read(&mut buffer)).context("a TAP device gives no frame")? {
            arrived += 1.0;
        }
    }
    Ok(arrived)
}

impl Client for RoutedClient {
    fn name(&self) -> &'static str {
        "tap, connections"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        let size = u16::try_from(size)?;
        self.establish(size)?;
        let frames = [Segment::Data, Segment::ServerData].map(|segment| prepared(segment, size));
        self.frames = frames.into_iter().collect::<Result<_>>()?;
        Ok(())
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        Ok(self.run(window)? / 1e6)
    }
}
