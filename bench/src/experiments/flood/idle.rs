//! The price of a prefilter for frames that no entry is for: a table that is empty, one with
//! entries for others, and one with masks for the guest that is asked.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::policy;
use super::sender::Frames;
use super::world::{ASKED, FloodWorld, VICTIM, Way};
use crate::experiments::external::{Load, over};
use crate::experiments::parts::{Bound, Part, Run};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

/// Flows of others that fill the table, and how long that takes.
const OTHERS: u32 = 1024;
const FILL: Duration = Duration::from_secs(3);
/// Entries without frames go after ten seconds.
const WINDOW: Duration = Duration::from_secs(2);
const SWITCHED: Duration = Duration::from_secs(20);

const PUBLISHED: &str = "no figure";
const DRIVERS: &str = "1: packet, 2: xdp";
static THROUGHPUT: Part = Part {
    name: "throughput",
    axes: [DRIVERS, "kpps of UDP that arrive, 64 B, from the uplink"],
    published: PUBLISHED,
};
static REQUESTS: Part = Part {
    name: "requests",
    axes: [DRIVERS, "UDP requests a second, one at a time, 64 B"],
    published: PUBLISHED,
};
static ENTRIES: Part = Part {
    name: "entries",
    axes: [DRIVERS, "entries of the table"],
    published: PUBLISHED,
};
static MASKS: Part = Part {
    name: "masks",
    axes: [DRIVERS, "different masks of the entries"],
    published: PUBLISHED,
};

const NOTES: [&str; 4] = [
    "off, empty, others, masks: the prefilter is off; on and empty; has entries for another guest; \
     has entries for the guest that is asked, of other sources. They take turns at the same \
     Lasthop, which is started in each round",
    "all have the same access lists: the example of the experiment flood, and a list from the \
     uplink that denies an address set of 1024 addresses for the other guest, and sources by \
     prefixes of 8 to 32 bits and a port for the guest that is asked",
    "a flood of such flows fills the table for three seconds, and is over when the others are \
     measured",
    "sender, receiver and switch share the cores",
];

/// State of a prefilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    Empty,
    Others,
    Masks,
}

impl State {
    const ALL: [Self; 4] = [Self::Off, Self::Empty, Self::Others, Self::Masks];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Empty => "empty",
            Self::Others => "others",
            Self::Masks => "masks",
        }
    }

    /// The share of throughput and requests without a prefilter that is the aim.
    fn aim(self) -> Option<f64> {
        match self {
            Self::Off => None,
            Self::Empty | Self::Others => Some(0.99),
            Self::Masks => Some(0.95),
        }
    }
}

/// See the module.
pub(crate) fn idle(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "flood-idle", &NOTES, &[]);
    for round in 0..plan.rounds {
        for (way, x) in [(Way::PacketAuto, 1.0), (Way::XdpAuto, 2.0)] {
            run.attempt(way.name(), |run| {
                wait_quiet(plan.patience / 100)?;
                let world = FloodWorld::with_lists(plan, way, &lists())?;
                // Each is first in its turn.
                let first = round as usize % State::ALL.len();
                for index in 0..State::ALL.len() {
                    let state = State::ALL[(first + index) % State::ALL.len()];
                    progress(&format!("flood-idle: {}, {}", way.name(), state.name()));
                    let parts = [&THROUGHPUT, &REQUESTS, &ENTRIES, &MASKS];
                    run.take_all(parts, state.name(), x, || measure(plan, &world, way, state))?;
                }
                Ok(())
            })?;
        }
    }
    for (driver, x) in [("packet", 1.0), ("xdp", 2.0)] {
        for (state, part) in State::ALL
            .into_iter()
            .flat_map(|state| [(state, &THROUGHPUT), (state, &REQUESTS)])
        {
            if let Some(least) = state.aim() {
                let seen = run.ratio(part, x, [state.name(), State::Off.name()]);
                let what = format!("{driver}, {}, {} / off", part.name, state.name());
                run.aim(&what, seen, Bound::AtLeast(least), "x");
            }
        }
    }
    Ok(run.report("The price of a prefilter for other frames"))
}

/// Sources that are denied for the guest that is asked, one network of each length.
const NETWORKS: [&str; 7] = [
    "11.0.0.0/8",
    "12.16.0.0/12",
    "13.1.0.0/16",
    "14.1.16.0/20",
    "15.1.1.0/24",
    "16.1.1.16/28",
    "17.1.1.1/32",
];
/// The port that is denied for it, whatever the source.
const DENIED_PORT: u16 = 9999;

/// An address of the set: no two of them are in one network that has no others.
fn address(index: u32) -> [u8; 4] {
    (0xc612_0001 + 6 * index).to_be_bytes()
}

