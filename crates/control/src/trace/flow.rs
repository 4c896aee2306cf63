//! Cached flows in words.

use std::net::{Ipv4Addr, Ipv6Addr};

use api::v1::FlowEntry;
use channel::flows::CachedFlow;
use policy::{Action, Decision};
use port::PortId;
use wire::flow::{FlowKey, FlowMask, KeyState};
use wire::{EtherType, icmp, tcp, udp};

use super::Names;
use super::words::{action, tag};

/// What stands for an address that may be any.
const ANY: &str = "any";

/// A flow for the API.
pub(crate) fn entry(flow: &CachedFlow, names: &Names) -> FlowEntry {
    let (key, mask) = (flow.flow_key(), flow.flow_mask());
    let to = match flow.action {
        Action::Unicast { port, .. } => Some(names.port(port)),
        Action::Flood { .. } | Action::Drop(_) => None,
    };
    FlowEntry {
        matches: matches(&key, &mask, names),
        action: action(&flow.action, &flow.except, names),
        from: counts_port(&mask).then(|| names.port(PortId(key.in_port()))),
        to,
        packets: flow.packets,
        packets_per_1000_s: flow.rate(),
        idle_ms: flow.idle_ms,
        age_ms: flow.age_ms,
    }
}

/// Why a cached flow is not what would be decided now; `None`: it is.
pub(crate) fn disagrees(flow: &CachedFlow, decision: &Decision, names: &Names) -> Option<String> {
    let except = left_out(decision);
    if flow.action != decision.action || flow.except != except {
        let was = action(&flow.action, &flow.except, names);
        let is = action(&decision.action, &except, names);
        return Some(format!("its frames are {was}; now they would be {is}"));
    }
    if flow.segment != decision.segment {
        return Some("it was decided in another segment".to_owned());
    }
    let wide = !flow.flow_mask().covers(&decision.mask);
    wide.then(|| "it is for more frames than the decision of today is".to_owned())
}

/// Whom a flood leaves out.
fn left_out(decision: &Decision) -> Vec<PortId> {
    match decision.action {
        Action::Flood { .. } => decision.excluded().collect(),
        Action::Unicast { .. } | Action::Drop(_) => Vec::new(),
    }
}

fn counts_port(mask: &FlowMask) -> bool {
    mask.with_in_port() == *mask
}

/// Which frames a flow is for.
pub(crate) fn matches(key: &FlowKey, mask: &FlowMask, names: &Names) -> String {
    let masked = FlowKey::from_words(*mask.words());
    let mut words = Vec::new();
    if counts_port(mask) {
        words.push(format!("from {}", names.port(PortId(key.in_port()))));
    }
    if mask.with_vlan() == *mask {
        words.push(tag(key.vlan()));
    }
    let mac = |value: wire::MacAddr, bits: wire::MacAddr| match bits.to_u64() {
        0 => ANY.to_owned(),
        0xffff_ffff_ffff => value.to_string(),
        _ => format!("{value}/{bits}"),
    };
    let macs = [
        mac(key.smac(), masked.smac()),
        mac(key.dmac(), masked.dmac()),
    ];
    words.extend(pair(macs));
    if mask.with_ethertype() == *mask {
        words.push(key.ethertype().to_string());
    }
    let address = |value, bits| address(key.ethertype(), value, bits);
    let addresses = [
        address(key.src_ip(), masked.src_ip()),
        address(key.dst_ip(), masked.dst_ip()),
    ];
    words.extend(pair(addresses));
    if mask.with_ip_proto() == *mask {
        words.push(protocol(key));
    }
    let ports = [
        ports(key.l4_src(), masked.l4_src()),
        ports(key.l4_dst(), masked.l4_dst()),
    ];
    words.extend(pair(ports).map(|pair| format!("ports {pair}")));
    words.extend(flags(key, masked.l4_flags()));
    if mask.with_tos() == *mask {
        words.push(format!("TOS {}", key.tos()));
    }
    if mask.with_state() == *mask {
        words.extend(state(key.state()));
    }
    words.join(", ")
}

/// From one to the other, unless both may be any.
fn pair([from, to]: [String; 2]) -> Option<String> {
    let any = from == ANY && to == ANY;
    (!any).then(|| format!("{from} > {to}"))
}

/// An address or a prefix.
fn address(ethertype: EtherType, value: u128, bits: u128) -> String {
    let length = bits.count_ones();
    let v6 = ethertype == EtherType::IPV6;
    match (length, v6) {
        (0, _) => ANY.to_owned(),
        (128, true) => Ipv6Addr::from_bits(value).to_string(),
        (_, true) => format!("{}/{length}", Ipv6Addr::from_bits(value)),
        (32, false) => Ipv4Addr::from_bits(value as u32).to_string(),
        (128, false) => Ipv4Addr::from_bits(value as u32).to_string(),
        (_, false) => format!("{}/{length}", Ipv4Addr::from_bits(value as u32)),
    }
}

fn protocol(key: &FlowKey) -> String {
    let number = key.ip_proto();
    if key.ethertype() == EtherType::ARP {
        return format!("operation {number}");
    }
    match number {
        tcp::PROTOCOL => "tcp".to_owned(),
        udp::PROTOCOL => "udp".to_owned(),
        icmp::PROTOCOL_V4 => "icmp".to_owned(),
        icmp::PROTOCOL_V6 => "icmpv6".to_owned(),
        _ => format!("protocol {number}"),
    }
}

/// A port, or the block of ports that have the same first bits.
fn ports(value: u16, bits: u16) -> String {
    match bits {
        0 => ANY.to_owned(),
        u16::MAX => value.to_string(),
        _ => format!("{value}-{}", value | !bits),
    }
}

/// TCP flags, or ICMP's type and code, as far as they count.
fn flags(key: &FlowKey, bits: u16) -> Option<String> {
    let value = key.l4_flags() & bits;
    let is_icmp = matches!(key.ip_proto(), icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6);
    match (bits, is_icmp) {
        (0, _) => None,
        (u16::MAX, true) => Some(format!("type {} code {}", value >> 8, value & 0xff)),
        (0xff00, true) => Some(format!("type {}", value >> 8)),
        _ => Some(format!("flags {value:#05x} of {bits:#05x}")),
    }
}

fn state(state: KeyState) -> Option<String> {
    let words = [
        (KeyState::L3_MALFORMED, "malformed"),
        (KeyState::LATER_FRAGMENT, "later fragments"),
        (KeyState::FRAGMENT, "first fragments"),
        (KeyState::L4_UNKNOWN, "transport header unreadable"),
    ];
    let found = words.iter().find(|(bit, _)| state.contains(*bit));
    found.map(|(_, words)| (*words).to_owned())
}
