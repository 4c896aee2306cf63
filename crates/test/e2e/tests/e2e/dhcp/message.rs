//! Messages of clients, written as words, and answers in words.
//!
//! | word | meaning |
//! |---|---|
//! | `53:01` | an option: its code, and its value in hexadecimal digits |
//! | `list` | a list of all parameters that are compared (option 55) |
//! | `0`, `end` | a pad, an end |
//! | `ciaddr=ADDRESS` and others | a field of the header |
//! | `file=HEX`, `sname=HEX`, `raw=HEX` | bytes of these fields, or behind the options |
//! | `noend`, `exact` | no end, no zeros behind it |
//! | `pad=LENGTH`, `cut=LENGTH` | least and most bytes of the message |
//! | `from=ADDRESS`, `to=server` | addresses of the packet |
//!
//! `$own` is the address that the client was given last, `$server` the server's, `$mac` the station
//! of the client.

use std::net::Ipv4Addr;

use wire::MacAddr;
use wire::build::PacketBuilder;
use wire::hash::{BASIS, fnv1a};

use super::SERVER;

/// Options whose presence is compared: all that are needed to use an address.
const COMPARED: [u8; 11] = [1, 3, 6, 15, 26, 28, 51, 53, 54, 58, 59];
const NAK: [u8; 2] = [53, 54];
const BOOTP: [u8; 6] = [1, 3, 6, 15, 26, 28];
const FIXED: usize = 236;

/// A client with a station of its own.
pub(crate) struct Client {
    station: MacAddr,
    transaction: [u8; 4],
    own: Option<Ipv4Addr>,
}

/// Fields of the header that are numbers, by name: place and length.
const FIELDS: [(&str, usize, usize); 12] = [
    ("op", 0, 1),
    ("htype", 1, 1),
    ("hlen", 2, 1),
    ("hops", 3, 1),
    ("secs", 8, 2),
    ("flags", 10, 2),
    ("ciaddr", 12, 4),
    ("yiaddr", 16, 4),
    ("siaddr", 20, 4),
    ("giaddr", 24, 4),
    ("chaddr", 28, 16),
    ("cookie", 236, 4),
];

impl Client {
    pub(crate) fn new(name: &str) -> Self {
        let [a, b, c, d, transaction @ ..] = fnv1a(BASIS, name.bytes()).to_be_bytes();
        Self {
            station: MacAddr([2, 0x11, a, b, c, d]),
            transaction,
            own: None,
        }
    }

    /// Takes what it was given.
    pub(crate) fn take(&mut self, answer: Option<&Answer>) {
        let given = answer.map(|answer| answer.given);
        self.own = given.filter(|given| !given.is_unspecified()).or(self.own);
    }

