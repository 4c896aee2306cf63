//! Reading a description.

use std::net::{IpAddr, SocketAddr};

use wire::EtherType;

use super::text::echo;
use super::{Body, EXPERIMENTAL, FrameText, MAX_PAYLOAD};
use crate::ExpressionError;
use crate::lexer::{Kind, Tokens, number};

type Result<T> = std::result::Result<T, ExpressionError>;

pub(super) fn parse(text: &str) -> Result<FrameText> {
    let mut tokens = Tokens::new(text)?;
    let ether = tokens
        .take_word("ether")
        .then(|| {
            let source = tokens.mac()?;
            arrow(&mut tokens)?;
            Ok((source, tokens.mac()?))
        })
        .transpose()?;
    let vlan = tokens
        .take_word("vlan")
        .then(|| tokens.number("a VLAN", 0, 4094))
        .transpose()?;
    let body = body(&mut tokens)?;
    let payload = payload(&mut tokens, &body)?;
    match tokens.peek() {
        end if end.kind == Kind::End => Ok(FrameText {
            ether,
            vlan: vlan.map(|vid| vid as u16),
            body,
            payload,
        }),
        other => Err(other.expected("the end")),
    }
}

fn body(tokens: &mut Tokens<'_>) -> Result<Body> {
    let token = tokens.take();
    let word = if token.kind == Kind::Word {
        token.text
    } else {
        ""
    };
    match word {
        "icmp" => icmp(tokens, true),
        "icmp6" => icmp(tokens, false),
        "tcp" => {
            let (src, dst) = endpoints(tokens)?;
            let flags = flags(tokens);
            Ok(Body::Tcp { src, dst, flags })
        }
        "udp" => endpoints(tokens).map(|(src, dst)| Body::Udp { src, dst }),
        "ip" => ip(tokens),
        "arp" => arp(tokens),
        "nd" => nd(tokens),
        "type" => {
            // A lesser number is a length (IEEE 802.3), and what has a tag has the word `vlan`.
            let what = "a type of Ethernet frames (0x600 to 0xffff), other than 0x8100 of a tag";
            tokens
                .value(what, |text| {
                    let number = u16::try_from(number(text)?).ok()?;
                    let ethertype = EtherType(number);
                    (number >= 0x600 && ethertype != EtherType::VLAN).then_some(ethertype)
                })
                .map(Body::Other)
        }
        _ => Err(token.expected(
            "`ether`, `vlan`, `icmp`, `icmp6`, `tcp`, `udp`, `ip`, `arp`, `nd` or `type`",
        )),
    }
}

/// Parses the payload length behind the last header: not behind ARP and similar bodies, which have
/// no payload.
fn payload(tokens: &mut Tokens<'_>, body: &Body) -> Result<u16> {
    let ends = matches!(
        body,
        Body::ArpRequest { .. } | Body::ArpReply { .. } | Body::NeighborSolicitation { .. }
    );
    if ends || !tokens.take_word("length") {
        return Ok(0);
    }
    let most = u32::from(MAX_PAYLOAD);
    Ok(tokens.number("a length in bytes", 0, most)? as u16)
}

fn arrow(tokens: &mut Tokens<'_>) -> Result<()> {
    match tokens.take() {
        arrow if arrow.kind == Kind::Arrow => Ok(()),
        other => Err(other.expected("`>`")),
    }
}

/// Takes a word that has to be there.
fn word(tokens: &mut Tokens<'_>, word: &str) -> Result<()> {
    match tokens.take() {
        token if token.is(word) => Ok(()),
        other => Err(other.expected(&format!("`{word}`"))),
    }
}

fn icmp(tokens: &mut Tokens<'_>, is_v4: bool) -> Result<Body> {
    let (src, dst): (IpAddr, IpAddr) = if is_v4 {
        let src = tokens.v4()?;
        arrow(tokens)?;
        (src.into(), tokens.v4()?.into())
    } else {
        let src = tokens.v6()?;
        arrow(tokens)?;
        (src.into(), tokens.v6()?.into())
    };
    let (request, reply) = echo(is_v4);
    let (mut kind, mut code) = (request, 0);
    if tokens.take_word("echo-reply") {
        kind = reply;
    } else if tokens.take_word("type") {
        kind = tokens.number("a type", 0, 255)? as u8;
        if tokens.take_word("code") {
            code = tokens.number("a code", 0, 255)? as u8;
        }
    }
    Ok(Body::Icmp {
        src,
        dst,
        kind,
        code,
    })
}

/// Two addresses with ports, of one version.
fn endpoints(tokens: &mut Tokens<'_>) -> Result<(SocketAddr, SocketAddr)> {
    const WHAT: &str = "an address with its port such as 10.0.0.1:80 or [2001:db8::1]:80";
    let src: SocketAddr = tokens.value(WHAT, endpoint)?;
    arrow(tokens)?;
    let what = match src {
        SocketAddr::V4(_) => "an IPv4 address with its port such as 10.0.0.2:80",
        SocketAddr::V6(_) => "an IPv6 address with its port such as [2001:db8::2]:80",
    };
    let dst = tokens.value(what, |text| {
        endpoint(text).filter(|dst| dst.is_ipv4() == src.is_ipv4())
    })?;
    Ok((src, dst))
}

/// An address with its port.
fn endpoint(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

fn flags(tokens: &mut Tokens<'_>) -> u16 {
    let mut flags = 0;
    while let Some((_, bit)) = wire::tcp::FLAGS
        .iter()
        .find(|(word, _)| tokens.take_word(word))
    {
        flags |= bit;
    }
    flags
}

fn ip(tokens: &mut Tokens<'_>) -> Result<Body> {
    let protocol = if tokens.take_word("proto") {
        tokens.number("a protocol", 0, 255)? as u8
    } else {
        EXPERIMENTAL
    };
    let src = tokens.ip()?;
    arrow(tokens)?;
    let dst = match src {
        IpAddr::V4(_) => tokens.v4()?.into(),
        IpAddr::V6(_) => tokens.v6()?.into(),
    };
    Ok(Body::Ip { src, dst, protocol })
}

fn arp(tokens: &mut Tokens<'_>) -> Result<Body> {
    if tokens.take_word("reply") {
        let sender = tokens.v4()?;
        word(tokens, "is-at")?;
        let mac = tokens.mac()?;
        word(tokens, "tell")?;
        let target = tokens.v4()?;
        return Ok(Body::ArpReply {
            sender,
            mac,
            target,
        });
    }
    if !tokens.take_word("who-has") {
        return Err(tokens.peek().expected("`who-has` or `reply`"));
    }
    let target = tokens.v4()?;
    word(tokens, "tell")?;
    let sender = tokens.v4()?;
    Ok(Body::ArpRequest { target, sender })
}

fn nd(tokens: &mut Tokens<'_>) -> Result<Body> {
    word(tokens, "who-has")?;
    let target = tokens.v6()?;
    word(tokens, "tell")?;
    let sender = tokens.v6()?;
    Ok(Body::NeighborSolicitation { target, sender })
}
