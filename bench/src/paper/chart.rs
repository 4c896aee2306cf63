//! A figure as SVG: bars with the quartiles of their samples, and beside them what was published,
//! which has a scale of its own as it is of another machine. Colours follow the reader's scheme,
//! light or dark.

use std::fmt::Write as _;

use super::published::{Kind, Published};
use crate::plot::{Chart, Point};

/// Pixels: of the bars, of what was published beside them and its scale, and of both axes.
const BARS: f64 = 700.0;
const PUBLISHED: f64 = 290.0;
const SCALE: f64 = 110.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 12.0;
/// From one line of text to the next, and an average character.
const LINE: f64 = 16.0;
const CHARACTER: f64 = 6.6;
/// The widest bar, and a digit of the number above it, which is there if it is no wider.
const WIDEST: f64 = 34.0;
const DIGIT: f64 = 6.2;
/// A row of what was published: its name in two lines, and the point below.
const ROW: f64 = 54.0;
/// The quotient of values from which on their axis is logarithmic.
const FAR_APART: f64 = 300.0;
/// Colours of this many curves differ.
const COLORS: usize = 8;

/// The look of the classes of a figure. Colours are those of Okabe and Ito, which people who do
/// not see all colours tell apart.
pub(super) const STYLE: &str = "\
.figure{--ink:#1c1c1c;--faint:#d8d8d8;--paper:#fff;font:12px system-ui,sans-serif;\
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#e69f00;--c4:#56b4e9;--c5:#cc79a7;--c6:#8a8a8a;\
--c7:#1c1c1c}\
@media (prefers-color-scheme:dark){.figure{--ink:#e6e6e6;--faint:#444;--paper:#181818;\
--c0:#4aa8e0;--c1:#f0813a;--c2:#2cc79a;--c7:#e6e6e6}}\
.figure text{fill:var(--ink)}.figure .strong{font-weight:600}.figure .small{font-size:11px}\
.figure .back{fill:var(--paper)}.figure .grid{stroke:var(--faint);stroke-width:1}\
.figure .axis,.figure .range{stroke:var(--ink);stroke-width:1.2;fill:none}\
.figure .point{stroke:var(--ink);stroke-width:2;fill:var(--paper)}\
.figure .middle{text-anchor:middle}.figure .end{text-anchor:end}\
.figure .c0{fill:var(--c0)}.figure .c1{fill:var(--c1)}.figure .c2{fill:var(--c2)}\
.figure .c3{fill:var(--c3)}.figure .c4{fill:var(--c4)}.figure .c5{fill:var(--c5)}\
.figure .c6{fill:var(--c6)}.figure .c7{fill:var(--c7)}";

/// The switches that are measured in place of those of the papers: the beginning of a curve's name,
/// and what they have in common with them.
const STAND_INS: [(&str, &str); 3] = [
    ("OVS-DPDK", "stand-in: polls on a core of its own"),
    ("OVS", "stand-in: switch in user space"),
    ("Linux bridge", "stand-in: switch in the kernel"),
];

/// The name of a curve in a legend: a switch that stands in for another one says so.
pub(super) fn legend(name: &str) -> String {
    let found = STAND_INS.iter().find(|(kind, _)| name.starts_with(kind));
    found.map_or_else(|| name.to_owned(), |(_, what)| format!("{name} ({what})"))
}

/// Text that is no markup.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// The figure as a file of its own.
pub(super) fn file(title: &str, chart: &Chart, published: &[Published]) -> String {
    let style = format!("<style>{STYLE}</style>");
    svg(title, chart, published, &style)
}

/// The figure within a page that has [`STYLE`].
pub(super) fn inline(title: &str, chart: &Chart, published: &[Published]) -> String {
    svg(title, chart, published, "")
}

fn svg(title: &str, chart: &Chart, published: &[Published], style: &str) -> String {
    let numbered: Vec<&Published> = published.iter().filter(|entry| entry.y.is_some()).collect();
    let names = rows_of_names(chart);
    let top = 34.0 + names.last().map_or(0.0, |(_, y, _)| y + LINE) + 28.0;
    let panel = 34.0 + LINE + ROW * numbered.len() as f64;
    let categories = Categories::of(chart);
    let height = (top + HEIGHT + categories.height() + LINE + 12.0).max(panel);
    let width = if numbered.is_empty() {
        BARS
    } else {
        BARS + PUBLISHED
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" viewBox=\"0 0 {width} \
         {height}\" width=\"{width}\" role=\"img\" aria-label=\"{0}\">{style}\n\
         <rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n",
        escaped(title)
    );
    let part = match chart.part.as_str() {
        "" => String::new(),
        part => format!(" ({part})"),
    };
    let heading = format!("{title}{part}, cores {}", chart.cores);
    text(&mut out, [LEFT, 20.0], "strong", &heading);
    for (index, (x, y, name)) in names.iter().enumerate() {
        let (x, y, color) = (LEFT + x, 34.0 + y, index % COLORS);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<rect class=\"c{color}\" x=\"{x}\" y=\"{y}\" width=\"11\" height=\"11\"/>"
        );
        text(&mut out, [x + 16.0, y + 10.0], "", name);
    }
    bars(&mut out, chart, &categories, top);
    if !numbered.is_empty() {
        points(&mut out, &numbered);
    }
    out + "</svg>\n"
}

