//! Access rules like those of ClassBench, as Lasthop and as Open vSwitch take them, and packets
//! that they allow.

#[expect(dead_code, reason = "the classifier's example uses all of it")]
#[path = "../../crates/control/policy/examples/classify/generate.rs"]
mod generate;

use std::fmt::Write as _;
use std::sync::Arc;

use load::lean::Head;
use serde_json::{Value, json};

use self::generate::{FLAVOURS, Five, Header, Rng, header, rules};

/// Source and destination network of the clients' frames, unless they have heads: 10.0.0.0/24.
const CLIENTS: (u32, u8) = (0x0a00_0000, 24);
/// Of Open vSwitch's priorities, that of the first rule.
const FIRST_PRIORITY: usize = 60_000;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The name of the list.
pub(crate) const LIST: &str = "many";

/// Action of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Allow,
    Reject,
}

/// Rules of which the first that matches decides; what none matches is allowed.
#[derive(Debug, Clone)]
pub(crate) struct RuleSet(Vec<(Five, Action)>);

impl RuleSet {
    /// So many that reject, and match no frame of a client without heads.
    pub(crate) fn never_matching(count: usize) -> Self {
        let fives = not_for_clients(count).into_iter();
        Self(fives.map(|five| (five, Action::Reject)).collect())
    }