/// The example, and what is denied by the uplink.
fn lists() -> String {
    let quoted = |address: [u8; 4]| format!("\"{}\"", std::net::Ipv4Addr::from(address));
    let feed: Vec<String> = (0..OTHERS).map(|index| quoted(address(index))).collect();
    let [asked, victim] = [ASKED, VICTIM].map(|target| quoted(target.address));
    let mut rules = format!(
        "[[acl.rule]]\nname = \"feed\"\naction = \"drop\"\nsource = [\"@feed\"]\n\
         destination = [{victim}]\n"
    );
    for (index, network) in NETWORKS.iter().enumerate() {
        rules += &format!(
            "[[acl.rule]]\nname = \"network{index}\"\naction = \"drop\"\nsource = [\"{network}\"]\n\
             destination = [{asked}]\n"
        );
    }
    format!(
        "{}\n[[address_set]]\nname = \"feed\"\naddresses = [{}]\n\
         [[acl]]\nname = \"blocked\"\ndirection = \"from-guest\"\nports = [\"up0\"]\n{rules}\
         [[acl.rule]]\nname = \"port\"\naction = \"drop\"\nprotocol = \"udp\"\n\
         destination = [{asked}]\ndestination_ports = [{DENIED_PORT}]\n",
        policy::EXAMPLE,
        feed.join(", ")
    )
}

/// Flows that the lists deny, for the one guest or the other.
fn flows(state: State) -> Vec<([u8; 4], u16)> {
    if state == State::Others {
        return (0..OTHERS).map(|index| (address(index), 9)).collect();
    }
    let sources = (0_u8..16).flat_map(|n| {
        [
            ([11, 16 * n, n, n], 9),
            ([12, 16 + n, 1, 1], 9),
            ([13, 1, 16 * n, n], 9),
            ([14, 1, 16 + n, n], 9),
            ([15, 1, 1, 16 * n], 9),
            ([16, 1, 1, 16 + n], 9),
            ([17, 1, 1, 1], 9),
            ([100 + n, n, n, n], DENIED_PORT),
        ]
    });
    sources.collect()
}

/// Kpps, requests a second, entries and masks.
fn measure(plan: &Plan, world: &FloodWorld, way: Way, state: State) -> Result<[f64; 4]> {
    // Off and on again is empty.
    world.set_prefilter(way, false, SWITCHED)?;
    if state != State::Off {
        world.set_prefilter(way, true, SWITCHED)?;
    }
    let target = match state {
        State::Others => Some(VICTIM),
        State::Masks => Some(ASKED),
        State::Off | State::Empty => None,
    };
    if let Some(target) = target {
        let frames = Frames::Flows(flows(state));
        let flood = world.flood(plan, target, frames, None)?;
        stop::sleep(FILL)?;
        flood.end()?;
    }
    let [throughput, requests] = [Load::UdpIn, Load::UdpRequests].map(|load| {
        let traffic = over(load, world.sockets()?)?;
        stop::sleep(plan.settle)?;
        let (start, before) = (Instant::now(), traffic.count());
        stop::sleep(plan.window.min(WINDOW))?;
        let count = traffic.count() - before;
        let seconds = start.elapsed().as_secs_f64();
        traffic.end()?;
        Ok::<f64, anyhow::Error>(load.per_second(count) / seconds)
    });
    let entries = match state {
        State::Off => Vec::new(),
        _ => world.entries()?,
    };
    ensure!(
        target.is_none() || !entries.is_empty(),
        "the table is empty after a flood"
    );
    let mut masks: Vec<String> = entries.iter().map(|entry| shape(entry)).collect();
    masks.sort_unstable();
    masks.dedup();
    Ok([
        throughput?,
        requests?,
        entries.len() as f64,
        masks.len() as f64,
    ])
}

/// A match without its values: the lengths of its prefixes stay.
fn shape(entry: &str) -> String {
    let words = entry.split_whitespace().map(|word| {
        let has_digits = word.contains(|c: char| c.is_ascii_digit());
        match word.split_once('/') {
            Some((_, len)) => format!("#/{len}"),
            None if has_digits && word != "IPv4," && word != "IPv6," => "#".to_owned(),
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_of_one_mask_have_one_shape() {
        let of = |source: &str| {
            shape(&format!(
                "untagged, any > 52:54:00:00:00:02, IPv4, {source} > any"
            ))
        };
        assert_eq!(of("192.0.2.0/24"), of("198.51.100.0/24"));
        assert_ne!(of("192.0.2.0/24"), of("192.0.0.0/16"));
        assert_ne!(of("192.0.2.1"), of("any"));
    }

    #[test]
    fn flows_are_as_many_as_entries_are_desired() {
        assert_eq!(flows(State::Others).len(), 1024);
        assert_eq!(flows(State::Masks).len(), 128);
        assert_eq!(lists().matches("action = \"drop\"").count(), 1 + 1 + 7 + 1);
    }
}
