//! Limits and mirrors that apply to a traced frame.

use std::collections::HashMap;

use api::v1::{
    FloodLimit, LimitsSpec, MirrorDirection, PortState, RateLimit, TraceAction, TraceLimit,
    TraceMirror, TraceOutcome,
};
use filter::Filter;
use ipc::capture::Way;
use ipc::mirrors::Mirror;
use policy::{PortId, SegmentId};
use wire::MacAddr;

use super::frame::Frame;
use super::words::list;

/// Limits of ports by name.
pub(crate) type Limits<'a> = HashMap<&'a str, &'a LimitsSpec>;

/// Returns the limits that count a frame with this outcome. Whether a limit passes it is not
/// predicted.
pub(crate) fn limits(
    sender: &str,
    destination: MacAddr,
    outcome: &TraceOutcome,
    limits: &Limits<'_>,
) -> Vec<TraceLimit> {
    let own = limits.get(sender).copied();
    let from = own.and_then(|own| own.from_guest);
    let from = from.map(|limit| TraceLimit {
        limit: "from_guest".to_owned(),
        ports: vec![sender.to_owned()],
        text: format!(
            "{sender} may send {}: more frames wait in its queue",
            rate(&limit)
        ),
        drop: None,
    });
    let mut all: Vec<TraceLimit> = from.into_iter().collect();
    if let Some(own) = own
        && outcome.action == TraceAction::Flood
    {
        all.extend(flood_limit(sender, destination, own));
    }
    all.extend(receivers(outcome, limits));
    all
}

/// Returns the sender's limit of flooded frames.
fn flood_limit(sender: &str, destination: MacAddr, own: &LimitsSpec) -> Option<TraceLimit> {
    let (name, what, limit) = match destination {
        MacAddr::BROADCAST => ("broadcast", "broadcasts", own.broadcast),
        group if group.is_multicast() => ("multicast", "multicasts", own.multicast),
        _ => (
            "unknown_unicast",
            "frames for unknown addresses",
            own.unknown_unicast,
        ),
    };
    let FloodLimit {
        packets_per_second: packets,
        ..
    } = limit?;
    Some(TraceLimit {
        limit: name.to_owned(),
        ports: vec![sender.to_owned()],
        text: format!(
            "{sender} may send {packets} {what} a second: more are dropped, \
                       storm-control"
        ),
        drop: Some("storm-control".to_owned()),
    })
}

/// Returns the receivers' limits; receivers with equal limits share an element.
fn receivers(outcome: &TraceOutcome, limits: &Limits<'_>) -> Vec<TraceLimit> {
    let mut all: Vec<(RateLimit, Vec<String>)> = Vec::new();
    for receiver in &outcome.receivers {
        let limits = limits.get(&*receiver.port);
        let Some(limit) = limits.and_then(|limits| limits.to_guest) else {
            continue;
        };
        match all.iter_mut().find(|(other, _)| *other == limit) {
            Some((_, ports)) => ports.push(receiver.port.clone()),
            None => all.push((limit, vec![receiver.port.clone()])),
        }
    }
    let limits = all.into_iter().map(|(limit, ports)| {
        let each = if ports.len() > 1 { " each" } else { "" };
        let (names, rate) = (list(&ports), rate(&limit));
        TraceLimit {
            limit: "to_guest".to_owned(),
            text: format!("{names} may be sent {rate}{each}: more is dropped, rate-limited"),
            ports,
            drop: Some("rate-limited".to_owned()),
        }
    });
    limits.collect()
}

fn rate(limit: &RateLimit) -> String {
    let packets = limit.packets_per_second.map(|n| format!("{n} packets/s"));
    let bits = limit.bits_per_second.map(|n| format!("{n} bit/s"));
    let both: Vec<String> = packets.into_iter().chain(bits).collect();
    both.join(" and ")
}

/// A mirror that may copy a frame.
pub(crate) struct Copying<'a> {
    pub(crate) name: &'a str,
    /// The port that gets the copies.
    pub(crate) to: &'a str,
    /// The mirror in the switch, sorted.
    pub(crate) order: Mirror,
}

/// Returns the copies of a frame: one for each mirror that selects it at the sender, and one for
/// each receiver at which a mirror selects it. `id_of` maps names of ports to numbers.
pub(crate) fn mirrors(
    mirrors: &[Copying<'_>],
    frame: &Frame,
    (sender, segment): (&str, Option<SegmentId>),
    outcome: &TraceOutcome,
    id_of: &dyn Fn(&str) -> Option<PortId>,
) -> Vec<TraceMirror> {
    // Only delivered frames are copied at receivers.
    let up = outcome.receivers.iter();
    let up = up.filter(|receiver| receiver.state == PortState::Up);
    let delivered = up.filter_map(|receiver| Some((receiver, id_of(&receiver.port)?)));
    let delivered: Vec<_> = delivered.collect();
    let mut copies = Vec::new();
    for mirror in mirrors {
        // The switch has no mirror with an invalid filter.
        let Ok(filter) = Filter::parse(&mirror.order.filter) else {
            continue;
        };
        let sent = id_of(sender).is_some_and(|id| mirror.order.means(id, Way::In, segment));
        if sent && frame.is_meant_by(&filter) {
            copies.push(copy(mirror, sender, MirrorDirection::In));
        }
        for (receiver, id) in &delivered {
            let meant = mirror.order.means(*id, Way::Out, None)
                && frame.with_tag(receiver.vlan).is_meant_by(&filter);
            if meant {
                copies.push(copy(mirror, &receiver.port, MirrorDirection::Out));
            }
        }
    }
    copies
}

fn copy(mirror: &Copying<'_>, port: &str, direction: MirrorDirection) -> TraceMirror {
    let Copying { name, to, .. } = mirror;
    let how = match direction {
        MirrorDirection::Out => format!("as it is delivered to {port}"),
        _ => format!("as {port} sends it"),
    };
    TraceMirror {
        mirror: (*name).to_owned(),
        to: (*to).to_owned(),
        port: port.to_owned(),
        direction,
        text: format!("{name} copies it to {to}, {how}"),
    }
}
