//! Ways to interfaces of the host: what goes through, beside the peers over the same kind of
//! interface; requests; and what the process of a driver costs.

use e2e::table::table as markdown;
use serde::Serialize;

use super::{Load, Missing, Sample, Way};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::plot::Point;
use crate::report::{Drawn, Figures, shown};
use crate::statistics::{median, percentile, ratio};

const HEAD: [&str; 13] = [
    "traffic",
    "way",
    "cores",
    "Lasthop / OVS",
    "Lasthop / bridge",
    "Lasthop",
    "OVS",
    "bridge",
    "OVS-DPDK",
    "CPU of the driver, %",
    "CPU of all Lasthop, %",
    "CPU of OVS, %",
    "samples",
];
const REQUESTS_HEAD: [&str; 11] = [
    "traffic",
    "switch",
    "path",
    "cores",
    "transactions/s",
    "half of the samples",
    "p50, us",
    "p99, us",
    "wake-ups",
    "CPU of the switch, %",
    "samples",
];
const BOUNDARY_HEAD: [&str; 8] = [
    "traffic",
    "path",
    "cores",
    "own process / switch",
    "half of the pairs",
    "own processes",
    "in the switch",
    "pairs",
];
/// Ours, and the ways of the peers that are beside it.
const ROWS: [(Way, Way, Option<Way>); 7] = [
    (Way::LasthopTap, Way::OvsTap, Some(Way::BridgeVeth)),
    (Way::BeforeTap, Way::OvsTap, Some(Way::BridgeVeth)),
    (Way::OneThread, Way::OvsTap, Some(Way::BridgeVeth)),
    (Way::LasthopVhostNet, Way::OvsTap, None),
    (Way::LasthopPacket, Way::OvsVeth, Some(Way::BridgeVeth)),
    (Way::BeforePacket, Way::OvsVeth, Some(Way::BridgeVeth)),
    (Way::LasthopXdp, Way::OvsVeth, Some(Way::BridgeVeth)),
];
/// Ways in the order of the table of requests.
const REQUEST_ROWS: [Way; 11] = [
    Way::LasthopTap,
    Way::BeforeTap,
    Way::OneThread,
    Way::LasthopVhostNet,
    Way::OvsTap,
    Way::LasthopPacket,
    Way::BeforePacket,
    Way::LasthopXdp,
    Way::OvsVeth,
    Way::OvsDpdk,
    Way::BridgeVeth,
];
/// Interfaces in processes of their own, and in the switch.
const BOUNDARY: [(Way, Way); 2] = [
    (Way::ProcessTap, Way::LasthopTap),
    (Way::ProcessPacket, Way::LasthopPacket),
];
const PLACEMENTS: [Placement; 2] = [Placement::Near, Placement::Far];

/// Samples of ways to interfaces of the host.
#[derive(Debug, Serialize)]
pub(super) struct Ways {
    pub(super) samples: Vec<Sample>,
    pub(super) missing: Vec<Missing>,
}

impl Figures for Ways {
    fn tables(&self) -> String {
        tables(&self.samples, &self.missing)
    }

    fn chart(&self, prefix: &str, placement: Placement) -> Drawn {
        chart(&self.samples, prefix, placement)
    }
}

/// The tables: medians of the samples of one placement.
fn tables(samples: &[Sample], missing: &[Missing]) -> String {
    let mut rows = Vec::new();
    for placement in PLACEMENTS {
        for load in loads(samples).filter(|load| !load.is_requests()) {
            let here = at(samples, placement, load);
            rows.extend(ROWS.iter().filter_map(|ways| row(&here, placement, *ways)));
        }
    }
    for (way, reason) in missing {
        let mut cells = vec!["all".to_owned(), way.path().to_owned(), reason.clone()];
        cells.resize(HEAD.len(), "-".to_owned());
        rows.extend(ROWS.iter().any(|(ours, ..)| ours == way).then_some(cells));
    }
    let table = |head: &[&str], rows: &[Vec<String>]| {
        let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
        markdown(&head, rows)
    };
    let flipped = samples.iter().filter(|sample| sample.placement.is_none());
    let (flipped, all) = (flipped.count(), samples.len());
    format!(
        "{}\n**Requests**\n\n{}\n**The process of a driver**\n\n{}\nOf {all} samples, \
         {flipped} were dropped because the placement flipped or another process was on a core.\n",
        table(&HEAD, &rows),
        table(&REQUESTS_HEAD, &requests(samples)),
        boundary_text(samples, table),
    )
}

