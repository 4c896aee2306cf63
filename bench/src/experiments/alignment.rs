//! Copies by the offset of both ends in their cache lines: figure 4 of Santos, Turner, Janakiraman
//! and Pratt (USENIX ATC 2008), section 3.4.1. First the C library's copy alone, then the switch
//! between guests whose frames lie behind headers of 12 bytes, or of 10 at the receiver.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::machine::pin;
use load::vcpu::Task;

use super::parts::{Part, Run};
use crate::clients::Client as _;
use crate::clients::guests::{Guests, Shape};
use crate::peers::{Kind, Peer};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static COPY: Part = Part {
    name: "copy",
    axes: ["bytes of a copy", "nanoseconds of a copy out of the caches"],
    published: "section 3.4.1: a copy of 1500 bytes between places that are aligned alike takes \
                half the time of one that is not",
};
static CACHED: Part = Part {
    name: "copy-in-cache",
    axes: ["bytes of a copy", "nanoseconds of a copy within the caches"],
    published: "no figure",
};
static SWITCH: Part = Part {
    name: "switch",
    axes: [
        "bytes of payload",
        "nanoseconds of the switch's CPU for a frame",
    ],
    published: "no figure",
};

/// Names of the places, and how far they are from being aligned alike.
pub(crate) const ALIGNED: &str = "aligned alike";
pub(crate) const BY_TWO: &str = "shifted by 2 bytes";
const SHIFTS: [(&str, usize); 3] = [(ALIGNED, 0), ("shifted by 8 bytes", 8), (BY_TWO, 2)];
const SIZES: [usize; 4] = [512, 1500, 4096, 16_384];
/// Bytes between two buffers: an odd number of cache lines, so that they spread over a cache.
const LINE: usize = 64;
const STRIDE: usize = 16_384 + 3 * LINE;
/// Buffers on each side: far more, and far less, than caches hold.
const MANY: usize = 4096;
const FEW: usize = 2;
/// Between two looks at the clock.
const AT_ONCE: u32 = 256;
/// Payload of a segment, and what is on its way at most.
const PAYLOAD: usize = 1460;
const WINDOW: usize = 256 << 10;
const ARRIVE: Duration = Duration::from_secs(20);
const NOTES: [&str; 2] = [
    "copies of the C library's memcpy by one thread, from buffer to buffer of so many that the \
     caches hold none of them, or of two",
    "the switch's CPU time is that of all its processes, wake-ups included: of two guests that \
     stream, the receiver has virtio headers of 12 bytes, or of 10, behind which a frame lies two \
     bytes further to the left in its line",
];

/// See the module.
pub(crate) fn alignment(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "alignment", &NOTES, &[]);
    for (part, buffers) in [(&COPY, MANY), (&CACHED, FEW)] {
        if plan.asks(part.name) {
            run.attempt(part.name, |run| copies(run, part, buffers))?;
        }
    }
    if plan.asks(SWITCH.name) {
        for (name, short_headers) in [(ALIGNED, false), (BY_TWO, true)] {
            run.attempt(name, |run| through_the_switch(run, name, short_headers))?;
        }
    }
    Ok(run.report("Copies by alignment"))
}

fn copies(run: &mut Run<'_>, part: &'static Part, buffers: usize) -> Result<()> {
    let plan = run.plan;
    let mut memory = Memory::new(buffers);
    for round in 1..=plan.rounds {
        progress(&format!("alignment: {}, round {round}", part.name));
        wait_quiet(plan.patience / 50)?;
        for size in SIZES {
            for (name, shift) in SHIFTS {
                run.take(part, name, size as f64, || {
                    // Places of an earlier size are no help.
                    memory.nanoseconds(plan.cores[1], (size, shift), plan.window / 4)
                })?;
            }
        }
    }
    Ok(())
}

/// Buffers to copy from and to.
struct Memory {
    from: Vec<u8>,
    to: Vec<u8>,
    buffers: usize,
}

impl Memory {
    fn new(buffers: usize) -> Self {
        let bytes = || vec![1; (buffers + 1) * STRIDE];
        Self {
            from: bytes(),
            to: bytes(),
            buffers,
        }
    }

    /// The time of a copy of so many bytes, on a core. Both ends begin with a cache line, but the
    /// second so many bytes behind.
    fn nanoseconds(
        &mut self,
        core: usize,
        (size, shift): (usize, usize),
        time: Duration,
    ) -> Result<f64> {
        std::thread::scope(|scope| {
            let copier = scope.spawn(|| {
                pin(core)?;
                let from = self.from.as_ptr().align_offset(LINE);
                let to = self.to.as_ptr().align_offset(LINE) + shift;
                let (start, mut count, mut at) = (Instant::now(), 0_u32, 0);
                while start.elapsed() < time {
                    for _ in 0..AT_ONCE {
                        let source = &self.from[from + at * STRIDE..][..size];
                        self.to[to + at * STRIDE..][..size].copy_from_slice(black_box(source));
                        at = (at + 1) % self.buffers;
                    }
                    count += AT_ONCE;
                }
                black_box(&mut self.to);
                Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(count))
            });
            copier.join().ok().context("a thread panicked")?
        })
    }
}

fn through_the_switch(run: &mut Run<'_>, name: &str, short_headers: bool) -> Result<()> {
    let plan = run.plan;
    progress(&format!("alignment: Lasthop, {name}"));
    let peer = Peer::start(Kind::Lasthop, plan)?;
    let shape = Shape {
        short_headers,
        ..Shape::default()
    };
    let mut guests = Guests::shaped(&peer, 0, &plan.cores[1..], shape)?;
    guests.set(vec![Task::Stream {
        peers: vec![2],
        payload: PAYLOAD,
        window: WINDOW,
    }]);
    stop::try_wait("frames arrive", ARRIVE, || {
        guests.warm_up(plan.settle)?;
        Ok(guests.heard().then_some(()))
    })?;
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        run.take(&SWITCH, name, PAYLOAD as f64, || {
            let before = peer.cpu_seconds();
            guests.mpps(plan.window)?;
            let used = peer.cpu_seconds() - before;
            let last = guests.exchange().context("guests that ran")?;
            let frames = last.frames * plan.window.as_secs_f64();
            ensure!(frames > 0.0, "no frame arrived");
            Ok(1e9 * used / frames)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_within_their_memory() {
        let mut memory = Memory::new(FEW);
        let longest = SIZES[SIZES.len() - 1];
        let time = Duration::from_millis(1);
        assert!(memory.nanoseconds(0, (longest, 8), time).unwrap() > 0.0);
    }
}