    /// So many of which every second one allows, for none of the clients' frames without heads
    /// either.
    pub(crate) fn mixed(count: usize) -> Self {
        let fives = not_for_clients(count).into_iter().enumerate();
        let action = |n: usize| {
            if n.is_multiple_of(2) {
                Action::Allow
            } else {
                Action::Reject
            }
        };
        Self(fives.map(|(n, five)| (five, action(n))).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Tables for Lasthop's configuration: one list for whatever goes to guests.
    pub(crate) fn configuration(&self) -> String {
        let mut text = format!(
            "\n[[acl]]\nname = \"{LIST}\"\ndirection = \"to-guest\"\nsegments = [\"default\"]\n"
        );
        for rule in 0..self.len() {
            text += "\n[[acl.rule]]\n";
            for (key, value) in self.keys(rule) {
                // JSON's texts, numbers and lists are TOML's. Writing to a string does not fail.
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }

    /// The body of `PUT /v1/access`.
    pub(crate) fn document(&self) -> Value {
        let rules: Vec<Value> = (0..self.len()).map(|rule| self.rule(rule)).collect();
        let list =
            json!({"name": LIST, "direction": "to-guest", "segments": ["default"], "rules": rules});
        json!({"lists": [list]})
    }

    /// One rule, as the API has it.
    pub(crate) fn rule(&self, number: usize) -> Value {
        let pairs = self.keys(number).into_iter();
        Value::Object(pairs.map(|(key, value)| (key.to_owned(), value)).collect())
    }

    fn keys(&self, number: usize) -> Vec<(&'static str, Value)> {
        let (five, action) = &self.0[number];
        let action = match action {
            Action::Allow => "allow",
            Action::Reject => "reject",
        };
        let mut keys = vec![
            ("name", json!(format!("r{number}"))),
            ("action", json!(action)),
        ];
        for (key, prefix) in [("source", five.source), ("destination", five.destination)] {
            if prefix.1 > 0 {
                keys.push((key, json!([shown(prefix)])));
            }
        }
        if let Some(protocol) = five.protocol {
            keys.push(("protocol", json!(protocol.to_string())));
        }
        let ports = [
            ("source_ports", five.source_ports),
            ("destination_ports", five.destination_ports),
        ];
        for (key, (from, to)) in ports {
            if (from, to) != (0, u16::MAX) {
                keys.push((key, json!([format!("{from}-{to}")])));
            }
        }
        keys
    }

    /// Returns lines for `ovs-ofctl add-flows`: the rules in table 0, of which those that allow
    /// continue in table 1. Ranges of ports become the fewest masks that cover them.
    pub(crate) fn openflow(&self) -> String {
        let mut text = "table=0,priority=0,actions=goto_table:1\n".to_owned();
        for (number, (five, action)) in self.0.iter().enumerate() {
            let action = match action {
                Action::Allow => "goto_table:1",
                Action::Reject => "drop",
            };
            let mut head = format!("table=0,priority={},ip", FIRST_PRIORITY - number);
            for (key, prefix) in [("nw_src", five.source), ("nw_dst", five.destination)] {
                if prefix.1 > 0 {
                    let _ = write!(head, ",{key}={}", shown(prefix));
                }
            }
            if let Some(protocol) = five.protocol {
                let _ = write!(head, ",nw_proto={protocol}");
            }
            for source in masks("tp_src", five.source_ports) {
                for destination in masks("tp_dst", five.destination_ports) {
                    let _ = writeln!(text, "{head}{source}{destination},actions={action}");
                }
            }
        }
        text
    }

    /// Returns a file for `nft -f`: a chain of the bridge family with all of them. The first that
    /// matches decides.
    pub(crate) fn nftables(&self) -> String {
        let mut text = "table bridge rules {\nchain forward {\n\
            type filter hook forward priority 0; policy accept;\n"
            .to_owned();
        for (five, action) in &self.0 {
            let mut rule = String::new();
            for (key, prefix) in [("saddr", five.source), ("daddr", five.destination)] {
                if prefix.1 > 0 {
                    // Writing to a string does not fail.
                    let _ = write!(rule, "ip {key} {} ", shown(prefix));
                }
            }
            if let Some(protocol) = five.protocol {
                let _ = write!(rule, "ip protocol {protocol} ");
            }
            let ports = [
                ("sport", five.source_ports),
                ("dport", five.destination_ports),
            ];
            for (key, (from, to)) in ports {
                if from == to {
                    let _ = write!(rule, "th {key} {from} ");
                } else if (from, to) != (0, u16::MAX) {
                    let _ = write!(rule, "th {key} {from}-{to} ");
                }
            }
            let verdict = match action {
                Action::Allow => "accept",
                Action::Reject => "drop",
            };
            let _ = writeln!(text, "{rule}{verdict}");
        }
        text + "}\n}\n"
    }

    /// Packets near the rules, of this protocol alone if one is named, all different and none
    /// rejected: in frames of `frame_len` bytes.
    pub(crate) fn heads(&self, count: usize, protocol: Option<u8>, frame_len: u16) -> Arc<[Head]> {
        let fives: Vec<Five> = self.0.iter().map(|(five, _)| *five).collect();
        let mut rng = Rng::new(7);
        let mut seen = std::collections::HashSet::new();
        let mut heads = Vec::with_capacity(count);
        while heads.len() < count {
            let mut one = header(&mut rng, &fives);
            one.protocol = protocol.unwrap_or(one.protocol);
            if self.allows(&one) && seen.insert(one) {
                let addresses = [one.source, one.destination];
                let ports = [one.ports.0, one.ports.1];
                heads.push(Head::new(frame_len, one.protocol, addresses, ports));
            }
        }
        heads.into()
    }

    fn allows(&self, header: &Header) -> bool {
        let mut rules = self.0.iter();
        let first = rules.find(|(five, _)| matches(five, header));
        first.is_none_or(|(_, action)| *action == Action::Allow)
    }
}

fn not_for_clients(count: usize) -> Vec<Five> {
    // A few of those that are generated are.
    let mut fives = rules(&FLAVOURS[0], count + count / 4 + 64, 1);
    fives.retain(|five| !(overlap(five.source, CLIENTS) && overlap(five.destination, CLIENTS)));
    fives.truncate(count);
    fives
}

fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

fn overlap(a: (u32, u8), b: (u32, u8)) -> bool {
    (a.0 ^ b.0) & mask(a.1.min(b.1)) == 0
}

fn shown((address, len): (u32, u8)) -> String {
    format!("{}/{len}", std::net::Ipv4Addr::from(address))
}

fn matches(five: &Five, header: &Header) -> bool {
    let within = |(from, to): (u16, u16), port: u16| (from..=to).contains(&port);
    overlap(five.source, (header.source, 32))
        && overlap(five.destination, (header.destination, 32))
        && five
            .protocol
            .is_none_or(|protocol| protocol == header.protocol)
        && (!matches!(five.protocol, Some(TCP | UDP))
            || within(five.source_ports, header.ports.0)
                && within(five.destination_ports, header.ports.1))
}

/// A range of ports as conditions that say one block of ports each; nothing where any port will do.
fn masks(key: &str, (from, to): (u16, u16)) -> Vec<String> {
    if (from, to) == (0, u16::MAX) {
        return vec![String::new()];
    }
    let (mut at, end) = (u32::from(from), u32::from(to) + 1);
    let mut all = Vec::new();
    while at < end {
        // The largest block that begins here and ends in time.
        let aligned = 1 << at.trailing_zeros().min(16);
        let fitting = 1 << (end - at).ilog2();
        let size: u32 = aligned.min(fitting);
        all.push(format!(",{key}=0x{at:x}/0x{:x}", 0x1_0000 - size));
        at += size;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_the_fewest_blocks() {
        assert_eq!(masks("p", (0, u16::MAX)), [""]);
        assert_eq!(masks("p", (80, 80)), [",p=0x50/0xffff"]);
        assert_eq!(masks("p", (1024, 65535)).len(), 6);
        assert_eq!(
            masks("p", (1, 5)),
            [",p=0x1/0xffff", ",p=0x2/0xfffe", ",p=0x4/0xfffe"]
        );
    }

    #[test]
    fn no_rule_is_for_the_clients() {
        let set = RuleSet::never_matching(971);
        assert_eq!(set.len(), 971);
        for ports in [(1, 1), (0, 2000), (1023, 0)] {
            for protocol in [1, TCP, UDP] {
                let client = Header {
                    source: 0x0a00_0001,
                    destination: 0x0a00_0002,
                    protocol,
                    ports,
                };
                assert!(set.0.iter().all(|(five, _)| !matches(five, &client)));
            }
        }
    }

    #[test]
    fn both_switches_get_every_rule() {
        let set = RuleSet::mixed(100);
        let text = set.configuration();
        assert_eq!(text.matches("[[acl.rule]]").count(), 100);
        assert_eq!(text.matches("\"allow\"").count(), 50);
        let lines = set.openflow();
        for number in 0..100 {
            let priority = format!("priority={},", FIRST_PRIORITY - number);
            assert!(lines.contains(&priority), "{number}");
        }
        assert_eq!(
            set.document()["lists"][0]["rules"].as_array().map(Vec::len),
            Some(100)
        );
        assert_eq!(set.nftables().matches("drop\n").count(), 50);
        assert_eq!(set.heads(50, Some(UDP), 64).len(), 50);
    }
}
