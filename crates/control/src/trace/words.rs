//! Helpers for texts.

use std::time::Duration;

use policy::acl::Verdict;
use policy::{Action, DropReason, PortId};

use super::Names;

/// Returns a rounded duration.
pub(crate) fn time(time: Duration) -> String {
    let (ms, seconds) = (time.as_millis(), time.as_secs());
    match seconds {
        0 => format!("{ms} ms"),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// Returns the words for what a verdict did to a frame.
pub(crate) fn done(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allowed",
        Verdict::Drop => "dropped",
        Verdict::Reject => "rejected",
    }
}

/// Describes a tag, or its absence.
pub(super) fn tag(vlan: Option<u16>) -> String {
    match vlan {
        None => "untagged".to_owned(),
        Some(0) => "with a priority tag".to_owned(),
        Some(vid) => format!("VLAN {vid}"),
    }
}

/// Describes an action, with the ports that a flood excludes.
pub(super) fn action(action: &Action, except: &[PortId], names: &Names) -> String {
    match *action {
        Action::Unicast { port, tag: vlan } => format!("to {}, {}", names.port(port), tag(vlan)),
        Action::Flood { segment, .. } => {
            let segment = names.segment(segment);
            let except: Vec<String> = except.iter().map(|port| names.port(*port)).collect();
            if except.is_empty() {
                format!("flooded in {segment}")
            } else {
                format!("flooded in {segment}, except to {}", list(&except))
            }
        }
        Action::Drop(reason) => format!("dropped: {reason}"),
    }
}

/// Returns a drop reason with its help text.
pub(super) fn reason(reason: DropReason) -> String {
    format!("{reason}: {}", uncapped(reason.help()))
}

/// Converts a sentence into a clause: lower case, unless it begins with an abbreviation.
fn uncapped(sentence: &str) -> String {
    let sentence = sentence.trim_end_matches('.');
    let mut letters = sentence.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    match letters.clone().next() {
        Some(second) if second.is_uppercase() => sentence.to_owned(),
        _ => first.into_iter().chain(letters).collect(),
    }
}

/// Joins names with commas.
pub(super) fn list(names: &[String]) -> String {
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_its_name_and_its_help() {
        let full = reason(DropReason::ReceiverFull);
        assert_eq!(
            full,
            "receiver-full: the receiving guest had no free receive buffer"
        );
        let arp = reason(DropReason::SpoofedNeighbour);
        assert!(arp.starts_with("spoofed-neighbour: ARP or "), "{arp}");
    }
}
