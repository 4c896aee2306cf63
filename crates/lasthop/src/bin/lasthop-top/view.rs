//! What is on the screen.

use std::cmp::Reverse;
use std::time::Duration;

use api::v1::{FlowEntry, FlowsDocument, PortStats, StatsDocument, Traffic};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use crate::units::{rate, several};

/// Lines for the worst drops.
const WORST: u16 = 5;
/// Lines for the busiest flows.
pub(crate) const FLOWS: u16 = 5;
/// Columns of the table: together with the blanks between them 80.
const WIDTHS: [u16; 8] = [12, 9, 8, 12, 8, 12, 7, 5];
/// Columns that are left off where there is no room for all, those that are missed least first.
const LEFT_OFF: [&[usize]; 5] = [&[1], &[3, 5], &[7], &[6], &[4]];

/// One port, in a second.
#[derive(Clone, Debug)]
struct Port {
    name: String,
    state: &'static str,
    /// Frames and bits.
    from_guest: (f64, f64),
    to_guest: (f64, f64),
    drops: f64,
    /// Of a core, in percent.
    cpu: f64,
}

/// A reason for drops at a port, and how many a second.
#[derive(Clone, Debug)]
struct Drops {
    port: String,
    reason: String,
    rate: f64,
}

/// A flow, in words.
#[derive(Clone, Debug)]
struct Flow {
    frames: String,
    rate: f64,
}

impl Flow {
    /// Who sends what to whom; what is the same for most is left out.
    fn new(flow: &FlowEntry) -> Self {
        let from = flow.from.as_deref().unwrap_or("any");
        let to = flow.to.as_deref().unwrap_or(&flow.action);
        let what = flow
            .matches
            .split(", ")
            .skip(usize::from(flow.from.is_some()));
        let what: Vec<&str> = what.filter(|word| *word != "untagged").collect();
        Self {
            frames: format!("{from} > {to}  {}", what.join(", ")),
            rate: flow.rate(),
        }
    }
}

/// What there is to show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    /// The busiest first.
    ports: Vec<Port>,
    /// The worst first.
    drops: Vec<Drops>,
    /// The busiest first.
    flows: Vec<Flow>,
    /// Why it is not up to date.
    pub(crate) trouble: Option<String>,
}

impl Screen {
    /// What happened between two looks.
    pub(crate) fn between(last: &StatsDocument, now: &StatsDocument, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let (mut ports, mut drops) = (Vec::new(), Vec::new());
        for port in &now.ports {
            // A new one starts with what it has.
            let was = last.ports.iter().find(|was| was.name == port.name);
            let was = was.unwrap_or(port);
            drops.extend(drops_of(was, port, seconds));
            ports.push(Port {
                name: port.name.clone(),
                state: port.state.as_str(),
                from_guest: traffic(was.from_guest, port.from_guest, seconds),
                to_guest: traffic(was.to_guest, port.to_guest, seconds),
                drops: less(was.drops.values().sum(), port.drops.values().sum()) / seconds,
                cpu: less(was.work.cpu_us, port.work.cpu_us) / 1e4 / seconds,
            });
        }
        let frames = |port: &Port| (port.from_guest.0 + port.to_guest.0 + port.drops) as u64;
        ports.sort_by_key(|port| Reverse(frames(port)));
        drops.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        Self {
            ports,
            drops,
            flows: Vec::new(),
            trouble: None,
        }
    }

    /// The busiest flows of the same time.
    pub(crate) fn add_flows(&mut self, document: &FlowsDocument) {
        let busy = document.flows.iter().filter(|flow| flow.rate() > 0.0);
        self.flows = busy.map(Flow::new).collect();
    }

    fn head(&self) -> Line<'static> {
        let sum = |value: fn(&Port) -> f64| self.ports.iter().map(value).sum::<f64>();
        let text = format!(
            "{}: {} from guests, {} to guests, {} dropped, CPU {:.0}%",
            several(self.ports.len() as u64, "port"),
            rate(sum(|port| port.from_guest.0), ""),
            rate(sum(|port| port.to_guest.0), ""),
            rate(sum(|port| port.drops), ""),
            sum(|port| port.cpu),
        );
        Line::from(text).bold()
    }
}

/// By how much a counter has grown. One that starts anew has not.
fn less(was: u64, is: u64) -> f64 {
    is.saturating_sub(was) as f64
}

