//! Guests by the frames that they publish at once and by the entries of their queues: the axes of
//! figures 6 and 8 of Garzarella, Lettieri and Rizzo (ANCS 2015), with virtqueues in place of
//! netmap's rings.

use anyhow::Result;
use load::lean::{Lean, LeanConfig, Until};

use super::parts::{Part, Run};
use crate::clients::lean;
use crate::peers::{Kind, Peer};
use crate::plan::{Layout, Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

static RINGS: Part = Part {
    name: "rings",
    axes: ["frames published at once", "Mpps"],
    published: "figure 6: over 20 Mpps to untrusted VMs with large batches, rings of 1024; figure \
                8: the peak grows with the ring, and throughput falls past it (60-byte frames)",
};

/// Entries of a queue.
const ENTRIES: [u16; 4] = [256, 1024, 2048, 4096];
/// Frames that are published at once, half a queue at most.
const BATCHES: [u16; 6] = [1, 4, 16, 64, 256, 1024];
/// Bytes of a frame, without the check sequence.
const FRAME: u16 = 60;
const NOTES: [&str; 1] = ["one thread is both guests: it polls, and reads no frame"];

/// See the module.
pub(crate) fn rings(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "rings", &NOTES, &[]);
    let peer = Peer::start(Kind::Lasthop, plan)?;
    for round in 1..=plan.rounds {
        progress(&format!("rings: round {round} of {}", plan.rounds));
        wait_quiet(plan.patience / 50)?;
        for entries in ENTRIES {
            let batches = BATCHES.into_iter().filter(|batch| *batch <= entries / 2);
            for batch in batches {
                let what = format!("{batch} frames at once, {entries} entries");
                run.attempt(&what, |run| one(run, &peer, entries, batch))?;
            }
        }
    }
    Ok(run.report("Guests by frames published at once and by entries of a queue"))
}

fn one(run: &mut Run<'_>, peer: &Peer, entries: u16, batch: u16) -> Result<()> {
    let plan = run.plan;
    let mut client = Lean::connect(LeanConfig {
        queue_size: entries,
        frame_len: FRAME,
        batch,
        ..lean::config(plan, peer, Layout::Split)
    })?;
    client.run(Until::Elapsed(plan.settle))?;
    run.take(&RINGS, &format!("ring of {entries}"), batch.into(), || {
        Ok(client.run(Until::Elapsed(plan.window))?.mpps())
    })
}
