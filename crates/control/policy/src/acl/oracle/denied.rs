//! Denials that a table before the switch may hold: every frame that they cover is dropped.

use wire::FrameClass;
use wire::flow::{Ct, FlowKey, KeyState};

use super::cases::{Bytes, agreeing, key};
use super::connections::World;
use crate::{Action, NamedMacs, denied};

/// Builds a case from bytes, and decides about frames that agree with a denied one in the bits of
/// its mask. Returns the number of denied keys.
///
/// # Panics
/// When such a frame passes.
pub fn check_denied(data: &[u8]) -> usize {
    let mut bytes = Bytes(data);
    let world = World::new(&mut bytes);
    let named = NamedMacs::of(&world.program);
    let stations = |_, mac| world.station(mac);
    let mut found = 0;
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
        found += 1;
        for like in agreeing(&key, &denied.mask, &mut bytes, &other) {
            let like = plain(like).with_in_port(key.in_port());
            let decision = world.decide(&world.program, &like);
            let is_dropped = matches!(decision.action, Action::Drop(_));
            assert!(is_dropped, "{key:?} {:?} {like:?}", denied.mask);
        }
    }
    found
}