fn traffic(was: Traffic, is: Traffic, seconds: f64) -> (f64, f64) {
    let frames = less(was.packets, is.packets) / seconds;
    (frames, less(was.bytes, is.bytes) * 8.0 / seconds)
}

fn drops_of(was: &PortStats, is: &PortStats, seconds: f64) -> Vec<Drops> {
    let grown = is.drops.iter().map(|(reason, count)| Drops {
        port: is.name.clone(),
        reason: reason.clone(),
        rate: less(was.drops.get(reason).copied().unwrap_or(0), *count) / seconds,
    });
    grown.filter(|drops| drops.rate > 0.0).collect()
}

/// Draws it.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let parts = [
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(FLOWS + 1),
        Constraint::Length(WORST + 1),
        Constraint::Length(1),
    ];
    let [head, table, busiest, worst, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(screen.head(), head);
    frame.render_widget(ports(screen, table.width), table);
    frame.render_widget(flows(screen), busiest);
    frame.render_widget(drops(screen), worst);
    let foot_line = match &screen.trouble {
        Some(trouble) => Line::from(trouble.clone()).fg(Color::Red),
        None => Line::from("q quits").dim(),
    };
    frame.render_widget(foot_line, foot);
}

/// The columns that there is room for, and how wide each is: a number of which the front is cut off would be another one.
fn columns(width: u16, longest_name: u16) -> Vec<(usize, u16)> {
    let needed = |columns: &[usize]| columns.iter().map(|at| WIDTHS[*at] + 1).sum::<u16>() - 1;
    let mut columns: Vec<usize> = (0..WIDTHS.len()).collect();
    for least in LEFT_OFF {
        if needed(&columns) > width {
            columns.retain(|at| !least.contains(at));
        }
    }
    let spare = width.saturating_sub(needed(&columns));
    let name = WIDTHS[0] + spare.min(longest_name.saturating_sub(WIDTHS[0]));
    let widths = columns.into_iter().map(|at| (at, WIDTHS[at]));
    widths
        .map(|(at, width)| (at, if at == 0 { name } else { width }))
        .collect()
}

