//! Messages between such guests.
//!
//! ```text
//! UDP or TCP payload   0 run   4 kind   5 from   8 number   16 stamp   24 …
//! ```
//! Requests, answers and acknowledgements are UDP without a checksum, data are TCP whose checksum
//! is left to the device, as Linux guests leave it. Frames are made once; after that only the
//! message in them is written.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Instant;

use testkit::net::NetHeader;
use testkit::packets::{Flow, TCP, tcp_partial, tcp_super, udp};

/// Bytes of payload that a message needs.
pub const MIN_PAYLOAD: usize = 24;
/// Most payload of a segment with an MTU of 1500 bytes and no TCP options.
const SEGMENT: u16 = 1460;
/// Offsets of the payload of a UDP and of a TCP frame, and of the protocol's number.
const UDP_PAYLOAD: usize = 42;
const TCP_PAYLOAD: usize = 54;
const PROTOCOL_AT: usize = 23;
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Request,
    Answer,
    Data,
    Acknowledgement,
}

const KINDS: [Kind; 4] = [
    Kind::Request,
    Kind::Answer,
    Kind::Data,
    Kind::Acknowledgement,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Number of the run.
    pub(super) run: u32,
    /// Number of the guest that sent the message, or of the one that asked, in its answer.
    pub(super) from: u8,
    /// Of data: how many came before; of an acknowledgement: how many are acknowledged.
    pub(super) number: u64,
    /// Of a request: when it was due.
    pub(super) stamp: u64,
    /// Bytes of the payload.
    pub(super) payload: usize,
}

/// Nanoseconds since the first call in this process.
pub(super) fn nanos(at: Instant) -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    // A time before the first call is of that moment.
    let epoch = *EPOCH.get_or_init(Instant::now);
    at.saturating_duration_since(epoch).as_nanos() as u64
}

impl Message {
    /// The message in a frame; none in frames of others.
    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        let at = if *frame.get(PROTOCOL_AT)? == TCP {
            TCP_PAYLOAD
        } else {
            UDP_PAYLOAD
        };
        let payload = frame.get(at..)?;
        let word = |at: usize| -> Option<u64> {
            let bytes = payload.get(at..at + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        let first = word(0)?.to_ne_bytes();
        Some(Self {
            run: u32::from_ne_bytes([first[0], first[1], first[2], first[3]]),
            kind: *KINDS.get(usize::from(first[4]))?,
            from: first[5],
            number: word(8)?,
            stamp: word(16)?,
            payload: payload.len(),
        })
    }

    fn write(&self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&self.run.to_ne_bytes());
        payload[4] = KINDS
            .iter()
            .position(|kind| *kind == self.kind)
            .unwrap_or(0) as u8;
        payload[5] = self.from;
        payload[8..16].copy_from_slice(&self.number.to_ne_bytes());
        payload[16..MIN_PAYLOAD].copy_from_slice(&self.stamp.to_ne_bytes());
    }
}

#[derive(Debug)]
struct Template {
    frame: Vec<u8>,
    header: NetHeader,
    at: usize,
}

/// Frames to whom, of what protocol and length, as far as they were needed.
#[derive(Debug)]
pub(super) struct Templates {
    number: u8,
    made: HashMap<(u8, bool, usize), Template>,
}

impl Templates {
    /// Of guest `number`.
    pub(super) fn new(number: u8) -> Self {
        Self {
            number,
            made: HashMap::new(),
        }
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// A frame to `peer` with this message in it.
    ///
    /// # Panics
    /// When the payload has no room for it.
    pub(super) fn write(&mut self, peer: u8, message: &Message) -> (&[u8], &NetHeader) {
        let is_data = message.kind == Kind::Data;
        let flow = Flow::v4(self.number, peer);
        let key = (peer, is_data, message.payload);
        let template = self.made.entry(key).or_insert_with(|| {
            if is_data {
                data(&flow, message.payload)
            } else {
                datagram(&flow, message.payload)
            }
        });
        message.write(&mut template.frame[template.at..]);
        (&template.frame, &template.header)
    }
}

fn datagram(flow: &Flow, payload: usize) -> Template {
    let mut frame = udp(flow, &vec![0; payload]);
    frame[UDP_CHECKSUM].fill(0);
    Template {
        frame,
        header: NetHeader::default(),
        at: UDP_PAYLOAD,
    }
}

fn data(flow: &Flow, payload: usize) -> Template {
    let zeros = vec![0; payload];
    let (frame, header) = if payload > usize::from(SEGMENT) {
        tcp_super(flow, 1, &zeros, SEGMENT)
    } else {
        tcp_partial(flow, 1, &zeros)
    };
    Template {
        frame,
        header,
        at: TCP_PAYLOAD,
    }
}
