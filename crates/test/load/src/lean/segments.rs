//! Frames of connections from the guest of a pair's even port, the client, to that of the odd one,
//! the server.
//!
//! ```text
//! client                                 server
//! Syn      C                ->
//!                           <-           SynAck   S,     C + 1
//! Ack      C + 1, S + 1     ->
//! Data     C + 1, S + 1     ->           (P bytes)
//! Fin      C + 1 + P, S + 1 ->
//!                           <-           FinAck   S + 1, C + 2 + P
//! LastAck  C + 2 + P, S + 2 ->
//! ```
//! All connections have these sequence numbers, so that frames of the same kind differ by two
//! ports and the checksum. Windows are 65 535 bytes, without options (RFC 9293).

use std::sync::Arc;

use super::frames::{Frames, Head};
use testkit::net::HEADER_LEN;
use testkit::packets::{TCP, UDP, mac};

/// Bytes of the Ethernet, IPv4 and TCP headers.
const HEADERS: u16 = 54;
/// The numbers of connections are below this: 32 768 ports of the client for each of the server's.
pub const CONNECTIONS: u32 = 65_535 << CLIENT_BITS;
const CLIENT_BITS: u32 = 15;
/// The client's first port.
const CLIENT_PORTS: u16 = 1 << CLIENT_BITS;

/// Words of the IPv4 and the TCP header, or of the UDP header and 12 bytes of payload.
const WORDS: usize = 20;
const PORTS_WORD: usize = 10;
const SEQUENCE_WORD: usize = 12;
const CHECKSUM_WORD: usize = 18;
/// Byte of the first of them in a buffer.
const IP: usize = HEADER_LEN + 14;
/// Two bytes of the payload that all frames have.
const PAYLOAD: u16 = 0x5a5a;

const FIN: u16 = 1;
const SYN: u16 = 2;
const PSH: u16 = 8;
const ACK: u16 = 16;
const FLAGS: u16 = 0x3f;
/// Five words of header.
const OFFSET: u16 = 5 << 12;
const WINDOW: u16 = u16::MAX;
const CLIENT_ISN: u32 = 1_000_000;
const SERVER_ISN: u32 = 3_000_000_000;

/// A frame of a connection: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The client asks for a connection.
    Syn,
    /// The server has one.
    SynAck,
    /// The client, too.
    Ack,
    /// Data of the client.
    Data,
    /// The client has no more.
    Fin,
    /// The server neither.
    FinAck,
    /// The client has seen it.
    LastAck,
    /// Data of the server, of an established connection.
    ServerData,
    /// A datagram of the client.
    Datagram,
    /// A datagram of the server.
    Answer,
}

impl Segment {
    const ALL: [Self; 10] = [
        Self::Syn,
        Self::SynAck,
        Self::Ack,
        Self::Data,
        Self::Fin,
        Self::FinAck,
        Self::LastAck,
        Self::ServerData,
        Self::Datagram,
        Self::Answer,
    ];

    /// Returns whether the client sends it.
    #[must_use]
    pub const fn is_of_client(self) -> bool {
        !matches!(
            self,
            Self::SynAck | Self::FinAck | Self::ServerData | Self::Answer
        )
    }

    /// Flags, sequence number, acknowledgement and bytes of payload of a TCP segment in a
    /// connection that carries so many bytes.
    const fn fields(self, payload: u16) -> Option<(u16, u32, u32, u16)> {
        let (client, server) = (CLIENT_ISN + 1, SERVER_ISN + 1);
        let closed = client + payload as u32 + 1;
        Some(match self {
            Self::Syn => (SYN, CLIENT_ISN, 0, 0),
            Self::SynAck => (SYN | ACK, SERVER_ISN, client, 0),
            Self::Ack => (ACK, client, server, 0),
            Self::Data => (PSH | ACK, client, server, payload),
            Self::Fin => (FIN | ACK, closed - 1, server, 0),
            Self::FinAck => (FIN | ACK, server, closed, 0),
            Self::LastAck => (ACK, closed, server + 1, 0),
            Self::ServerData => (PSH | ACK, server, client, payload),
            Self::Datagram | Self::Answer => return None,
        })
    }

    /// The segment with these flags that arrives at a guest.
    fn with_flags(flags: u16, at_server: bool, is_last: bool) -> Option<Self> {
        Some(match (flags, at_server) {
            (SYN, true) => Self::Syn,
            (18, false) => Self::SynAck,
            (17, true) => Self::Fin,
            (17, false) => Self::FinAck,
            (24, true) => Self::Data,
            (24, false) => Self::ServerData,
            (ACK, true) if is_last => Self::LastAck,
            (ACK, true) => Self::Ack,
            _ => return None,
        })
    }
}

