//! Signals by the number of virtual interfaces: figure 4 of Raj and Schwan (HPDC 2007) and its
//! interrupts. One pair of guests talks beside others that are attached and silent; signals to
//! those are counted.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use load::lean::{Lean, LeanConfig, Pace, Until};
use testkit::frontend::FrontListener;
use testkit::guest_ram::RegionSpec;
use testkit::packets::mac;
use testkit::{FakeGuest, GuestConfig};

use super::parts::{Part, Run};
use crate::clients::lean;
use crate::peers::{Kind, Peer};
use crate::plan::{Layout, Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static SLOW: Part = Part {
    name: "kick-to-frame-500",
    axes: [
        "attached interfaces",
        "microseconds, median, 500 frames a second",
    ],
    published: "section 5.1: interrupt virtualization of the host takes 1.99 us at one interface \
                of the SV-NIC, 11.57 us at 32",
};
static FAST: Part = Part {
    name: "kick-to-frame-20000",
    axes: [
        "attached interfaces",
        "microseconds, median, 20 000 frames a second",
    ],
    published: "no figure",
};
static FRAME: Part = Part {
    name: "frame",
    axes: [
        "attached interfaces",
        "nanoseconds of the switch for a frame of 64 bytes",
    ],
    published: "figure 4: the cost of a packet in the micro-engines is nearly the same at 1, 8 \
                and 32 interfaces",
};
static OTHERS: Part = Part {
    name: "signals-to-others",
    axes: [
        "attached interfaces",
        "signals to silent guests for 1000 to the receiver's frames",
    ],
    published: "section 5.1: at 32 interfaces, whose doorbell bits are shared by four, each signal \
                schedules 1.5 domains for nothing",
};

const PEERS: [Kind; 2] = [Kind::Lasthop, Kind::Ovs];
/// Attached interfaces, the two that talk included.
const ATTACHED: [u32; 6] = [2, 8, 32, 64, 128, 256];
/// OVS-DPDK takes minutes to bring up more.
const MOST_OF_OVS: u32 = 64;
/// The paper's figure ends here.
const MOST_OF_FIGURES: u32 = 32;
/// Frames a second: so few that kicks are waited for, and so many that they are not.
const RATES: [(&Part, f64); 2] = [(&SLOW, 500.0), (&FAST, 20_000.0)];
/// Memory and queue of a guest that never sends.
const GUEST_BYTES: u64 = 8 << 20;
const QUEUE: u16 = 64;
/// A back end that dials does so again after some seconds.
const DIALLED: Duration = Duration::from_secs(30);
const NOTES: [&str; 1] = [
    "the pair that talks is one thread that polls both ports; the silent \
    guests have armed their interrupts and have no thread at all, so a signal to one is one too \
    many. OVS-DPDK polls all ports",
];

/// See the module.
pub(crate) fn signals(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "signals", &NOTES, &PEERS);
    let most = if plan.is_of_figures() {
        MOST_OF_FIGURES
    } else {
        u32::MAX
    };
    for attached in ATTACHED.into_iter().filter(|attached| *attached <= most) {
        for kind in PEERS {
            if kind == Kind::Ovs && attached > MOST_OF_OVS {
                continue;
            }
            let what = format!("{attached} interfaces of {}", kind.name());
            run.attempt(&what, |run| with_interfaces(run, kind, attached))?;
        }
    }
    Ok(run.report("Signals beside silent virtual interfaces"))
}

fn with_interfaces(run: &mut Run<'_>, kind: Kind, attached: u32) -> Result<()> {
    let plan = run.plan;
    progress(&format!(
        "signals: {attached} interfaces of {}",
        kind.name()
    ));
    wait_quiet(plan.patience / 100)?;
    let peer = Peer::learning(kind, plan, attached)?;
    let mut silent = silent(&peer)?;
    let mut pair = Lean::connect(LeanConfig {
        sockets: peer.sockets()[..2].to_vec(),
        macs: vec![mac(1), mac(2)],
        event_index: true,
        timeout: DIALLED,
        ..lean::config(plan, &peer, Layout::Split)
    })?;
    // A switch that learns sees where both addresses are; what it flooded before is no signal too
    // many.
    stop::try_wait("frames arrive", DIALLED, || {
        let report = pair.run(Until::Elapsed(plan.settle))?;
        Ok(report
            .ports
            .iter()
            .all(|port| port.received > 0)
            .then_some(()))
    })?;
    let (way, x) = (kind.name(), f64::from(attached));
    for _ in 0..plan.rounds {
        for (part, rate) in RATES.into_iter().filter(|(part, _)| plan.asks(part.name)) {
            calls(&mut silent);
            let pace = Pace {
                rate,
                poisson: true,
            };
            run.take_all([part, &OTHERS], way, x, || {
                let report = pair.paced(pace, plan.window)?;
                let others = calls(&mut silent) as f64 / report.sent.max(1) as f64;
                Ok([report.latency.quantile(0.5) as f64 / 1e3, 1e3 * others])
            })?;
        }
        if !plan.asks(FRAME.name) {
            continue;
        }
        run.take(&FRAME, way, x, || {
            let mpps = pair.run(Until::Elapsed(plan.window))?.mpps();
            ensure!(mpps > 0.0, "no frame arrived");
            Ok(1e3 / mpps)
        })?;
    }
    Ok(())
}

/// Attaches a guest without traffic to each port behind the first two.
fn silent(peer: &Peer) -> Result<Vec<FakeGuest>> {
    let paths = &peer.sockets()[2..];
    let listen = |path: &PathBuf| {
        peer.client_listens()
            .then(|| FrontListener::bind(path))
            .transpose()
    };
    // All listen before the first is waited for: back ends call in any order.
    let listeners: Result<Vec<_>, _> = paths.iter().map(listen).collect();
    let attach = |(number, (path, listener)): (u32, (&PathBuf, Option<FrontListener>))| {
        stop::check()?;
        let config = GuestConfig {
            regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
            queue_size: QUEUE,
            timeout: DIALLED,
            ..GuestConfig::default().guest(u8::try_from(number % 250)? + 3)
        };
        let guest = match listener {
            Some(listener) => FakeGuest::accept(&listener, config),
            None => FakeGuest::connect(path, config),
        };
        let mut guest = guest.with_context(|| format!("guest {number} is not attached"))?;
        guest.wait_link()?;
        Ok(guest)
    };
    (0..)
        .zip(paths.iter().zip(listeners?))
        .map(attach)
        .collect()
}

/// Takes the signals that the guests have got.
fn calls(guests: &mut [FakeGuest]) -> u64 {
    let pairs = guests.iter_mut().flat_map(|guest| &mut guest.pairs);
    pairs
        .map(|pair| pair.rx_call.take() + pair.tx_call.take())
        .sum()
}
