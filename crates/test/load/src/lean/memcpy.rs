//! Lower bound for moving super-frames: one plain copy of each, between the same kind of memory.
//!
//! ```text
//! this thread   writes src[w], then w += window | waits | reads dst[r], then r += window
//! other thread                                    src[c] -> dst[c], then c += 1
//! ```
//! The client writes and reads as it does with a switch, in bursts of as many frames (`burst`), in
//! buffers of the same sizes and number, so that cache lines travel alike; there are no queues, no
//! headers to look at and no decisions.

use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, Instant};

use super::bulk::{self, Writer};
use super::frames::Frames;
use super::span::Span;
use super::{BurstReport, LeanConfig, LeanError, Pinned};
use testkit::guest_ram::{EDGE, GuestRam, RegionSpec};
use testkit::net::HEADER_LEN;

const LEN: usize = bulk::FRAME_LEN as usize + HEADER_LEN;

/// A count in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// One direction.
#[derive(Debug)]
struct Stream {
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

impl Stream {
    /// Copies a frame, if one is there and a buffer to put it in.
    fn copy(&self) {
        let copied = self.copied.0.load(Relaxed);
        let full = copied - self.read.0.load(Acquire) == self.slots[1];
        if full || self.written.0.load(Acquire) == copied {
            return;
        }
        let from = self.src.start(slot(copied, self.slots[0]));
        let to = self.dst.start(slot(copied, self.slots[1]));
        // SAFETY: between `written` and `copied` the source buffer is not written, and between
        // `copied` and `read` the destination is not read, because `Client` waits for both counts;
        // only this thread advances `copied`.
        unsafe { Span::copy((self.src.memory(), from), (self.dst.memory(), to), LEN) };
        self.copied.0.store(copied + 1, Release);
    }
}

/// The thread that writes and reads.
struct Client<'a> {
    streams: &'a [Stream],
    writers: Vec<Writer>,
    window: u64,
    sums: [u64; 2],
}

impl Client<'_> {
    /// Writes a window of frames in each stream, has them copied, and reads them; returns the time
    /// of the copy. `None` if the copier has ended.
    fn burst(&mut self, gone: impl Fn() -> bool) -> Option<Duration> {
        for (stream, writer) in self.streams.iter().zip(&mut self.writers) {
            let next = stream.written.0.load(Relaxed);
            for number in next..next + self.window {
                let start = stream.src.start(slot(number, stream.slots[0]));
                self.sums[0] = self.sums[0].wrapping_add(writer.write(stream.src.memory(), start));
            }
        }
        let begin = Instant::now();
        for stream in self.streams {
            stream.written.0.fetch_add(self.window, Release);
        }
        for stream in self.streams {
            while stream.copied.0.load(Acquire) != stream.written.0.load(Relaxed) {
                if gone() {
                    return None;
                }
                std::hint::spin_loop();
            }
        }
        let took = begin.elapsed();
        for stream in self.streams {
            let next = stream.read.0.load(Relaxed);
            for number in next..next + self.window {
                let start = stream.dst.start(slot(number, stream.slots[1]));
                let sum = bulk::sum(stream.dst.memory(), start, LEN);
                self.sums[1] = self.sums[1].wrapping_add(sum);
            }
            stream.read.0.fetch_add(self.window, Release);
        }
        Some(took)
    }

    /// Bursts for a time.
    fn bursts(&mut self, time: Duration, gone: impl Fn() -> bool) -> BurstReport {
        let begin = Instant::now();
        let mut report = BurstReport::default();
        while begin.elapsed() < time {
            let Some(took) = self.burst(&gone) else {
                break;
            };
            report.busy += took;
            report.bytes += self.streams.len() as u64 * self.window * u64::from(bulk::FRAME_LEN);
        }
        report
    }
}

/// Returns two streams between two memories, and their writers.
fn streams(config: &LeanConfig) -> Result<(Vec<Stream>, Vec<Writer>), LeanError> {
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
        let stream = Stream {
            src,
            dst,
            slots: slots.map(u64::from),
            written: Count::default(),
            copied: Count::default(),
            read: Count::default(),
        };
        (stream, writer)
    };
    Ok([0, 1].map(one).into_iter().unzip())
}

/// Writes and reads bursts of super-frames on this thread, on the configured CPU, while a thread on
/// `copy_cpu` does nothing but copy them, for `time` after a tenth of it for warming up.
///
/// # Errors
/// When memory or a CPU cannot be had, the configuration is none for super-frames, or what was read
/// is not what was written.
pub fn memcpy(
    config: &LeanConfig,
    copy_cpu: usize,
    time: Duration,
) -> Result<BurstReport, LeanError> {
    let config = LeanConfig {
        bulk: true,
        ..config.clone()
    };
    config.check(2)?;
    let _pinned = config.cpu.map(Pinned::to).transpose()?;
    let (streams, writers) = streams(&config)?;
    let stop = AtomicBool::new(false);
    let mut client = Client {
        streams: &streams,
        writers,
        window: config.most_on_the_way().min(streams[0].slots[1]),
        sums: [0; 2],
    };
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let _pinned = Pinned::to(copy_cpu)?;
            while !stop.load(Relaxed) {
                streams.iter().for_each(Stream::copy);
            }
            Ok(())
        });
        // A copier that could not move to its CPU copies nothing: the client must not wait for it.
        client.bursts(time / 10, || copier.is_finished());
        let report = client.bursts(time, || copier.is_finished());
        stop.store(true, Relaxed);
        let ended: std::io::Result<()> = copier.join().unwrap_or(Ok(()));
        ended?;
        if client.sums[0] != client.sums[1] {
            return Err(LeanError::Device("what was copied is not what was written"));
        }
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
        assert!(report.bytes > 0);
        assert!(report.bytes.is_multiple_of(bulk::FRAME_LEN.into()));
        let nowhere = memcpy(&config, 1 << 9, Duration::from_millis(1));
        assert!(nowhere.is_err());
    }
}
