//! All flows of a port.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use wire::packet::{Fragment, L3};
use wire::tcp::{ACK, FIN, SYN};
use wire::virtio::net::NetHeader;
use wire::{MacAddr, ParsedHeaders, ethernet, tcp as wire_tcp, udp as wire_udp};

use crate::Nanos;
use crate::action::{Action, Failure, Headers, Payload, Peek, PeekResult, SocketEvent, Target};
use crate::flow::FlowId;
use crate::hash::Secret;
use crate::headers::{Ends, RST, Segment};
use crate::network::{Access, Destination, Network, Protocol, Refusal, destination};
use crate::progress::Progress;
use crate::record::{FlowRecord, Record};
use crate::services::{PathError, Trouble, dns};
use crate::tcp::{Context, Flow, Incoming};
use crate::times::Times;

mod listing;
mod options;
mod ports;
mod table;
mod udp;

pub use listing::ListedFlow;
use listing::States;
use ports::{Ports, Supply};
use table::{Counts, Entry, Key, Peers, Reserve, Slot};

/// Bounds of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Flows in all.
    pub flows: u32,
    /// Flows of a guest.
    pub guest: u32,
    /// Connections of a guest that are not yet established, and as many of peers of forwards: those
    /// take no place of the guest's own.
    pub half_open: u32,
    /// Mappings of a guest that peers of forwards have opened; the one that was not used for the
    /// longest time makes room for the next.
    pub forwarded: u32,
    /// Ephemeral ports of the host for mappings that guests open, and as many for connections to
    /// each destination: the rest is the host's.
    pub ports: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            flows: 65_536,
            guest: 4096,
            half_open: 256,
            forwarded: 1024,
            ports: 14_116,
        }
    }
}

/// Settings of a translator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The addresses.
    pub network: Network,
    /// The destinations that guests may reach; they can be changed, and flows stay.
    pub access: Access,
    /// The bounds.
    pub bounds: Bounds,
    /// How long flows may be silent; this can be changed, too.
    pub times: Times,
    /// Random numbers of this process.
    pub secret: Secret,
    /// Whether frames to guests may be longer than the MTU.
    pub super_frames: bool,
}

/// The result for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was translated; the actions say how.
    Done,
    /// It is one for the services of the gateway, see [`crate::services`].
    Service,
    /// It is for another station.
    Ignored,
    /// It was refused; the actions may have an answer.
    Refused(Refusal),
    /// It is not passed on, since its time to live, or hop limit, ends at the gateway.
    Expired,
}

/// Minimum time to live that a host begins with.
const HOPS: u8 = 64;

/// Returns the time to live, or hop limit, of an IP packet in a frame from this address; 0 if it is
/// not there.
#[must_use]
pub fn hops_of(frame: &[u8], from: IpAddr) -> u8 {
    let at = ethernet::HEADER_LEN + if from.is_ipv4() { 8 } else { 7 };
    frame.get(at).copied().unwrap_or_default()
}

/// Returns the hops that are left to a packet outside, if they are fewer than those that the host's
/// own have: it has passed routers, or is to come no further.
#[must_use]
pub fn hops_left(hops: u8) -> Option<u8> {
    (hops < HOPS).then(|| hops.saturating_sub(1))
}

/// The translator of a port.
#[derive(Debug)]
pub struct Translator {
    settings: Settings,
    slots: Vec<Slot>,
    free: Vec<u32>,
    keys: HashMap<Key, u32, Secret>,
    guests: HashMap<MacAddr, Counts, Secret>,
    states: States,
    reserve: Reserve,
    ports: Ports,
    deadlines: BTreeSet<(Nanos, u32)>,
    peers: Peers,
    /// Flows that wait for late segments, in the order of their ends; some may have ended before.
    late: VecDeque<FlowId>,
}

/// A frame of a guest, after the checks that all have in common.
struct Packet<'a> {
    parsed: ParsedHeaders,
    headers: &'a [u8],
    guest: SocketAddr,
    to: SocketAddr,
    /// Time to live, or hop limit.
    hops: u8,
    payload: Payload,
}

