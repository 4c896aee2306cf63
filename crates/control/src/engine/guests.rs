//! How guests' processors are looked at: what the supervisor is to know of it, and what it says.

use api::v1::{GuestStateStatus, GuestStates};
use channel::supervision::{self, GuestWatch, WatchedGuests};
use port::PortId;

use super::Engine;

impl Engine {
    /// What is wanted.
    pub(super) fn guest_watch(&self) -> GuestWatch {
        let wanted = &self.saved.wanted;
        let threads = wanted.ports.iter().filter_map(|spec| {
            let id = self.saved.numbers.ports.get(&spec.name)?;
            Some((*id, spec.vcpu_threads.clone()?))
        });
        GuestWatch {
            by: match wanted.switch.guest_state {
                GuestStates::Auto => supervision::GuestStates::Auto,
                GuestStates::Bpf => supervision::GuestStates::Bpf,
                GuestStates::Proc => supervision::GuestStates::Proc,
                GuestStates::Off => supervision::GuestStates::Off,
            },
            threads: threads.collect(),
        }
    }
}

/// What is said of the switch as a whole.
pub(super) fn status(watched: &WatchedGuests) -> GuestStateStatus {
    let words = [GuestStates::Bpf, GuestStates::Proc, GuestStates::Off];
    let by = words.into_iter().find(|word| word.as_str() == watched.by);
    GuestStateStatus {
        by: by.unwrap_or_default(),
        reason: watched.reason.clone(),
    }
}

/// How many threads of a port are followed.
pub(super) fn threads_of(watched: &WatchedGuests, port: Option<PortId>) -> u32 {
    let all = watched.threads.iter();
    let of_port = all.filter(|(id, _)| Some(*id) == port);
    of_port.map(|(_, count)| *count).sum()
}