    /// Hexadecimal digits, or a word for them.
    fn value(&self, text: &str) -> Vec<u8> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let own = self.own.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let text = text
            .replace("$own", &hex(&own.octets()))
            .replace("$server", &hex(&SERVER.octets()))
            .replace("$mac", &hex(&self.station.0));
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return address.octets().into();
        }
        let digits = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.map(byte).collect();
        bytes.unwrap_or_else(|| panic!("{text}"))
    }

    fn address(&self, text: &str) -> Ipv4Addr {
        let bytes = <[u8; 4]>::try_from(self.value(text));
        bytes.map(Ipv4Addr::from).expect("an address")
    }

    /// The frame of a message.
    pub(crate) fn frame(&self, words: &str, server: MacAddr) -> Vec<u8> {
        let mut head = vec![0; FIXED + 4];
        head[..3].copy_from_slice(&[1, 1, 6]);
        head[4..8].copy_from_slice(&self.transaction);
        head[28..34].copy_from_slice(&self.station.0);
        head[FIXED..].copy_from_slice(&[99, 130, 83, 99]);
        let (mut options, mut has_end, mut pad, mut cut) = (Vec::new(), true, 300, usize::MAX);
        let (mut from, mut to, mut port) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, 68);
        for word in words.split_whitespace() {
            match word {
                "list" => options.extend([55, 8, 1, 3, 6, 15, 26, 28, 51, 54]),
                "0" => options.push(0),
                "end" => options.push(255),
                "noend" => has_end = false,
                "exact" => pad = 0,
                _ => {}
            }
            if let Some((code, value)) = word.split_once(':') {
                let value = match value.strip_prefix('*') {
                    Some(len) => vec![0xab; len.parse().expect("a length")],
                    None => self.value(value),
                };
                options.extend([code.parse().expect("a code"), value.len() as u8]);
                options.extend(value);
            }
            let Some((key, value)) = word.split_once('=') else {
                continue;
            };
            let number = || value.parse::<usize>().expect("a number");
            match key {
                "sname" | "file" => {
                    let (value, at) = (self.value(value), if key == "file" { 108 } else { 44 });
                    head[at..at + value.len()].copy_from_slice(&value);
                }
                "raw" => options.extend(self.value(value)),
                "pad" => pad = number(),
                "cut" => cut = number(),
                "port" => port = number() as u16,
                "from" => from = self.address(value),
                "to" => to = self.address("$server"),
                _ => {
                    let field = FIELDS.iter().find(|(name, ..)| *name == key);
                    let (_, at, len) = field.expect("a field");
                    let value = self.value(value);
                    head[*at..at + len].fill(0);
                    head[*at..at + value.len()].copy_from_slice(&value);
                }
            }
        }
        let end = [255];
        let mut body = [&head[..], &options, if has_end { &end } else { &[] }].concat();
        body.resize(body.len().max(pad), 0);
        body.truncate(cut);
        let station = if to.is_broadcast() {
            MacAddr::BROADCAST
        } else {
            server
        };
        let frame = PacketBuilder::new(self.station, station).ipv4(from, to);
        frame.udp(port, 67).payload(&body).build()
    }
}

/// The transaction of a client's frame.
pub(crate) fn transaction(frame: &[u8]) -> Option<[u8; 4]> {
    frame.get(46..50)?.try_into().ok()
}

/// An answer of a server.
pub(crate) struct Answer {
    pub(crate) transaction: [u8; 4],
    given: Ipv4Addr,
    to: Ipv4Addr,
    port: u16,
    kind: Option<u8>,
    options: Vec<u8>,
}

impl Answer {
    /// Reads a frame; `None` for one that is no answer.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let address = |at: usize| {
            let bytes = frame.get(at..at + 4).map(<[u8; 4]>::try_from);
            bytes.and_then(Result::ok).map(Ipv4Addr::from)
        };
        let is_udp = frame.get(12..14)? == [8, 0] && *frame.get(23)? == 17;
        if !is_udp || frame.get(34..36)? != [0, 67] || *frame.get(42)? != 2 {
            return None;
        }
        let (mut rest, mut options, mut kind) = (frame.get(282..)?, Vec::new(), None);
        while let [code, len, more @ ..] = rest
            && *code != 255
        {
            let (value, more) = more.split_at_checked((*len).into())?;
            options.push(*code);
            if *code == 53 {
                kind = value.first().copied();
            }
            rest = more;
        }
        options.sort_unstable();
        options.retain(|code| COMPARED.contains(code));
        Some(Self {
            transaction: transaction(frame)?,
            given: address(58)?,
            to: address(30)?,
            port: u16::from_be_bytes([*frame.get(36)?, *frame.get(37)?]),
            kind,
            options,
        })
    }

    /// Type, whose address is given, where the answer goes, and options if they are not the usual
    /// ones of the type.
    pub(crate) fn words(answer: Option<&Self>, client: &Client) -> String {
        let Some(answer) = answer else {
            return "nothing".to_owned();
        };
        let (kind, usual): (&str, &[u8]) = match answer.kind {
            Some(2) => ("offer", &COMPARED),
            Some(5) => ("ack", &COMPARED),
            Some(6) => ("nak", &NAK),
            None => ("bootp", &BOOTP),
            Some(other) => panic!("type {other}"),
        };
        let given = match answer.given {
            given if given.is_unspecified() => "no address",
            given if Some(given) == client.own => "own address",
            _ => "new address",
        };
        let to = match (answer.to, answer.port) {
            (Ipv4Addr::BROADCAST, 68) => "all",
            (_, 68) => "client",
            _ => "relay",
        };
        let mut words = format!("{kind}, {given}, to {to}");
        if answer.options != usual {
            words += &format!(", options {:?}", answer.options);
        }
        words
    }
}
