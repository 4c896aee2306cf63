//! Reading a filter.

use std::net::IpAddr;

use wire::{EtherType, tcp, udp};

use super::text::{ETHERTYPES, PROTOCOLS};
use super::{Holder, Node, Prefix, Primitive, Side, Version};
use crate::lexer::{Kind, Token, Tokens, number};
use crate::{ExpressionError, MAX_DEPTH, MAX_NODES};

type Result<T> = std::result::Result<T, ExpressionError>;

/// Kind of a value; a value alone has the kind of the one before it.
#[derive(Clone, Copy)]
enum ValueKind {
    Mac(Side),
    Host(Holder, Option<Version>, Side),
    Net(Holder, Option<Version>, Side),
    Port(Option<u8>, Side),
    PortRange(Option<u8>, Side),
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    nodes: usize,
    depth: usize,
    last: Option<ValueKind>,
    about: About,
}

/// The things that a filter is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    Frames,
    Connections,
}

pub(super) fn parse(text: &str, about: About) -> Result<Option<Node>> {
    no_bytes(text)?;
    let tokens = Tokens::new(text)?;
    if tokens.peek().kind == Kind::End {
        return Ok(None);
    }
    let mut parser = Parser {
        tokens,
        nodes: 0,
        depth: 0,
        last: None,
        about,
    };
    let root = parser.filter()?;
    match parser.tokens.peek() {
        end if end.kind == Kind::End => Ok(Some(root)),
        other => Err(other.expected("`and`, `or` or the end")),
    }
}

/// Refuses expressions such as tcpdump's `tcp[13] & 2 != 0`, before one of its signs is an
/// unexpected character.
fn no_bytes(text: &str) -> Result<()> {
    match text.chars().position(|c| c == '[') {
        Some(before) => Err(ExpressionError {
            column: before + 1,
            problem: "bytes of frames, as in `tcp[13]`, cannot be asked for".to_owned(),
        }),
        None => Ok(()),
    }
}

