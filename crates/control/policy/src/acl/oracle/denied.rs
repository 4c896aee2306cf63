//! Denials that a table before the switch may hold: every frame that they cover is dropped.

use wire::FrameClass;
use wire::flow::{Ct, CtState, FlowKey, KeyState};

use super::cases::{Bytes, agreeing, key};
use super::connections::World;
use crate::{Action, NamedMacs, denied};

/// States of a frame that belongs to no known connection, in a tracked segment.
const STATES: [CtState; 3] = [
    CtState::empty(),
    CtState::TRACKED.union(CtState::NEW),
    CtState::TRACKED.union(CtState::INVALID),
];

/// Builds a case from bytes, and decides about frames that agree with a denied one in the bits of
/// its mask. Returns the number of denied keys, and of those that are of tracked segments.
///
/// # Panics
/// When such a frame passes.
pub fn check_denied(data: &[u8]) -> (usize, usize) {
    let mut bytes = Bytes(data);
    let world = World::new(&mut bytes);
    let named = NamedMacs::of(&world.program);
    let stations = |_, mac| world.station(mac);
    let mut found = (0, 0);
    for _ in 0..32 {
        let plain = |key: FlowKey| {
            key.with_state(KeyState::empty())
                .with_frame_class(FrameClass::default())
                .with_ct(Ct::UNTRACKED)
        };
        let (key, other) = (plain(key(&mut bytes)), key(&mut bytes));
        let Some(denied) = denied(&world.program, &stations, &key, named) else {
            continue;
        };
        found.0 += 1;
        found.1 += usize::from(denied.is_of_new);
        for like in agreeing(&key, &denied.mask, &mut bytes, &other) {
            let like = plain(like).with_in_port(key.in_port());
            let is_dropped = |like: &FlowKey| {
                let decision = world.decide(&world.program, like);
                let is_dropped = matches!(decision.action, Action::Drop(_));
                assert!(is_dropped, "{key:?} {:?} {like:?}", denied.mask);
                decision.segment
            };
            let segment = is_dropped(&like);
            let is_tracked = segment.is_some_and(|of| world.program.tracks(of).is_some());
            assert!(denied.is_of_new || !is_tracked, "{key:?} {like:?}");
            if denied.is_of_new {
                for state in STATES {
                    is_dropped(&like.with_ct(Ct::new(state, 0)));
                }
                assert!(is_beginning(&like), "{key:?} {:?} {like:?}", denied.mask);
            }
        }
    }
    found
}

/// Returns whether a frame of no known connection begins one, or does nothing: neither can it be a
/// segment from the middle of a forgotten one, nor an answer or an error.
fn is_beginning(key: &FlowKey) -> bool {
    let kind = key.l4_flags() >> 8;
    match (key.ethertype().0, key.ip_proto()) {
        (0x0800 | 0x86dd, 6) => key.l4_flags() & 0x17 == 0x02,
        (0x0800 | 0x86dd, 17) => true,
        (0x0800, 1) => kind == 8,
        (0x86dd, 58) => kind == 128,
        _ => false,
    }
}
