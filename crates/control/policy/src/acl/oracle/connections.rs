//! Decisions about frames with a connection: the properties that must hold, with the oracle's word
//! for each side.

use std::collections::HashSet;

use super::cases::{Bytes, Case, agreeing, key};
use super::*;
use crate::acl::{CompiledRules, MAX_MASKS, Rules};
use crate::{Action, ConnectionChange, Decision, DropReason, Model, PortMode, Program, decide};

/// A case with a program of its rules, and the stations of its ports.
pub(super) struct World {
    case: Case,
    pub(super) program: Program,
    /// The same without access lists.
    open: Program,
    /// Ports by the last byte of the address.
    stations: [Option<PortId>; 4],
}

/// Fate of a frame and of its connection.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    passes: bool,
    connection: ConnectionChange,
}

impl World {
    pub(super) fn new(bytes: &mut Bytes<'_>) -> Self {
        let mut case = Case::new(bytes);
        let CompiledRules { rules, .. } = case.compile();
        let [native, tagged] = [0, 1].map(SegmentId);
        let mut segments = case.names().segments.clone();
        if let Some(segment) = segments.get_mut(&tagged) {
            segment.vlan = Some(1);
        }
        let trunk = || PortMode::Trunk(vec![native, tagged]);
        let modes = [PortMode::Access(native), trunk(), trunk(), trunk()];
        let ports = (0..).map(PortId).zip(modes).collect();
        let open = Program::compile(&Model { segments, ports }, 1).expect("a sound model");
        Self {
            program: open.with_rules(rules, 2),
            open: open.with_rules(Rules::default(), 2),
            stations: [(); 4].map(|()| {
                let port = PortId(bytes.below(5) as u32);
                (port.0 < 4).then_some(port)
            }),
            case,
        }
    }

    /// Returns the port of a station.
    pub(super) fn station(&self, mac: MacAddr) -> Option<PortId> {
        self.stations[usize::from(mac.0[5] & 3)]
    }

    pub(super) fn decide(&self, program: &Program, key: &FlowKey) -> Decision {
        decide(program, &|_, mac| self.station(mac), key)
    }

    fn verdict(
        &self,
        direction: Direction,
        segment: SegmentId,
        port: u32,
        key: &FlowKey,
    ) -> Verdict {
        let (model, names) = (&self.case.model, self.case.names());
        let oracle = Oracle { model, names };
        oracle
            .evaluate(direction, segment, PortId(port), key)
            .verdict
    }

    /// Returns the verdicts of both sides about a frame that goes to these ports.
    fn asked(&self, segment: SegmentId, from: u32, to: &[u32], key: &FlowKey) -> (bool, bool) {
        let from = self.verdict(Direction::FromGuest, segment, from, key);
        let to = to.iter();
        let to: Vec<_> = to
            .map(|port| self.verdict(Direction::ToGuest, segment, *port, key))
            .collect();
        let passes = from.allows() && (to.is_empty() || to.iter().any(|verdict| verdict.allows()));
        let stateful = from == Verdict::Stateful || to.contains(&Verdict::Stateful);
        (passes, passes && stateful)
    }

    fn receivers(&self, forwarded: Action, sender: u32) -> Vec<u32> {
        match forwarded {
            Action::Unicast { port, .. } => vec![port.0],
            Action::Flood { segment, .. } => {
                let members = self.program.flood(segment, PortId(sender));
                members.map(|member| member.port.0).collect()
            }
            Action::Drop(_) => Vec::new(),
        }
    }

    /// Returns the outcome of a frame that is forwarded in a tracked segment.
    fn outcome(&self, segment: SegmentId, forwarded: Action, key: &FlowKey) -> Outcome {
        let state = key.ct().state();
        let has = |bit| state.contains(bit);
        let port = key.in_port();
        let to = self.receivers(forwarded, port);
        let goes = !matches!(forwarded, Action::Drop(_));
        let itself = |key: &FlowKey| {
            let (passes, stateful) = self.asked(segment, port, &to, key);
            (passes, stateful && goes)
        };
        let of_none = key.with_ct(Ct::new(CtState::TRACKED | CtState::INVALID, 0));
        let original = || match forwarded {
            Action::Unicast { port: far, tag } => {
                let swapped = swapped(key, far.0, tag);
                Some(self.asked(segment, far.0, &[port], &swapped).1)
            }
            _ => None,
        };
        let none = ConnectionChange::None;
        let commit = |reply| ConnectionChange::Commit { mark: 0, reply };
        let (passes, connection) = if !has(CtState::TRACKED) || is_invalid(state) {
            (itself(key).0, none)
        } else if !has(CtState::STALE)
            && !has(CtState::MOVED)
            && (has(CtState::ESTABLISHED) || has(CtState::RELATED))
        {
            (!matches!(forwarded, Action::Flood { .. }), none)
        } else if has(CtState::ESTABLISHED) {
            let reply = has(CtState::REPLY);
            let let_in = match reply {
                true => original(),
                false => Some(itself(&first(key)).1),
            };
            match (let_in, itself(&of_none).0) {
                (Some(true), _) => (true, commit(reply)),
                (Some(false), false) if !key.state().contains(KeyState::LATER_FRAGMENT) => {
                    (false, ConnectionChange::Deny)
                }
                (_, passes) => (passes, none),
            }
        } else {
            match itself(key) {
                (_, true) => (true, commit(false)),
                (false, _) if has(CtState::REPLY) && original() == Some(true) => {
                    (true, commit(true))
                }
                (passes, false) => {
                    let answers = !self.openers(segment, forwarded, key).is_empty();
                    (passes || answers, none)
                }
            }
        };
        Outcome {
            passes: passes && goes,
            connection,
        }
    }