impl Translator {
    /// A translator without flows.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let (secret, ports) = (settings.secret, settings.bounds.ports);
        Self {
            settings,
            slots: Vec::new(),
            free: Vec::new(),
            keys: HashMap::with_hasher(secret),
            guests: HashMap::with_hasher(secret),
            states: States::default(),
            reserve: Reserve::new(secret),
            ports: Ports::new(ports, secret),
            deadlines: BTreeSet::new(),
            peers: Peers::new(secret),
            late: VecDeque::new(),
        }
    }

    /// Changes what guests may reach. Flows stay.
    pub fn set_access(&mut self, access: Access) {
        self.settings.access = access;
    }

    /// Changes how long flows may be silent, from their next sign of life on.
    pub fn set_times(&mut self, times: Times) {
        self.settings.times = times;
    }

    /// Number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A frame of a guest: `headers` are a private copy of its first bytes, at most
    /// [`wire::SNAPSHOT`], and `frame_len` is its length; `net` is its virtio header. Checksums are
    /// those of the switch: it has checked or completed them.
    pub fn frame(
        &mut self,
        now: Nanos,
        headers: &[u8],
        frame_len: usize,
        net: &NetHeader,
        out: &mut Vec<Action>,
    ) -> Verdict {
        let parsed = ParsedHeaders::parse(headers, frame_len);
        let packet = match self.check(parsed, headers) {
            Ok(packet) => packet,
            Err(verdict) => return verdict,
        };
        match parsed.l4_proto {
            wire_tcp::PROTOCOL => self.tcp(now, &packet, out),
            wire_udp::PROTOCOL => self.udp(now, &packet, net, out),
            _ => Verdict::Refused(Refusal::Protocol),
        }
    }

    /// Returns whether a packet of this protocol to this address is for a service of the network:
    /// ICMP, DNS, DHCP or DHCPv6.
    fn is_for_service(&self, protocol: u8, to: SocketAddr) -> bool {
        match protocol {
            wire::icmp::PROTOCOL_V4 | wire::icmp::PROTOCOL_V6 => true,
            wire_udp::PROTOCOL => match to.port() {
                67 | 547 => true,
                dns::PORT => self.settings.network.is_dns(to.ip()),
                _ => false,
            },
            _ => false,
        }
    }

    /// The checks that TCP and UDP have in common.
    fn check<'a>(&self, parsed: ParsedHeaders, headers: &'a [u8]) -> Result<Packet<'a>, Verdict> {
        if parsed.vlan.is_some() || !parsed.src.is_station() {
            return Err(Verdict::Refused(Refusal::Protocol));
        }
        let is_ours = parsed.dst == self.settings.network.mac();
        let refused = |refusal| match is_ours {
            true => Err(Verdict::Refused(refusal)),
            false => Err(Verdict::Ignored),
        };
        let (src, dst): (IpAddr, IpAddr) = match parsed.l3 {
            L3::V4 { src, dst, .. } => (src.into(), dst.into()),
            L3::V6 {
                src,
                dst,
                routing: false,
                ..
            } => (src.into(), dst.into()),
            L3::Arp { .. } => return Err(Verdict::Service),
            _ => return refused(Refusal::Protocol),
        };
        if !is_ours && !parsed.dst.is_multicast() {
            return Err(Verdict::Ignored);
        }
        if parsed.fragment != Fragment::No {
            return refused(Refusal::Fragment);
        }
        let Some(at) = parsed.l4_offset else {
            return refused(Refusal::Protocol);
        };
        let to = SocketAddr::new(dst, parsed.dst_port);
        if self.is_for_service(parsed.l4_proto, to) {
            return Err(Verdict::Service);
        }
        if !is_ours {
            return Err(Verdict::Ignored);
        }
        if !self.settings.network.may_be_guest(src) || parsed.src_port == 0 || to.port() == 0 {
            return refused(Refusal::Protocol);
        }
        let start = u32::from(parsed.header_len);
        let payload = Payload {
            start,
            len: parsed.l3_end.saturating_sub(start),
        };
        let hops = hops_of(headers, src);
        let headers = headers.get(usize::from(at)..).unwrap_or_default();
        let guest = SocketAddr::new(src, parsed.src_port);
        Ok(Packet {
            parsed,
            headers,
            guest,
            to,
            hops,
            payload,
        })
    }

    /// Whether a packet would leave the gateway and may not.
    fn expires(&self, packet: &Packet<'_>) -> bool {
        let (network, to) = (&self.settings.network, packet.to.ip());
        packet.hops <= 1 && !network.is_gateway(to) && !network.is_dns(to)
    }

    fn ends(&self, packet: &Packet<'_>) -> Ends {
        Ends {
            guest: packet.guest,
            peer: packet.to,
            station: packet.parsed.src,
            gateway: self.settings.network.mac(),
        }
    }

    fn target(&self, protocol: Protocol, to: SocketAddr) -> Result<Target, Refusal> {
        match destination(&self.settings.network, &self.settings.access, protocol, to) {
            Destination::Outside(to) => Ok(Target::Outside(to)),
            Destination::Host(to) => Ok(Target::Host(to)),
            Destination::Dns if to.port() == dns::PORT => Ok(Target::Resolver),
            Destination::Dns | Destination::Gateway => Err(Refusal::Unreachable),
            Destination::Refused(refusal) => Err(refusal),
        }
    }

    fn tcp(&mut self, now: Nanos, packet: &Packet<'_>, out: &mut Vec<Action>) -> Verdict {
        let Some(segment) = incoming(packet) else {
            return Verdict::Refused(Refusal::Protocol);
        };
        let key = (Protocol::Tcp, packet.guest, Some(packet.to));
        let is_syn = segment.flags & (SYN | ACK | RST | FIN) == SYN;
        if let Some(index) = self.keys.get(&key).copied() {
            let id = self.id(index);
            if self.station(id) != Some(packet.parsed.src) {
                return Verdict::Refused(Refusal::Denied);
            }
            let may_reopen = self
                .flow(id)
                .is_some_and(|f| is_syn && f.may_reopen(&segment));
            if !may_reopen {
                self.with(id, now, out, |flow, context| {
                    flow.segment(&segment, context)
                });
                return Verdict::Done;
            }
            self.remove(index);
        }
        let ends = self.ends(packet);
        if !is_syn {
            answer_with_reset(&ends, &segment, out);
            return Verdict::Done;
        }
        if self.expires(packet) {
            return Verdict::Expired;
        }
        self.open(now, (&ends, hops_left(packet.hops)), &segment, out)
    }

    /// A SYN without a flow.
    fn open(
        &mut self,
        now: Nanos,
        (ends, hops): (&Ends, Option<u8>),
        syn: &Incoming,
        out: &mut Vec<Action>,
    ) -> Verdict {
        let target = self.target(Protocol::Tcp, ends.peer).and_then(|target| {
            if !self.has_port(Supply::Tcp(ends.peer), ends.station) {
                return Err(Refusal::Ports);
            }
            let has_room = self.has_room(ends.station, |own| own.half_open);
            has_room.then_some(target).ok_or(Refusal::Flows)
        });
        match target {
            Ok(target) => {
                let (iss, mss) = (self.initial(ends, now), self.own_mss(ends));
                let big = self.settings.super_frames;
                let mut flow = Flow::opened(*ends, syn, iss, mss, big);
                flow.begin(now, &self.settings.times, hops);
                let id = self.insert(Entry::Tcp(Box::new(flow)));
                out.push(Action::Connect(id, target));
                Verdict::Done
            }
            Err(refusal) => {
                answer_with_reset(ends, syn, out);
                Verdict::Refused(refusal)
            }
        }
    }

    fn initial(&self, ends: &Ends, now: Nanos) -> u32 {
        self.settings.secret.initial(&(ends.guest, ends.peer), now)
    }

    fn own_mss(&self, ends: &Ends) -> u16 {
        self.settings.network.mtu() - if ends.guest.is_ipv4() { 40 } else { 60 }
    }

    /// A socket of a forward was accepted: `peer` is the other end as the guest is to see it, the
    /// gateway for an address that [`Network::may_be_peer`] refuses. The caller closes the socket
    /// if there is no flow.
    ///
    /// # Errors
    /// [`Refusal::Flows`] at a bound, or if there is such a flow; [`Refusal::Unreachable`] if the
    /// guest's address, or the peer's, is none.
    pub fn accepted(
        &mut self,
        now: Nanos,
        (guest, station): (SocketAddr, MacAddr),
        peer: SocketAddr,
        room: u32,
        out: &mut Vec<Action>,
    ) -> Result<FlowId, Refusal> {
        let ends = self.checked_ends((guest, peer), station)?;
        if self.keys.contains_key(&(Protocol::Tcp, guest, Some(peer)))
            || !self.has_room(station, |own| own.unanswered)
        {
            return Err(Refusal::Flows);
        }
        let (iss, mss) = (self.initial(&ends, now), self.own_mss(&ends));
        let (big, mut context) = (
            self.settings.super_frames,
            self.context(self.next_id(), now, out),
        );
        let flow = Flow::accepted(ends, iss, mss, big, room, &mut context);
        Ok(self.insert(Entry::Tcp(Box::new(flow))))
    }

    /// Continues a flow from its record; its socket is left.
    ///
    /// # Errors
    /// [`Refusal::Unreachable`] if its addresses are not those of the network's guests,
    /// [`Refusal::Flows`] at a bound or for a second record of a flow.
    pub fn restore(
        &mut self,
        now: Nanos,
        record: &Record,
        progress: &Progress,
        out: &mut Vec<Action>,
    ) -> Result<FlowId, Refusal> {
        let (guest, peer) = (record.guest, record.peer);
        let ends = self.checked_ends((guest, peer), record.station)?;
        if self.keys.contains_key(&(Protocol::Tcp, guest, Some(peer)))
            || !self.has_room(record.station, |_| 0)
        {
            return Err(Refusal::Flows);
        }
        let (mss, big) = (self.own_mss(&ends), self.settings.super_frames);
        let record = Record {
            mss: record.mss.min(mss),
            ..*record
        };
        let mut context = self.context(self.next_id(), now, out);
        let flow = Flow::restored(ends, &record, progress, mss, big, &mut context);
        Ok(self.insert(Entry::Tcp(Box::new(flow))))
    }

    fn context<'a>(&self, id: FlowId, now: Nanos, out: &'a mut Vec<Action>) -> Context<'a> {
        let times = self.settings.times;
        Context {
            id,
            now,
            times,
            out,
        }
    }

    /// The ends of a flow that does not begin with a frame of the guest.
    fn checked_ends(
        &self,
        (guest, peer): (SocketAddr, SocketAddr),
        station: MacAddr,
    ) -> Result<Ends, Refusal> {
        let network = &self.settings.network;
        let sound = network.may_be_guest(guest.ip())
            && network.may_be_peer(peer.ip())
            && guest.is_ipv4() == peer.is_ipv4()
            && station.is_station()
            && guest.port() != 0
            && peer.port() != 0;
        if !sound {
            return Err(Refusal::Unreachable);
        }
        let gateway = network.mac();
        Ok(Ends {
            guest,
            peer,
            station,
            gateway,
        })
    }

    /// The part of a flow that outlives the process, after [`Action::Keep`].
    #[must_use]
    pub fn record(&self, id: FlowId) -> Option<FlowRecord> {
        Some(match self.entry(id)? {
            Entry::Tcp(flow) => FlowRecord::Flow(flow.record()),
            Entry::Udp(mapping) => FlowRecord::Mapping(mapping.record()?),
        })
    }

    /// Hops that packets of a connection's socket may go, if they are fewer than usual.
    #[must_use]
    pub fn hops(&self, id: FlowId) -> Option<u8> {
        self.flow(id)?.hops
    }

    /// Address and station of the guest of a flow.
    #[must_use]
    pub fn guest(&self, id: FlowId) -> Option<(IpAddr, MacAddr)> {
        let ends = self.entry(id)?.ends();
        Some((ends.guest.ip(), ends.station))
    }

    /// Station of the guest of a flow, for its turn.
    #[must_use]
    pub fn station(&self, id: FlowId) -> Option<MacAddr> {
        Some(self.entry(id)?.ends().station)
    }

    /// A socket reports something. Of a mapping only failures count: its datagrams come by
    /// [`Self::datagram`].
    pub fn socket(&mut self, now: Nanos, id: FlowId, event: SocketEvent, out: &mut Vec<Action>) {
        if let (Some(Entry::Udp(_)), SocketEvent::Failed(_)) = (self.entry(id), event) {
            return self.end_mapping(id, out);
        }
        self.with(id, now, out, |flow, context| match event {
            SocketEvent::Connected { room } => flow.socket_connected(room, context),
            SocketEvent::Failed(failure) => flow.connect_failed(failure, context),
            SocketEvent::Reset => flow.socket_failed(context),
            SocketEvent::Absent => flow.guest_is_absent(context),
            SocketEvent::Sent { taken, room } => flow.socket_sent(taken, room, context),
            SocketEvent::Room { room } => flow.socket_room(room, context),
            SocketEvent::Readable => flow.socket_readable(context),
            SocketEvent::Urgent => flow.socket_urgent(context),
        });
    }

    /// An ICMP error of the guest's side about a packet that went there. It is refused if it is of
    /// another station than the flow's guest, or about a packet that is not on its way.
    pub fn path_error(&mut self, now: Nanos, error: &PathError, out: &mut Vec<Action>) -> Verdict {
        let (guest, peer) = (error.guest, error.peer);
        let keys = [Some(peer), None].map(|peer| (error.protocol, guest, peer));
        let mut known = keys.iter().filter_map(|key| self.keys.get(key));
        let id = known.next().map(|index| self.id(*index));
        let id = id.filter(|id| self.station(*id) == Some(error.station));
        let mut counts = false;
        match id.and_then(|id| Some((id, self.entry_mut(id)?))) {
            Some((id, Entry::Tcp(_))) => self.with(id, now, out, |flow, context| {
                counts = flow.path_error(error, context);
            }),
            // No socket passes other errors on to the peer.
            Some((_, Entry::Udp(mapping))) => {
                counts = true;
                if matches!(error.trouble, Trouble::TooBig(_)) {
                    mapping.was_too_big();
                }
            }
            None => {}
        }
        match counts {
            true => Verdict::Done,
            false => Verdict::Refused(Refusal::Protocol),
        }
    }

    /// The bytes to peek of a flow that is ready. `None`: nothing until it is ready again.
    pub fn peek(&mut self, now: Nanos, id: FlowId) -> Option<Peek> {
        let peek = self.flow_mut(id)?.peek(now);
        self.settle(id.index);
        peek
    }

    /// The result of a [`Peek`]; returns the headers to put in front of the bytes.
    pub fn peeked(
        &mut self,
        now: Nanos,
        id: FlowId,
        peek: Peek,
        peeked: PeekResult,
        out: &mut Vec<Action>,
    ) -> Option<Headers> {
        let mut headers = None;
        self.with(id, now, out, |flow, context| {
            headers = flow.peeked(peek, peeked, context);
        });
        headers
    }

    /// The latest time of the next call of [`Self::expire`].
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Handles deadlines up to `now`, each flow once.
    pub fn expire(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let due: Vec<u32> = self
            .deadlines
            .range(..=(now, u32::MAX))
            .map(|(_, at)| *at)
            .collect();
        for index in due {
            let id = self.id(index);
            match self.entry_mut(id) {
                Some(Entry::Tcp(_)) => self.with(id, now, out, Flow::expire),
                Some(Entry::Udp(_)) => self.end_mapping(id, out),
                None => {}
            }
        }
    }
}

