//! Helpers for texts.

use std::time::Duration;

use policy::acl::Verdict;
use policy::connection::Standing;
use policy::{Action, DropReason, PortId};
use wire::flow::CtState;

use super::Names;
use super::tracked::FrameConnection;

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
        Verdict::Stateful => "allowed with its connection",
    }
}

/// Describes the standing of a frame of this state in its connection.
pub(super) fn connection(
    state: CtState,
    standing: Standing,
    of: Option<&FrameConnection>,
) -> String {
    let side = |reply| match reply {
        true => "the answering side",
        false => "the side that opened it",
    };
    let reply = state.contains(CtState::REPLY);
    let why = of.and_then(FrameConnection::why);
    let why = why.map_or_else(String::new, |why| format!(", as {why}"));
    let known = of.and_then(FrameConnection::known);
    let known = known.map_or_else(String::new, |known| format!(" ({known})"));
    match standing {
        Standing::Untracked => format!("not tracked{why}: stateful rules allow it as others do"),
        Standing::New { maybe_reply: false } => "new".to_owned(),
        Standing::New { maybe_reply: true } => {
            "new, or a reply of a connection that was forgotten".to_owned()
        }
        Standing::Known if state.contains(CtState::ESTABLISHED) => {
            let ends = of.is_some_and(FrameConnection::is_refusal);
            let ends = if ends { "; the frame ends it" } else { "" };
            format!("known{known}, from {}: no rule is asked{ends}", side(reply))
        }
        Standing::Known => format!("an error about a known one{known}: no rule is asked"),
        Standing::Anew { reply } => {
            let why = match state.contains(CtState::STALE) {
                true => "the rules have changed since it was let in",
                false => "a station has moved, or the answering one is not known yet",
            };
            let from = side(reply);
            format!("known{known}, from {from}, and decided as its first frame would be now: {why}")
        }
        Standing::Invalid => format!("invalid{known}{why}: stateful rules do not match"),
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
    use conntrack::packet::Exemption;
    use conntrack::{Invalid, Judgement};
    use wire::flow::Ct;

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

    #[test]
    fn the_standing_of_a_frame_is_described_with_its_reason() {
        let said = |state: CtState| {
            let state = CtState::TRACKED | state;
            connection(state, Standing::of(Ct::new(state, 0)), None)
        };
        let (known, reply) = (CtState::ESTABLISHED, CtState::REPLY);
        for (state, words) in [
            (CtState::NEW, "new"),
            (
                CtState::NEW | reply,
                "new, or a reply of a connection that was forgotten",
            ),
            (
                known,
                "known, from the side that opened it: no rule is asked",
            ),
            (
                known | reply,
                "known, from the answering side: no rule is asked",
            ),
            (
                CtState::RELATED,
                "an error about a known one: no rule is asked",
            ),
            (
                known | reply | CtState::STALE,
                "known, from the answering side, and decided as its first frame would be now: the \
                 rules have changed since it was let in",
            ),
            (
                known | CtState::MOVED,
                "known, from the side that opened it, and decided as its first frame would be \
                 now: a station has moved, or the answering one is not known yet",
            ),
            (CtState::INVALID, "invalid: stateful rules do not match"),
        ] {
            assert_eq!(said(state), words);
        }
        let untracked =
            |of: Option<&FrameConnection>| connection(CtState::empty(), Standing::Untracked, of);
        let allowed = ": stateful rules allow it as others do";
        assert_eq!(untracked(None), format!("not tracked{allowed}"));
        for (of, why) in [
            (
                FrameConnection::Untracked(Exemption::Group),
                "it goes to several stations",
            ),
            (FrameConnection::NoTable, "there is no table of connections"),
        ] {
            assert_eq!(
                untracked(Some(&of)),
                format!("not tracked, as {why}{allowed}")
            );
        }
        let invalid = FrameConnection::Judged(Judgement::Invalid(Invalid::Flags), None);
        let said = connection(CtState::INVALID, Standing::Invalid, Some(&invalid));
        let why = "no stack sends these TCP flags together";
        assert_eq!(
            said,
            format!("invalid, as {why}: stateful rules do not match")
        );
    }
}
