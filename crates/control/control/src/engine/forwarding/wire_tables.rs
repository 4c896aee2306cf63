//! The prefilters of uplinks. They are with the state that decides: an entry that a change of it
//! makes wrong goes before the switch learns of the change.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ipc::rules::RuleUse;
use mapping::SharedWords;
use offload::layout::SIZE;
use offload::{Counts, NoTableError};
use policy::{NamedMacs, Program};
use port::counters::Counters;
use port::{DropReason, PortId};
use wire::MacAddr;

use super::{Forwarding, KnownAddresses};
use crate::prefilter::{INTERVAL, Policy, Prefilter, Turn};

/// A prefilter with its table in the memory of a BPF map.
type PortPrefilter = Prefilter<SharedWords<SIZE>>;

/// See the module.
#[derive(Default)]
pub(in crate::engine) struct Prefilters {
    /// Prefilters of ports, or the reasons why they have none.
    ports: BTreeMap<PortId, Result<PortPrefilter, String>>,
    /// Addresses that the program in effect names; none before it is looked at.
    named: Option<NamedMacs>,
    /// A program is on its way to the switch: no entry is added.
    is_held: bool,
    /// When the next changes are due, if any table is active.
    due: Option<Duration>,
    /// The supervisor was asked for the desired ones.
    pub(in crate::engine) were_asked_for: bool,
}

impl Prefilters {
    /// Returns whether a port has one, or a reason why not.
    pub(in crate::engine) fn knows(&self, port: PortId) -> bool {
        self.ports.contains_key(&port)
    }

    /// Returns the prefilter of a port, or the reason why it has none.
    pub(in crate::engine) fn of(&self, port: PortId) -> Option<Result<&PortPrefilter, &str>> {
        let of = self.ports.get(&port)?;
        Some(of.as_ref().map_err(String::as_str))
    }

    /// Returns the frames of a port that ended before the switch.
    pub(in crate::engine) fn total(&self, port: PortId) -> Counts {
        match self.ports.get(&port) {
            Some(Ok(prefilter)) => prefilter.total(),
            _ => Counts::default(),
        }
    }

    /// Takes over the table of a port; it is empty then. `table`: its map, or the reason why there
    /// is none.
    pub(in crate::engine) fn take(
        &mut self,
        port: PortId,
        table: Result<OwnedFd, String>,
        seed: u64,
    ) {
        let made = table.and_then(|map| {
            let memory = SharedWords::map(map.as_fd(), true).map_err(|error| error.to_string())?;
            Prefilter::new(port, memory, seed).map_err(|error| match error {
                NoTableError::Other => "the supervisor sent no table".to_owned(),
                NoTableError::Layout(number) => format!(
                    "the programs in the kernel have layout {number}: restart Lasthop for a \
                     prefilter"
                ),
            })
        });
        self.ports.insert(port, made);
    }

    /// Sets the maximum number of entries of a port.
    pub(in crate::engine) fn set_limit(&mut self, port: PortId, limit: usize) {
        if let Some(Ok(prefilter)) = self.ports.get_mut(&port) {
            prefilter.set_limit(limit);
        }
    }

    /// Stops the prefilters that a function does not keep, and forgets them.
    pub(in crate::engine) fn retain(&mut self, now: Duration, keeps: impl Fn(PortId) -> bool) {
        self.ports.retain(|port, prefilter| {
            let is_kept = keeps(*port);
            if !is_kept && let Ok(prefilter) = prefilter {
                prefilter.stop(now);
            }
            is_kept
        });
    }

    /// Stops the prefilters of some ports: all their frames reach the switch, until it denies many
    /// again.
    pub(in crate::engine) fn stop(&mut self, now: Duration, of: impl Fn(PortId) -> bool) {
        for (port, prefilter) in &mut self.ports {
            if let Ok(prefilter) = prefilter
                && of(*port)
            {
                prefilter.stop(now);
            }
        }
    }

    /// Allows entries to be added again: the program in effect is that of the last revalidation, or
    /// the one before.
    pub(in crate::engine) fn release(&mut self) {
        (self.is_held, self.named) = (false, None);
    }

