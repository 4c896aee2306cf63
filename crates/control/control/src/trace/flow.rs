//! Descriptions of cached flows.

use std::net::{Ipv4Addr, Ipv6Addr};

use api::v1::FlowEntry;
use ipc::flows::CachedFlow;
use policy::connection::class_of;
use policy::{Action, Decision};
use port::PortId;
use wire::flow::{Ct, CtState, FlowKey, FlowMask, KeyState};
use wire::{EtherType, FrameClass, icmp, tcp, udp};

use super::Names;
use super::words::{action, tag};

/// The word for any address.
const ANY: &str = "any";

/// Returns a flow for the API.
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

/// Returns the difference between a cached flow and a new decision; `None` if they agree.
pub(crate) fn disagrees(flow: &CachedFlow, decision: &Decision, names: &Names) -> Option<String> {
    let except = excluded(decision);
    if flow.action != decision.action || flow.except != except {
        let was = action(&flow.action, &flow.except, names);
        let is = action(&decision.action, &except, names);
        return Some(format!("its frames are {was}; now they would be {is}"));
    }
    if flow.segment != decision.segment {
        return Some("it was decided for another segment".to_owned());
    }
    let wide = !flow.flow_mask().covers(&decision.mask);
    wide.then(|| "its match is wider than that of a new decision".to_owned())
}

/// Returns the ports that a flood excludes.
fn excluded(decision: &Decision) -> Vec<PortId> {
    match decision.action {
        Action::Flood { .. } => decision.excluded().collect(),
        Action::Unicast { .. } | Action::Drop(_) => Vec::new(),
    }
}

fn counts_port(mask: &FlowMask) -> bool {
    mask.with_in_port() == *mask
}

/// Describes the match of a flow.
pub(crate) fn matches(key: &FlowKey, mask: &FlowMask, names: &Names) -> String {
    let masked = FlowKey::from_words(*mask.words());
    let mut words = Vec::new();
    if counts_port(mask) {
        words.push(format!("from {}", names.port(PortId(key.in_port()))));
    }
    if mask.with_vlan() == *mask {
        words.push(tag(key.vlan()));
    }
    words.extend(connection(key.masked(mask).ct(), names));
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
    // A rounded mask may include the ports of a protocol without ports.
    if !(mask.with_ip_proto() == *mask && has_no_ports(key)) {
        let ports = [
            ports(key.l4_src(), masked.l4_src()),
            ports(key.l4_dst(), masked.l4_dst()),
        ];
        words.extend(pair(ports).map(|pair| format!("ports {pair}")));
    }
    words.extend(flags(key, masked.l4_flags()));
    if mask.with_tos() == *mask {
        words.push(format!("TOS {}", key.tos()));
    }
    if mask.with_state() == *mask {
        words.extend(state(key.state()));
    }
    if mask.with_frame_class() == *mask {
        words.extend(frame_class(key.frame_class()).map(str::to_owned));
    }
    words.join(", ")
}

/// Joins source and destination, unless both are `any`.
fn pair([from, to]: [String; 2]) -> Option<String> {
    let any = from == ANY && to == ANY;
    (!any).then(|| format!("{from} > {to}"))
}

/// Returns an address or a prefix.
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

/// Returns whether the protocol has no ports.
fn has_no_ports(key: &FlowKey) -> bool {
    let icmp = matches!(key.ip_proto(), icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6);
    icmp || key.ethertype() == EtherType::ARP
}

/// Returns a port, or the range of ports with the same prefix.
fn ports(value: u16, bits: u16) -> String {
    match bits {
        0 => ANY.to_owned(),
        u16::MAX => value.to_string(),
        _ => format!("{value}-{}", value | !bits),
    }
}

/// Returns the masked TCP flags, or ICMP's type and code.
fn flags(key: &FlowKey, bits: u16) -> Option<String> {
    let value = key.l4_flags() & bits;
    let is_icmp = matches!(key.ip_proto(), icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6);
    match (bits, is_icmp) {
        (0, _) => None,
        (u16::MAX, true) => Some(format!("type {} code {}", value >> 8, value & 0xff)),
        (0xff00, true) => Some(format!("type {}", value >> 8)),
        (_, false) if bits & !all_flags() == 0 => Some(match value {
            0 => format!("no flags of {}", flag_names(bits)),
            set => format!("flags {} of {}", flag_names(set), flag_names(bits)),
        }),
        _ => Some(format!("flags {value:#05x} of {bits:#05x}")),
    }
}

/// Returns all flags that have a name.
fn all_flags() -> u16 {
    tcp::FLAGS.iter().fold(0, |all, (_, bit)| all | bit)
}

fn flag_names(flags: u16) -> String {
    let set = tcp::FLAGS.iter().filter(|(_, bit)| flags & bit != 0);
    set.map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}

/// Describes the class of frames for port security; `None` for ordinary ones.
fn frame_class(frame_class: FrameClass) -> Option<&'static str> {
    match frame_class {
        FrameClass::Ordinary => None,
        FrameClass::Neighbour => Some("neighbour discovery"),
        FrameClass::SpoofedNeighbour => Some("false ARP or neighbour discovery"),
        FrameClass::DhcpServer => Some("as a DHCP server"),
        FrameClass::Router => Some("as a router"),
        FrameClass::Unparseable => Some("unparseable"),
        FrameClass::NeighbourRequest => Some("ARP request to all"),
    }
}

