//! One pass over the snapshot against etherparse's layers, on whole and on damaged frames.

use super::frames;
use etherparse::{
    Ipv4HeaderSlice, Ipv6ExtensionSlice, Ipv6Slice, LinkExtSlice, LinkSlice, NetSlice,
    SlicedPacket, TransportSlice,
};
use proptest::{collection::vec, prelude::*};
use wire::{
    EtherType, FlowKey, MacAddr, ParsedHeaders, SNAPSHOT,
    packet::{Fragment, L3},
};

/// Types that etherparse looks through and the switch does not: service tags, an old double tag,
/// MACsec.
const OPAQUE: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x88e5];

fn parse(frame: &[u8]) -> ParsedHeaders {
    ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len())
}

/// Compares everything that etherparse has an opinion on.
fn compare(frame: &[u8]) -> Result<(), TestCaseError> {
    let p = parse(frame);
    let oracle = match SlicedPacket::from_ethernet(frame) {
        Ok(oracle) => oracle,
        Err(e) => return compare_error(&p, &e),
    };
    let Some(LinkSlice::Ethernet2(link)) = &oracle.link else {
        unreachable!("asked for Ethernet")
    };
    prop_assert_eq!((p.dst.0, p.src.0), (link.destination(), link.source()));
    if OPAQUE.contains(&p.ethertype.0) {
        prop_assert!(matches!(p.l3, L3::Other | L3::Hidden));
        return Ok(());
    }
    let tag = oracle.link_exts.first().map(|ext| match ext {
        LinkExtSlice::Vlan(v) => (
            v.priority_code_point().value(),
            v.drop_eligible_indicator(),
            v.vlan_identifier().value(),
        ),
        LinkExtSlice::Macsec(_) => unreachable!("MACsec is opaque"),
    });
    prop_assert_eq!(p.vlan.map(|t| (t.pcp, t.dei, t.vid)), tag);
    match &oracle.net {
        // It looks into no LLC.
        None => prop_assert!(matches!(p.l3, L3::Other | L3::Hidden)),
        Some(NetSlice::Arp(arp)) => compare_arp(&p, arp)?,
        Some(NetSlice::Ipv4(ip)) => {
            compare_v4(&p, &ip.header())?;
            compare_transport(frame, &p, oracle.transport.as_ref())?;
        }
        Some(NetSlice::Ipv6(ip)) => {
            if compare_v6(&p, ip, frame.len())? {
                compare_transport(frame, &p, oracle.transport.as_ref())?;
            }
        }
    }
    Ok(())
}

/// IPv4 and TCP that etherparse refuses must not be parsed as known.
fn compare_error(p: &ParsedHeaders, e: &impl std::fmt::Debug) -> Result<(), TestCaseError> {
    let known =
        matches!(p.l3, L3::V4 { .. }) && p.l4_offset.is_some() && p.fragment == Fragment::No;
    prop_assert!(!known || p.l4_proto != 6, "{p:?} but {e:?}");
    Ok(())
}

fn compare_arp(
    p: &ParsedHeaders,
    arp: &etherparse::ArpPacketSlice<'_>,
) -> Result<(), TestCaseError> {
    let plain = arp.hw_addr_size() == 6
        && arp.proto_addr_size() == 4
        && arp.hw_addr_type().0 == 1
        && arp.proto_addr_type().0 == 0x800;
    let L3::Arp {
        operation,
        sender_mac,
        sender_ip,
        target_ip,
    } = p.l3
    else {
        prop_assert!(!plain && p.l3 == L3::Malformed);
        return Ok(());
    };
    prop_assert!(plain);
    prop_assert_eq!(operation, arp.operation().0);
    prop_assert_eq!(&sender_mac.0[..], arp.sender_hw_addr());
    prop_assert_eq!(&sender_ip.octets()[..], arp.sender_protocol_addr());
    prop_assert_eq!(&target_ip.octets()[..], arp.target_protocol_addr());
    Ok(())
}