/// The ports of connection `number`, the client's first.
const fn ports(number: u32) -> [u16; 2] {
    let client = number as u16 & (CLIENT_PORTS - 1) | CLIENT_PORTS;
    // None is 0, which is no port (RFC 9293, RFC 768).
    [client, (number >> CLIENT_BITS) as u16 + 1]
}

/// The number of the connection with these ports.
const fn number([client, server]: [u16; 2]) -> Option<u32> {
    if client < CLIENT_PORTS || server == 0 {
        return None;
    }
    let low = (client - CLIENT_PORTS) as u32;
    Some(low | (server as u32 - 1) << CLIENT_BITS)
}

/// The sum of RFC 1071 in 16 bits.
const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn halves(number: u32) -> [u16; 2] {
    [(number >> 16) as u16, number as u16]
}

/// All frames of one kind, but for their ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    /// As they lie in memory, without ports and checksum.
    words: [u16; WORDS],
    /// Sum of what the checksum is over, without ports; UDP goes without one.
    sum: Option<u32>,
    is_of_client: bool,
}

impl Template {
    fn new(segment: Segment, frame_len: u16, addresses: [u32; 2]) -> Self {
        let payload = frame_len - HEADERS;
        let is_of_client = segment.is_of_client();
        let Some((flags, sequence, acknowledged, payload)) = segment.fields(payload) else {
            let head = Head::new(frame_len, UDP, addresses, [0; 2]);
            let len = frame_len - 34;
            let words = join(&head, [0, 0, len, 0], [PAYLOAD; 6]);
            return Self {
                words,
                sum: None,
                is_of_client,
            };
        };
        let head = Head::new(HEADERS + payload, TCP, addresses, [0; 2]);
        let ([a, b], [c, d]) = (halves(sequence), halves(acknowledged));
        let tail = [c, d, OFFSET | flags, WINDOW, 0, 0];
        let add = |words: &[u16]| words.iter().map(|word| u32::from(*word)).sum::<u32>();
        let pseudo = [
            addresses.map(halves).as_flattened(),
            &[TCP.into(), 20 + payload],
        ]
        .concat();
        let data = u32::from(payload / 2) * u32::from(PAYLOAD);
        let odd = u32::from(payload % 2) * u32::from(PAYLOAD & 0xff00);
        Self {
            words: join(&head, [0, 0, a, b], tail),
            sum: Some(add(&pseudo) + add(&[a, b]) + add(&tail) + data + odd),
            is_of_client,
        }
    }

    /// Makes the frame in buffer `id` one of connection `number`.
    #[inline]
    pub(super) fn write(&self, frames: &Frames, id: u16, number: u32) {
        for (at, word) in self.words.iter().enumerate() {
            frames.set_half(id, IP + 2 * at, *word);
        }
        self.write_ports(frames, id, number);
    }

    /// Makes the frame in buffer `id`, which was one of these, that of connection `number`.
    #[inline]
    pub(super) fn write_ports(&self, frames: &Frames, id: u16, number: u32) {
        let (ports, sum) = self.renewed(number);
        for (at, port) in ports.into_iter().enumerate() {
            frames.set_half(id, IP + 2 * (PORTS_WORD + at), port);
        }
        if let Some(sum) = sum {
            frames.set_half(id, IP + 2 * CHECKSUM_WORD, sum);
        }
    }

    /// Ports and checksum of connection `number`, as they lie in memory.
    #[inline]
    fn renewed(&self, number: u32) -> ([u16; 2], Option<u16>) {
        let [client, server] = ports(number);
        let ports = if self.is_of_client {
            [client, server]
        } else {
            [server, client]
        };
        let sum = |sum: u32| !fold(sum + u32::from(client) + u32::from(server));
        (ports.map(u16::to_be), self.sum.map(sum).map(u16::to_be))
    }
}

fn join(head: &Head, first: [u16; 4], last: [u16; 6]) -> [u16; WORDS] {
    let mut words = [0; WORDS];
    words[..PORTS_WORD].copy_from_slice(&head.words()[..PORTS_WORD]);
    words[PORTS_WORD..][..4].copy_from_slice(&first.map(u16::to_be));
    words[PORTS_WORD + 4..].copy_from_slice(&last.map(u16::to_be));
    words
}

/// A template for each kind of frame.
#[derive(Clone, Debug)]
pub(super) struct Templates(Arc<[Template; Segment::ALL.len()]>);