impl Parser<'_> {
    fn filter(&mut self) -> Result<Node> {
        let mut left = self.term()?;
        loop {
            let operator = self.tokens.peek();
            let join = match operator.kind {
                Kind::And => Node::And,
                Kind::Or => Node::Or,
                _ => return Ok(left),
            };
            self.tokens.take();
            self.count(operator)?;
            let right = self.term()?;
            left = join(Box::new(left), Box::new(right));
        }
    }

    fn count(&mut self, token: Token<'_>) -> Result<()> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let problem = format!("more than {MAX_NODES} primitives and operators");
            return Err(token.wrong(problem));
        }
        Ok(())
    }

    fn term(&mut self) -> Result<Node> {
        let token = self.tokens.peek();
        self.count(token)?;
        match token.kind {
            Kind::Not => self.deeper(|parser| Ok(Node::Not(Box::new(parser.term()?)))),
            Kind::Open => self.deeper(|parser| {
                let inner = parser.filter()?;
                match parser.tokens.take() {
                    close if close.kind == Kind::Close => Ok(inner),
                    other => Err(other.expected("`and`, `or` or `)`")),
                }
            }),
            _ => {
                let primitive = self.primitive()?;
                if self.about == About::Connections && !primitive.is_of_connections() {
                    let problem =
                        "a frame has this, a connection has addresses, a protocol and ports";
                    return Err(token.wrong(problem.to_owned()));
                }
                Ok(Node::Is(primitive))
            }
        }
    }

    /// Takes a token, and reads what it opens.
    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Result<Node>) -> Result<Node> {
        let token = self.tokens.take();
        if self.depth == MAX_DEPTH {
            return Err(token.wrong(format!("more than {MAX_DEPTH} levels deep")));
        }
        self.depth += 1;
        let node = read(self);
        self.depth -= 1;
        node
    }

    fn primitive(&mut self) -> Result<Primitive> {
        let token = self.tokens.peek();
        let word = if token.kind == Kind::Word {
            token.text
        } else {
            ""
        };
        if matches!(word, "src" | "dst" | "host" | "net" | "port" | "portrange") {
            return self.unqualified();
        }
        if let Some(known) = self.last.filter(|_| !is_keyword(word) && !word.is_empty()) {
            return self.value_of(known);
        }
        self.tokens.take();
        match word {
            "ether" => self.ether(),
            "ip" => self.ip(Version::V4, EtherType::IPV4),
            "ip6" => self.ip(Version::V6, EtherType::IPV6),
            "arp" => self.addressed(Holder::Arp, Version::V4, EtherType::ARP),
            "tcp" => self.transport(tcp::PROTOCOL),
            "udp" => self.transport(udp::PROTOCOL),
            "rarp" => Ok(Primitive::EtherType(EtherType::RARP)),
            "broadcast" => Ok(Primitive::Broadcast),
            "multicast" => Ok(Primitive::Multicast),
            "proto" => self.protocol(None),
            "vlan" => self.vlan(),
            "less" => self.length().map(Primitive::Less),
            "greater" => self.length().map(Primitive::Greater),
            _ => {
                match PROTOCOLS.iter().find(|(name, ..)| *name == word) {
                    Some((_, version, number)) => Ok(Primitive::Protocol(*version, *number)),
                    None => Err(token
                        .expected("a primitive such as `tcp`, `host ADDRESS` or `port NUMBER`")),
                }
            }
        }
    }

    /// `src`, `dst`, `src or dst`, `src and dst`, or nothing.
    fn side(&mut self) -> Side {
        let first = self.tokens.peek();
        let (one, other) = match first.kind {
            Kind::Word if first.text == "src" => (Side::Source, "dst"),
            Kind::Word if first.text == "dst" => (Side::Destination, "src"),
            _ => return Side::Either,
        };
        self.tokens.take();
        let joined = match self.tokens.peek().kind {
            Kind::Or => Side::Either,
            Kind::And => Side::Both,
            _ => return one,
        };
        if !self.tokens.peek_at(1).is(other) {
            return one;
        }
        self.tokens.take();
        self.tokens.take();
        joined
    }

    fn unqualified(&mut self) -> Result<Primitive> {
        let side = self.side();
        let kind = if let Some(kind) = self.port_word(None, side) {
            kind
        } else if self.tokens.take_word("net") {
            ValueKind::Net(Holder::Any, None, side)
        } else {
            self.tokens.take_word("host");
            ValueKind::Host(Holder::Any, None, side)
        };
        self.value_of(kind)
    }

    fn port_word(&mut self, protocol: Option<u8>, side: Side) -> Option<ValueKind> {
        if self.tokens.take_word("port") {
            Some(ValueKind::Port(protocol, side))
        } else if self.tokens.take_word("portrange") {
            Some(ValueKind::PortRange(protocol, side))
        } else {
            None
        }
    }

    fn ether(&mut self) -> Result<Primitive> {
        if self.tokens.take_word("broadcast") {
            return Ok(Primitive::Broadcast);
        }
        if self.tokens.take_word("multicast") {
            return Ok(Primitive::Multicast);
        }
        if self.tokens.take_word("proto") {
            let what = "a type: `ip`, `ip6`, `arp`, `rarp` or a number up to 0xffff";
            return self.tokens.value(what, ethertype).map(Primitive::EtherType);
        }
        let at = self.tokens.peek();
        let side = self.side();
        if !self.tokens.take_word("host") && side == Side::Either && !at.is("src") && !at.is("dst")
        {
            return Err(at.expected("`host`, `src`, `dst`, `proto`, `broadcast` or `multicast`"));
        }
        self.value_of(ValueKind::Mac(side))
    }

    fn ip(&mut self, version: Version, ethertype: EtherType) -> Result<Primitive> {
        if self.tokens.take_word("proto") {
            return self.protocol(Some(version));
        }
        if self.tokens.take_word("multicast") {
            return Ok(Primitive::IpMulticast(version));
        }
        self.addressed(Holder::Ip, version, ethertype)
    }

    /// Parses the rest after `ip`, `ip6` or `arp`: an address, or nothing.
    fn addressed(&mut self, holder: Holder, v: Version, bare: EtherType) -> Result<Primitive> {
        let next = self.tokens.peek();
        if !["src", "dst", "host", "net"].iter().any(|w| next.is(w)) {
            return Ok(Primitive::EtherType(bare));
        }
        let side = self.side();
        let kind = if self.tokens.take_word("net") {
            ValueKind::Net(holder, Some(v), side)
        } else {
            self.tokens.take_word("host");
            ValueKind::Host(holder, Some(v), side)
        };
        self.value_of(kind)
    }

    /// Parses the rest after `tcp` or `udp`: a port, or nothing.
    fn transport(&mut self, protocol: u8) -> Result<Primitive> {
        let next = self.tokens.peek();
        let words = ["src", "dst", "port", "portrange", "host", "net"];
        if !words.iter().any(|w| next.is(w)) {
            return Ok(Primitive::Protocol(None, protocol));
        }
        let side = self.side();
        match self.port_word(Some(protocol), side) {
            Some(kind) => self.value_of(kind),
            None => Err(self.tokens.peek().expected(
                "`port` or `portrange` (an address is asked for as in `tcp and host 10.0.0.1`)",
            )),
        }
    }

    fn protocol(&mut self, version: Option<Version>) -> Result<Primitive> {
        let what =
            "a protocol: `tcp`, `udp`, `icmp`, `icmp6`, `igmp`, `sctp` or a number up to 255";
        let number = self.tokens.value(what, |text| {
            let known = PROTOCOLS.iter().find(|(name, ..)| *name == text);
            match known {
                Some((.., number)) => Some(*number),
                None => number(text).and_then(|n| u8::try_from(n).ok()),
            }
        })?;
        Ok(Primitive::Protocol(version, number))
    }

    fn vlan(&mut self) -> Result<Primitive> {
        let next = self.tokens.peek();
        if next.kind != Kind::Word || is_keyword(next.text) {
            return Ok(Primitive::Vlan(None));
        }
        let vid = self.tokens.number("a VLAN", 0, 4095)?;
        Ok(Primitive::Vlan(Some(vid as u16)))
    }

    fn length(&mut self) -> Result<u32> {
        self.tokens.number("a length in bytes", 0, 65_535 + 18)
    }

    /// Reads a value of that kind.
    fn value_of(&mut self, kind: ValueKind) -> Result<Primitive> {
        self.last = Some(kind);
        match kind {
            ValueKind::Mac(side) => self.tokens.mac().map(|mac| Primitive::Ether(side, mac)),
            ValueKind::Host(holder, version, side) => {
                let address = self.address(version)?;
                Ok(Primitive::Address(holder, side, Prefix::host(address)))
            }
            ValueKind::Net(holder, version, side) => {
                let prefix = self.prefix(version)?;
                Ok(Primitive::Address(holder, side, prefix))
            }
            ValueKind::Port(protocol, side) => {
                let port = self.tokens.number("a port", 0, 65_535)? as u16;
                Ok(Primitive::Ports(protocol, side, port, port))
            }
            ValueKind::PortRange(protocol, side) => {
                let what = "two ports such as 1000-2000, the lower first";
                let (from, to) = self.tokens.value(what, port_range)?;
                Ok(Primitive::Ports(protocol, side, from, to))
            }
        }
    }

    fn address(&mut self, version: Option<Version>) -> Result<IpAddr> {
        match version {
            None => self.tokens.ip(),
            Some(Version::V4) => self.tokens.v4().map(IpAddr::V4),
            Some(Version::V6) => self.tokens.v6().map(IpAddr::V6),
        }
    }

    fn prefix(&mut self, version: Option<Version>) -> Result<Prefix> {
        let what = match version {
            None => "a prefix such as 10.0.0.0/8, without bits behind it",
            Some(Version::V4) => "an IPv4 prefix such as 10.0.0.0/8, without bits behind it",
            Some(Version::V6) => "an IPv6 prefix such as 2001:db8::/64, without bits behind it",
        };
        self.tokens.value(what, |text| {
            prefix(text).filter(|p| match version {
                None => true,
                Some(Version::V4) => p.address.is_ipv4(),
                Some(Version::V6) => p.address.is_ipv6(),
            })
        })
    }
}