fn compare_v4(p: &ParsedHeaders, ip: &Ipv4HeaderSlice<'_>) -> Result<(), TestCaseError> {
    let tos = ip.dcp().value() << 2 | ip.ecn().value();
    prop_assert_eq!(
        p.l3,
        L3::V4 {
            src: ip.source_addr(),
            dst: ip.destination_addr(),
            tos
        }
    );
    prop_assert_eq!(p.l4_proto, ip.protocol().0);
    prop_assert_eq!(p.l3_end, u32::from(p.l3_offset) + u32::from(ip.total_len()));
    let fragment = match (ip.fragments_offset().value(), ip.more_fragments()) {
        (0, false) => Fragment::No,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    prop_assert_eq!(p.fragment, fragment);
    Ok(())
}

/// False when the transport layers are not comparable.
fn compare_v6(
    p: &ParsedHeaders,
    ip: &Ipv6Slice<'_>,
    frame_len: usize,
) -> Result<bool, TestCaseError> {
    let header = ip.header();
    let fragments = ip
        .extensions()
        .clone()
        .into_iter()
        .filter(|e| matches!(e, Ipv6ExtensionSlice::Fragment(_)))
        .count();
    // etherparse takes a zero payload length for a jumbogram and allows fragments of fragments.
    if header.payload_length() == 0 || fragments > 1 {
        return Ok(false);
    }
    let L3::V6 { src, dst, tos, .. } = p.l3 else {
        return Err(TestCaseError::fail(format!("{:?} but {ip:?}", p.l3)));
    };
    prop_assert_eq!(
        (src, dst, tos),
        (
            header.source_addr(),
            header.destination_addr(),
            header.traffic_class()
        )
    );
    prop_assert_eq!(
        p.l3_end,
        u32::from(p.l3_offset) + 40 + u32::from(header.payload_length())
    );
    // etherparse follows more kinds of extension headers, and sees behind the snapshot.
    let unfollowed = matches!(p.l4_proto, 135 | 139 | 140);
    if unfollowed || (frame_len > SNAPSHOT && matches!(p.l4_proto, 0 | 43 | 44 | 51 | 60)) {
        return Ok(false);
    }
    prop_assert_eq!(p.fragment != Fragment::No, fragments == 1);
    prop_assert!(p.fragment != Fragment::Later || ip.is_payload_fragmented());
    if p.fragment != Fragment::Later {
        prop_assert_eq!(p.l4_proto, ip.payload().ip_number.0);
    }
    Ok(true)
}

fn compare_transport(
    frame: &[u8],
    p: &ParsedHeaders,
    oracle: Option<&TransportSlice<'_>>,
) -> Result<(), TestCaseError> {
    let v4 = matches!(p.l3, L3::V4 { .. });
    let at = |slice: &[u8]| Some((slice.as_ptr() as usize - frame.as_ptr() as usize) as u16);
    match oracle {
        Some(TransportSlice::Tcp(tcp)) if p.l4_proto == 6 => {
            prop_assert_eq!(
                (p.src_port, p.dst_port),
                (tcp.source_port(), tcp.destination_port())
            );
            let bits = [
                tcp.fin(),
                tcp.syn(),
                tcp.rst(),
                tcp.psh(),
                tcp.ack(),
                tcp.urg(),
                tcp.ece(),
                tcp.cwr(),
                tcp.ns(),
            ];
            let flags = bits
                .iter()
                .enumerate()
                .fold(0, |f, (i, b)| f | u16::from(*b) << i);
            prop_assert_eq!((p.l4_flags & 0x1ff, p.l4_offset), (flags, at(tcp.slice())));
            prop_assert_eq!(
                usize::from(p.header_len),
                usize::from(p.l4_offset.unwrap()) + tcp.header_len()
            );
        }
        Some(TransportSlice::Udp(udp)) if p.l4_proto == 17 => {
            prop_assert_eq!(
                (p.src_port, p.dst_port),
                (udp.source_port(), udp.destination_port())
            );
            prop_assert_eq!(p.l4_offset, at(udp.slice()));
        }
        Some(TransportSlice::Icmpv4(icmp)) if p.l4_proto == 1 && v4 => {
            prop_assert_eq!(
                p.l4_flags,
                u16::from_be_bytes([icmp.type_u8(), icmp.code_u8()])
            );
            prop_assert_eq!(p.l4_offset, at(icmp.slice()));
        }
        Some(TransportSlice::Icmpv6(icmp)) if p.l4_proto == 58 && !v4 => {
            prop_assert_eq!(
                p.l4_flags,
                u16::from_be_bytes([icmp.type_u8(), icmp.code_u8()])
            );
            prop_assert_eq!(p.l4_offset, at(icmp.slice()));
        }
        // etherparse stops at every fragment, at IGMP, and takes either ICMP over either IP.
        _ if p.fragment == Fragment::Later => {
            prop_assert_eq!((p.l4_offset, p.src_port, p.l4_flags), (None, 0, 0))
        }
        _ if p.fragment == Fragment::No && !(v4 && p.l4_proto == 51) => {
            prop_assert!(!matches!(p.l4_proto, 6 | 17), "{p:?} but {oracle:?}");
            prop_assert_eq!(p.l4_offset, Some(p.header_len));
        }
        _ => {}
    }
    Ok(())
}

/// Properties of every parse, whatever the bytes.
fn invariants(headers: &[u8], frame_len: usize, p: &ParsedHeaders) -> Result<(), TestCaseError> {
    let seen = headers.len().min(frame_len);
    prop_assert!(usize::from(p.header_len) <= seen);
    prop_assert!(
        p.l4_offset
            .is_none_or(|at| p.l3_offset < at && at <= p.header_len)
    );
    prop_assert!(p.l3_offset <= p.header_len && p.l3_end as usize <= frame_len);
    prop_assert!(p.header_len as u32 <= p.l3_end || !p.has_ethernet());
    prop_assert!(p.l4_offset.is_some() || (p.src_port, p.dst_port, p.l4_flags) == (0, 0, 0));
    if let (Some(field), Some(_)) = (p.checksum_offset(), p.l4_offset) {
        prop_assert!(field + 2 <= p.header_len);
    }
    let _ = (
        p.pseudo_header(0),
        p.l4_len(),
        format!("{:?}", FlowKey::new(1, p)),
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whole_frames_agree_with_etherparse(b in frames::builder(300)) {
        compare(&b.build())?;
    }

    #[test]
    fn damaged_frames_agree_with_etherparse(frame in frames::damaged()) {
        compare(&frame)?;
    }

    #[test]
    fn any_bytes_keep_the_invariants(
        headers in vec(any::<u8>(), 0..SNAPSHOT + 20), len in 0usize..70_000,
    ) {
        invariants(&headers, len, &ParsedHeaders::parse(&headers, len))?;
    }

    #[test]
    fn any_cut_keeps_the_invariants(
        frame in frames::damaged(), cut in 0usize..200, len in prop::option::of(any::<usize>()),
    ) {
        let headers = &frame[..cut.min(frame.len())];
        let len = len.unwrap_or(frame.len());
        invariants(headers, len, &ParsedHeaders::parse(headers, len))?;
    }

    #[test]
    fn a_shorter_snapshot_knows_less_but_nothing_else(
        frame in frames::damaged(), cut in 18usize..200,
    ) {
        let whole = parse(&frame);
        let part = ParsedHeaders::parse(&frame[..cut.min(frame.len())], frame.len());
        prop_assert_eq!(
            (part.dst, part.src, part.vlan, part.ethertype),
            (whole.dst, whole.src, whole.vlan, whole.ethertype),
        );
        if part.l4_offset.is_some() {
            prop_assert_eq!(part, whole);
        }
    }
}

#[test]
fn tags_put_in_and_taken_out_are_what_the_parser_sees() {
    let frame = wire::build::PacketBuilder::new(MacAddr::ZERO, MacAddr::BROADCAST)
        .ipv4([1, 2, 3, 4], [5, 6, 7, 8])
        .udp(1, 2)
        .build();
    let mut headers = wire::HeaderBuf::default();
    headers.fill(frame.len()).copy_from_slice(&frame);
    let untagged = ParsedHeaders::parse(headers.as_slice(), headers.len());
    assert!(headers.push_vlan(wire::VlanTci::new(9)));
    let tagged = ParsedHeaders::parse(headers.as_slice(), headers.len());
    assert_eq!(
        (tagged.vlan, tagged.ethertype),
        (Some(wire::VlanTci::new(9)), EtherType::IPV4)
    );
    assert_eq!(
        (tagged.l3, tagged.l4_offset),
        (untagged.l3, untagged.l4_offset.map(|at| at + 4))
    );
    assert_eq!(
        FlowKey::new(1, &tagged).with_vlan(None),
        FlowKey::new(1, &untagged)
    );
}
