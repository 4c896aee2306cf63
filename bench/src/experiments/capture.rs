//! Cost and limits of captures: throughput with one beside it, and the highest rate without a
//! missed frame.
//!
//! ```text
//!   switch's core   other cores, or else the client's
//!   worker ==ring==> control ==connection==> lasthop capture ==> /dev/null
//!     ||
//!   client, on its core
//! ```

mod tables;
mod whole;

use anyhow::Result;

use super::throughput::{Run, prepare};
use crate::captures::{self, CaptureSpec, Captures};
use crate::clients::captured::CapturedClient;
use crate::clients::lean::LeanClient;
use crate::clients::{self, Client};
use crate::peers::{Kind, Peer};
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::Report;
use crate::sample::Cell;
use crate::stop;

pub(crate) use whole::Whole;

use tables::CaptureFigures;

/// The switches whose ports can be captured.
pub(crate) const KINDS: [Kind; 2] = [Kind::Lasthop, Kind::Ovs];
/// The first one in a cell's series: no capture.
pub(crate) const NONE: &str = "none";
const WHOLE: &str = "whole frames";
const HEADS: &str = "96 bytes of each";
const NOTHING: &str = "a filter that means none";
const ELSEWHERE: &str = "whole frames of another port";
/// Bytes of a TCP super-frame stand for it where a size is asked for.
const SUPER: u32 = load::lean::SUPER_FRAME_LEN as u32;
const SIZES: [u32; 3] = [64, 1500, SUPER];

const FLOODED: &str = "The first table's frames are as many as the switch forwards, both ways, and \
    all of them are of the port that is captured";
const BY_TCPDUMP: &str = "Open vSwitch's are captured as ovs-tcpdump does it: a mirror to a TAP \
    device, from which tcpdump reads with as long a \
    buffer; what it misses is what arrived at the client and was not written";
const NOWHERE: &str = "All is written to /dev/null: what a file system can take is not measured";
const SHARED: &str = "There is no core for captures alone: control, the command and tcpdump share \
    the client's, so a flood leaves them a part of \
    it, and throughput falls also because the client has less of it; the forwarding thread's time \
    for a frame says what the switch does more";

/// All frames of the first port.
pub(super) fn all() -> CaptureSpec {
    CaptureSpec {
        port: "p0",
        snaplen: None,
        filter: "",
    }
}

/// Returns the captures with their names, by traffic.
fn capture_specs(kind: Kind) -> Vec<(&'static str, Option<CaptureSpec>)> {
    let heads = CaptureSpec {
        snaplen: Some(96),
        ..all()
    };
    let nothing = CaptureSpec {
        filter: "tcp port 9 and host 203.0.113.9",
        ..all()
    };
    let elsewhere = CaptureSpec {
        port: "p2",
        ..all()
    };
    let mut capture_specs = vec![
        (NONE, None),
        (WHOLE, Some(all())),
        (HEADS, Some(heads)),
        (NOTHING, Some(nothing)),
        (ELSEWHERE, Some(elsewhere)),
    ];
    // Its mirror copies before any filter, and another port's is no different.
    if kind != Kind::Lasthop {
        capture_specs.truncate(3);
    }
    capture_specs
}

/// See the module.
pub(crate) fn capture(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "capture", &KINDS);
    run.note(FLOODED);
    run.note(NOWHERE);
    run.note(BY_TCPDUMP);
    if captures::cores(plan).contains(&plan.cores[1]) {
        run.note(SHARED);
    }
    let kinds: Vec<Kind> = KINDS
        .into_iter()
        .filter(|&kind| run.has_room_for(kind))
        .collect();
    let mut whole = Vec::new();
    for size in SIZES {
        let mut scenes = Vec::new();
        for &kind in &kinds {
            // Captures of its super-frames would need settings that are unusual for captures.
            if kind == Kind::Lasthop || size != SUPER {
                add(&mut run, &mut scenes, Scene::start(plan, kind, size), kind)?;
            }
        }
        turns(&mut run, plan, &mut scenes, size)?;
    }
    whole::measure(&mut run, plan, &kinds, &mut whole)?;
    let title = "Captures: throughput beside them, and the rate at which they miss nothing";
    Ok(run.report(title, |samples| CaptureFigures { samples, whole }))
}

/// Takes what could be started; says why something could not.
fn add<T>(run: &mut Run<'_>, all: &mut Vec<T>, started: Result<T>, kind: Kind) -> Result<()> {
    match started {
        Ok(started) => all.push(started),
        Err(error) => {
            stop::check()?;
            run.leave_out(format!("{}: {error:#}", kind.name()));
        }
    }
    Ok(())
}

/// A switch with a client whose frames are captured.
struct Scene {
    peer: Peer,
    client: CapturedClient,
    capture_specs: Vec<(&'static str, Option<CaptureSpec>)>,
}

impl Scene {
    fn start(plan: &Plan, kind: Kind, size: u32) -> Result<Self> {
        progress(&format!("{} starts", kind.name()));
        let peer = Peer::to_be_captured(kind, plan)?;
        let captures = Captures::of(plan, &peer)?;
        let inner: Box<dyn Client> = match size {
            SUPER => Box::new(LeanClient::bulk(plan, &peer, Layout::Split)),
            _ => clients::start(plan, &peer, Layout::Split, Traffic::Lean(1))?,
        };
        let mut client = CapturedClient::new(&peer, captures, inner);
        let ready = prepare(&peer, &mut client, size);
        ready.map(|()| Self {
            peer,
            client,
            capture_specs: capture_specs(kind),
        })
    }
}

/// Samples of all captures beside all switches in turn.
fn turns(run: &mut Run<'_>, plan: &Plan, scenes: &mut [Scene], size: u32) -> Result<()> {
    let cell = |series: &str| Cell {
        name: traffic(size),
        series: series.to_owned(),
        x: f64::from(size),
    };
    for round in 1..=2 * plan.rounds {
        for scene in &mut *scenes {
            for (series, spec) in &scene.capture_specs {
                let cell = cell(series);
                if run.has_enough(scene.peer.kind(), &cell) {
                    continue;
                }
                scene.client.set_capture(*spec);
                run.sample(&scene.peer, &mut scene.client, &cell, round)?;
            }
        }
    }
    Ok(())
}

/// Returns a table's name for frames of this size.
fn traffic(size: u32) -> String {
    match size {
        SUPER => "TCP super-frames of 64 KiB".to_owned(),
        _ => format!("{size} B"),
    }
}
