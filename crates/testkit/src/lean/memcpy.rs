//! What moving super-frames costs at least: one plain copy of each, between the same kind of memory.
//!
//! ```text
//! this thread   writes src[w], then w += 1        reads dst[r], then r += 1
//! other thread                  src[c] -> dst[c], then c += 1
//! ```
//! The client writes and reads as it does with a switch, in buffers of the same sizes and number, so that
//! cache lines travel alike; there are no queues, no headers to look at and no decisions.

use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, Instant};

use super::bulk::{self, Writer};
use super::frames::Frames;
use super::span::Span;
use super::{LeanConfig, LeanError, Pinned};
use crate::guest_ram::{EDGE, GuestRam, RegionSpec};
use crate::net::HEADER_LEN;

const LEN: usize = bulk::FRAME_LEN as usize + HEADER_LEN;

/// What plain copying achieved.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyReport {
    /// How long it took.
    pub elapsed: Duration,
    /// Bytes of frames copied, without virtio headers.
    pub bytes: u64,
    /// Time that the other thread spent copying.
    pub copying: Duration,
    /// Time that this thread spent writing and reading payload.
    pub working: Duration,
    /// Whether what was read adds up to what was written.
    pub payload_agrees: bool,
}

impl CopyReport {
    /// GiB copied a second.
    #[must_use]
    pub fn gib_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / f64::from(1 << 30)
    }
}

/// A count in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// One direction.
#[derive(Debug)]
struct Lane {
    src: Frames,
    dst: Frames,
    slots: [u64; 2],
    written: Count,
    copied: Count,
    read: Count,
}

/// Buffer of frame `number`.
fn slot(number: u64, slots: u64) -> u16 {
    (number % slots) as u16
}

impl Lane {
    /// Copies a frame, if one is there and a buffer to put it in; the time that took.
    fn copy(&self) -> Option<Duration> {
        let copied = self.copied.0.load(Relaxed);
        let full = copied - self.read.0.load(Acquire) == self.slots[1];
        if full || self.written.0.load(Acquire) == copied {
            return None;
        }
        let from = self.src.start(slot(copied, self.slots[0]));
        let to = self.dst.start(slot(copied, self.slots[1]));
        let begin = Instant::now();
        // SAFETY: between `written` and `copied` the source buffer is not written, and between `copied` and
        // `read` the destination is not read, because `Client` waits for both counts; only this thread
        // advances `copied`.
        unsafe { Span::copy((self.src.memory(), from), (self.dst.memory(), to), LEN) };
        let took = begin.elapsed();
        self.copied.0.store(copied + 1, Release);
        Some(took)
    }
}

/// The thread that writes and reads.
struct Client<'a> {
    lanes: &'a [Lane],
    writers: Vec<Writer>,
    window: u64,
    sums: [u64; 2],
    working: Duration,
}

impl Client<'_> {
    /// Reads what came and writes a frame in each lane, where there is room.
    fn round(&mut self, write: bool) {
        for (lane, writer) in self.lanes.iter().zip(&mut self.writers) {
            let read = lane.read.0.load(Relaxed);
            let begin = Instant::now();
            let mut worked = false;
            if lane.copied.0.load(Acquire) > read {
                let start = lane.dst.start(slot(read, lane.slots[1]));
                let sum = bulk::sum(lane.dst.memory(), start, LEN);
                self.sums[1] = self.sums[1].wrapping_add(sum);
                lane.read.0.store(read + 1, Release);
                worked = true;
            }
            let written = lane.written.0.load(Relaxed);
            if write && written - read < self.window {
                let start = lane.src.start(slot(written, lane.slots[0]));
                let sum = writer.write(lane.src.memory(), start);
                self.sums[0] = self.sums[0].wrapping_add(sum);
                lane.written.0.store(written + 1, Release);
                worked = true;
            }
            if worked {
                self.working += begin.elapsed();
            }
        }
    }

    fn on_the_way(&self) -> bool {
        let ahead = |lane: &Lane| lane.written.0.load(Relaxed) != lane.read.0.load(Relaxed);
        self.lanes.iter().any(ahead)
    }
}