impl Templates {
    /// For frames of this length between guests with these addresses, the client's first; none if
    /// TCP's headers do not fit.
    pub(super) fn new(frame_len: u16, [client, server]: [u32; 2]) -> Option<Self> {
        (frame_len >= HEADERS).then(|| {
            Self(Arc::new(Segment::ALL.map(|segment| {
                let addresses = if segment.is_of_client() {
                    [client, server]
                } else {
                    [server, client]
                };
                Template::new(segment, frame_len, addresses)
            })))
        })
    }

    #[inline]
    pub(super) fn of(&self, segment: Segment) -> &Template {
        &self.0[segment as usize]
    }

    /// The frame in buffer `id`, which arrived at the server or at the client: the number of its
    /// connection, and its kind.
    #[inline]
    pub(super) fn read(&self, frames: &Frames, id: u16, at_server: bool) -> Option<(u32, Segment)> {
        if !frames.is_mine(id) {
            return None;
        }
        let half = |word: usize| u16::from_be(frames.half(id, IP + 2 * word));
        let [source, destination] = [0, 1].map(|at| half(PORTS_WORD + at));
        let number = number(if at_server {
            [source, destination]
        } else {
            [destination, source]
        })?;
        let segment = match half(4) as u8 {
            TCP => {
                let low = SEQUENCE_WORD + 1;
                let last = u16::from_be(self.of(Segment::LastAck).words[low]);
                let flags = half(CHECKSUM_WORD - 2) & FLAGS;
                Segment::with_flags(flags, at_server, half(low) == last)?
            }
            UDP if at_server => Segment::Datagram,
            UDP => Segment::Answer,
            _ => return None,
        };
        Some((number, segment))
    }
}

/// A whole frame of one kind, for clients that have no rings.
#[derive(Clone, Debug)]
pub struct Prepared {
    template: Template,
    bytes: Vec<u8>,
}

impl Prepared {
    /// Of so many bytes between the test guests with these numbers, the client's first; none if
    /// TCP's headers do not fit.
    #[must_use]
    pub fn new(segment: Segment, frame_len: u16, guests: [u8; 2]) -> Option<Self> {
        let templates = Templates::new(frame_len, guests.map(address))?;
        let [client, server] = guests.map(mac);
        let macs = if segment.is_of_client() {
            [server, client]
        } else {
            [client, server]
        };
        let template = *templates.of(segment);
        let mut bytes = [macs.as_flattened(), &[8, 0]].concat();
        bytes.extend(template.words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.resize(frame_len.into(), PAYLOAD as u8);
        Some(Self { template, bytes })
    }

    /// The frame of connection `number`.
    pub fn of(&mut self, number: u32) -> &[u8] {
        let (ports, sum) = self.template.renewed(number);
        let mut set = |word: usize, value: u16| {
            self.bytes[14 + 2 * word..][..2].copy_from_slice(&value.to_ne_bytes());
        };
        set(PORTS_WORD, ports[0]);
        set(PORTS_WORD + 1, ports[1]);
        if let Some(sum) = sum {
            set(CHECKSUM_WORD, sum);
        }
        &self.bytes
    }
}

/// The address that frames of test guest `guest` have.
pub(super) fn address(guest: u8) -> u32 {
    10 << 24 | u32::from(guest)
}

#[cfg(test)]
mod tests {
    use testkit::packets::{parse, verify_checksums};

    use super::*;

    #[test]
    fn each_number_has_ports_of_its_own() {
        for of in [0, 1, 32_767, 32_768, 1_000_000, CONNECTIONS - 1] {
            let [client, server] = ports(of);
            assert!(client >= CLIENT_PORTS && server > 0, "{of}");
            assert_eq!(number([client, server]), Some(of));
        }
        assert_eq!((number([80, 1]), number([CLIENT_PORTS, 0])), (None, None));
    }

    #[test]
    fn prepared_frames_are_whole_packets() {
        for len in [54, 64, 65] {
            for segment in Segment::ALL {
                let mut frame = Prepared::new(segment, len, [1, 2]).expect("room");
                for number in [0, 77_777] {
                    let bytes = frame.of(number);
                    assert_eq!(bytes.len(), usize::from(len));
                    verify_checksums(bytes).expect("right checksums");
                    let found = parse(bytes).expect("a packet");
                    let from = if segment.is_of_client() { 1 } else { 2 };
                    assert_eq!(found.src.to_string(), format!("10.0.0.{from}"));
                }
            }
        }
        assert!(Prepared::new(Segment::Syn, 53, [1, 2]).is_none());
    }
}
