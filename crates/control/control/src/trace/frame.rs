//! Frames of trace requests, and their descriptions.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use api::v1::{Problem, ProblemKind, TraceFrame};
use filter::frame::Body;
use filter::{Filter, FrameText};
use wire::packet::{Fragment, L3};
use wire::vlan::{HeaderBuf, VlanTci};
use wire::{FlowKey, MacAddr, ParsedHeaders, SNAPSHOT, arp, icmp, tcp, udp};

/// The shortest frame that has a whole Ethernet header.
const ETHERNET: usize = 14;
/// The longest frame that a port accepts, with segmentation offload.
const LONGEST: usize = 65_535 + 18;

/// A frame to trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// Its first bytes.
    headers: Vec<u8>,
    /// Its length in bytes.
    length: usize,
}

impl Frame {
    /// Returns a frame of which all bytes are known.
    pub(crate) fn new(mut bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        bytes.truncate(SNAPSHOT);
        Self {
            headers: bytes,
            length,
        }
    }

    /// Reads the frame with the index `at` of a request.
    ///
    /// # Errors
    /// 422 for an invalid frame.
    pub(crate) fn read(frame: &TraceFrame, at: usize) -> Result<Self, Problem> {
        let invalid = |field: &str, detail: String| {
            let problem = Problem::new(ProblemKind::Invalid, detail);
            problem.with_field(format!("frames[{at}].{field}"))
        };
        let bytes = from_hex(&frame.headers).ok_or_else(|| {
            let detail = "pairs of hexadecimal digits are expected";
            invalid("headers", detail.to_owned())
        })?;
        let mut read = Self::new(bytes);
        if let Some(length) = frame.length {
            let length = length as usize;
            if !(read.length..=LONGEST).contains(&length) {
                let detail = format!("{} to {LONGEST} is expected", read.length);
                return Err(invalid("length", detail));
            }
            read.length = length;
        }
        Ok(read)
    }

    /// Returns whether it is shorter than an Ethernet header: the switch parses none of it.
    pub(crate) fn is_runt(&self) -> bool {
        self.length < ETHERNET
    }

    /// Returns its key as a frame from a port.
    pub(crate) fn key(&self, in_port: u32) -> FlowKey {
        FlowKey::new(in_port, &self.parse())
    }

    /// Returns its first bytes and its length.
    pub(crate) fn bytes(&self) -> (&[u8], usize) {
        (&self.headers, self.length)
    }

    /// Returns whether a filter matches it.
    pub(crate) fn is_meant_by(&self, filter: &Filter) -> bool {
        filter.matches(&self.parse(), self.length as u32)
    }

    /// Returns the frame as the switch delivers it: with this tag in place of the outer one, or
    /// untagged.
    pub(crate) fn with_tag(&self, vid: Option<u16>) -> Self {
        let mut headers = HeaderBuf::copy_of(&self.headers);
        let before = headers.len();
        let priority = headers.pop_vlan().unwrap_or(VlanTci::new(0));
        if let Some(vid) = vid {
            headers.push_vlan(priority.with_vid(vid));
        }
        Self {
            length: self.length + headers.len() - before,
            headers: headers.as_slice()[..headers.len().min(SNAPSHOT)].to_vec(),
        }
    }

    pub(crate) fn parse(&self) -> ParsedHeaders {
        ParsedHeaders::parse(&self.headers, self.length)
    }

    /// Describes the frame: as an expression that a trace accepts, if possible, and its length.
    pub(crate) fn describe(&self) -> String {
        if self.is_runt() {
            return format!("{} bytes", self.length);
        }
        let p = self.parse();
        let text = FrameText {
            ether: Some((p.src, p.dst)),
            vlan: p.vlan.map(|tag| tag.vid & 0xfff),
            body: body(&p),
            payload: 0,
        };
        let piece = match (p.l3, p.fragment) {
            (L3::Malformed, _) => " (malformed)",
            (L3::Hidden, _) => " (what it carries is hidden behind a tag or LLC)",
            (_, Fragment::First) => " (first fragment)",
            (_, Fragment::Later) => " (later fragment)",
            _ => "",
        };
        format!("{text}{piece}, {} bytes", self.length)
    }
}

fn body(p: &ParsedHeaders) -> Body {
    let (src, dst) = match p.l3 {
        L3::V4 { src, dst, .. } => (src.into(), dst.into()),
        L3::V6 { src, dst, .. } => (src.into(), dst.into()),
        L3::Arp {
            operation,
            sender_mac,
            sender_ip,
            target_ip,
        } => return arp_body(p, operation, sender_mac, sender_ip, target_ip),
        L3::Other | L3::Hidden | L3::Malformed => return Body::Other(p.ethertype),
    };
    let (src, dst): (IpAddr, IpAddr) = (src, dst);
    let [kind, code] = p.l4_flags.to_be_bytes();
    let with = |ip, port| SocketAddr::new(ip, port);
    let readable = p.l4_offset.is_some();
    match p.l4_proto {
        icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6 if readable => Body::Icmp {
            src,
            dst,
            kind,
            code,
        },
        tcp::PROTOCOL if readable => Body::Tcp {
            src: with(src, p.src_port),
            dst: with(dst, p.dst_port),
            flags: p.l4_flags & 0xff,
        },
        udp::PROTOCOL if readable => Body::Udp {
            src: with(src, p.src_port),
            dst: with(dst, p.dst_port),
        },
        protocol => Body::Ip { src, dst, protocol },
    }
}

fn arp_body(
    p: &ParsedHeaders,
    operation: u16,
    mac: MacAddr,
    sender: Ipv4Addr,
    target: Ipv4Addr,
) -> Body {
    match operation {
        arp::REQUEST => Body::ArpRequest { target, sender },
        arp::REPLY => Body::ArpReply {
            sender,
            mac,
            target,
        },
        _ => Body::Other(p.ethertype),
    }
}

/// Returns the source IP address of a frame expression.
pub(crate) fn sender(described: &FrameText) -> Option<IpAddr> {
    match described.body {
        Body::Icmp { src, .. } | Body::Ip { src, .. } => Some(src),
        Body::Tcp { src, .. } | Body::Udp { src, .. } => Some(src.ip()),
        Body::ArpRequest { sender, .. } | Body::ArpReply { sender, .. } => Some(sender.into()),
        Body::NeighborSolicitation { sender, .. } => Some(sender.into()),
        Body::Other(_) => None,
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
            _ => None,
        })
        .collect()
}
