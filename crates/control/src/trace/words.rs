//! Small words.

use std::time::Duration;

use policy::{Action, DropReason, PortId};

use super::Names;

/// How long something is or was, roughly.
pub(crate) fn time(time: Duration) -> String {
    let (ms, seconds) = (time.as_millis(), time.as_secs());
    match seconds {
        0 => format!("{ms} ms"),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// A tag, or that there is none.
pub(super) fn tag(vlan: Option<u16>) -> String {
    match vlan {
        None => "untagged".to_owned(),
        Some(0) => "with a priority tag".to_owned(),
        Some(vid) => format!("VLAN {vid}"),
    }
}

/// What happens to a frame; whom a flood leaves out.
pub(super) fn action(action: &Action, except: &[PortId], names: &Names) -> String {
    match *action {
        Action::Unicast { port, tag: vlan } => format!("to {}, {}", names.port(port), tag(vlan)),
        Action::Flood { segment, .. } => {
            let segment = names.segment(segment);
            let except: Vec<String> = except.iter().map(|port| names.port(*port)).collect();
            match except.is_empty() {
                true => format!("flooded in {segment}"),
                false => format!("flooded in {segment}, except to {}", list(&except)),
            }
        }
        Action::Drop(reason) => format!("dropped: {reason}"),
    }
}

/// A reason with its sentence.
pub(super) fn reason(reason: DropReason) -> String {
    format!("{reason}: {}", uncapped(reason.help()))
}

/// A sentence as part of another one. One that begins with an abbreviation does so still.
fn uncapped(sentence: &str) -> String {
    let sentence = sentence.trim_end_matches('.');
    let mut letters = sentence.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    match letters.clone().next() {
        Some(second) if second.is_uppercase() => sentence.to_owned(),
        _ => first.into_iter().chain(letters).collect(),
    }
}

/// Several names in a row.
pub(super) fn list(names: &[String]) -> String {
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_goes_on_behind_its_name() {
        let full = reason(DropReason::ReceiverFull);
        assert_eq!(full, "receiver-full: the receiver had no free buffer");
        let arp = reason(DropReason::SpoofedNeighbour);
        assert!(arp.starts_with("spoofed-neighbour: ARP or "), "{arp}");
    }
}
