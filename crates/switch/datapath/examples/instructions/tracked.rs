//! Connections of the tracked scenarios.

use std::net::IpAddr;

use conntrack::table::Rule;
use conntrack::{Ingress, Judgement, Settings, Tracker};
use testkit::packets::Flow;
use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};
use wire::packet::{L3, ParsedHeaders};

use crate::scenarios::{EPOCH, NOW, RECEIVER, SENDER, SEQUENCE};

/// Opens the connection of a segment, by its three first ones.
pub(crate) fn open(tracker: &mut Tracker, settings: &Settings, zone: u16, segment: &[u8]) {
    let flow = flow_of(&ParsedHeaders::parse(segment, segment.len()));
    let syn = tcp_flags(&flow, (SEQUENCE - 1, 0), wire::tcp::SYN);
    let flags = wire::tcp::SYN | wire::tcp::ACK;
    let answer = tcp_flags(&flow.reversed(), (0, SEQUENCE), flags);
    let last = tcp_flags(&flow, (SEQUENCE, 1), wire::tcp::ACK);
    for (port, frame) in [(SENDER, syn), (RECEIVER, answer), (SENDER, last)] {
        let mut batch = tracker.begin(settings, NOW as u32);
        let headers = ParsedHeaders::parse(&frame, frame.len());
        let read = conntrack::packet::read(zone, &headers, &frame, false);
        let from = Ingress {
            port: port.0 as u16,
            is_home: true,
            ..Ingress::default()
        };
        let probe = batch.probe(&read);
        let judged = batch.judge(&read, probe, from, EPOCH);
        let rule = Rule {
            epoch: EPOCH,
            ..Rule::default()
        };
        if judged.judgement == Judgement::New {
            let far = Some(RECEIVER.0 as u16);
            batch.commit(&read, probe, (from, far), rule);
        }
    }
}

/// Returns the flow of a segment.
fn flow_of(segment: &ParsedHeaders) -> Flow {
    let (src, dst) = match segment.l3 {
        L3::V4 { src, dst, .. } => (src.into(), dst.into()),
        L3::V6 { src, dst, .. } => (src.into(), dst.into()),
        _ => unreachable!("IP"),
    };
    Flow {
        src_mac: segment.src.0,
        dst_mac: segment.dst.0,
        src,
        dst,
        src_port: segment.src_port,
        dst_port: segment.dst_port,
        vlan: None,
    }
}

/// Returns a segment with these numbers and flags.
fn tcp_flags(flow: &Flow, (seq, ack): (u32, u32), flags: u16) -> Vec<u8> {
    let fields = TcpFields {
        src_port: flow.src_port,
        dst_port: flow.dst_port,
        seq,
        ack,
        flags,
        options: Vec::new(),
    };
    let frame = PacketBuilder::new(MacAddr(flow.src_mac), MacAddr(flow.dst_mac));
    let frame = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => frame.ipv4(src, dst),
        (IpAddr::V6(src), IpAddr::V6(dst)) => frame.ipv6(src, dst),
        _ => unreachable!("one family"),
    };
    frame.tcp(fields).build()
}
