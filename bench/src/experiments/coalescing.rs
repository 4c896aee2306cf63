//! Cost of a frame by the frames of a notification: figure 11 of Santos, Turner, Janakiraman and
//! Pratt (USENIX ATC 2008). A guest sends at a steady rate to another one, which computes all the
//! time and whose notifications wait for so many frames.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::parts::{Part, Run};
use crate::clients::steady::Steady;
use crate::peers::{Peer, lasthop};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static COST: Part = Part {
    name: "cost",
    axes: [
        "frames of a notification",
        "microseconds of the switch and of the receiver's interrupts for a frame",
    ],
    published: "figure 11: about 4600 cycles less for a packet with 64 packets an interrupt than \
                with 6; nearly flat for native Linux",
};
static NOTIFICATIONS: Part = Part {
    name: "notifications",
    axes: ["frames of a notification", "notifications for a frame"],
    published: "no figure",
};

/// Those of the figure, and one.
const FRAMES: [u32; 5] = [1, 6, 16, 32, 64];
/// Longer than any of these frames need, so that their number decides.
const PERIOD_US: u32 = 10_000;
/// Within which the threads of guests are known.
const FOUND: Duration = Duration::from_secs(20);
const NOTES: [&str; 2] = [
    "the sender shares the switch's core and sends 50 000 frames of 1442 bytes a second, five at \
     once; the receiver has the client's core, never sleeps, and receives when it is interrupted",
    "the cost is the CPU time of the switch's processes, and the receiver's time from an interrupt \
     until nothing is left to receive; an interrupt is a read of an eventfd",
];

/// A switch with its guests.
struct Setting {
    frames: u32,
    guests: Steady,
    peer: Peer,
}

/// See the module.
pub(crate) fn coalescing(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "coalescing", &NOTES, &[]);
    let mut settings = Vec::new();
    for (group, frames) in FRAMES.into_iter().enumerate() {
        progress(&format!("coalescing: Lasthop starts, {frames} frames"));
        run.attempt(&format!("{frames} frames"), |_| {
            settings.push(start(plan, group, frames)?);
            Ok(())
        })?;
    }
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for setting in &settings {
            let what = format!("{} frames", setting.frames);
            run.attempt(&what, |run| sample(run, setting))?;
        }
    }
    Ok(run.report("Cost of a frame by the frames of a notification"))
}

fn start(plan: &Plan, group: usize, frames: u32) -> Result<Setting> {
    let keys = format!("\n[switch.coalescing]\nframes = {frames}\nperiod_us = {PERIOD_US}\n");
    let peer = lasthop::with_guests(plan, &plan.cores[..1], (group, 2), &keys)?;
    let [sender, receiver] = [0, 1].map(|port| peer.sockets()[port].as_path());
    let guests = Steady::start([sender, receiver], group, plan.cores)?;
    let known = || lasthop::follows(&peer, true);
    stop::try_wait("threads of guests are found", FOUND, known)?;
    Ok(Setting {
        frames,
        guests,
        peer,
    })
}

fn sample(run: &mut Run<'_>, setting: &Setting) -> Result<()> {
    let Setting {
        frames,
        guests,
        peer,
    } = setting;
    let plan = run.plan;
    run.take_all([&COST, &NOTIFICATIONS], "Lasthop", (*frames).into(), || {
        guests.set_running(true);
        stop::sleep(plan.settle)?;
        let (before, cpu) = (guests.counts(), peer.cpu_seconds());
        stop::sleep(plan.window)?;
        let (after, cpu) = (guests.counts(), peer.cpu_seconds() - cpu);
        guests.set_running(false);
        let frames = (after.received - before.received) as f64;
        ensure!(frames > 0.0, "no frame arrived");
        let interrupts = (after.interrupts - before.interrupts) as f64;
        let receiving = after.receiving - before.receiving;
        Ok([1e6 * (cpu + receiving) / frames, interrupts / frames])
    })
}