/// Two lanes between two memories, and their writers.
fn lanes(config: &LeanConfig) -> Result<(Vec<Lane>, Vec<Writer>), LeanError> {
    let received = u64::from(config.queue_size) * u64::from(config.rx_buffer) / LEN as u64;
    let slots = [
        config.queue_size.min(bulk::SLOTS),
        received.clamp(1, 1 << 15) as u16,
    ];
    let room = (LEN + 320) as u64 * slots.map(u64::from).iter().sum::<u64>() + 8 * EDGE;
    let ram = || GuestRam::memfd(&[RegionSpec::at(0, room.next_multiple_of(2 << 20))]);
    let rams = [ram()?, ram()?];
    let one = |index: usize| {
        let ends = [config.mac(index), config.mac(index ^ 1)];
        let src = Frames::new(&rams[index], (slots[0], LEN as u32), false, ends[0]);
        let dst = Frames::new(&rams[index ^ 1], (slots[1], LEN as u32), false, ends[1]);
        let writer = Writer::fill(&src, (&rams[index], slots[0]), ends);
        let lane = Lane {
            src,
            dst,
            slots: slots.map(u64::from),
            written: Count::default(),
            copied: Count::default(),
            read: Count::default(),
        };
        (lane, writer)
    };
    Ok([0, 1].map(one).into_iter().unzip())
}

/// Writes and reads super-frames on this thread, on the configured CPU, while a thread on `copy_cpu` does
/// nothing but copy them, for `time` after a tenth of it for warming up.
///
/// # Errors
/// When memory or a CPU cannot be had, or the configuration is none for super-frames.
pub fn memcpy(
    config: &LeanConfig,
    copy_cpu: usize,
    time: Duration,
) -> Result<CopyReport, LeanError> {
    let config = LeanConfig {
        bulk: true,
        ..config.clone()
    };
    config.check(2)?;
    let _pinned = config.cpu.map(Pinned::to).transpose()?;
    let (lanes, writers) = lanes(&config)?;
    let (stop, copying) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut client = Client {
        lanes: &lanes,
        writers,
        window: config.most_on_the_way().min(lanes[0].slots[1]),
        sums: [0; 2],
        working: Duration::ZERO,
    };
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let _pinned = Pinned::to(copy_cpu)?;
            while !stop.load(Relaxed) {
                for took in lanes.iter().filter_map(Lane::copy) {
                    copying.fetch_add(took.as_nanos() as u64, Relaxed);
                }
            }
            Ok(())
        });
        // A copier that could not move to its CPU copies nothing; nobody waits for it.
        let ended = || copier.is_finished();
        let for_time = |client: &mut Client<'_>, time: Duration| {
            let begin = Instant::now();
            while begin.elapsed() < time {
                client.round(true);
            }
            begin.elapsed()
        };
        let copied = || {
            lanes
                .iter()
                .map(|lane| lane.copied.0.load(Relaxed))
                .sum::<u64>()
        };
        for_time(&mut client, time / 10);
        let (frames, before) = (copied(), copying.load(Relaxed));
        client.working = Duration::ZERO;
        let elapsed = for_time(&mut client, time);
        let mut report = CopyReport {
            elapsed,
            bytes: (copied() - frames) * u64::from(bulk::FRAME_LEN),
            copying: Duration::from_nanos(copying.load(Relaxed) - before),
            working: client.working,
            payload_agrees: false,
        };
        while client.on_the_way() && !ended() {
            client.round(false);
        }
        report.payload_agrees = client.sums[0] == client.sums[1];
        stop.store(true, Relaxed);
        let ended: std::io::Result<()> = copier.join().unwrap_or(Ok(()));
        ended?;
        Ok(report)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(miri))] // Miri maps no files
    fn what_is_read_is_what_was_written() {
        let config = LeanConfig {
            queue_size: 64,
            rx_buffer: 4096,
            batch: 1,
            ..LeanConfig::default()
        };
        let cpu = rustix::thread::sched_getaffinity(None).expect("an affinity");
        let cpu = (0..1024).find(|number| cpu.is_set(*number)).expect("a CPU");
        let report = memcpy(&config, cpu, Duration::from_millis(20)).expect("memory");
        assert!(report.payload_agrees);
        assert!(report.bytes.is_multiple_of(bulk::FRAME_LEN.into()));
        let nowhere = memcpy(&config, 1 << 9, Duration::from_millis(1));
        assert!(nowhere.is_err());
    }
}