/// Where the names of curves are, in rows that are as wide as the bars.
fn rows_of_names(chart: &Chart) -> Vec<(f64, f64, String)> {
    let (mut x, mut y) = (0.0, 0.0);
    let mut names = Vec::new();
    for (name, _) in &chart.curves {
        let name = legend(name);
        let width = 34.0 + CHARACTER * name.chars().count() as f64;
        if x > 0.0 && x + width > BARS - LEFT - RIGHT {
            (x, y) = (0.0, y + LINE + 2.0);
        }
        names.push((x, y, name));
        x += width;
    }
    names
}

/// The places of a chart, each with the lines of its name.
struct Categories {
    places: Vec<f64>,
    names: Vec<Vec<String>>,
    /// Of one place, in pixels.
    width: f64,
    axis: String,
}

impl Categories {
    fn of(chart: &Chart) -> Self {
        let points = chart.curves.iter().flat_map(|(_, points)| points);
        let mut places: Vec<f64> = points.map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let width = (BARS - LEFT - RIGHT) / places.len().max(1) as f64;
        let axis = &chart.axes[0];
        let named = named(axis);
        let most = ((width - 6.0) / CHARACTER) as usize;
        let names = places.iter().map(|&x| {
            let name = named.iter().find(|(number, _)| *number == x);
            name.map_or_else(|| vec![number(x)], |(_, name)| wrapped(name, most))
        });
        let names = names.collect();
        Self {
            places,
            names,
            width,
            axis: if named.is_empty() {
                axis.clone()
            } else {
                String::new()
            },
        }
    }

    fn height(&self) -> f64 {
        LINE * self.names.iter().map(Vec::len).max().unwrap_or(1) as f64
    }
}

