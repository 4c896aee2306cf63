//! Ways to interfaces of the host: what goes through, beside the peers over the same kind of interface.

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

/// The table: medians of the samples of one placement.
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
        + &format!("\nOf {all} samples, {flipped} were dropped because the placement flipped.\n")
}

fn row(
    samples: &[&Sample],
    placement: Placement,
    (ours, ovs, bridge): (Way, Way, Option<Way>),
) -> Option<Vec<String>> {
    let of = |way: Way| samples.iter().filter(move |sample| sample.way == way);
    let middle = |way: Way, value: fn(&Sample) -> Option<f64>| {
        let values: Vec<f64> = of(way).filter_map(|sample| value(sample)).collect();
        median(&values)
    };
    let rate = |way| middle(way, |sample| Some(sample.value));
    let first = of(ours).next()?;
    let trips: Vec<f64> = of(ours).flat_map(|sample| sample.trips_ns).collect();
    let bridged = bridge.and_then(rate);
    let count = |way| of(way).count().to_string();
    let mut counts = vec![count(ours), count(ovs)];
    counts.extend(bridge.map(count));
    Some(vec![
        first.load.name().to_owned(),
        ours.path().to_owned(),
        format!(
            "{}, {:.0} ns",
            placement.name(),
            median(&trips).unwrap_or_default()
        ),
        shown(ratio(rate(ours), rate(ovs)), "x"),
        shown(ratio(rate(ours), bridged), "x"),
        shown(rate(ours), ""),
        shown(rate(ovs), ""),
        shown(bridged, ""),
        shown(middle(ours, |sample| sample.driver_percent), ""),
        shown(middle(ours, |sample| Some(sample.switch_percent)), ""),
        shown(middle(ovs, |sample| Some(sample.switch_percent)), ""),
        counts.join(" "),
    ])
}
