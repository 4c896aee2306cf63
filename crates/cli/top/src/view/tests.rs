//! Screens of many sizes.

use std::time::Duration;

use api::v1::{
    AccessCounts, AdminState, Direction, FlowEntry, FlowsDocument, ListCounts, PortState,
    PortStats, RuleCounts, StatsDocument, Traffic, Work,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::screen::Sample;

fn port(name: &str, state: PortState, factor: u64) -> PortStats {
    PortStats {
        neighbour_replies: 0,
        name: name.to_owned(),
        state,
        admin_state: AdminState::Up,
        from_guest: Traffic {
            packets: 1000 * factor,
            bytes: 64_000 * factor,
        },
        to_guest: Traffic {
            packets: 10 * factor,
            bytes: 15_000 * factor,
        },
        drops: [("receiver-full".to_owned(), 3 * factor)].into(),
        work: Work {
            cpu_us: 1_000 * factor,
            ..Work::default()
        },
    }
}

fn sample(ports: Vec<PortStats>) -> Sample {
    Sample {
        stats: StatsDocument {
            ports,
            ..StatsDocument::default()
        },
        ..Sample::default()
    }
}

/// Returns the lines of a screen of this size, without trailing blanks.
fn lines_of(screen: &Screen, view: View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| _ = draw(frame, screen, view))
        .unwrap();
    let buffer = terminal.backend().buffer().clone();
    let rows = buffer.content.chunks(usize::from(width));
    let text = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    text.map(|line| line.trim_end().to_owned()).collect()
}

fn lines(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    lines_of(screen, View::default(), width, height)
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn first_words<'a>(lines: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let lines = lines.into_iter();
    lines.map(|line| line.split(' ').next().unwrap()).collect()
}

#[test]
fn the_busiest_come_first_in_80_columns() {
    let quiet = port("quiet-port-01", PortState::Connected, 0);
    let last = sample(vec![
        quiet.clone(),
        port("vm1", PortState::Up, 1),
        port("vm2", PortState::Up, 1),
    ]);
    let mut new = port("new", PortState::Waiting, 500);
    new.drops.clear();
    // Floods to a guest that is off are no loss.
    let mut quiet_later = quiet.clone();
    quiet_later
        .drops
        .insert("receiver-down".to_owned(), 1_000_000);
    let now = sample(vec![
        quiet_later,
        port("vm1", PortState::Up, 2),
        port("vm2", PortState::Faulted, 9001),
        new,
    ]);
    let screen = Screen::between(&last, &now, Duration::from_secs(2));
    let shown = lines(&screen, 80, 24);
    let expected = [
        "4 ports: 4.5 M/s from guests, 45.0 k/s to guests, 13.5 k/s dropped, CPU 450%",
        "PORT STATE FROM/S TO/S DROP/S CPU",
        "vm2 faulted 4.5 M 2.3 Gbit/s 45.0 k 540.0 Mbit/s 13.5 k 450%",
    ];
    let actual: Vec<_> = shown[..3].iter().map(|line| words(line)).collect();
    assert_eq!(actual, expected);
    let longest = shown[..3].iter().map(|line| line.chars().count()).max();
    assert_eq!(longest, Some(80));
    let names = first_words(&shown[2..6]);
    assert_eq!(names, ["vm2", "vm1", "quiet-port-0", "new"]);
    assert_eq!(shown[20], "most drops");
    assert_eq!(shown[21], " 13.5 k/s  vm2 receiver-full");
    assert_eq!(shown[23], "q quits, ? helps");
}

fn flow(from: &str, to: Option<&str>, packets: u64) -> FlowEntry {
    FlowEntry {
        matches: format!("from {from}, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02, ipv4"),
        action: "flooded in lan".to_owned(),
        from: Some(from.to_owned()),
        to: to.map(str::to_owned),
        packets_per_1000_s: packets,
        ..FlowEntry::default()
    }
}

