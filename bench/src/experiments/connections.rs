//! Price of tracking connections: frames of established ones, and new ones a second, with tracking
//! and without, beside Open vSwitch with its own tracker.

mod tables;

use anyhow::Result;
use load::lean::Dialogue;

use self::tables::{Connections, Connects};
use super::throughput::{Pair, Run};
use crate::clients::Client;
use crate::clients::connections::{ConnectionsClient, Deed};
use crate::clients::routed::RoutedClient;
use crate::peers::{Kind, MOST_CONNECTIONS, Peer, Tracking};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::Cell;
use crate::stop;

/// The switches that track connections.
const KINDS: [Kind; 2] = [Kind::Lasthop, Kind::Ovs];
/// The same, and the kernel, which tracks what it routes.
const WITH_ROUTER: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Router];
/// In a cell's series: without tracking, and with it.
const SERIES: [&str; 2] = ["no tracking", "tracking"];
/// Bytes of a frame.
const SIZE: u32 = 64;
const COUNTS: [u32; 4] = [1, 1024, 100_000, 1_000_000];
/// Connections of UDP beside as many of TCP.
const UDP: u32 = 1024;

const SAME: &str = "Lasthop has one list, to guests, with one rule for all frames, \
    allow-stateful; Open vSwitch has ct(table=1), ct(commit) for new frames, and nothing for \
    invalid ones, which it drops. \
    Without tracking Lasthop has no list, and Open vSwitch a flow for each port. Both have \
    tables of 4 194 304 connections, one core, and whatever else they do on that core";
const REPEATED: &str = "Connections are opened by SYN, SYN-ACK and ACK. All frames afterwards are \
    segments with 10 bytes of data in both directions, of the same sequence numbers each time, \
    as retransmissions are: each is checked against the window of its connection. Both guests go \
    through all connections in turn";
const ROUTED: &str = "The kernel routes between two TAP devices, with nft's table ip that lets in \
    what is new or established, or with no rule: another client, a thread on each core that \
    writes and reads a frame with a system call, within which the kernel does its work";
const WHOLE: &str = "A connection of 7 frames is SYN, SYN-ACK, ACK, data, FIN, FIN-ACK, ACK; 256 \
    at most are open at the same time. The client reads the head of every frame that arrives, and \
    answers it";
const ENDED: &str = "Connections that are over, and those of UDP, are forgotten after a second \
    without a frame, by both switches: with usual timeouts either table would be full";
const EVICTED: &str = "Of datagrams without answer Lasthop keeps 262 144 at most, a sixteenth of \
    its table for each guest, and has older ones make room";

/// Throughput by number of established connections.
pub(crate) fn connections(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "connections", &KINDS.map(|kind| [kind; 2]).concat());
    run.note(SAME);
    run.note(REPEATED);
    run.note(ROUTED);
    for count in COUNTS {
        let deed = Deed::Established(Dialogue::Handshake, count);
        let cell = Cell {
            name: tables::tcp(count),
            x: f64::from(count),
            ..Cell::default()
        };
        measure(&mut run, plan, (&WITH_ROUTER, deed, Tracking::Usual), &cell)?;
    }
    let deed = Deed::Established(Dialogue::Datagrams, UDP);
    let cell = Cell {
        name: format!("UDP, {UDP}"),
        x: f64::from(UDP),
        ..Cell::default()
    };
    measure(&mut run, plan, (&KINDS, deed, Tracking::Usual), &cell)?;
    let title = "Frames of established connections, 64 bytes";
    Ok(run.report(title, |samples| Connections { samples }))
}

/// New connections a second.
pub(crate) fn connects(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "connects", &KINDS.map(|kind| [kind; 2]).concat());
    for note in [SAME, WHOLE, ENDED, EVICTED] {
        run.note(note);
    }
    let deeds = [
        (tables::UNANSWERED, Deed::Unanswered),
        (tables::ANSWERED, Deed::Opened(Dialogue::Datagrams)),
        (tables::WHOLE, Deed::Opened(Dialogue::Whole)),
    ];
    for (name, deed) in deeds {
        let cell = Cell {
            name: name.to_owned(),
            x: deed.frames().unwrap_or(1) as f64,
            ..Cell::default()
        };
        measure(&mut run, plan, (&KINDS, deed, Tracking::Short), &cell)?;
    }
    Ok(run.report("New connections a second", |samples| Connects { samples }))
}

/// Samples of these switches, without tracking and with it, in turn.
fn measure(
    run: &mut Run<'_>,
    plan: &Plan,
    (kinds, deed, tracking): (&[Kind], Deed, Tracking),
    cell: &Cell,
) -> Result<()> {
    let mut pairs = Vec::new();
    for &kind in kinds {
        if !run.has_room_for(kind) {
            continue;
        }
        for (series, tracking) in SERIES.into_iter().zip([None, Some(tracking)]) {
            progress(&format!("{}: {} starts, {series}", cell.name, kind.name()));
            let cell = Cell {
                series: series.to_owned(),
                ..cell.clone()
            };
            match start(plan, kind, tracking, deed, cell) {
                Ok(pair) => pairs.push(pair),
                Err(error) => {
                    stop::check()?;
                    run.leave_out(format!("{}, {series}: {error:#}", kind.name()));
                }
            }
        }
    }
    run.turns(&mut pairs, SIZE)?;
    let tracks = |pair: &&Pair| pair.cell.series == SERIES[1] && pair.peer.taps().is_none();
    for pair in pairs.iter().filter(tracks) {
        let seen = is_tracked(&pair.peer, deed);
        if let Err(error) = seen {
            run.leave_out(format!(
                "{}, {}: {error:#}",
                pair.peer.kind().name(),
                pair.cell.name
            ));
        }
    }
    Ok(())
}

fn start(
    plan: &Plan,
    kind: Kind,
    tracking: Option<Tracking>,
    deed: Deed,
    cell: Cell,
) -> Result<Pair> {
    let peer = match tracking {
        Some(tracking) => Peer::tracking(kind, plan, tracking)?,
        None => Peer::start(kind, plan)?,
    };
    let client: Box<dyn Client> = match deed {
        Deed::Established(_, count) if kind == Kind::Router => {
            Box::new(RoutedClient::new(plan, &peer, count)?)
        }
        _ => Box::new(ConnectionsClient::new(plan, &peer, deed)),
    };
    client.freeze()?;
    peer.freeze();
    Ok(Pair { client, peer, cell })
}

/// Checks that the switch has the connections in its table.
///
/// # Errors
/// When it has not, so that its figures are not those of a switch that tracks them.
fn is_tracked(peer: &Peer, deed: Deed) -> Result<()> {
    peer.thaw();
    let found = peer.connections();
    peer.freeze();
    let found = found?;
    let least = match deed {
        Deed::Established(_, count) => u64::from(count),
        Deed::Opened(_) | Deed::Unanswered => 0,
    };
    anyhow::ensure!(
        found >= least,
        "{found} connections are tracked in place of {least}: its figures do not count"
    );
    anyhow::ensure!(
        found < u64::from(MOST_CONNECTIONS),
        "its table was full, so that new connections were not tracked: its figures do not count"
    );
    progress(&format!(
        "{} tracks {found} connections",
        peer.kind().name()
    ));
    Ok(())
}
