//! Drawing: the ports get the space that they need, the lists below get the rest.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use crate::screen::{Event, Port, Screen, Sort};
use client::units::{plural, rate};

/// Maximum number of lines of each list below the ports.
pub(crate) const LINES: u16 = 5;
/// Widths of the table's columns: 80 characters with the blanks between them.
const WIDTHS: [u16; 8] = [12, 9, 8, 12, 8, 12, 7, 5];
/// Columns that are omitted on a narrow screen, the least important first.
const OMITTED: [&[usize]; 5] = [&[1], &[3, 5], &[7], &[6], &[4]];
/// The help on keys.
const HELP: [&str; 5] = [
    "q, Esc        quit",
    "s             sort by traffic, drops, CPU, name",
    "Up, Down      scroll through the ports; k, j too",
    "PgUp, PgDn    by pages; Home, End to the first and the last",
    "?             this help, and back",
];

/// The view that the user has selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) sort: Sort,
    /// Number of ports above the first visible one.
    pub(crate) offset: usize,
    pub(crate) help: bool,
}

/// A list below the ports.
struct List<'a> {
    events: &'a [Event],
    title: &'static str,
    /// Unit of the rates.
    unit: &'static str,
    style: Style,
}

fn lists(screen: &Screen) -> [List<'_>; 4] {
    let list = |events, title, style| List {
        events,
        title,
        unit: "",
        style,
    };
    let senders = list(&screen.senders, "scheduled ports", Style::new());
    [
        list(&screen.drops, "most drops", Style::new().yellow()),
        list(&screen.flows, "busiest flows", Style::new()),
        list(&screen.rules, "busiest rules", Style::new()),
        List {
            unit: "bit",
            ..senders
        },
    ]
}

/// Draws the screen; returns the number of ports for which there is space.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen, view: View) -> usize {
    let lists = lists(screen);
    let ports = screen.ports(view.sort);
    let area = frame.area();
    let heights = heights(&lists, ports.len(), area.height);
    let rows = [Constraint::Length(1), Constraint::Min(0)].into_iter();
    let rows = rows.chain(heights.map(Constraint::Length));
    let areas = Layout::vertical(rows.chain([Constraint::Length(1)])).split(area);
    let table = areas[1];
    let shown = usize::from(table.height.saturating_sub(1));
    let offset = view.offset.min(ports.len().saturating_sub(shown));
    frame.render_widget(head(screen, area.width), areas[0]);
    if view.help {
        frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()), table);
    } else {
        frame.render_widget(table_of(&ports, offset, table), table);
    }
    for (list, area) in lists.iter().zip(&areas[2..]) {
        frame.render_widget(paragraph(list), *area);
    }
    let range = (offset, shown.min(ports.len() - offset), ports.len());
    frame.render_widget(foot(screen, view.sort, range), areas[areas.len() - 1]);
    shown
}

/// Returns the lines of each list. The ports come first; then each list in turn gets a line.
fn heights(lists: &[List<'_>; 4], ports: usize, height: u16) -> [u16; 4] {
    // The ports, the heading of the table, the head and the foot.
    let needed = u16::try_from(ports).unwrap_or(u16::MAX).saturating_add(3);
    // A third of the screen is for the lists, whatever the number of ports.
    let mut left = height
        .saturating_sub(needed)
        .max(height.saturating_sub(2) / 3);
    let mut heights = [0; 4];
    for line in 0..=usize::from(LINES) {
        for (list, height) in lists.iter().zip(&mut heights) {
            // The title has a line of its own, unless the list is empty.
            let has_line = line <= list.events.len() && !list.events.is_empty();
            let lines = if line == 0 {
                0
            } else {
                1 + u16::from(line == 1)
            };
            if has_line && left >= lines {
                *height += lines;
                left -= lines;
            }
        }
    }
    heights
}

/// Formats the totals of all ports, shortened to the width.
fn head(screen: &Screen, width: u16) -> Line<'static> {
    let ports = plural(screen.ports(Sort::Name).len() as u64, "port");
    let from = rate(screen.sum(|port| port.from_guest.0), "");
    let to = rate(screen.sum(|port| port.to_guest.0), "");
    let drops = rate(screen.sum(|port| port.drops), "");
    let cpu = format!("{:.0}%", screen.sum(|port| port.cpu));
    let all = [
        format!("{ports}: {from} from guests, {to} to guests, {drops} dropped, CPU {cpu}"),
        format!("{ports}: {from} in, {to} out, {drops} dropped, {cpu}"),
        format!("{from} in, {to} out, {drops} dropped"),
        format!("{from} in, {to} out"),
        ports,
    ];
    let fits = |text: &String| text.chars().count() <= usize::from(width);
    let text = all.into_iter().find(fits);
    Line::from(text.unwrap_or_default()).bold()
}

/// Formats the error, or the main keys and the range of visible ports.
fn foot(screen: &Screen, sort: Sort, (offset, shown, all): (usize, usize, usize)) -> Line<'static> {
    if let Some(error) = &screen.error {
        return Line::from(error.clone()).fg(Color::Red);
    }
    let range = if shown < all {
        format!(", ports {} to {} of {all}", offset + 1, offset + shown)
    } else {
        String::new()
    };
    let sort = match sort {
        Sort::Traffic => String::new(),
        other => format!(", by {}", other.word()),
    };
    Line::from(format!("q quits, ? helps{range}{sort}")).dim()
}

/// Returns the columns that fit, with their widths. Numbers are never truncated, which would make
/// them wrong.
fn columns(width: u16, longest_name: u16) -> Vec<(usize, u16)> {
    let needed = |columns: &[usize]| columns.iter().map(|at| WIDTHS[*at] + 1).sum::<u16>() - 1;
    let mut columns: Vec<usize> = (0..WIDTHS.len()).collect();
    for least in OMITTED {
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

fn table_of(ports: &[&Port], offset: usize, area: Rect) -> Table<'static> {
    let headings = ["PORT", "STATE", "FROM/S", "", "TO/S", "", "DROP/S", "CPU"];
    let names = ports.iter().map(|port| port.name.chars().count());
    let longest = u16::try_from(names.max().unwrap_or_default()).unwrap_or(u16::MAX);
    let columns = columns(area.width, longest);
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
    let head = line(headings.map(str::to_owned)).style(Style::new().dim());
    let shown = ports.iter().skip(offset).take(usize::from(area.height));
    let rows = shown.map(|port| line(cells(port)).style(style(port)));
    let widths = columns.iter().map(|(_, width)| *width);
    Table::new(rows, widths).header(head)
}

fn cells(port: &Port) -> [String; 8] {
    let count = |value| rate(value, "").trim_end_matches("/s").to_owned();
    [
        port.name.clone(),
        port.state.to_owned(),
        count(port.from_guest.0),
        rate(port.from_guest.1, "bit"),
        count(port.to_guest.0),
        rate(port.to_guest.1, "bit"),
        count(port.drops),
        format!("{:.0}%", port.cpu),
    ]
}

fn style(port: &Port) -> Style {
    match (port.drops > 0.0, port.state) {
        (_, "faulted") => Style::new().red(),
        (true, _) => Style::new().yellow(),
        _ => Style::new(),
    }
}

fn paragraph(list: &List<'_>) -> Paragraph<'static> {
    let title = [Line::from(list.title).dim()].into_iter();
    let events = list.events.iter().take(usize::from(LINES)).map(|event| {
        let text = format!("{:>9}  {}", rate(event.rate, list.unit), event.text);
        Line::from(text).style(list.style)
    });
    Paragraph::new(title.chain(events).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
