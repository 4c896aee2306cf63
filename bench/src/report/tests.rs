use super::*;
use crate::plot::Point;

pub(crate) fn sample(
    kind: Kind,
    mpps: f64,
    placement: Option<Placement>,
    verdict: Verdict,
) -> Sample {
    Sample {
        peer: kind.name().to_owned(),
        client: "testpmd".to_owned(),
        cell: Cell {
            name: "64 B split".to_owned(),
            series: "split".to_owned(),
            x: 64.0,
        },
        round: 1,
        mpps,
        switch_percent: 100.0,
        all_percent: 190.0,
        client_idle: None,
        before_ns: 55.0,
        after_ns: 55.0,
        placement,
        others_percent: 0.0,
        steal_percent: 0.0,
        verdict,
        latency: None,
        busy: None,
        exchange: None,
        misses: None,
        wake_ups: None,
        captured: None,
    }
}

fn samples() -> Vec<Sample> {
    let near = Some(Placement::Near);
    vec![
        sample(Kind::Lasthop, 15.0, near, Verdict::Kept),
        sample(Kind::Ovs, 10.0, near, Verdict::Kept),
        sample(Kind::Lasthop, 7.0, None, Verdict::Flipped),
        sample(Kind::Lasthop, 2.0, near, Verdict::Disturbed),
        sample(Kind::Lasthop, 15.5, near, Verdict::Kept),
        sample(Kind::Lasthop, 9.0, Some(Placement::Far), Verdict::Kept),
        sample(Kind::Lasthop, 14.0, near, Verdict::Kept),
    ]
}

#[test]
fn ratios_come_first_and_compare_one_placement() {
    let text = throughput_table(&samples());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[2],
        "| 64 B split | near, 55 ns | 1.50x | 15.00 | 10.00 | 3 1 |"
    );
    assert_eq!(lines[3], "| 64 B split | far, 55 ns | - | 9.00 | - | 1 0 |");
}

#[test]
fn dropped_samples_are_counted() {
    let text = throughput_table(&samples());
    assert!(
        text.contains("Of 7 samples, 1 were dropped because the placement flipped and 1 because")
    );
}

#[test]
fn curves_hold_kept_medians() {
    let found = curves(&samples(), Placement::Near);
    let expected = [
        (
            "Lasthop, split".to_owned(),
            Point::of(64.0, &[15.0, 15.5, 14.0]),
        ),
        ("OVS-DPDK, split".to_owned(), Point::of(64.0, &[10.0])),
    ];
    let expected = expected.map(|(name, point)| (name, Vec::from_iter(point)));
    assert_eq!(found, expected);
}

#[test]
fn settings_are_compared_with_the_first() {
    let near = Some(Placement::Near);
    let mut all = vec![
        sample(Kind::Lasthop, 10.0, near, Verdict::Kept),
        sample(Kind::Lasthop, 9.5, near, Verdict::Kept),
    ];
    all[0].cell.name = "0 idle ports".to_owned();
    all[1].cell.name = "256 idle ports".to_owned();
    let text = scaling_table(&all);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "| setting | cores | to 0 idle ports | Mpps | samples |"
    );
    assert_eq!(
        lines[2],
        "| 0 idle ports | near, 55 ns | 1.00x | 10.00 | 1 |"
    );
    assert_eq!(
        lines[3],
        "| 256 idle ports | near, 55 ns | 0.95x | 9.50 | 1 |"
    );
}

#[test]
fn figures_stand_beside_their_placement() {
    let rows = [Row {
        values: vec![16.0, 0.034],
        trips_ns: [50.0, 60.0],
        placement: Placement::Near,
    }];
    let text = plain_table(&["ports", "CPU, % of a core"], &rows);
    assert!(text.starts_with("| ports | cores | CPU, % of a core |\n"));
    assert!(text.ends_with("| 16 | near, 55 ns | 0.03 |\n"));
}
