//! The price of a prefilter for frames without an entry: with a table that is empty, with entries
//! for another guest, and with entries and masks that concern the guest that is asked.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::machine::pin;

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
/// Entries without frames go after ten seconds, so samples are short, and there are some of them.
const SETTLE: Duration = Duration::from_millis(100);
const WINDOW: Duration = Duration::from_millis(500);
const REPEATED: u32 = 3;
/// The address of the far namespace.
const FAR_ADDRESS: [u8; 4] = [10, 1, 0, 9];
const SWITCHED: Duration = Duration::from_secs(20);

const PUBLISHED: &str = "no figure";
const DRIVERS: &str = "1: packet, 2: xdp";
static SENT: Part = Part {
    name: "sent",
    axes: [
        DRIVERS,
        "kpps of 64 B that a core sends and takes to the uplink",
    ],
    published: PUBLISHED,
};
static THROUGHPUT: Part = Part {
    name: "throughput",
    axes: [DRIVERS, "kpps of these that arrive at the guest"],
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
    "off, empty: the prefilter is off; on, and its table is empty. others: it has entries for \
     another guest, by the list of that guest. blocked: it has entries by a list from the uplink, \
     which concern all guests, and so are looked up for each frame. masks: it has entries for the \
     guest that is asked, of other sources. They take turns at the same Lasthop, which is started \
     in each round",
    "all have the same access lists: an address set of 1024 addresses that is denied at the other \
     guest, another one at the uplink, and prefixes of 8 to 32 bits and a port at the guest that \
     is asked",
    "a flood of such flows fills the table for three seconds, and is over when the others are \
     measured",
    "all of Lasthop has the switch's core; the sender, or both ends of the requests, have the \
     client's, where the kernel also does the work of the uplink's interface: so 'sent' has the \
     price of the prefilter, and the others what becomes of it",
];

/// State of a prefilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    Empty,
    Others,
    Blocked,
    Masks,
}

