//! The figures and tables with results of the papers, and what asks them here.

use super::claims::{Asking, Claim};
use crate::Experiment;
use crate::experiments::alignment::{ALIGNED, BY_TWO};
use crate::experiments::external::breakdown::{NATIVE, PACKET};
use crate::experiments::pingpong::ADAPTIVE;
use crate::experiments::sockets::{SLEEPING, SPINNING, TAP as KERNEL};

/// The way in which a figure is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Experiments, each in the part or the rows whose names begin so.
    By(&'static [Source]),
    /// Nothing on this kind of machine, for this reason.
    NotHere(&'static str),
    /// Nothing yet: this is missing.
    NotBuilt(&'static str),
}

/// An experiment and a part of it.
pub(crate) type Source = (Experiment, &'static str);

/// A figure, or a table.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Number of the paper, and of the figure in it.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) asked: Asked,
    pub(crate) claims: &'static [Asking],
}

impl Figure {
    /// The experiments that ask it, and their parts.
    pub(crate) fn sources(&self) -> &'static [Source] {
        match self.asked {
            Asked::By(sources) => sources,
            Asked::NotHere(_) | Asked::NotBuilt(_) => &[],
        }
    }
}

/// Cores without which nothing is measured: one of the switch, and one of its clients.
pub(crate) const CORES: usize = 2;

/// About how long an experiment takes with the parts that figures ask of it, in seconds: with short
/// samples, and with long ones.
pub(crate) fn seconds(experiment: Experiment) -> [u64; 2] {
    match experiment {
        Experiment::Grants => [200, 750],
        Experiment::Scheduling => [150, 1000],
        Experiment::Vifs => [170, 350],
        Experiment::External => [160, 150],
        Experiment::Netmap => [150, 400],
        Experiment::Rules => [60, 240],
        Experiment::Snich => [60, 380],
        Experiment::Rings => [60, 200],
        Experiment::Sockets => [60, 300],
        _ => [60, 80],
    }
}

/// Series as the experiments name them.
const OURS: &str = "Lasthop";
const OVS: &str = "OVS-DPDK";
const BRIDGE: &str = "Linux bridge";
const FORWARDERS: &str = "guests that sleep";

/// Idle cores that help for busy ones: `docs/benchmarks/wakeups.md`.
const HELPERS: &str = "measured and removed";

/// A claim that two cores are enough for.
const fn here(claim: Claim) -> Asking {
    Asking {
        claim,
        cores: CORES,
    }
}

/// A claim that needs so many cores.
const fn with(cores: usize, claim: Claim) -> Asking {
    Asking { claim, cores }
}

const fn order(above: &'static str, below: &'static str) -> Claim {
    Claim::Order { above, below }
}

const fn figure(
    id: &'static str,
    title: &'static str,
    asked: Asked,
    claims: &'static [Asking],
) -> Figure {
    Figure {
        id,
        title,
        asked,
        claims,
    }
}

/// All, in the order of the papers.
pub(crate) static FIGURES: [Figure; 49] = [
    figure(
        "000-3.6",
        "Receiving with grants: throughput",
        Asked::By(&[(Experiment::Grants, "receiving")]),
        &[here(order("no IOMMU", "strict"))],
    ),
    figure(
        "000-3.7",
        "Receiving with grants: CPU cost",
        Asked::By(&[(Experiment::Grants, "receiving-cpu")]),
        &[here(order("strict", "no IOMMU"))],
    ),
    figure(
        "000-3.8",
        "Sending with grants: throughput",
        Asked::By(&[(Experiment::Grants, "sending")]),
        &[
            here(order("no IOMMU", "strict")),
            here(order("batched", "strict")),
        ],
    ),
    figure(
        "000-3.9",
        "Sending with grants: CPU cost",
        Asked::By(&[(Experiment::Grants, "sending-cpu")]),
        &[here(order("strict", "no IOMMU"))],
    ),
    figure(
        "000-3.10",
        "Between VMs with grants: throughput",
        Asked::By(&[(Experiment::Grants, "guest-to-guest")]),
        &[
            here(order("no IOMMU", "strict")),
            here(order("reuse", "batched")),
        ],
    ),
    figure(
        "000-3.11",
        "Between VMs with grants: CPU cost",
        Asked::By(&[(Experiment::Grants, "guest-to-guest-cpu")]),
        &[
            here(order("strict", "batched")),
            here(order("batched", "reuse")),
        ],
    ),
    figure(
        "000-3.12",
        "Slab cache: throughput",
        Asked::NotBuilt("buffer pools of guests are theirs"),
        &[],
    ),
    figure(
        "000-3.13",
        "Slab cache: CPU cost",
        Asked::NotBuilt("buffer pools of guests are theirs"),
        &[],
    ),
    figure(
        "000-4.1",
        "Other switches by pairs of VMs",
        Asked::By(&[(Experiment::Vifs, "streams")]),
        &[with(8, Claim::Rises { series: BRIDGE })],
    ),
    figure(
        "000-4.9",
        "One pair, streams by payload",
        Asked::By(&[(Experiment::Scheduling, "stream, ")]),
        &[here(Claim::Rises { series: OURS })],
    ),
    figure(
        "000-4.10",
        "One pair, requests by payload",
        Asked::By(&[(Experiment::Scheduling, "requests, 1 at once")]),
        &[
            here(order(OURS, OVS)),
            here(order(OURS, BRIDGE)),
            here(Claim::RatioWithin {
                of: OURS,
                to: BRIDGE,
                least: 1.65,
                most: 3.12,
            }),
        ],
    ),
    figure(
        "000-4.11",
        "Pairs of VMs, throughput",
        Asked::By(&[(Experiment::Vifs, "super-frames")]),
        &[
            with(8, Claim::Rises { series: OURS }),
            here(Claim::FlatAfter {
                series: OURS,
                x: 8.0,
                share: 0.1,
            }),
        ],
    ),
    figure(
        "000-4.12",
        "Pairs of VMs, processor stalls",
        Asked::NotHere("needs counters of the processor"),
        &[],
    ),
    figure(
        "000-4.13",
        "All to all, throughput",
        Asked::By(&[(Experiment::Scheduling, "streams, all of")]),
        &[with(8, Claim::Rises { series: OURS })],
    ),
    figure(
        "000-4.14",
        "All to all, processor stalls",
        Asked::NotHere("needs counters of the processor"),
        &[],
    ),
    figure(
        "000-4.15",
        "Pinned guests, pairs",
        Asked::NotBuilt("guests without a core of their own"),
        &[],
    ),
    figure(
        "000-4.16",
        "Pinned guests, all to all",
        Asked::NotBuilt("guests without a core of their own"),
        &[],
    ),
    figure(
        "000-4.17",
        "External throughput",
        Asked::By(&[(Experiment::External, "TCP")]),
        &[here(order(OURS, OVS)), here(order(OURS, BRIDGE))],
    ),
    figure(
        "000-table-4.6",
        "External requests",
        Asked::By(&[(Experiment::External, "TCP requests")]),
        &[here(order(OURS, OVS)), here(order(OURS, BRIDGE))],
    ),
    figure(
        "000-4.18",
        "Helper in the node of sender or receiver",
        Asked::NotBuilt(HELPERS),
        &[],
    ),
    figure(
        "000-4.19",
        "Helper in the module of sender or receiver",
        Asked::NotBuilt(HELPERS),
        &[],
    ),
    figure(
        "000-4.20",
        "All to all, with helpers and without",
        Asked::NotBuilt(HELPERS),
        &[],
    ),
    figure(
        "000-5.3",
        "Throughput by size without rules",
        Asked::By(&[
            (Experiment::Rules, "no rules"),
            (Experiment::Snich, "no-rules"),
        ]),
        &[
            here(order("Lasthop, no rules", "OVS-DPDK, no rules")),
            here(order(OURS, OVS)),
            here(order(OURS, BRIDGE)),
        ],
    ),
    figure(
        "000-5.4",
        "Cost without rules",
        Asked::By(&[(Experiment::Snich, "cost")]),
        &[here(order(BRIDGE, OURS)), here(order(OVS, OURS))],
    ),
    figure(
        "000-5.5",
        "Throughput by size with 971 rules",
        Asked::By(&[(Experiment::Rules, "rules"), (Experiment::Snich, "rules")]),
        &[
            here(order("Lasthop, rules", "OVS-DPDK, rules")),
            here(Claim::RatioWithin {
                of: "Lasthop, rules",
                to: "Lasthop, no rules",
                least: 0.95,
                most: 1.05,
            }),
            here(order(OURS, BRIDGE)),
        ],
    ),
    figure(
        "000-5.6",
        "Cost with 971 rules",
        Asked::By(&[(Experiment::Snich, "rules-cost")]),
        &[here(order(BRIDGE, OURS)), here(order(BRIDGE, OVS))],
    ),
    figure(
        "000-5.7",
        "Two senders with 971 rules",
        Asked::By(&[(Experiment::Snich, "two-senders")]),
        &[with(
            3,
            Claim::RatioWithin {
                of: "Lasthop, two senders",
                to: "Lasthop, one sender",
                least: 1.7,
                most: 2.3,
            },
        )],
    ),
    figure(
        "001-2",
        "Cycles a packet by class",
        Asked::By(&[
            (Experiment::Breakdown, "packet"),
            (Experiment::Breakdown, "classes"),
        ]),
        &[
            here(order(PACKET, NATIVE)),
            here(Claim::RatioWithin {
                of: PACKET,
                to: NATIVE,
                least: 3.6,
                most: 5.4,
            }),
        ],
    ),
    figure(
        "001-3",
        "Cycles of direct I/O by class",
        Asked::NotHere("needs a network card that a guest drives"),
        &[],
    ),
    figure(
        "001-4",
        "Copy by alignment",
        Asked::By(&[
            (Experiment::Alignment, "copy"),
            (Experiment::Alignment, "switch"),
        ]),
        &[
            here(order(BY_TWO, ALIGNED)),
            here(Claim::RatioWithin {
                of: BY_TWO,
                to: ALIGNED,
                least: 1.6,
                most: 2.5,
            }),
        ],
    ),
    figure(
        "001-5",
        "Cycles in the driver domain's kernel",
        Asked::NotBuilt("a profile of functions"),
        &[],
    ),
    figure(
        "001-6",
        "Cycles in the driver domain's hypervisor",
        Asked::NotBuilt("a profile of functions"),
        &[],
    ),
    figure(
        "001-7",
        "Cycles in the guest",
        Asked::NotBuilt("a profile of functions"),
        &[],
    ),
    figure(
        "001-8",
        "Optimizations one by one",
        Asked::NotBuilt("options one by one"),
        &[],
    ),
    figure(
        "001-11",
        "Cost by packets an interrupt",
        Asked::By(&[
            (Experiment::Coalescing, "cost"),
            (Experiment::Coalescing, "notifications"),
        ]),
        &[here(Claim::Falls { series: OURS })],
    ),
    figure(
        "002-6",
        "Ports between untrusted VMs by batch",
        Asked::By(&[(Experiment::Netmap, "batch"), (Experiment::Rings, "rings")]),
        &[
            here(Claim::Rises { series: "port" }),
            here(Claim::Rises {
                series: "ring of 1024",
            }),
        ],
    ),
    figure(
        "002-7",
        "Pipes by batch",
        Asked::By(&[(Experiment::Netmap, "batch")]),
        &[here(order("pipe", "port"))],
    ),
    figure(
        "002-8",
        "Pipes by slots",
        Asked::By(&[(Experiment::Netmap, "slots"), (Experiment::Rings, "rings")]),
        &[
            here(Claim::Rises {
                series: "batch 64, adaptive",
            }),
            here(order("ring of 4096", "ring of 256")),
        ],
    ),
    figure(
        "002-9",
        "To the wire by batch",
        Asked::NotHere("needs a network card"),
        &[],
    ),
    figure(
        "002-11",
        "Bridges that copy, in a chain",
        Asked::By(&[
            (Experiment::Netmap, "chain"),
            (Experiment::Chain, "chain-of-guests"),
        ]),
        &[
            with(
                6,
                Claim::FlatAfter {
                    series: "ports",
                    x: 1.0,
                    share: 0.25,
                },
            ),
            with(
                6,
                Claim::FlatAfter {
                    series: FORWARDERS,
                    x: 1.0,
                    share: 0.25,
                },
            ),
            here(order("pipes", "ports")),
        ],
    ),
    figure(
        "002-table-1",
        "Round trips",
        Asked::By(&[
            (Experiment::Netmap, "round-trips"),
            (Experiment::Pingpong, "ping-pong"),
        ]),
        &[
            here(order("port, sleep", "port, spin")),
            here(order("pipe, sleep", "pipe, spin")),
            here(Claim::Falls { series: ADAPTIVE }),
        ],
    ),
    figure(
        "003-3",
        "Round trips by number of interfaces",
        Asked::By(&[(Experiment::Vifs, "round-trips")]),
        &[
            here(order(OVS, OURS)),
            here(Claim::Crosses {
                first: OVS,
                second: OURS,
            }),
        ],
    ),
    figure(
        "003-4",
        "Cost of a packet by number of interfaces",
        Asked::By(&[(Experiment::Signals, "frame")]),
        &[here(Claim::FlatAfter {
            series: OURS,
            x: 1.0,
            share: 0.25,
        })],
    ),
    figure(
        "003-5",
        "Throughput by number of interfaces",
        Asked::By(&[(Experiment::Vifs, "streams")]),
        &[here(order(OURS, OVS))],
    ),
    figure(
        "003-table-1",
        "Writes over PCI",
        Asked::NotHere("hardware of its own"),
        &[],
    ),
    figure(
        "004-table-1",
        "Guests that send, with a fast path",
        Asked::NotBuilt("accelerator plugins"),
        &[],
    ),
    figure(
        "004-table-2",
        "Guests that send and receive, with a fast path",
        Asked::NotBuilt("accelerator plugins"),
        &[],
    ),
    figure(
        "004-2",
        "User-level and kernel sockets: bandwidth by message size",
        Asked::By(&[(Experiment::Sockets, "bandwidth")]),
        &[
            here(order(SLEEPING, KERNEL)),
            with(3, order(SPINNING, KERNEL)),
        ],
    ),
    figure(
        "004-latency",
        "User-level and kernel sockets: one-way latency, and its software part",
        Asked::By(&[
            (Experiment::Sockets, "half-round-trip"),
            (Experiment::Sockets, "software"),
        ]),
        &[
            here(order(KERNEL, SPINNING)),
            here(order(SLEEPING, SPINNING)),
        ],
    ),
];

/// Returns the figures with these ids; all without any.
///
/// # Errors
/// An unknown id: a text with the one that is most alike.
pub(crate) fn chosen(ids: &[String]) -> Result<Vec<&'static Figure>, String> {
    if ids.is_empty() {
        return Ok(FIGURES.iter().collect());
    }
    let one = |id: &String| {
        let found = FIGURES.iter().find(|figure| figure.id == id);
        found.ok_or_else(|| {
            let distance = |figure: &&Figure| edits(figure.id, id);
            let nearest = FIGURES
                .iter()
                .min_by_key(distance)
                .map_or("", |figure| figure.id);
            format!("there is no figure '{id}'; the nearest is '{nearest}'")
        })
    };
    ids.iter().map(one).collect()
}

/// The number of characters to insert, remove or replace (Levenshtein distance).
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, byte) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(byte != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::published;

    #[test]
    fn ids_differ_and_published_figures_are_among_them() {
        for (index, figure) in FIGURES.iter().enumerate() {
            let others = &FIGURES[index + 1..];
            assert!(
                others.iter().all(|other| other.id != figure.id),
                "{}",
                figure.id
            );
        }
        for entry in published::all().unwrap() {
            let known = FIGURES.iter().any(|figure| figure.id == entry.figure);
            assert!(known, "{}", entry.figure);
        }
    }

    #[test]
    fn an_unknown_figure_names_the_nearest() {
        let ids = |id: &str| [id.to_owned()];
        let found = chosen(&ids("000-4.10")).unwrap();
        assert_eq!(found[0].id, "000-4.10");
        let error = chosen(&ids("000-4.100")).unwrap_err();
        assert!(error.ends_with("the nearest is '000-4.10'"), "{error}");
        assert_eq!(chosen(&[]).unwrap().len(), 49);
    }

    #[test]
    fn distances() {
        for (from, to, distance) in [("", "ab", 2), ("abc", "abd", 1), ("abc", "bc", 1)] {
            assert_eq!(edits(from, to), distance);
        }
    }
}
