//! The figures and tables with results of the papers, and what asks them here.

use super::claims::Claim;
use crate::Experiment;

/// The way in which a figure is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// An experiment, in the part or the rows whose names begin so.
    By(Experiment, &'static str),
    /// Nothing on this kind of machine, for this reason.
    NotHere(&'static str),
    /// Nothing yet: this is missing.
    NotBuilt(&'static str),
}

/// A figure, or a table.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Number of the paper, and of the figure in it.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) asked: Asked,
    pub(crate) claims: &'static [Claim],
}

/// Series as the experiments name them.
const OURS: &str = "Lasthop";
const OVS: &str = "OVS-DPDK";
const BRIDGE: &str = "Linux bridge";

const fn figure(
    id: &'static str,
    title: &'static str,
    asked: Asked,
    claims: &'static [Claim],
) -> Figure {
    Figure {
        id,
        title,
        asked,
        claims,
    }
}

/// All, in the order of the papers.
pub(crate) static FIGURES: [Figure; 48] = [
    figure(
        "000-3.6",
        "Receiving with grants: throughput",
        Asked::NotBuilt("a sweep of grant mechanisms over a driver port"),
        &[],
    ),
    figure(
        "000-3.7",
        "Receiving with grants: CPU cost",
        Asked::NotBuilt("a sweep of grant mechanisms over a driver port"),
        &[],
    ),
    figure(
        "000-3.8",
        "Sending with grants: throughput",
        Asked::NotBuilt("a sweep of grant mechanisms over a driver port"),
        &[],
    ),
    figure(
        "000-3.9",
        "Sending with grants: CPU cost",
        Asked::NotBuilt("a sweep of grant mechanisms over a driver port"),
        &[],
    ),
    figure(
        "000-3.10",
        "Between VMs with grants: throughput",
        Asked::NotBuilt("a sweep of grant mechanisms between guests"),
        &[],
    ),
    figure(
        "000-3.11",
        "Between VMs with grants: CPU cost",
        Asked::NotBuilt("a sweep of grant mechanisms between guests"),
        &[],
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
        "Xen and KVM by pairs of VMs",
        Asked::NotHere("needs 8 cores"),
        &[],
    ),
    figure(
        "000-4.9",
        "One pair, streams by payload",
        Asked::By(Experiment::Scheduling, "stream, "),
        &[Claim::Rises { series: OURS }],
    ),
    figure(
        "000-4.10",
        "One pair, requests by payload",
        Asked::By(Experiment::Scheduling, "requests, 1 at once"),
        &[
            Claim::Order {
                above: OURS,
                below: OVS,
            },
            Claim::Order {
                above: OURS,
                below: BRIDGE,
            },
            Claim::RatioWithin {
                of: OURS,
                to: BRIDGE,
                least: 1.65,
                most: 3.12,
            },
        ],
    ),
    figure(
        "000-4.11",
        "Pairs of VMs, throughput",
        Asked::By(Experiment::Vifs, "super-frames"),
        &[
            Claim::Rises { series: OURS },
            Claim::FlatAfter {
                series: OURS,
                x: 8.0,
                share: 0.1,
            },
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
        Asked::By(Experiment::Scheduling, "streams, all of"),
        &[Claim::Rises { series: OURS }],
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
        Asked::By(Experiment::External, "TCP"),
        &[],
    ),
    figure(
        "000-table-4.6",
        "External requests",
        Asked::By(Experiment::External, "TCP requests"),
        &[
            Claim::Order {
                above: OURS,
                below: OVS,
            },
            Claim::Order {
                above: OURS,
                below: BRIDGE,
            },
        ],
    ),
    figure(
        "000-4.18",
        "Helper in the node of sender or receiver",
        Asked::NotHere("needs 4 cores in two nodes"),
        &[],
    ),
    figure(
        "000-4.19",
        "Helper in the module of sender or receiver",
        Asked::NotHere("needs cores that share a second-level cache"),
        &[],
    ),
    figure(
        "000-4.20",
        "All to all, with helpers and without",
        Asked::By(Experiment::Wakeups, ""),
        &[],
    ),
    figure(
        "000-5.3",
        "Throughput by size without rules",
        Asked::By(Experiment::Rules, ""),
        &[],
    ),
    figure(
        "000-5.4",
        "Cost by class without rules",
        Asked::NotBuilt("costs by class"),
        &[],
    ),
    figure(
        "000-5.5",
        "Throughput by size with 971 rules",
        Asked::By(Experiment::Rules, ""),
        &[],
    ),
    figure(
        "000-5.6",
        "Cost by class with rules",
        Asked::NotBuilt("costs by class"),
        &[],
    ),
    figure(
        "000-5.7",
        "Two senders with rules",
        Asked::NotBuilt("two senders with rules"),
        &[],
    ),
    figure(
        "001-2",
        "Cycles a packet by class",
        Asked::NotBuilt("costs by class"),
        &[],
    ),
    figure(
        "001-3",
        "Cycles of direct I/O by class",
        Asked::NotBuilt("costs by class"),
        &[],
    ),
    figure(
        "001-4",
        "Copy by alignment",
        Asked::NotBuilt("copies by alignment"),
        &[],
    ),
    figure(
        "001-5",
        "Cycles in the driver domain's kernel",
        Asked::NotBuilt("costs by class"),
        &[],
    ),
    figure(
        "001-6",
        "Cycles in the driver domain's hypervisor",
        Asked::NotBuilt("costs by class"),
        &[],
    ),
    figure(
        "001-7",
        "Cycles in the guest",
        Asked::NotBuilt("costs by class"),
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
        Asked::NotBuilt("thresholds of coalescing one by one"),
        &[],
    ),
    figure(
        "002-6",
        "Ports between untrusted VMs by batch",
        Asked::By(Experiment::Netmap, "batch"),
        &[],
    ),
    figure(
        "002-7",
        "Pipes by batch",
        Asked::By(Experiment::Netmap, "batch"),
        &[],
    ),
    figure(
        "002-8",
        "Pipes by slots",
        Asked::By(Experiment::Netmap, "slots"),
        &[],
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
        Asked::By(Experiment::Netmap, "chain"),
        &[],
    ),
    figure(
        "002-table-1",
        "Round trips",
        Asked::By(Experiment::Netmap, "round-trips"),
        &[],
    ),
    figure(
        "003-3",
        "Round trips by number of interfaces",
        Asked::By(Experiment::Vifs, "round-trips"),
        &[
            Claim::Order {
                above: OVS,
                below: OURS,
            },
            Claim::Crosses {
                first: OVS,
                second: OURS,
            },
        ],
    ),
    figure(
        "003-4",
        "Cost of a packet by number of interfaces",
        Asked::By(Experiment::Signals, "frame"),
        &[Claim::FlatAfter {
            series: OURS,
            x: 1.0,
            share: 0.25,
        }],
    ),
    figure(
        "003-5",
        "Throughput by number of interfaces",
        Asked::By(Experiment::Vifs, "streams"),
        &[Claim::Order {
            above: OURS,
            below: OVS,
        }],
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
        "One-way latency by message size",
        Asked::NotBuilt("user-level TCP"),
        &[],
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
        assert_eq!(chosen(&[]).unwrap().len(), 48);
    }

    #[test]
    fn distances() {
        for (from, to, distance) in [("", "ab", 2), ("abc", "abd", 1), ("abc", "bc", 1)] {
            assert_eq!(edits(from, to), distance);
        }
    }
}