/// The segment of a TCP packet.
fn incoming(packet: &Packet<'_>) -> Option<Incoming> {
    let view = wire_tcp::TcpView::new_checked(packet.headers).ok()?;
    let window = packet.headers.get(14..16)?;
    let options = packet
        .headers
        .get(wire_tcp::HEADER_LEN..view.header_len())?;
    let is_syn = view.flags() & SYN != 0;
    let (mss, scale) = if is_syn {
        options::parse(options)
    } else {
        (None, None)
    };
    Some(Incoming {
        seq: view.seq(),
        ack: view.ack(),
        flags: view.flags(),
        window: u16::from_be_bytes([window[0], window[1]]),
        mss,
        scale,
        payload: packet.payload,
    })
}

/// A segment without a flow (RFC 9293, section 3.10.7.1).
fn answer_with_reset(ends: &Ends, segment: &Incoming, out: &mut Vec<Action>) {
    if segment.flags & RST != 0 {
        return;
    }
    let answer = if segment.flags & ACK != 0 {
        ends.reset(segment.ack)
    } else {
        let len = segment.payload.len
            + u32::from(segment.flags & SYN != 0)
            + u32::from(segment.flags & FIN != 0);
        let ack = segment.seq.wrapping_add(len);
        ends.tcp(&Segment {
            ack,
            flags: RST | ACK,
            ..Segment::default()
        })
    };
    out.push(Action::Frame(answer));
}

impl Failure {
    /// The drop reason of a connection that failed so; `None` where a server refused it.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Refused => None,
            Self::Own => Some(Refusal::Denied),
            Self::Unreachable(_) | Self::Silent => Some(Refusal::Unreachable),
            Self::Descriptors => Some(Refusal::Flows),
            Self::Ports => Some(Refusal::Ports),
        }
    }
}
