//! CPU time of a frame by the frames of a notification: figure 11 of Santos, Turner, Janakiraman
//! and Pratt (USENIX ATC 2008). A guest streams to another one; notifications of the receiver wait
//! for so many frames.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testkit::procfs::CpuTimes;
use testkit::vcpu::Task;

use super::parts::{Part, Run};
use crate::clients::Client as _;
use crate::clients::guests::Guests;
use crate::peers::lasthop;
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static COST: Part = Part {
    name: "cost",
    axes: [
        "frames of a notification at most",
        "microseconds of CPU of switch and guests for a frame",
    ],
    published: "figure 11: about 4600 cycles less for a packet with 64 packets an interrupt than \
                with 6; nearly flat for native Linux",
};
static NOTIFICATIONS: Part = Part {
    name: "notifications",
    axes: [
        "frames of a notification at most",
        "notifications for a frame",
    ],
    published: "no figure",
};

/// Those of the figure, and none.
const FRAMES: [u32; 5] = [1, 6, 16, 32, 64];
/// Longer than any of these frames need, so that their number decides.
const PERIOD_US: u32 = 10_000;
/// Payload of a segment, and what is on its way at most.
const PAYLOAD: usize = 1460;
const WINDOW: usize = 256 << 10;
/// Within which the threads of guests are known, and frames arrive.
const FOUND: Duration = Duration::from_secs(20);
const NOTES: [&str; 1] = [
    "guests are threads on the client's core that spend a microsecond on a kick, on an interrupt \
     and on each frame; a guest that sleeps is notified at once, whatever the number",
];

/// See the module.
pub(crate) fn coalescing(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "coalescing", &NOTES, &[]);
    for (group, frames) in FRAMES.into_iter().enumerate() {
        let what = format!("{frames} frames");
        run.attempt(&what, |run| with_frames(run, group, frames))?;
    }
    Ok(run.report("CPU time of a frame by the frames of a notification"))
}

fn with_frames(run: &mut Run<'_>, group: usize, frames: u32) -> Result<()> {
    let plan = run.plan;
    progress(&format!("coalescing: {frames} frames"));
    wait_quiet(plan.patience / 50)?;
    let keys = format!("\n[switch.coalescing]\nframes = {frames}\nperiod_us = {PERIOD_US}\n");
    let peer = lasthop::with_guests(plan, &plan.cores[..1], (group, 2), &keys)?;
    let mut guests = Guests::attach(&peer, group, &plan.cores[1..])?;
    let known = || lasthop::follows(&peer, true);
    stop::try_wait("threads of guests are found", FOUND, known)?;
    guests.set(vec![Task::Stream {
        peers: vec![2],
        payload: PAYLOAD,
        window: WINDOW,
    }]);
    stop::try_wait("frames arrive", FOUND, || {
        guests.warm_up(plan.settle)?;
        Ok(guests.heard().then_some(()))
    })?;
    for _ in 0..plan.rounds {
        run.take_all([&COST, &NOTIFICATIONS], "Lasthop", frames.into(), || {
            let before = CpuTimes::now();
            guests.mpps(plan.window)?;
            let used = CpuTimes::now().since(before).ours;
            let last = guests.exchange().context("guests that ran")?;
            let frames = last.frames * plan.window.as_secs_f64();
            ensure!(frames > 0.0, "no frame arrived");
            Ok([1e6 * used / frames, last.interrupts])
        })?;
    }
    Ok(())
}