fn is_keyword(word: &str) -> bool {
    const WORDS: [&str; 13] = [
        "ether",
        "src",
        "dst",
        "host",
        "net",
        "port",
        "portrange",
        "broadcast",
        "multicast",
        "proto",
        "vlan",
        "less",
        "greater",
    ];
    WORDS.contains(&word)
        || ETHERTYPES.iter().any(|(name, _)| *name == word)
        || PROTOCOLS.iter().any(|(name, ..)| *name == word)
}

fn ethertype(text: &str) -> Option<EtherType> {
    match ETHERTYPES.iter().find(|(name, _)| *name == text) {
        Some((_, ethertype)) => Some(*ethertype),
        None => number(text)
            .and_then(|n| u16::try_from(n).ok())
            .map(EtherType),
    }
}

fn prefix(text: &str) -> Option<Prefix> {
    match text.split_once('/') {
        Some((address, len)) => {
            let len = number(len).and_then(|n| u8::try_from(n).ok())?;
            Prefix::new(address.parse().ok()?, len)
        }
        None => text.parse().ok().map(Prefix::host),
    }
}

fn port_range(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-')?;
    let port = |text| number(text).and_then(|n| u16::try_from(n).ok());
    let (from, to) = (port(from)?, port(to)?);
    (from <= to).then_some((from, to))
}