    /// Returns the ports that a flood may answer: those that the first frame of its connection may
    /// have come from.
    fn openers(&self, segment: SegmentId, forwarded: Action, key: &FlowKey) -> Vec<u32> {
        let may_answer = key.ct().state().contains(CtState::NEW | CtState::REPLY);
        if !matches!(forwarded, Action::Flood { .. }) || !may_answer {
            return Vec::new();
        }
        let lets_in = |opener: &u32| {
            let member = self.program.member(segment, PortId(*opener));
            let tag = member.and_then(|member| member.tag);
            let swapped = swapped(key, *opener, tag);
            self.asked(segment, *opener, &[key.in_port()], &swapped).1
        };
        let mut all = self.receivers(forwarded, key.in_port());
        all.retain(lets_in);
        all
    }

    /// Checks the receivers of a flood that opens no connection and may be an answer.
    fn check_openers(
        &self,
        segment: SegmentId,
        forwarded: Action,
        (key, decision): (&FlowKey, &Decision),
    ) {
        if decision.connection.is_some() || !matches!(decision.action, Action::Flood { .. }) {
            return;
        }
        let openers = self.openers(segment, forwarded, key);
        let mut denied = self.receivers(forwarded, key.in_port());
        denied.retain(|to| {
            !openers.contains(to) && !self.asked(segment, key.in_port(), &[*to], key).0
        });
        let excluded = decision.excluded().map(|port| port.0);
        assert!(excluded.eq(denied), "{key:?} {decision:?}");
    }

    fn check(&self, key: &FlowKey, decision: &Decision) {
        let untracked = key.with_ct(Ct::UNTRACKED);
        let open = self.decide(&self.open, &untracked);
        let Some(segment) = open.segment else {
            return assert_eq!(decision.action, open.action);
        };
        if self.program.tracks(segment).is_none() {
            let same = self.decide(&self.program, &untracked);
            assert_eq!(decision, &same, "its state does not count");
            return;
        }
        let outcome = Outcome {
            passes: !matches!(decision.action, Action::Drop(_)),
            connection: decision.connection,
        };
        let right = self.outcome(segment, open.action, key);
        assert_eq!(
            outcome, right,
            "{key:?} {decision:?} {:#?}",
            self.case.model
        );
        if outcome.passes {
            assert_eq!(decision.action, open.action);
        }
        if key.ct().state().contains(CtState::NEW | CtState::REPLY) {
            self.check_openers(segment, open.action, (key, decision));
        }
        if key.ct().state().is_known() {
            assert_eq!(decision.mask, crate::DECISION_MASK.with_ct());
            assert_eq!((&decision.from_guest, decision.rules().len()), (&None, 0));
        }
        let invalid = decision.action == Action::Drop(DropReason::ConnectionInvalid);
        assert!(!invalid || key.ct() != Ct::UNTRACKED);
    }
}

/// The first frame of the connection of a frame of its original direction.
fn first(key: &FlowKey) -> FlowKey {
    let flags = match (key.ethertype().0, key.ip_proto()) {
        (_, 6) => 0x02,
        (0x0800, 1) => 0x0800,
        (0x86dd, 58) => 0x8000,
        _ => key.l4_flags(),
    };
    key.with_l4_flags(flags).with_ct(Ct::UNTRACKED)
}

/// The first frame of the connection of a reply to a station at a port, with its tag there.
fn swapped(key: &FlowKey, port: u32, tag: Option<u16>) -> FlowKey {
    let words = key.words();
    let (low, high) = (words[3] & 0xffff, words[3] >> 16 & 0xffff);
    let addresses = [words[6], words[7], words[4], words[5]];
    let mut other = *words;
    other[3] = words[3] & !0xffff_ffff | low << 16 | high;
    other[4..].copy_from_slice(&addresses);
    let mac = 0xffff_ffff_ffff;
    (other[1], other[2]) = (
        words[1] & !mac | words[2] & mac,
        words[2] & !mac | words[1] & mac,
    );
    let key = FlowKey::from_words(other);
    first(&key.with_in_port(port).with_vlan(tag))
}

/// Builds a case from bytes and checks decisions with connections: that they are the oracle's; the
/// same for all keys that agree in the bits of the mask; and that their masks are few. Returns the
/// number of compared keys.
///
/// # Panics
/// When a property does not hold.
pub fn check_connections(data: &[u8]) -> usize {
    let mut bytes = Bytes(data);
    let world = World::new(&mut bytes);
    let (keys, mut masks) = (32, HashSet::new());
    for _ in 0..keys {
        let (key, other) = (key(&mut bytes), key(&mut bytes));
        let decision = world.decide(&world.program, &key);
        world.check(&key, &decision);
        masks.insert(decision.mask);
        for like in agreeing(&key, &decision.mask, &mut bytes, &other) {
            let same = world.decide(&world.program, &like);
            let all = |of: &Decision| {
                let excluded: Vec<_> = of.excluded().collect();
                (of.action, of.class, of.connection, of.rules(), excluded)
            };
            assert_eq!(
                all(&same),
                all(&decision),
                "{key:?} and {like:?} {:#?}",
                world.case.model
            );
        }
    }
    // Those of frames, those of replies, and that of known connections; in untracked segments
    // without the state.
    assert!(masks.len() <= 4 * MAX_MASKS);
    keys
}
