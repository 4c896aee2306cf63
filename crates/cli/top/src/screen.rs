//! Contents of the screen: rates between two samples.

use std::collections::HashMap;
use std::time::Duration;

use api::v1::{
    AccessCounts, EgressPortsDocument, EgressShare, FlowEntry, FlowsDocument, PortStats,
    StatsDocument,
};

pub(crate) use client::rates::PortRates as Port;
use client::rates::growth;

/// Counters at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) stats: StatsDocument,
    pub(crate) flows: FlowsDocument,
    pub(crate) rules: AccessCounts,
    pub(crate) egress: EgressPortsDocument,
}

/// Returns all frames of a port per second, dropped ones included.
fn frames(port: &Port) -> f64 {
    port.from_guest.0 + port.to_guest.0 + port.drops
}

/// A line of a list: a rate per second with its description.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) rate: f64,
    pub(crate) text: String,
}

/// The order of the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Most frames first.
    #[default]
    Traffic,
    /// Most drops first.
    Drops,
    /// Most CPU time first.
    Cpu,
    /// By name.
    Name,
}

impl Sort {
    /// Returns the name on the screen.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Drops => "drops",
            Self::Cpu => "CPU",
            Self::Name => "name",
        }
    }

    /// Returns the next order.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Traffic => Self::Drops,
            Self::Drops => Self::Cpu,
            Self::Cpu => Self::Name,
            Self::Name => Self::Traffic,
        }
    }
}

/// The contents of the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    /// In the order of their configuration.
    ports: Vec<Port>,
    /// Drops by port and reason, the most first.
    pub(crate) drops: Vec<Event>,
    /// Flows, the busiest first.
    pub(crate) flows: Vec<Event>,
    /// Rules, the busiest first.
    pub(crate) rules: Vec<Event>,
    /// Bits of senders at scheduled ports, the busiest first.
    pub(crate) senders: Vec<Event>,
    /// The error because of which the contents are old.
    pub(crate) error: Option<String>,
}

impl Screen {
    /// Returns the rates between two samples.
    pub(crate) fn between(last: &Sample, now: &Sample, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let pairs = now.stats.ports.iter().map(|port| {
            // A new port has no earlier sample; its first rate is 0.
            let mut was = last.stats.ports.iter();
            (was.find(|was| was.name == port.name).unwrap_or(port), port)
        });
        Self {
            drops: busiest(pairs.clone().flat_map(|(was, is)| drops(was, is, seconds))),
            ports: pairs
                .map(|(was, is)| Port::between(was, is, seconds))
                .collect(),
            flows: busiest(now.flows.flows.iter().map(flow)),
            rules: busiest(rules(&last.rules, &now.rules, seconds)),
            senders: busiest(senders(&last.egress, &now.egress, seconds)),
            error: None,
        }
    }

    /// Returns the ports in an order.
    pub(crate) fn ports(&self, sort: Sort) -> Vec<&Port> {
        let mut ports: Vec<_> = self.ports.iter().collect();
        let by = |key: fn(&Port) -> f64| move |a: &&Port, b: &&Port| key(b).total_cmp(&key(a));
        match sort {
            Sort::Traffic => ports.sort_by(by(frames)),
            Sort::Drops => ports.sort_by(by(|port| port.drops)),
            Sort::Cpu => ports.sort_by(by(|port| port.cpu)),
            Sort::Name => ports.sort_by_key(|port| &port.name),
        }
        ports
    }

    /// Returns the sum of a value over all ports.
    pub(crate) fn sum(&self, value: fn(&Port) -> f64) -> f64 {
        self.ports.iter().map(value).sum()
    }
}

/// Returns the events with a rate above 0, the busiest first.
fn busiest(events: impl Iterator<Item = Event>) -> Vec<Event> {
    let mut events: Vec<_> = events.filter(|event| event.rate > 0.0).collect();
    events.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    events
}

/// Formats a flow without the parts that most flows share.
fn flow(flow: &FlowEntry) -> Event {
    let from = flow.from.as_deref().unwrap_or("any");
    let to = flow.to.as_deref().unwrap_or(&flow.action);
    let fields: Vec<&str> = flow
        .matches
        .split(", ")
        .skip(usize::from(flow.from.is_some()))
        .filter(|field| *field != "untagged")
        .collect();
    Event {
        rate: flow.rate(),
        text: format!("{from} > {to}  {}", fields.join(", ")),
    }
}

fn drops(was: &PortStats, is: &PortStats, seconds: f64) -> impl Iterator<Item = Event> {
    is.losses().map(move |(reason, count)| Event {
        rate: growth(was.drops.get(reason).copied().unwrap_or(0), count) / seconds,
        text: format!("{} {reason}", is.name),
    })
}

fn rules(was: &AccessCounts, is: &AccessCounts, seconds: f64) -> impl Iterator<Item = Event> {
    let before: HashMap<_, _> = packets(was).collect();
    packets(is).map(move |((list, rule), packets)| Event {
        // A rule that was not among the busiest in the earlier sample has a low rate, shown as 0.
        rate: growth(
            before.get(&(list, rule)).copied().unwrap_or(packets),
            packets,
        ) / seconds,
        text: format!("{list} {rule}"),
    })
}

/// Returns the bits of each sender and class at scheduled ports, with the part of the time in which
/// its frames waited.
fn senders<'a>(
    was: &EgressPortsDocument,
    is: &'a EgressPortsDocument,
    seconds: f64,
) -> impl Iterator<Item = Event> + 'a {
    let before: HashMap<_, _> = shares(was)
        .map(|(port, share)| (key(port, share), (share.bits, share.held_us)))
        .collect();
    shares(is).map(move |(port, share)| {
        let (name, sender, class) = key(port, share);
        let now = (share.bits, share.held_us);
        let (bits, held_us) = before.get(&key(port, share)).copied().unwrap_or(now);
        let held = growth(held_us, share.held_us) / 1e6 / seconds;
        Event {
            rate: growth(bits, share.bits) / seconds,
            text: format!(
                "{name} < {sender}, {class}, held {:.0}%",
                100.0 * held.min(1.0)
            ),
        }
    })
}

fn key(port: &str, share: &EgressShare) -> (String, String, String) {
    (port.to_owned(), share.sender.clone(), share.class.clone())
}

/// Returns the shares of classes at scheduled ports.
fn shares(of: &EgressPortsDocument) -> impl Iterator<Item = (&str, &EgressShare)> {
    let ports = of.ports.iter();
    let all = ports.flat_map(|port| port.shares.iter().map(|share| (&*port.port, share)));
    all.filter(|(_, share)| !share.class.is_empty())
}

/// Returns the packets by list and rule.
fn packets(counts: &AccessCounts) -> impl Iterator<Item = ((&str, &str), u64)> {
    counts.lists.iter().flat_map(|list| {
        let rules = list.rules.iter();
        rules.map(|rule| ((&*list.name, &*rule.name), rule.packets))
    })
}
