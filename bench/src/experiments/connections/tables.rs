//! Frames of connections and connections a second: with tracking beside without, Lasthop beside
//! Open vSwitch, and what is asked of both.

use anyhow::Result;
use e2e::table::table as markdown;
use serde::Serialize;

use super::{KINDS, SERIES};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::report::twofold::{PLACEMENTS, Twofold};
use crate::report::{Drawn, Figures, Plots, cores, rates, save_rates};
use crate::sample::Sample;
use crate::statistics::ratio;

pub(super) const UNANSWERED: &str = "UDP, not answered";
pub(super) const ANSWERED: &str = "UDP, answered";
pub(super) const WHOLE: &str = "TCP, 7 frames";
const AXIS: &str = "connections";

const FRAMES: Twofold = Twofold {
    of: "connections",
    kinds: KINDS,
    series: SERIES,
    way: SERIES[1],
    figure: |sample| sample.mpps,
    unit: "Mpps",
};
/// The kernel in the place of Open vSwitch.
const ROUTED: Twofold = Twofold {
    kinds: [Kind::Lasthop, Kind::Router],
    ..FRAMES
};
/// A cell's position is the number of frames of a connection.
const A_SECOND: Twofold = Twofold {
    of: "new connections",
    figure: |sample| 1e3 * sample.mpps / sample.cell.x,
    unit: "thousand/s",
    ..FRAMES
};

/// The name of the row with this number of connections.
pub(super) fn tcp(count: u32) -> String {
    format!("TCP, {count}")
}

/// A goal of a row.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// With tracking, of the figure without.
    Price(f64),
    /// With tracking, of Open vSwitch's.
    Beside(f64),
    /// With tracking, the figure itself.
    Figure(f64),
}

/// Samples of established connections.
#[derive(Debug, Serialize)]
pub(super) struct Connections {
    pub(super) samples: Vec<Sample>,
}

impl Connections {
    fn of(&self, peer: impl Fn(&str) -> bool) -> Vec<Sample> {
        let samples = self.samples.iter();
        samples
            .filter(|sample| peer(&sample.peer))
            .cloned()
            .collect()
    }
}

impl Figures for Connections {
    fn tables(&self) -> String {
        let asked = [
            (tcp(1), Asked::Price(0.75)),
            (tcp(1024), Asked::Price(0.5)),
            (tcp(1), Asked::Beside(3.0)),
            (tcp(1024), Asked::Beside(3.0)),
            (tcp(100_000), Asked::Beside(3.0)),
            (tcp(1_000_000), Asked::Beside(2.0)),
        ];
        let kernel: Vec<Sample> = self.of(|kind| kind == Kind::Router.name());
        let switches = self.of(|kind| kind != Kind::Router.name());
        let mut text = FRAMES.table(&switches) + &goals(FRAMES, &switches, &asked);
        if !kernel.is_empty() {
            text += &format!("\n{}", ROUTED.table(&self.samples));
        }
        text
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_rates(plots, AXIS, &self.samples)
    }

    fn chart(&self, _prefix: &str, placement: Placement) -> Drawn {
        rates(AXIS, &self.samples, placement)
    }
}

/// Samples of new connections.
#[derive(Debug, Serialize)]
pub(super) struct Connects {
    pub(super) samples: Vec<Sample>,
}

impl Figures for Connects {
    fn tables(&self) -> String {
        let asked = [
            (UNANSWERED.to_owned(), Asked::Figure(1000.0)),
            (WHOLE.to_owned(), Asked::Figure(300.0)),
            (UNANSWERED.to_owned(), Asked::Beside(2.0)),
            (WHOLE.to_owned(), Asked::Beside(2.0)),
        ];
        A_SECOND.table(&self.samples) + &goals(A_SECOND, &self.samples, &asked)
    }
}

/// Goals of Lasthop beside the figures.
fn goals(of: Twofold, samples: &[Sample], asked: &[(String, Asked)]) -> String {
    let head = [of.of, "cores", "asked of Lasthop", "measured", ""].map(str::to_owned);
    let mut rows = Vec::new();
    for (name, asked) in asked {
        for placement in PLACEMENTS {
            let ([ours, theirs], behind) = of.medians(samples, name, placement);
            let (least, unit, text, seen) = match *asked {
                Asked::Price(least) => {
                    let price = ratio(ours[1], ours[0]);
                    (least, "x", "with tracking / without", price)
                }
                Asked::Beside(least) => {
                    let beside = ratio(ours[1], theirs[1]);
                    (least, "x", "with tracking, beside OVS-DPDK", beside)
                }
                Asked::Figure(least) => (least, of.unit, "with tracking", ours[1]),
            };
            let Some(seen) = seen else {
                continue;
            };
            rows.push(vec![
                name.clone(),
                cores(placement, behind.iter().flatten().flatten().copied()),
                format!("{text}: {} or more", with_unit(least, unit)),
                with_unit(seen, unit),
                if seen >= least { "holds" } else { "does not" }.to_owned(),
            ]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", markdown(&head, &rows))
}

fn with_unit(value: f64, unit: &str) -> String {
    if unit == "x" {
        format!("{value:.2}x")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::sample::Verdict;

    fn with(name: &str, x: f64, (series, kind): (&str, Kind), mpps: f64) -> Sample {
        let mut one = sample(kind, mpps, Some(Placement::Near), Verdict::Kept);
        (one.cell.name, one.cell.series, one.cell.x) = (name.to_owned(), series.to_owned(), x);
        one
    }

    #[test]
    fn prices_and_peers_are_beside_what_is_asked() {
        let [plain, tracking] = SERIES;
        let name = tcp(1024);
        let samples = vec![
            with(&name, 1024.0, (plain, Kind::Lasthop), 10.0),
            with(&name, 1024.0, (tracking, Kind::Lasthop), 6.0),
            with(&name, 1024.0, (plain, Kind::Ovs), 4.0),
            with(&name, 1024.0, (tracking, Kind::Ovs), 3.0),
        ];
        let text = Connections { samples }.tables();
        let row = text.lines().nth(2).expect("a row");
        assert!(
            row.ends_with("| 0.600x | 0.750x | 2.00x | 10.00 | 6.00 | 4.00 | 3.00 | 1 1 1 1 |"),
            "{row}"
        );
        for line in [
            "with tracking / without: 0.50x or more | 0.60x | holds |",
            "with tracking, beside OVS-DPDK: 3.00x or more | 2.00x | does not |",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn frames_of_whole_connections_are_counted_as_one() {
        let ours = (SERIES[1], Kind::Lasthop);
        let samples = vec![with(WHOLE, 7.0, ours, 2.8)];
        let text = Connects { samples }.tables();
        assert!(text.contains("| 400.00 |"), "{text}");
        assert!(
            text.contains("300 thousand/s or more | 400 thousand/s | holds |"),
            "{text}"
        );
        assert!(!text.contains("beside OVS-DPDK: "), "{text}");
    }
}