fn rules(packets: [u64; 2]) -> AccessCounts {
    let rule = |(name, packets): (&str, u64)| RuleCounts {
        name: name.to_owned(),
        packets,
        ..RuleCounts::default()
    };
    AccessCounts {
        lists: vec![ListCounts {
            name: "web-in".to_owned(),
            direction: Direction::ToGuest,
            segments: Vec::new(),
            groups: Vec::new(),
            ports: Vec::new(),
            rules: ["http", "rest"]
                .into_iter()
                .zip(packets)
                .map(rule)
                .collect(),
        }],
    }
}

#[test]
fn the_busiest_flows_and_rules_are_one_line_each() {
    let last = Sample {
        rules: rules([5, 7]),
        ..Sample::default()
    };
    let now = Sample {
        flows: FlowsDocument {
            flows: vec![
                flow("vm1", Some("vm2"), 12_300_000),
                flow("vm2", None, 500),
                flow("vm3", None, 0),
            ],
        },
        rules: rules([25, 7]),
        ..Sample::default()
    };
    let screen = Screen::between(&last, &now, Duration::from_secs(2));
    let shown = lines(&screen, 80, 24);
    let ends = "52:54:00:00:00:01 > 52:54:00:00:00:02, ipv4";
    assert_eq!(shown[18], "busiest flows");
    assert_eq!(shown[19], format!(" 12.3 k/s  vm1 > vm2  {ends}"));
    assert_eq!(
        words(&shown[20]),
        format!("0 /s vm2 > flooded in lan {ends}")
    );
    assert_eq!(shown[21], "busiest rules");
    assert_eq!(words(&shown[22]), "10 /s web-in http");
    let idle = lines(&Screen::default(), 80, 24);
    assert!(idle[2..23].iter().all(String::is_empty), "{idle:?}");
}

#[test]
fn senders_at_scheduled_ports_are_shown_with_their_rates() {
    let sample = |bits, held_us| Sample {
        egress: serde_json::from_value(serde_json::json!({"ports": [{
            "port": "up",
            "output": {"rate": null, "link": null, "overhead": 24, "full": "hold", "promised": 0,
                "scaled": false},
            "shares": [{"sender": "vm1", "class": "storage", "priority": 6, "min": 0, "weight": 1,
                "bits": bits, "held_us": held_us, "dropped_frames": 0, "waiting_bits": 0}],
        }]}))
        .unwrap(),
        ..Sample::default()
    };
    let (last, now) = (sample(1_000_000, 0), sample(3_000_000, 500_000));
    let screen = Screen::between(&last, &now, Duration::from_secs(2));
    let shown = lines(&screen, 80, 24);
    assert_eq!(shown[21], "scheduled ports");
    assert_eq!(words(&shown[22]), "1.0 Mbit/s up < vm1, storage, held 25%");
}

/// Returns a screen of twenty ports with drops, and twenty flows.
fn busy() -> Screen {
    let ports = |factor: u64| {
        let port = |n: u64| port(&format!("vm{n:02}"), PortState::Up, factor * n);
        (0..20).map(port).collect::<Vec<_>>()
    };
    let mut now = sample(ports(2));
    let flows = (1..=20).map(|n| flow(&format!("vm{n}"), Some("up"), n * 1000));
    now.flows.flows = flows.collect();
    Screen::between(&sample(ports(1)), &now, Duration::from_secs(1))
}

#[test]
fn a_small_screen_has_ports_first_and_no_empty_lines() {
    let last = sample(
        (1..=4)
            .map(|n| port(&format!("vm{n}"), PortState::Up, n))
            .collect(),
    );
    let screen = Screen::between(&last, &last, Duration::from_secs(1));
    let shown = lines(&screen, 60, 15);
    assert_eq!(first_words(&shown[2..6]), ["vm1", "vm2", "vm3", "vm4"]);
    assert_eq!(shown[0], "4 ports: 0 /s in, 0 /s out, 0 /s dropped, 0%");
    let shown = lines(&busy(), 60, 15);
    assert!(shown.iter().all(|line| !line.is_empty()), "{shown:?}");
    assert_eq!(
        shown[0],
        "20 ports: 190.0 k/s in, 1.9 k/s out, 570 /s dropped, 19%"
    );
    assert_eq!(first_words(&shown[2..4]), ["vm19", "vm18"]);
    assert_eq!((&*shown[10], &*shown[12]), ("most drops", "busiest flows"));
    assert_eq!(shown[14], "q quits, ? helps, ports 1 to 8 of 20");
}

