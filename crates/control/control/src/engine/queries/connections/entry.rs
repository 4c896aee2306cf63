//! Connections as documents.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use api::v1::{ConnectionDirection, ConnectionEntry, ConnectionFlag, RuleAction, Traffic};
use conntrack::table::Connection;
use conntrack::{Millis, Progress, Settings, TcpState};
use policy::SegmentId;
use policy::acl::RuleId;
use port::PortId;
use wire::{icmp, tcp, udp};

use crate::connections::now;
use crate::engine::Engine;
use crate::saved::SavedState;
use crate::trace::Names;

/// Names of a list and its rule by the rule's number in the table.
type RuleNames = HashMap<u32, (String, String)>;

/// Returns connections as documents.
pub(super) fn entries(engine: &Engine, all: &[Connection]) -> Vec<ConnectionEntry> {
    let saved = &engine.store.saved;
    let numbers = &saved.numbers;
    let names = Names::new(&numbers.ports, &numbers.segments, &numbers.classes);
    let rules = rule_names(saved, all.iter().map(|connection| connection.rule));
    let (settings, now) = (engine.connections.settings(), now());
    all.iter()
        .map(|connection| entry(connection, (&names, &rules), (&settings, now)))
        .collect()
}

/// Returns the names of the rules with these numbers. Of two with one number neither has a name.
pub(in crate::engine) fn rule_names(
    saved: &SavedState,
    numbers: impl IntoIterator<Item = u32>,
) -> RuleNames {
    let mut found: HashMap<u32, Vec<(&str, &str)>> = numbers
        .into_iter()
        .filter(|number| *number != 0)
        .map(|number| (number, Vec::new()))
        .collect();
    if found.is_empty() {
        return RuleNames::new();
    }
    for list in &saved.desired.access.lists {
        let rules = list.rules.iter();
        for rule in rules.filter(|rule| rule.action == RuleAction::AllowStateful) {
            let id = RuleId::of(&list.name, &rule.name);
            if let Some(names) = found.get_mut(&id.number()) {
                names.push((&list.name, &rule.name));
            }
        }
    }
    let only = |(number, names): (u32, Vec<(&str, &str)>)| match names[..] {
        [(list, rule)] => Some((number, (list.to_owned(), rule.to_owned()))),
        _ => None,
    };
    found.into_iter().filter_map(only).collect()
}

/// Returns a connection as a document.
fn entry(
    connection: &Connection,
    (names, rules): (&Names, &RuleNames),
    (settings, now): (&Settings, Millis),
) -> ConnectionEntry {
    let tuple = &connection.tuple;
    let is_query = matches!(tuple.protocol(), icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6);
    let has_ports = matches!(tuple.protocol(), tcp::PROTOCOL | udp::PROTOCOL);
    let end = |address: IpAddr, port| match has_ports {
        true => SocketAddr::new(address, port).to_string(),
        false => address.to_string(),
    };
    let (source, destination) = (
        end(tuple.src(), tuple.src_port()),
        end(tuple.dst(), tuple.dst_port()),
    );
    let port = |port: u16| names.port(PortId(port.into()));
    let traffic = connection
        .traffic
        .map(|(packets, bytes)| Traffic { packets, bytes });
    let state = connection.progress.tcp();
    let (list, rule) = rules.get(&connection.rule).cloned().unzip();
    let age = now.wrapping_sub(connection.opened);
    ConnectionEntry {
        protocol: protocol(tuple.protocol()),
        state: (state != TcpState::None).then(|| state.name().to_owned()),
        segment: names.segment(SegmentId(tuple.zone())),
        original: ConnectionDirection {
            source: source.clone(),
            destination: destination.clone(),
            port: Some(port(connection.opener())),
            traffic: traffic[0],
        },
        reply: ConnectionDirection {
            source: destination,
            destination: source,
            port: connection.far().map(port),
            traffic: traffic[1],
        },
        identifier: is_query.then(|| tuple.src_port()),
        list,
        rule,
        // The switch may have committed it a moment later than now.
        age_ms: if age > Millis::MAX / 2 { 0 } else { age },
        expires_ms: connection.remaining(settings, now).unwrap_or_default(),
        flags: flags(connection.progress),
    }
}

/// Returns the word for an IP protocol, or its number.
fn protocol(number: u8) -> String {
    match number {
        tcp::PROTOCOL => "tcp".to_owned(),
        udp::PROTOCOL => "udp".to_owned(),
        icmp::PROTOCOL_V4 => "icmp".to_owned(),
        icmp::PROTOCOL_V6 => "icmpv6".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the flags of a connection.
fn flags(progress: Progress) -> Vec<ConnectionFlag> {
    let all = [
        (ConnectionFlag::Unreplied, !progress.is_replied()),
        (ConnectionFlag::Assured, progress.is_assured()),
        (ConnectionFlag::Denied, progress.is_denied()),
    ];
    let set = all.into_iter().filter(|(_, is_set)| *is_set);
    set.map(|(flag, _)| flag).collect()
}