/// The names of the numbers of an axis such as `1: one thing, 2: another`; none of another axis.
fn named(axis: &str) -> Vec<(f64, String)> {
    let parts = axis.split(", ").map(|part| {
        let (number, name) = part.split_once(": ")?;
        Some((number.parse().ok()?, name.to_owned()))
    });
    parts.collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Lines of words with so many characters at most, where the words let them be.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The axis of the values.
struct Scale {
    range: [f64; 2],
    ticks: Vec<f64>,
    logarithmic: bool,
    /// Pixels from the upper edge of the picture.
    top: f64,
}

impl Scale {
    /// From 0, or logarithmic where values are so far apart that the small ones would all lie at 0.
    fn of(chart: &Chart, top: f64) -> Self {
        let points = || chart.curves.iter().flat_map(|(_, points)| points);
        let high = |point: &Point| point.y.max(point.quartiles[1]);
        let most = points().map(high).fold(0.0, f64::max);
        let low = |point: &Point| point.y.min(point.quartiles[0]);
        let least = points().map(low).fold(f64::MAX, f64::min);
        let (range, ticks, logarithmic) = if least > 0.0 && most / least > FAR_APART {
            let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
            let ticks: Vec<f64> = decades.map(|decade| 10f64.powi(decade)).collect();
            ([ticks[0], ticks[ticks.len() - 1]], ticks, true)
        } else {
            let most = if most > 0.0 { 1.08 * most } else { 1.0 };
            let least = 1.08 * least.min(0.0);
            let step = step((most - least) / 5.0);
            let first = (least / step).ceil() as i32;
            let ticks = (first..).map(|count| f64::from(count) * step);
            let ticks = ticks.take_while(|tick| *tick <= most).collect();
            ([least, most], ticks, false)
        };
        Self {
            range,
            ticks,
            logarithmic,
            top,
        }
    }

    fn y(&self, value: f64) -> f64 {
        let place = |value: f64| {
            if self.logarithmic {
                value.log10()
            } else {
                value
            }
        };
        let [least, most] = self.range.map(place);
        let share = (place(value.max(self.range[0])) - least) / (most - least);
        self.top + HEIGHT * (1.0 - share.clamp(0.0, 1.0))
    }

    /// Where bars begin.
    fn base(&self) -> f64 {
        let zero = if self.logarithmic { self.range[0] } else { 0.0 };
        self.y(zero)
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`.
fn step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
    let enough = steps.into_iter().find(|step| *step >= 0.999 * least);
    enough.unwrap_or(10.0 * decade)
}

/// A number with as many digits as say something, thousands apart.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let mut text = format!("{value:.digits$}");
    if digits > 0 {
        text = text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let mut at = text.find('.').unwrap_or(text.len());
    let first = usize::from(text.starts_with('-'));
    let long = at > first + 4;
    while long && at > first + 3 {
        at -= 3;
        // A space that is no end of a line.
        text.insert(at, '\u{a0}');
    }
    text
}

fn text(out: &mut String, [x, y]: [f64; 2], class: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
    );
}

fn line(out: &mut String, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    let _ = writeln!(
        out,
        "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>"
    );
}

/// Axes, and a group of bars for each place.
fn bars(out: &mut String, chart: &Chart, categories: &Categories, top: f64) {
    let scale = Scale::of(chart, top);
    text(out, [LEFT - 56.0, top - 12.0], "", &chart.axes[1]);
    for &tick in &scale.ticks {
        let y = scale.y(tick);
        line(out, "grid", [LEFT, y], [BARS - RIGHT, y]);
        text(out, [LEFT - 6.0, y + 4.0], "end", &number(tick));
    }
    for (index, &x) in categories.places.iter().enumerate() {
        let left = LEFT + categories.width * index as f64;
        group(out, chart, &scale, x, [left, categories.width]);
        for (row, name) in (0..).zip(&categories.names[index]) {
            let y = top + HEIGHT + LINE * f64::from(row + 1);
            text(out, [left + categories.width / 2.0, y], "middle", name);
        }
    }
    line(
        out,
        "axis",
        [LEFT, scale.base()],
        [BARS - RIGHT, scale.base()],
    );
    let below = top + HEIGHT + categories.height() + LINE + 2.0;
    let middle = (LEFT + BARS - RIGHT) / 2.0;
    text(out, [middle, below], "middle", &categories.axis);
}

/// The bars of one place, each with its quartiles, and with its number where there is room.
fn group(out: &mut String, chart: &Chart, scale: &Scale, x: f64, [left, width]: [f64; 2]) {
    let count = chart.curves.len().max(1) as f64;
    let bar = (0.84 * width / count).min(WIDEST);
    let start = left + (width - bar * count) / 2.0;
    for (index, (name, points)) in chart.curves.iter().enumerate() {
        let Some(point) = points.iter().find(|point| point.x == x) else {
            continue;
        };
        let at = start + bar * index as f64;
        let (y, base) = (scale.y(point.y), scale.base());
        let [low, high] = point.quartiles.map(number);
        let said = format!("{name}: {} ({low} to {high})", number(point.y));
        let _ = writeln!(
            out,
            "<rect class=\"c{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
             <title>{}</title></rect>",
            index % COLORS,
            at + 0.06 * bar,
            y.min(base),
            0.88 * bar,
            (base - y).abs().max(0.5),
            escaped(&said)
        );
        let middle = at + bar / 2.0;
        let [low, high] = point.quartiles.map(|quartile| scale.y(quartile));
        if low - high > 1.0 {
            let cap = (0.22 * bar).min(5.0);
            line(out, "range", [middle, low], [middle, high]);
            for y in [low, high] {
                line(out, "range", [middle - cap, y], [middle + cap, y]);
            }
        }
        let shown = number(point.y);
        if bar > DIGIT * shown.chars().count() as f64 {
            text(out, [middle, y.min(high) - 4.0], "middle small", &shown);
        }
    }
}

/// Published numbers: a hollow point for each number, on a scale for each unit.
fn points(out: &mut String, entries: &[&Published]) {
    let left = BARS + 16.0;
    text(out, [left, 20.0], "strong", "published, another machine");
    let most = (PUBLISHED / CHARACTER) as usize - 2;
    for (row, entry) in (0..).zip(entries) {
        let top = 34.0 + LINE + ROW * f64::from(row);
        let name = match entry.x {
            Some(x) => format!("{} at {}", entry.series, number(x)),
            None => entry.series.clone(),
        };
        let lines = wrapped(&name, most);
        for (row, name) in (0..).zip(lines.iter().take(2)) {
            text(out, [left, top + 13.0 * f64::from(row)], "small", name);
        }
        let y = top + 13.0 * lines.len().min(2) as f64 + 1.0;
        let (value, unit) = (entry.y.unwrap_or_default(), entry.unit.as_deref());
        let of_unit = entries.iter().filter(|other| other.unit == entry.unit);
        let values = of_unit.filter_map(|other| other.y.map(f64::abs));
        let share = value.abs() / values.fold(f64::MIN_POSITIVE, f64::max);
        let x = left + 8.0 + SCALE * share;
        line(out, "grid", [left, y], [left + SCALE + 8.0, y]);
        let _ = writeln!(
            out,
            "<circle class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>"
        );
        let beyond = match entry.kind {
            Kind::Bound => "bound: ",
            _ => "",
        };
        let shown = format!("{beyond}{} {}", number(value), unit.unwrap_or_default());
        text(out, [x + 9.0, y + 4.0], "small", &shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(axis: &str, values: [f64; 2]) -> Chart {
        let curve = |name: &str, factor: f64| {
            let points = (1..).zip(values);
            let points = points.map(|(x, y): (u32, f64)| {
                Point::of(x.into(), &[0.9 * y * factor, y * factor, 1.2 * y * factor])
            });
            (name.to_owned(), points.flatten().collect())
        };
        Chart {
            axes: [axis.to_owned(), "Mpps".to_owned()],
            curves: vec![curve("Lasthop", 1.0), curve("OVS-DPDK, rules", 0.5)],
            cores: "near".to_owned(),
            part: "streams".to_owned(),
        }
    }

    fn published() -> Published {
        Published {
            figure: "000-4.9".to_owned(),
            series: "a < b".to_owned(),
            x: Some(2.0),
            y: Some(12_345.0),
            unit: Some("Mbit/s".to_owned()),
            kind: Kind::Value,
            section: "4".to_owned(),
            words: "words".to_owned(),
        }
    }

    #[test]
    fn bars_have_quartiles_and_the_legend_names_stand_ins() {
        let svg = file(
            "A & B",
            &chart("bytes of a frame", [4.0, 8.0]),
            &[published()],
        );
        assert!(svg.contains("A &amp; B (streams), cores near"), "{svg}");
        let name = "OVS-DPDK, rules (stand-in: polls on a core of its own)";
        assert!(svg.contains(name), "{svg}");
        let said = "<title>Lasthop: 4 (3.6 to 4.8)</title>";
        assert!(svg.contains(said), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 4);
        assert!(svg.contains("bytes of a frame"));
        assert!(svg.contains("published, another machine"));
        assert!(svg.contains("a &lt; b at 2"), "{svg}");
        assert!(svg.contains("12\u{a0}345 Mbit/s"), "{svg}");
        assert!(svg.contains("prefers-color-scheme"));
        let within = inline("A", &chart("bytes of a frame", [4.0, 8.0]), &[]);
        assert!(!within.contains("<style>") && !within.contains("published"));
    }

    #[test]
    fn numbers_that_stand_for_names_are_replaced_by_them() {
        let svg = file("A", &chart("1: switch, 2: guest of both", [4.0, 8.0]), &[]);
        assert!(svg.contains(">switch<") && svg.contains(">guest of both<"));
        assert!(!svg.contains("1: switch"), "{svg}");
        assert_eq!(named("bytes, of a frame"), []);
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
    }

    #[test]
    fn values_that_are_far_apart_have_a_logarithmic_scale() {
        let scale = Scale::of(&chart("x", [1.0, 5000.0]), 0.0);
        assert!(scale.logarithmic);
        assert_eq!(scale.range, [0.1, 10_000.0]);
        assert_eq!(scale.base(), HEIGHT);
        assert!(!Scale::of(&chart("x", [0.0, 5000.0]), 0.0).logarithmic);
        let near = Scale::of(&chart("x", [1.0, 2.0]), 0.0);
        assert_eq!(near.ticks, [0.0, 1.0, 2.0]);
    }

    #[test]
    fn steps_and_numbers() {
        for (least, desired) in [
            (0.3, 0.5),
            (1.0, 1.0),
            (1.1, 2.0),
            (23.0, 50.0),
            (60.0, 100.0),
        ] {
            assert!((step(least) - desired).abs() < 1e-9, "{least}");
        }
        let shown = [0.0, 0.012, 1.5, 12.34, 1234.0, 12_345.6, -2250.0, 1e6].map(number);
        let desired = [
            "0",
            "0.012",
            "1.5",
            "12.3",
            "1234",
            "12 346",
            "-2250",
            "1 000 000",
        ];
        assert_eq!(shown.map(|text| text.replace('\u{a0}', " ")), desired);
    }
}