impl State {
    const ALL: [Self; 5] = [
        Self::Off,
        Self::Empty,
        Self::Others,
        Self::Blocked,
        Self::Masks,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Empty => "empty",
            Self::Others => "others",
            Self::Blocked => "blocked",
            Self::Masks => "masks",
        }
    }

    /// The share of throughput and requests without a prefilter that is the aim.
    fn aim(self) -> Option<f64> {
        match self {
            Self::Off => None,
            Self::Empty | Self::Others => Some(0.99),
            Self::Blocked | Self::Masks => Some(0.95),
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
                let world = FloodWorld::with_lists(plan, way, &lists(), &plan.cores[..1])?;
                // Each is first in its turn.
                let first = round as usize % State::ALL.len();
                for index in 0..State::ALL.len() {
                    let state = State::ALL[(first + index) % State::ALL.len()];
                    progress(&format!("flood-idle: {}, {}", way.name(), state.name()));
                    prepare(plan, &world, way, state)?;
                    for _ in 0..REPEATED {
                        let parts = [&SENT, &THROUGHPUT, &REQUESTS];
                        run.take_all(parts, state.name(), x, || measure(plan, &world))?;
                    }
                    count(run, &world, state)?;
                }
                Ok(())
            })?;
        }
    }
    for (driver, x) in [("packet", 1.0), ("xdp", 2.0)] {
        for (state, part) in State::ALL
            .into_iter()
            .flat_map(|state| [&SENT, &THROUGHPUT, &REQUESTS].map(|part| (state, part)))
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

/// Adds the entries and their masks.
fn count(run: &mut Run<'_>, world: &FloodWorld, state: State) -> Result<()> {
    let entries = match state {
        State::Off => Vec::new(),
        _ => world.entries()?,
    };
    let mut masks: Vec<String> = entries.iter().map(|entry| shape(entry)).collect();
    masks.sort_unstable();
    masks.dedup();
    run.add(&ENTRIES, entries.len() as f64);
    run.add(&MASKS, masks.len() as f64);
    Ok(())
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

/// First addresses of the sets: that of the other guest, and that of the uplink.
const FEED: u32 = 0xc612_0001;
const BLOCKED: u32 = 0xc613_0001;

/// An address of a set: between any two of them are others, which are allowed.
fn address(first: u32, index: u32) -> [u8; 4] {
    (first + 6 * index).to_be_bytes()
}

/// A set of addresses.
fn set(name: &str, first: u32) -> String {
    let quoted = |index| format!("\"{}\"", std::net::Ipv4Addr::from(address(first, index)));
    let all: Vec<String> = (0..OTHERS).map(quoted).collect();
    let all = all.join(", ");
    format!("\n[[address_set]]\nname = \"{name}\"\naddresses = [{all}]\n")
}

/// A list of a port, with rules that drop frames with these keys; all else is allowed.
fn list(name: &str, direction: &str, port: &str, keys: &[String]) -> String {
    let mut text = format!(
        "\n[[acl]]\nname = \"{name}\"\ndirection = \"{direction}\"\nports = [\"{port}\"]\n"
    );
    for (index, keys) in keys.iter().enumerate() {
        text += &format!("[[acl.rule]]\nname = \"drop{index}\"\naction = \"drop\"\n{keys}\n");
    }
    text + "[[acl.rule]]\nname = \"rest\"\naction = \"allow\"\n"
}

/// See the notes.
fn lists() -> String {
    let networks = NETWORKS.map(|network| format!("source = [\"{network}\"]"));
    let port = format!("protocol = \"udp\"\ndestination_ports = [{DENIED_PORT}]");
    let masks = [&networks[..], &[port]].concat();
    let of_set = |name| [format!("source = [\"@{name}\"]")];
    [
        set("feed", FEED),
        set("blocked", BLOCKED),
        list("other-in", "to-guest", "victim0", &of_set("feed")),
        list("up-out", "from-guest", "up0", &of_set("blocked")),
        list("asked-in", "to-guest", "near0", &masks),
    ]
    .concat()
}

/// Flows that the lists deny, for the one guest or the other.
fn flows(state: State) -> Vec<([u8; 4], u16)> {
    let of_set = |first| {
        (0..OTHERS)
            .map(|index| (address(first, index), 9))
            .collect()
    };
    match state {
        State::Others => return of_set(FEED),
        State::Blocked => return of_set(BLOCKED),
        _ => {}
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

/// Brings the prefilter into this state.
fn prepare(plan: &Plan, world: &FloodWorld, way: Way, state: State) -> Result<()> {
    // Off and on again is empty.
    world.set_prefilter(way, false, SWITCHED)?;
    if state != State::Off {
        world.set_prefilter(way, true, SWITCHED)?;
    }
    let target = match state {
        State::Others | State::Blocked => VICTIM,
        State::Masks => ASKED,
        State::Off | State::Empty => return Ok(()),
    };
    let frames = Frames::Flows(flows(state));
    let flood = world.flood(plan, target, frames, None)?;
    stop::sleep(FILL)?;
    flood.end()?;
    let is_filled = !world.entries()?.is_empty();
    ensure!(is_filled, "the table is empty after a flood");
    Ok(())
}

/// Kpps that were sent and that arrived, and requests a second.
fn measure(plan: &Plan, world: &FloodWorld) -> Result<[f64; 3]> {
    let (settle, window) = (plan.settle.min(SETTLE), plan.window.min(WINDOW));
    let [client, server] = world.sockets()?;
    let port = server.local_addr()?.port();
    let frames = Frames::Flows(vec![(FAR_ADDRESS, port)]);
    let sender = world.flood(plan, ASKED, frames, None)?;
    stop::sleep(settle)?;
    let counts = || anyhow::Ok((Instant::now(), sender.sent(), world.received()?));
    let before = counts()?;
    stop::sleep(window)?;
    let after = counts()?;
    sender.end()?;
    let rate = |count: u64| count as f64 / (after.0 - before.0).as_secs_f64() / 1e3;
    let [sent, arrived] = [rate(after.1 - before.1), rate(after.2 - before.2)];
    drop((client, server));
    let load = Load::UdpRequests;
    let traffic = std::thread::scope(|scope| {
        // The threads of the two ends have the core of the one that starts them.
        let thread = scope.spawn(|| {
            pin(plan.cores[1])?;
            over(load, world.sockets()?)
        });
        thread.join().ok().context("a thread panicked")?
    })?;
    stop::sleep(settle)?;
    let (start, before) = (Instant::now(), traffic.count());
    stop::sleep(window)?;
    let count = traffic.count() - before;
    let seconds = start.elapsed().as_secs_f64();
    traffic.end()?;
    Ok([sent, arrived, load.per_second(count) / seconds])
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
        assert_ne!(flows(State::Others), flows(State::Blocked));
    }
}