/// Describes the state of the frames' connection; `None` for frames that are not tracked.
fn connection(ct: Ct, names: &Names) -> Option<String> {
    if ct == Ct::UNTRACKED {
        return None;
    }
    let kinds = [
        (CtState::INVALID, "invalid for its connection"),
        (CtState::NEW, "new connection"),
        (CtState::RELATED, "related to a connection"),
        (CtState::ESTABLISHED, "established connection"),
    ];
    let more = [
        (CtState::REPLY, "reply"),
        (CtState::STALE, "stale"),
        (CtState::MOVED, "moved"),
    ];
    let set = |(bit, _): &&(CtState, &str)| ct.state().contains(*bit);
    let kind = kinds.iter().find(set).map_or("connection", |kind| kind.1);
    let class = class_of(ct.mark()).map(|class| format!("class {}", names.class(class)));
    let more = more.iter().filter(set).map(|more| more.1.to_owned());
    let more: Vec<_> = more.chain(class).collect();
    Some(match more.is_empty() {
        true => kind.to_owned(),
        false => format!("{kind} ({})", more.join(", ")),
    })
}

fn state(state: KeyState) -> Option<String> {
    let words = [
        (KeyState::HIDDEN, "hidden behind tags or LLC"),
        (KeyState::L3_MALFORMED, "malformed"),
        (KeyState::L4_UNKNOWN, "transport header not parsed"),
        (KeyState::LATER_FRAGMENT, "later fragments"),
        (KeyState::FRAGMENT, "first fragments"),
    ];
    let found = words.iter().find(|(bit, _)| state.contains(*bit));
    found.map(|(_, words)| (*words).to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn of(ethertype: EtherType, protocol: u8, flags: u16) -> FlowKey {
        let key = FlowKey::from_words([0; 8]).with_ethertype(ethertype);
        key.with_ip_proto(protocol).with_l4_flags(flags)
    }

    fn described(key: &FlowKey, mask: FlowMask) -> String {
        let classes = BTreeMap::from([("voice".to_owned(), 2)]);
        let names = Names::new(&BTreeMap::new(), &BTreeMap::new(), &classes);
        matches(key, &mask.with_ethertype(), &names)
    }

    #[test]
    fn flags_have_their_names() {
        let mask = FlowMask::default().with_ip_proto().with_l4_flags_bits(0x12);
        let flags = |set| described(&of(EtherType::IPV4, tcp::PROTOCOL, set), mask);
        assert_eq!(flags(0x02), "ipv4, tcp, flags syn of syn,ack");
        assert_eq!(flags(0x12), "ipv4, tcp, flags syn,ack of syn,ack");
        assert_eq!(flags(0x20), "ipv4, tcp, no flags of syn,ack");
        let all = FlowMask::default().with_ip_proto().with_l4_flags();
        let odd = described(&of(EtherType::IPV4, tcp::PROTOCOL, 0x102), all);
        assert_eq!(odd, "ipv4, tcp, flags 0x102 of 0xffff");
    }

    #[test]
    fn protocols_without_ports_have_none() {
        let mask = FlowMask::default().with_l4_dst_bits(0xf000);
        let icmp = of(EtherType::IPV4, icmp::PROTOCOL_V4, 0x0800);
        assert_eq!(described(&icmp, mask.with_ip_proto()), "ipv4, icmp");
        let arp = of(EtherType::ARP, 1, 0);
        assert_eq!(described(&arp, mask.with_ip_proto()), "arp, operation 1");
        let tcp = of(EtherType::IPV4, tcp::PROTOCOL, 0);
        let blocks = "ipv4, tcp, ports any > 0-4095";
        assert_eq!(described(&tcp, mask.with_ip_proto()), blocks);
        assert_eq!(described(&icmp, mask), "ipv4, ports any > 0-4095");
    }

    #[test]
    fn connections_are_described_where_frames_are_tracked() {
        let mask = FlowMask::default().with_ct();
        let of = |state, mark| {
            let key = of(EtherType::IPV4, 0, 0).with_ct(Ct::new(CtState::TRACKED | state, mark));
            described(&key, mask)
        };
        assert_eq!(of(CtState::NEW, 0), "new connection, ipv4");
        let reply = CtState::ESTABLISHED | CtState::REPLY;
        let known = "established connection (reply), ipv4";
        assert_eq!(of(reply, 0), known);
        let stale = "established connection (reply, stale, class voice), ipv4";
        assert_eq!(of(reply | CtState::STALE, 3), stale);
        assert_eq!(of(CtState::RELATED, 0), "related to a connection, ipv4");
        assert_eq!(of(CtState::INVALID, 0), "invalid for its connection, ipv4");
        let untracked = super::tests::of(EtherType::IPV4, 0, 0);
        assert_eq!(described(&untracked, mask), "ipv4");
        let new = untracked.with_ct(Ct::new(CtState::NEW, 0));
        assert_eq!(
            described(&new, FlowMask::default()),
            "ipv4",
            "it does not matter"
        );
    }

    #[test]
    fn frame_classes_are_described() {
        let mask = FlowMask::default().with_frame_class();
        let advert = of(EtherType::IPV6, 0, 0).with_frame_class(FrameClass::Router);
        assert_eq!(described(&advert, mask), "ipv6, as a router");
        let ordinary = of(EtherType::IPV6, 0, 0);
        assert_eq!(described(&ordinary, mask), "ipv6");
    }
}
