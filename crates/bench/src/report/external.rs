//! Ways to interfaces of the host: what goes through, beside the peers over the same kind of
//! interface.

use super::shown;
use crate::experiments::external::{Sample, Way};
use crate::placement::Placement;
use crate::statistics::{median, ratio};

const HEAD: [&str; 12] = [
    "traffic",
    "Lasthop's way",
    "cores",
    "Lasthop / OVS",
    "Lasthop / bridge",
    "Lasthop",
    "OVS",
    "bridge",
    "CPU of the driver, %",
    "CPU of all Lasthop, %",
    "CPU of OVS, %",
    "samples",
];
/// Ours, and the ways of the peers that are beside it.
const ROWS: [(Way, Way, Option<Way>); 3] = [
    (Way::LasthopTap, Way::OvsTap, None),
    (Way::LasthopPacket, Way::OvsVeth, Some(Way::BridgeVeth)),
    (Way::LasthopXdp, Way::OvsVeth, Some(Way::BridgeVeth)),
];

/// The tables: medians of the samples of one placement.
pub(super) fn table(samples: &[Sample]) -> String {
    let mut loads: Vec<_> = Vec::new();
    for sample in samples {
        if !loads.contains(&sample.load) {
            loads.push(sample.load);
        }
    }
    let mut rows = Vec::new();
    for placement in [Placement::Near, Placement::Far] {
        for load in &loads {
            let here: Vec<&Sample> = samples
                .iter()
                .filter(|sample| sample.load == *load && sample.placement == Some(placement))
                .collect();
            rows.extend(
                ROWS.map(|ways| row(&here, placement, ways))
                    .into_iter()
                    .flatten(),
            );
        }
    }
    let flipped = samples.iter().filter(|sample| sample.placement.is_none());
    let flipped = flipped.count();
    let all = samples.len();
    super::table(&HEAD.map(str::to_owned), &rows)
        + &format!(
            "\nOf {all} samples, {flipped} were dropped because the placement flipped or somebody \
             else was on a core.\n"
        )
}

fn of<'a>(samples: &'a [&'a Sample], way: Way) -> impl Iterator<Item = &'a Sample> {
    samples
        .iter()
        .copied()
        .filter(move |sample| sample.way == way)
}

fn middle(samples: &[&Sample], way: Way, value: fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = of(samples, way).filter_map(value).collect();
    median(&values)
}

fn rate(samples: &[&Sample], way: Way) -> Option<f64> {
    middle(samples, way, |sample| Some(sample.value))
}

/// The first three columns.
fn name(samples: &[&Sample], placement: Placement, way: Way) -> Option<[String; 3]> {
    let first = of(samples, way).next()?;
    let trips: Vec<f64> = of(samples, way)
        .flat_map(|sample| sample.trips_ns)
        .collect();
    let ns = median(&trips).unwrap_or_default();
    Some([
        first.load.name().to_owned(),
        way.path().to_owned(),
        format!("{}, {ns:.0} ns", placement.name()),
    ])
}

fn counts(samples: &[&Sample], ways: &[Way]) -> String {
    let count = |way: &Way| of(samples, *way).count().to_string();
    ways.iter().map(count).collect::<Vec<_>>().join(" ")
}

fn row(
    samples: &[&Sample],
    placement: Placement,
    (ours, ovs, bridge): (Way, Way, Option<Way>),
) -> Option<Vec<String>> {
    let rate = |way| rate(samples, way);
    let bridged = bridge.and_then(rate);
    let mut ways = vec![ours, ovs];
    ways.extend(bridge);
    let mut row = name(samples, placement, ours)?.to_vec();
    row.extend([
        shown(ratio(rate(ours), rate(ovs)), "x"),
        shown(ratio(rate(ours), bridged), "x"),
        shown(rate(ours), ""),
        shown(rate(ovs), ""),
        shown(bridged, ""),
        shown(middle(samples, ours, |sample| sample.driver_percent), ""),
        shown(
            middle(samples, ours, |sample| Some(sample.switch_percent)),
            "",
        ),
        shown(
            middle(samples, ovs, |sample| Some(sample.switch_percent)),
            "",
        ),
        counts(samples, &ways),
    ]);
    Some(row)
}