fn ports(screen: &Screen, width: u16) -> Table<'static> {
    let headings = ["PORT", "STATE", "FROM/S", "", "TO/S", "", "DROP/S", "CPU"];
    let names = screen.ports.iter().map(|port| port.name.chars().count());
    let longest = u16::try_from(names.max().unwrap_or_default()).unwrap_or(u16::MAX);
    let columns = columns(width, longest);
    let line = |cells: [String; 8]| {
        let cells = columns.iter().map(|(at, _)| {
            let side = if *at < 2 {
                Alignment::Left
            } else {
                Alignment::Right
            };
            Text::from(cells[*at].clone()).alignment(side)
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let row = |port: &Port| {
        let count = |value| rate(value, "").trim_end_matches("/s").to_owned();
        let style = match (port.drops > 0.0, port.state) {
            (_, "faulted") => Style::new().red(),
            (true, _) => Style::new().yellow(),
            _ => Style::new(),
        };
        line([
            port.name.clone(),
            port.state.to_owned(),
            count(port.from_guest.0),
            rate(port.from_guest.1, "bit"),
            count(port.to_guest.0),
            rate(port.to_guest.1, "bit"),
            count(port.drops),
            format!("{:.0}%", port.cpu),
        ])
        .style(style)
    };
    let head = line(headings.map(str::to_owned)).style(Style::new().dim());
    let widths = columns.iter().map(|(_, width)| *width);
    Table::new(screen.ports.iter().map(row), widths).header(head)
}

fn flows(screen: &Screen) -> Paragraph<'static> {
    let busiest = screen.flows.iter().take(usize::from(FLOWS));
    let busiest =
        busiest.map(|flow| Line::from(format!("{:>9}  {}", rate(flow.rate, ""), flow.frames)));
    let title = match screen.flows.is_empty() {
        true => "no busy flows",
        false => "busiest flows",
    };
    let title = [Line::from(title).dim()].into_iter();
    Paragraph::new(title.chain(busiest).collect::<Vec<_>>())
}

fn drops(screen: &Screen) -> Paragraph<'static> {
    let worst = screen.drops.iter().take(usize::from(WORST)).map(|drops| {
        let text = format!(
            "{:>9}  {} {}",
            rate(drops.rate, ""),
            drops.port,
            drops.reason
        );
        Line::from(text).fg(Color::Yellow)
    });
    let title = match screen.drops.is_empty() {
        true => "no drops",
        false => "worst drops",
    };
    let title = [Line::from(title).dim()].into_iter();
    Paragraph::new(title.chain(worst).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use api::v1::{PortState, Work};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn port(name: &str, state: PortState, factor: u64) -> PortStats {
        PortStats {
            name: name.to_owned(),
            state,
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

    fn document(ports: Vec<PortStats>) -> StatsDocument {
        StatsDocument {
            ports,
            ..StatsDocument::default()
        }
    }

    /// The lines of a screen of this size, without blanks at their ends.
    fn lines(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content.chunks(usize::from(width));
        let text = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        text.map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn the_busiest_come_first_in_80_columns() {
        let quiet = port("quiet-port-01", PortState::Connected, 0);
        let last = document(vec![
            quiet.clone(),
            port("vm1", PortState::Up, 1),
            port("vm2", PortState::Up, 1),
        ]);
        let mut new = port("new", PortState::Waiting, 500);
        new.drops.clear();
        let now = document(vec![
            quiet,
            port("vm1", PortState::Up, 2),
            port("vm2", PortState::Faulted, 9001),
            new,
        ]);
        let screen = Screen::between(&last, &now, Duration::from_secs(2));
        let shown = lines(&screen, 80, 24);
        let expected = "\
4 ports: 4.5 M/s from guests, 45.0 k/s to guests, 13.5 k/s dropped, CPU 450%
PORT         STATE       FROM/S                  TO/S               DROP/S   CPU
vm2          faulted      4.5 M 2.3 Gbit/s     45.0 k 540.0 Mbit/s  13.5 k  450%
";
        println!("{}", shown.join("\n"));
        let top = shown[..3].join("\n") + "\n";
        assert_eq!(
            top.split_whitespace().collect::<Vec<_>>(),
            expected.split_whitespace().collect::<Vec<_>>()
        );
        assert_eq!(
            shown[..3].iter().map(|line| line.chars().count()).max(),
            Some(80)
        );
        let names = shown[2..6]
            .iter()
            .map(|line| line.split(' ').next().unwrap());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["vm2", "vm1", "quiet-port-0", "new"]
        );
        assert_eq!(shown[17], "worst drops");
        assert_eq!(shown[18], " 13.5 k/s  vm2 receiver-full");
        assert_eq!(shown[23], "q quits");
    }

    #[test]
    fn the_busiest_flows_are_told_shortly() {
        let flow = |from: &str, to: Option<&str>, packets| FlowEntry {
            matches: format!("from {from}, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02, ipv4"),
            action: "flooded in lan".to_owned(),
            from: Some(from.to_owned()),
            to: to.map(str::to_owned),
            packets_per_1000_s: packets,
            ..FlowEntry::default()
        };
        let mut screen = Screen::default();
        let flows = vec![
            flow("vm1", Some("vm2"), 12_300_000),
            flow("vm2", None, 500),
            flow("vm3", None, 0),
        ];
        screen.add_flows(&FlowsDocument { flows });
        let shown = lines(&screen, 80, 24);
        let ends = "52:54:00:00:00:01 > 52:54:00:00:00:02, ipv4";
        assert_eq!(shown[11], "busiest flows");
        assert_eq!(shown[12], format!(" 12.3 k/s  vm1 > vm2  {ends}"));
        assert_eq!(
            shown[13].trim_start(),
            format!("0 /s  vm2 > flooded in lan  {ends}")
        );
        assert_eq!((shown[14].as_str(), shown[17].as_str()), ("", "no drops"));
        assert_eq!(lines(&Screen::default(), 80, 24)[11], "no busy flows");
    }

    #[test]
    fn no_number_is_cut_on_narrow_screens_and_no_name_on_wide_ones() {
        let name = "tenant-4711-web-frontend-0001";
        let last = document(vec![port(name, PortState::Up, 0)]);
        let now = document(vec![port(name, PortState::Up, 9001)]);
        let screen = Screen::between(&last, &now, Duration::from_secs(1));
        let shown = |width| {
            let lines = lines(&screen, width, 24);
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
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
    }

    #[test]
    fn small_and_empty_screens_are_no_trouble() {
        let mut screen = Screen::default();
        assert_eq!(lines(&screen, 80, 24)[17], "no drops");
        screen.trouble = Some("control does not answer".to_owned());
        assert_eq!(lines(&screen, 80, 24)[23], "control does not answer");
        for (width, height) in [(1, 1), (5, 3), (300, 100)] {
            lines(&screen, width, height);
        }
    }
}
