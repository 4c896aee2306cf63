//! Settings that can change at run time.
//!
//! The switch process gets its settings when it starts; of `[switch]` only the name can change, and
//! what it says of connections but for the size of their table.
//! Everything about segments and ports can change.

use api::v1::{SwitchSpec, Workers};

use super::at::{At, quoted};
use super::invalid::{Invalid, Place, Why};

/// Checks that a running switch can have the desired settings.
///
/// # Errors
/// The first setting that needs a restart.
pub fn check(is: &SwitchSpec, desired: &SwitchSpec) -> Result<(), Invalid> {
    let differs = settings(is).into_iter().zip(settings(desired));
    let mut differs = differs.filter(|((_, is), (_, desired))| is != desired);
    match differs.next() {
        Some(((at, is), (_, desired))) => Err(fixed(at, &is, &desired)),
        None => Ok(()),
    }
}

/// Returns all settings that cannot change, with their values.
fn settings(switch: &SwitchSpec) -> Vec<(At, String)> {
    // A new setting has to be classified here: the destructuring does not compile without it.
    let SwitchSpec {
        name: _,
        poll,
        poll_us,
        workers,
        coalescing,
        guest_state,
        connections,
        socket_dirs,
        forward_addresses,
    } = switch;
    // All else about connections can change.
    let table = At(Place::Connections, "max");
    let own = |key, value: &dyn ToString| (At(Place::Switch, key), value.to_string());
    let word = |key, value: &str| (At(Place::Switch, key), quoted(value));
    let batches = |key, value: &dyn ToString| (At(Place::Coalescing, key), value.to_string());
    vec![
        word("poll", poll.as_str()),
        own("poll_us", poll_us),
        match workers {
            Workers::Auto => word("workers", "auto"),
            Workers::Count(count) => own("workers", count),
        },
        word("guest_state", guest_state.as_str()),
        batches("enabled", &coalescing.enabled),
        batches("period_us", &coalescing.period_us),
        batches("frames", &coalescing.frames),
        batches("kick_us", &coalescing.kick_us),
        (table, connections.max.to_string()),
        own("socket_dirs", &format!("{socket_dirs:?}")),
        own("forward_addresses", &format!("{forward_addresses:?}")),
    ]
}

fn fixed(at: At, is: &str, desired: &str) -> Invalid {
    let expected = format!("{is}, with which Lasthop was started: another takes a restart");
    Invalid {
        why: Why::Fixed,
        ..at.wrong(expected, desired)
    }
}

#[cfg(test)]
mod tests {
    use api::v1::{GuestStates, Poll, PollLimit};

    use super::*;

    #[test]
    fn only_the_name_and_what_it_says_of_connections_can_change() {
        let is = SwitchSpec::default();
        let renamed = SwitchSpec {
            name: "other".to_owned(),
            ..is.clone()
        };
        assert_eq!(check(&is, &renamed), Ok(()));
        let changed = |change: &dyn Fn(&mut SwitchSpec)| {
            let mut desired = is.clone();
            change(&mut desired);
            let invalid = check(&is, &desired).unwrap_err();
            assert_eq!(invalid.why, Why::Fixed);
            invalid.place.key(invalid.key)
        };
        assert_eq!(changed(&|s| s.poll = Poll::Always), "switch.poll");
        let looks = changed(&|s| s.poll_us = PollLimit::Micros(0));
        assert_eq!(looks, "switch.poll_us");
        assert_eq!(
            changed(&|s| s.workers = Workers::Count(1)),
            "switch.workers"
        );
        let guests = changed(&|s| s.guest_state = GuestStates::Off);
        assert_eq!(guests, "switch.guest_state");
        let coalescing = changed(&|s| s.coalescing.enabled = false);
        assert_eq!(coalescing, "switch.coalescing.enabled");
        let period = changed(&|s| s.coalescing.period_us = 7);
        assert_eq!(period, "switch.coalescing.period_us");
        let frames = changed(&|s| s.coalescing.frames = 7);
        assert_eq!(frames, "switch.coalescing.frames");
        let table = changed(&|s| s.connections.max = 2048);
        assert_eq!(table, "switch.connections.max");
        let mut live = is.clone();
        live.connections.timeouts.udp = Some(7);
        live.connections.strict = false;
        assert_eq!(check(&is, &live), Ok(()));
        let dirs = changed(&|s| s.socket_dirs = vec!["/srv".to_owned()]);
        assert_eq!(dirs, "switch.socket_dirs");
    }
}
