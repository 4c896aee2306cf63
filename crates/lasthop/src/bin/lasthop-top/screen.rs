//! What there is to show: what moved between two looks.

use std::collections::HashMap;
use std::time::Duration;

use api::v1::{AccessCounts, FlowEntry, FlowsDocument, PortStats, StatsDocument, Traffic};

/// What was seen at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    pub(crate) stats: StatsDocument,
    pub(crate) flows: FlowsDocument,
    pub(crate) rules: AccessCounts,
}

/// One port, in a second.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    /// Frames and bits.
    pub(crate) from_guest: (f64, f64),
    pub(crate) to_guest: (f64, f64),
    pub(crate) drops: f64,
    /// Of a core, in percent.
    pub(crate) cpu: f64,
}

impl Port {
    fn new(was: &PortStats, is: &PortStats, seconds: f64) -> Self {
        Self {
            name: is.name.clone(),
            state: is.state.as_str(),
            from_guest: traffic(was.from_guest, is.from_guest, seconds),
            to_guest: traffic(was.to_guest, is.to_guest, seconds),
            drops: less(was.drops.values().sum(), is.drops.values().sum()) / seconds,
            cpu: less(was.work.cpu_us, is.work.cpu_us) / 1e4 / seconds,
        }
    }

    fn frames(&self) -> f64 {
        self.from_guest.0 + self.to_guest.0 + self.drops
    }
}

/// Something that happens so often a second.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) rate: f64,
    pub(crate) words: String,
}

/// By what ports are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// The ones with most frames first.
    #[default]
    Traffic,
    /// With most drops.
    Drops,
    /// With most processor time.
    Cpu,
    /// By name.
    Name,
}

impl Sort {
    /// As it is shown.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Drops => "drops",
            Self::Cpu => "CPU",
            Self::Name => "name",
        }
    }

    /// The one after it.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Traffic => Self::Drops,
            Self::Drops => Self::Cpu,
            Self::Cpu => Self::Name,
            Self::Name => Self::Traffic,
        }
    }
}

/// What there is to show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    /// In the order of their configuration.
    ports: Vec<Port>,
    /// The worst first.
    pub(crate) drops: Vec<Event>,
    /// The busiest first.
    pub(crate) flows: Vec<Event>,
    /// The busiest first.
    pub(crate) rules: Vec<Event>,
    /// Why it is not up to date.
    pub(crate) trouble: Option<String>,
}

impl Screen {
    /// What happened between two looks.
    pub(crate) fn between(last: &Look, now: &Look, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let pairs = now.stats.ports.iter().map(|port| {
            // A new one starts with what it has.
            let mut was = last.stats.ports.iter();
            (was.find(|was| was.name == port.name).unwrap_or(port), port)
        });
        Self {
            drops: busiest(pairs.clone().flat_map(|(was, is)| drops(was, is, seconds))),
            ports: pairs.map(|(was, is)| Port::new(was, is, seconds)).collect(),
            flows: busiest(now.flows.flows.iter().map(flow)),
            rules: busiest(rules(&last.rules, &now.rules, seconds)),
            trouble: None,
        }
    }

    /// The ports in some order.
    pub(crate) fn ports(&self, sort: Sort) -> Vec<&Port> {
        let mut ports: Vec<_> = self.ports.iter().collect();
        let by = |key: fn(&Port) -> f64| move |a: &&Port, b: &&Port| key(b).total_cmp(&key(a));
        match sort {
            Sort::Traffic => ports.sort_by(by(Port::frames)),
            Sort::Drops => ports.sort_by(by(|port| port.drops)),
            Sort::Cpu => ports.sort_by(by(|port| port.cpu)),
            Sort::Name => ports.sort_by_key(|port| &port.name),
        }
        ports
    }

    /// Of all ports together.
    pub(crate) fn sum(&self, value: fn(&Port) -> f64) -> f64 {
        self.ports.iter().map(value).sum()
    }
}

/// Those that happen at all, the busiest first.
fn busiest(events: impl Iterator<Item = Event>) -> Vec<Event> {
    let mut events: Vec<_> = events.filter(|event| event.rate > 0.0).collect();
    events.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    events
}

/// Who sends what to whom; what is the same for most is left out.
fn flow(flow: &FlowEntry) -> Event {
    let from = flow.from.as_deref().unwrap_or("any");
    let to = flow.to.as_deref().unwrap_or(&flow.action);
    let what = flow.matches.split(", ");
    let what = what.skip(usize::from(flow.from.is_some()));
    let what: Vec<&str> = what.filter(|word| *word != "untagged").collect();
    Event {
        rate: flow.rate(),
        words: format!("{from} > {to}  {}", what.join(", ")),
    }
}

fn drops(was: &PortStats, is: &PortStats, seconds: f64) -> impl Iterator<Item = Event> {
    is.drops.iter().map(move |(reason, count)| Event {
        rate: less(was.drops.get(reason).copied().unwrap_or(0), *count) / seconds,
        words: format!("{} {reason}", is.name),
    })
}

fn rules(was: &AccessCounts, is: &AccessCounts, seconds: f64) -> impl Iterator<Item = Event> {
    let before: HashMap<_, _> = packets(was).collect();
    packets(is).map(move |((list, rule), packets)| Event {
        // One that was not among the busiest a second ago has had its first packets since, or few.
        rate: less(
            before.get(&(list, rule)).copied().unwrap_or(packets),
            packets,
        ) / seconds,
        words: format!("{list} {rule}"),
    })
}

/// By list and rule.
fn packets(counts: &AccessCounts) -> impl Iterator<Item = ((&str, &str), u64)> {
    counts.lists.iter().flat_map(|list| {
        let rules = list.rules.iter();
        rules.map(|rule| ((&*list.name, &*rule.name), rule.packets))
    })
}

/// By how much a counter has grown. One that starts anew has not.
fn less(was: u64, is: u64) -> f64 {
    is.saturating_sub(was) as f64
}

fn traffic(was: Traffic, is: Traffic, seconds: f64) -> (f64, f64) {
    let frames = less(was.packets, is.packets) / seconds;
    (frames, less(was.bytes, is.bytes) * 8.0 / seconds)
}