fn loads(samples: &[Sample]) -> impl Iterator<Item = Load> {
    let mut loads: Vec<Load> = Vec::new();
    for sample in samples {
        if !loads.contains(&sample.load) {
            loads.push(sample.load);
        }
    }
    loads.into_iter()
}

/// The samples of this traffic with the cores at this placement.
fn at(samples: &[Sample], placement: Placement, load: Load) -> Vec<&Sample> {
    let here = |sample: &&Sample| sample.load == load && sample.placement == Some(placement);
    samples.iter().filter(here).collect()
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

/// The placement, and the median of the round trips around these samples.
fn cores(samples: &[&Sample], placement: Placement, way: Way) -> String {
    let trips: Vec<f64> = of(samples, way)
        .flat_map(|sample| sample.trips_ns)
        .collect();
    let ns = median(&trips).unwrap_or_default();
    format!("{}, {ns:.0} ns", placement.name())
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
    let first = of(samples, ours).next()?;
    let rate = |way| rate(samples, way);
    let bridged = bridge.and_then(rate);
    let polled = bridge.and_then(|_| rate(Way::OvsDpdk));
    let mut ways = vec![ours, ovs];
    ways.extend(bridge);
    ways.extend(polled.map(|_| Way::OvsDpdk));
    Some(vec![
        first.load.name().to_owned(),
        ours.path().to_owned(),
        cores(samples, placement, ours),
        shown(ratio(rate(ours), rate(ovs)), "x"),
        shown(ratio(rate(ours), bridged), "x"),
        shown(rate(ours), ""),
        shown(rate(ovs), ""),
        shown(bridged, ""),
        shown(polled, ""),
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
    ])
}

/// The traffic and its unit.
fn parts(load: Load) -> (&'static str, &'static str) {
    let name = load.name();
    name.split_once(", ").unwrap_or((name, ""))
}

/// All traffic whose name begins so and that has one unit: Lasthop with packet sockets, and the
/// peers beside it.
fn chart(samples: &[Sample], prefix: &str, placement: Placement) -> Drawn {
    let mut all: Vec<Load> = loads(samples)
        .filter(|load| load.name().starts_with(prefix))
        .collect();
    let unit = all.first().map_or("", |load| parts(*load).1);
    all.retain(|load| parts(*load).1 == unit);
    let numbered = || (1_u32..).zip(&all);
    let names = numbered().map(|(number, load)| format!("{number}: {}", parts(*load).0));
    let curve = |way: Way| {
        let points = numbered().filter_map(|(number, load)| {
            let here = at(samples, placement, *load);
            let values: Vec<f64> = of(&here, way).map(|sample| sample.value).collect();
            Point::of(number.into(), &values)
        });
        let name = match way {
            Way::OvsDpdk => Kind::Ovs.name(),
            Way::BridgeVeth => Kind::Bridge.name(),
            _ => way.switch(),
        };
        (name.to_owned(), points.collect::<Vec<_>>())
    };
    let curves = Way::OF_FIGURES.into_iter().map(curve);
    (
        [names.collect::<Vec<_>>().join(", "), unit.to_owned()],
        curves.filter(|(_, points)| !points.is_empty()).collect(),
    )
}

/// The first and the last quartile.
fn half(values: &[f64], digits: usize) -> String {
    let quartile = |share| percentile(values, share).unwrap_or_default();
    format!("{:.digits$} to {:.digits$}", quartile(0.25), quartile(0.75))
}

/// A row for each switch and way.
fn requests(samples: &[Sample]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for placement in PLACEMENTS {
        for load in loads(samples).filter(|load| load.is_requests()) {
            let here = at(samples, placement, load);
            let ways = REQUEST_ROWS.iter();
            rows.extend(ways.filter_map(|way| request_row(&here, placement, *way)));
        }
    }
    rows
}

fn request_row(samples: &[&Sample], placement: Placement, way: Way) -> Option<Vec<String>> {
    let values: Vec<f64> = of(samples, way).map(|sample| sample.value).collect();
    let tenths = |value: fn(&Sample) -> Option<f64>| {
        middle(samples, way, value).map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
    };
    Some(vec![
        samples.first()?.load.name().replace(", transactions/s", ""),
        way.switch().to_owned(),
        way.path().to_owned(),
        cores(samples, placement, way),
        format!("{:.0}", median(&values)?),
        half(&values, 0),
        tenths(|sample| Some(sample.latency_us?[0])),
        tenths(|sample| Some(sample.latency_us?[1])),
        tenths(|sample| sample.wake_ups),
        shown(
            middle(samples, way, |sample| Some(sample.switch_percent)),
            "",
        ),
        values.len().to_string(),
    ])
}

fn boundary_text(samples: &[Sample], table: impl Fn(&[&str], &[Vec<String>]) -> String) -> String {
    let (rows, ratios) = boundary(samples);
    let all = median(&ratios).map_or_else(String::new, |middle| {
        let count = ratios.len();
        format!(
            "\nOf all {count} pairs with near cores the median is {middle:.2}x, half of them are \
             from {}x.\n",
            half(&ratios, 2).replace(" to ", "x to ")
        )
    });
    table(&BOUNDARY_HEAD, &rows) + &all
}

/// A row for each traffic and path, of pairs of samples of the same round; and all the ratios with
/// near cores.
fn boundary(samples: &[Sample]) -> (Vec<Vec<String>>, Vec<f64>) {
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for placement in PLACEMENTS {
        for load in loads(samples) {
            let here = at(samples, placement, load);
            for (own, in_switch) in BOUNDARY {
                let pairs = pairs(&here, own, in_switch);
                let ratios: Vec<f64> = pairs.iter().map(|[own, thread]| own / thread).collect();
                let Some(middle) = median(&ratios) else {
                    continue;
                };
                let column = |index: usize| {
                    let values: Vec<f64> = pairs.iter().map(|pair| pair[index]).collect();
                    let middle = median(&values).unwrap_or_default();
                    format!("{middle:.2} ({})", half(&values, 2))
                };
                rows.push(vec![
                    load.name().to_owned(),
                    own.path().to_owned(),
                    cores(&here, placement, own),
                    format!("{middle:.2}x"),
                    half(&ratios, 2),
                    column(0),
                    column(1),
                    ratios.len().to_string(),
                ]);
                if placement == Placement::Near {
                    all.extend(ratios);
                }
            }
        }
    }
    (rows, all)
}

/// The values of two ways in the rounds in which both were measured.
fn pairs(samples: &[&Sample], own: Way, in_switch: Way) -> Vec<[f64; 2]> {
    let beside = |sample: &Sample| {
        let thread = of(samples, in_switch).find(|other| other.round == sample.round)?;
        (thread.value > 0.0).then_some([sample.value, thread.value])
    };
    of(samples, own).filter_map(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(way: Way, load: Load, round: u32, value: f64) -> Sample {
        Sample {
            way,
            load,
            round,
            value,
            latency_us: load.is_requests().then_some([20.0, 45.5]),
            wake_ups: load.is_requests().then_some(8.04),
            switch_percent: 50.0,
            driver_percent: Some(25.0),
            trips_ns: [50.0, 60.0],
            placement: Some(Placement::Near),
        }
    }

    #[test]
    fn a_way_that_is_missing_has_a_row_with_the_reason() {
        let samples = [sample(Way::LasthopTap, Load::TcpOut, 1, 10.0)];
        let reason = "not here: no /dev/vhost-net".to_owned();
        let text = tables(&samples, &[(Way::LasthopVhostNet, reason)]);
        let row = "| all | TAP to TAP, vhost-net | not here: no /dev/vhost-net | - |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn requests_have_a_row_for_each_switch() {
        let mut samples = Vec::new();
        for (round, value) in (1..).zip([900.0, 1000.0, 1200.0]) {
            samples.push(sample(Way::LasthopTap, Load::UdpRequests, round, value));
        }
        samples.push(sample(Way::BridgeVeth, Load::UdpRequests, 1, 2000.0));
        let rows = requests(&samples);
        let ours = &rows[0].join("|");
        let desired =
            "UDP requests|Lasthop|TAP to TAP|near, 55 ns|1000|900 to 1200|20.0|45.5|8.0|50.00|3";
        assert_eq!(ours, desired);
        assert_eq!(rows[1][1], "bridge");
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn the_boundary_compares_samples_of_the_same_round() {
        let mut samples = Vec::new();
        for (round, [own, thread]) in (1..).zip([[9.0, 10.0], [12.0, 10.0], [8.0, 8.0]]) {
            samples.push(sample(Way::ProcessTap, Load::TcpOut, round, own));
            samples.push(sample(Way::LasthopTap, Load::TcpOut, round, thread));
        }
        // Without a partner.
        samples.push(sample(Way::ProcessTap, Load::TcpOut, 4, 100.0));
        let (rows, ratios) = boundary(&samples);
        assert_eq!(ratios, [0.9, 1.2, 1.0]);
        assert_eq!(rows[0][3..5], ["1.00x", "0.90 to 1.20"]);
        assert_eq!(rows[0][7], "3");
    }
}