    /// Returns when [`tick`] is due.
    pub(in crate::engine) const fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Returns the ports whose tables have entries since the last call, or none any more.
    pub(in crate::engine) fn take_turns(&mut self) -> Vec<(PortId, Turn)> {
        let ports = self.ports.iter_mut();
        let turns = ports.map(|(port, of)| Some((*port, of.as_mut().ok()?.take_turn()?)));
        turns.flatten().collect()
    }

    /// Takes the frames that ended at the wire, by rule.
    pub(in crate::engine) fn take_uses(&mut self) -> Vec<RuleUse> {
        let prefilters = self.ports.values_mut().flatten();
        prefilters.flat_map(Prefilter::take_uses).collect()
    }

    fn set_due(&mut self, now: Duration) {
        let mut prefilters = self.ports.values().flatten();
        let is_active = prefilters.any(Prefilter::is_active);
        self.due = is_active.then(|| now.saturating_add(INTERVAL));
    }
}

impl Prefilters {
    fn revalidate(
        &mut self,
        now: Duration,
        (program, fdb, named): (&Program, &KnownAddresses<'_>, NamedMacs),
        only: Option<MacAddr>,
    ) {
        let policy = Policy {
            program,
            fdb,
            named,
        };
        for prefilter in self.ports.values_mut().flatten() {
            prefilter.revalidate(now, &policy, only);
        }
    }
}

/// Looks, once a second, whether the switch denies many frames of a port. `is_watched`: ports
/// with captures and mirrors, which see denied frames.
pub(in crate::engine) fn look(
    forwarding: &mut Forwarding,
    counters: &Counters,
    is_watched: impl Fn(PortId) -> bool,
) {
    let now = forwarding.now();
    let prefilters = &mut forwarding.prefilters;
    for (port, prefilter) in &mut prefilters.ports {
        if let Ok(prefilter) = prefilter
            && !is_watched(*port)
        {
            prefilter.look(now, counters.drops(*port, DropReason::AclDenied));
        }
    }
    if prefilters.due.is_none() {
        prefilters.set_due(now);
    }
}

/// Changes the tables of active prefilters.
pub(in crate::engine) fn tick(
    forwarding: &mut Forwarding,
    counters: &Counters,
    is_watched: impl Fn(PortId) -> bool,
) {
    let now = forwarding.now();
    if !forwarding.prefilters.is_held {
        with_prefilters(forwarding, |prefilters, forwarding| {
            let program = &forwarding.program;
            let named = *prefilters
                .named
                .get_or_insert_with(|| NamedMacs::of(program));
            let fdb = &forwarding.known(now);
            let policy = Policy {
                program,
                fdb,
                named,
            };
            for (port, prefilter) in &mut prefilters.ports {
                let Ok(prefilter) = prefilter else { continue };
                if is_watched(*port) {
                    prefilter.stop(now);
                } else if prefilter.is_active() {
                    let denied = counters.drops(*port, DropReason::AclDenied);
                    prefilter.tick(now, denied, &policy);
                }
            }
        });
    }
    forwarding.prefilters.set_due(now);
}

/// Removes the entries that a program does not deny, which the switch is about to get. Until
/// [`Prefilters::release`] none is added.
pub(in crate::engine) fn revalidate(forwarding: &mut Forwarding, program: &Program) {
    let now = forwarding.now();
    forwarding.prefilters.is_held = true;
    with_prefilters(forwarding, |prefilters, forwarding| {
        let named = NamedMacs::of(program);
        prefilters.revalidate(now, (program, &forwarding.known(now), named), None);
    });
}

/// Removes the entries that are not denied any more with a changed station.
pub(super) fn station_changed(forwarding: &mut Forwarding, mac: MacAddr) {
    let now = forwarding.now();
    let mut prefilters = forwarding.prefilters.ports.values().flatten();
    if prefilters.all(|prefilter| prefilter.len() == 0) {
        return;
    }
    with_prefilters(forwarding, |prefilters, forwarding| {
        let program = &forwarding.program;
        let named = *prefilters
            .named
            .get_or_insert_with(|| NamedMacs::of(program));
        prefilters.revalidate(now, (program, &forwarding.known(now), named), Some(mac));
    });
}

fn with_prefilters(forwarding: &mut Forwarding, change: impl FnOnce(&mut Prefilters, &Forwarding)) {
    let mut prefilters = std::mem::take(&mut forwarding.prefilters);
    change(&mut prefilters, forwarding);
    forwarding.prefilters = prefilters;
}