#[test]
fn ports_are_scrolled_and_sorted() {
    let screen = busy();
    let view = |offset, sort| View {
        offset,
        sort,
        help: false,
    };
    let shown = lines_of(&screen, view(3, Sort::Name), 80, 15);
    assert_eq!(first_words(&shown[2..4]), ["vm03", "vm04"]);
    assert_eq!(shown[14], "q quits, ? helps, ports 4 to 11 of 20, by name");
    // Scrolling stops at the last port.
    let shown = lines_of(&screen, view(1000, Sort::Name), 80, 15);
    assert_eq!(first_words(&shown[9..10]), ["vm19"]);
    let drops = lines_of(&screen, view(0, Sort::Drops), 80, 15);
    assert_eq!(first_words(&drops[2..4]), ["vm19", "vm18"]);
    let mut sort = Sort::default();
    for word in ["drops", "CPU", "name", "traffic"] {
        sort = sort.next();
        assert_eq!(sort.word(), word);
    }
}

#[test]
fn keys_are_explained() {
    let help = View {
        help: true,
        ..View::default()
    };
    let shown = lines_of(&busy(), help, 80, 24);
    assert_eq!(shown[1..6], HELP.map(str::to_owned));
    assert!(HELP.iter().all(|line| line.len() <= 60));
}

#[test]
fn no_number_is_cut_on_narrow_screens_and_no_name_on_wide_ones() {
    let name = "tenant-4711-web-frontend-0001";
    let last = sample(vec![port(name, PortState::Up, 0)]);
    let now = sample(vec![port(name, PortState::Up, 9001)]);
    let screen = Screen::between(&last, &now, Duration::from_secs(1));
    let shown = |width| {
        let lines = lines(&screen, width, 24);
        (words(&lines[1]), words(&lines[2]))
    };
    let of = |head: &str, line: &str| (head.to_owned(), line.to_owned());
    let all = "9.0 M 4.6 Gbit/s 90.0 k 1.1 Gbit/s 27.0 k 900%";
    let heads = "PORT STATE FROM/S TO/S DROP/S CPU";
    assert_eq!(shown(200), of(heads, &format!("{name} up {all}")));
    assert_eq!(shown(97), of(heads, &format!("{name} up {all}")));
    assert_eq!(shown(80), of(heads, &format!("tenant-4711- up {all}")));
    let heads = "PORT FROM/S TO/S DROP/S CPU";
    assert_eq!(
        shown(79),
        of(heads, &format!("tenant-4711-web-front {all}"))
    );
    let rest = "9.0 M 90.0 k 27.0 k";
    assert_eq!(
        shown(69),
        of(heads, &format!("tenant-4711-web-frontend-0001 {rest} 900%"))
    );
    let heads = "PORT FROM/S TO/S DROP/S";
    assert_eq!(shown(40), of(heads, &format!("tenant-4711-we {rest}")));
    assert_eq!(shown(21), of("PORT FROM/S", "tenant-4711- 9.0 M"));
    let heads = [80, 60, 40, 20, 6].map(|width| lines(&screen, width, 24)[0].clone());
    let expected = [
        "1 port: 9.0 M/s from guests, 90.0 k/s to guests, 27.0 k/s dropped, CPU 900%",
        "1 port: 9.0 M/s in, 90.0 k/s out, 27.0 k/s dropped, 900%",
        "9.0 M/s in, 90.0 k/s out",
        "1 port",
        "1 port",
    ];
    assert_eq!(heads, expected);
}

#[test]
fn small_and_empty_screens_cause_no_panic() {
    let mut screen = Screen::default();
    screen.error = Some("control does not respond".to_owned());
    assert_eq!(lines(&screen, 80, 24)[23], "control does not respond");
    for (width, height) in [(1, 1), (5, 2), (5, 3), (7, 4), (300, 100)] {
        for screen in [&screen, &busy()] {
            for help in [false, true] {
                let view = View {
                    help,
                    offset: 7,
                    sort: Sort::Cpu,
                };
                lines_of(screen, view, width, height);
            }
        }
    }
}
