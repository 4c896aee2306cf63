//! vCPU states of guests: their source, and the threads of each port.
//!
//! ```text
//! control      configures the source of states, and thread name patterns of ports
//! supervisor   loads BPF programs;
//!              finds the VMM of each saved connection, and its threads
//! switch       gets the memory with the states, and for each port the slots in it
//! ```
//!
//! A new switch gets everything, even if it replaces another. A new supervisor adopts the programs
//! of the one before it ([`passed`]): the rights to load them are given up at the start
//! ([`super::rights`]).

mod facts;
mod passed;
mod schedule;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::supervision::{EventToSwitch, GuestAnswer, GuestRequest, GuestStates, WatchedGuests};
use port::PortId;
use vcpus::load::{Descriptors, Programs};
use vcpus::{Slot, Table, Vcpu, stat};

use self::search::Search;
use super::child::SwitchChild;
use super::saved_sessions::SavedSessions;

/// Time after which threads are sent again to a switch that had no room: 100 milliseconds.
const SEND_AGAIN: Duration = Duration::from_millis(100);

/// Function that sends a message to a switch without waiting.
type Send<'a> = &'a dyn Fn(&EventToSwitch, &[BorrowedFd<'_>]) -> io::Result<()>;

/// Source of vCPU states.
#[derive(Debug, Default)]
enum StateSource {
    /// Disabled or not available.
    #[default]
    Off,
    /// BPF programs.
    Programs(Programs),
}

/// vCPU states and threads of guests.
#[derive(Debug, Default)]
pub(super) struct Guests {
    source: StateSource,
    /// The configured source.
    by: GuestStates,
    /// Reason why there are no states.
    reason: Option<String>,
    /// Reason why halts are not counted.
    no_halts: Option<String>,
    search: Search,
    /// Programs of the version before that this one cannot use: it gets them back if the upgrade
    /// fails.
    others: Descriptors,
    /// Thread name patterns.
    patterns: BTreeMap<PortId, String>,
    /// Slots of each port's threads.
    slots: BTreeMap<PortId, Vec<Slot>>,
    /// Number of changes of the slots.
    changes: u64,
    /// Slots that were sent to each switch, by its process id.
    sent: BTreeMap<u32, SentSlots>,
    /// Generation of the saved sessions that the search has; `None` before the first.
    generation: Option<u64>,
    /// Time of the next attempt to send.
    send_at: Option<Instant>,
}

/// Slots that a switch has.
#[derive(Debug, Default)]
struct SentSlots {
    ports: BTreeMap<PortId, Vec<Slot>>,
    /// Number of changes when all had been sent.
    changes: Option<u64>,
}

impl Guests {
    /// Opens the configured source, once; the rights that this takes can be given up then.
    pub(super) fn of(by: GuestStates) -> Self {
        let mut guests = Self::default();
        guests.open(by);
        guests
    }

    fn open(&mut self, by: GuestStates) {
        self.by = by;
        (self.source, self.reason) = source(by);
        if let StateSource::Programs(programs) = &self.source {
            self.no_halts = programs.no_halts.as_ref().map(ToString::to_string);
            self.search.load();
        }
        match &self.reason {
            // The programs affect the whole host, so the operator is informed.
            None => tracing::info!(
                "loaded BPF programs that record vCPU states at each context switch; \
                 guest_state = \"off\" in [switch] avoids them"
            ),
            Some(reason) if by == GuestStates::Bpf => {
                tracing::warn!("vCPU states are off: {reason}");
            }
            Some(reason) if by == GuestStates::Auto => {
                tracing::info!("vCPU states are off: {reason}");
            }
            Some(_) => {}
        }
    }

    /// Follows the threads of ports by these names. Ports with the same names as before are not
    /// searched again.
    pub(super) fn watch(&mut self, threads: Vec<(PortId, String)>) {
        let new: BTreeMap<_, _> = threads.into_iter().collect();
        let old = std::mem::replace(&mut self.patterns, new);
        let ports = old.keys().chain(self.patterns.keys());
        let changed = ports.filter(|port| old.get(port) != self.patterns.get(port));
        let changed: BTreeSet<PortId> = changed.copied().collect();
        if !changed.is_empty() {
            self.search.search_again(now(), &changed);
        }
    }

    /// Handles a request of control.
    pub(super) fn answer(&mut self, request: GuestRequest) -> Option<GuestAnswer> {
        match request {
            GuestRequest::Watch(threads) => {
                self.watch(threads);
                None
            }
            GuestRequest::Watched => Some(GuestAnswer::Watched(self.watched())),
            GuestRequest::FoundVcpus => Some(GuestAnswer::FoundVcpus(self.search.report())),
        }
    }

    /// Sends the changes to the switches.
    pub(super) fn send_to(&mut self, switches: &[&SwitchChild]) {
        let alive = switches.iter().filter(|switch| switch.is_alive());
        let pids: Vec<u32> = alive.clone().map(|switch| switch.info().pid).collect();
        self.sent.retain(|pid, _| pids.contains(pid));
        self.send_at = None;
        for (switch, pid) in alive.zip(&pids) {
            let sent = self.send(*pid, &|event, fds| switch.try_send(event, fds));
            if let Err(error) = sent {
                // A full link is retried later; a switch that is gone gets nothing.
                tracing::debug!("cannot send vCPU threads to the switch: {error}");
                self.send_at = Some(Instant::now() + SEND_AGAIN);
            }
        }
    }

    fn by(&self) -> &'static str {
        match self.source {
            StateSource::Programs(_) => GuestStates::Bpf,
            StateSource::Off => GuestStates::Off,
        }
        .as_str()
    }

    /// Returns the state for `lasthop status`.
    pub(super) fn watched(&self) -> WatchedGuests {
        let count = |(port, slots): (&PortId, &Vec<Slot>)| (*port, slots.len() as u32);
        WatchedGuests {
            by: self.by().to_owned(),
            reason: self.reason.clone(),
            no_halts: self.no_halts.clone(),
            threads: self.slots.iter().map(count).collect(),
        }
    }

    /// Returns the time of the next work.
    pub(super) fn due(&self) -> Option<Instant> {
        self.source.table()?;
        let at = |due: Duration| Instant::now() + due.saturating_sub(now());
        let first = self.generation.is_none().then(Instant::now);
        let search = self.search.due().map(at);
        [first, search, self.send_at].into_iter().flatten().min()
    }

    /// Searches for threads when it is time.
    pub(super) fn poll(&mut self, saved_sessions: &SavedSessions, counters: &OwnedFd) {
        if self.source.table().is_none() {
            return;
        }
        let (now, generation) = (now(), saved_sessions.generation());
        let has_changed = self.generation.replace(generation) != Some(generation);
        if has_changed {
            self.search.map_counters(counters);
            let connections = saved_sessions.connections();
            self.search.set_connections(now, connections);
        }
        if (self.search.run(now, &self.patterns) || has_changed)
            && let Some(table) = self.source.table_mut()
        {
            let slots = follow(table, &self.search.threads());
            self.changes += u64::from(slots != self.slots);
            self.slots = slots;
        }
    }

    /// Sends a switch the changes since the last call. What does not fit is sent later.
    fn send(&mut self, pid: u32, send: Send<'_>) -> io::Result<()> {
        let Some(table) = self.source.table() else {
            return Ok(());
        };
        let is_new = !self.sent.contains_key(&pid);
        if is_new {
            let ring = self.source.ring();
            let fds: Vec<_> = [table.reader()].into_iter().chain(ring).collect();
            send(&EventToSwitch::GuestStates, &fds)?;
        }
        let sent = self.sent.entry(pid).or_default();
        if sent.changes == Some(self.changes) {
            return Ok(());
        }
        let ports = self.slots.keys().chain(sent.ports.keys());
        for port in ports.copied().collect::<BTreeSet<_>>() {
            let slots = self.slots.get(&port).map_or(&[][..], Vec::as_slice);
            if sent.ports.get(&port).map_or(&[][..], Vec::as_slice) != slots {
                let numbers = slots.iter().map(|slot| slot.0).collect();
                send(
                    &EventToSwitch::GuestThreads {
                        port,
                        slots: numbers,
                    },
                    &[],
                )?;
                sent.ports.insert(port, slots.to_vec());
            }
        }
        sent.ports.retain(|_, slots| !slots.is_empty());
        sent.changes = Some(self.changes);
        Ok(())
    }
}

/// Returns the time of the clock of searches.
fn now() -> Duration {
    Duration::from_nanos(sys::time::monotonic_ns())
}

impl StateSource {
    fn table(&self) -> Option<&Table> {
        match self {
            Self::Programs(programs) => Some(&programs.table),
            Self::Off => None,
        }
    }

    /// Returns the ring of block events.
    fn ring(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Programs(programs) => Some(programs.ring.as_fd()),
            _ => None,
        }
    }

    fn table_mut(&mut self) -> Option<&mut Table> {
        match self {
            Self::Programs(programs) => Some(&mut programs.table),
            Self::Off => None,
        }
    }
}

/// Opens the configured source. Also returns the reason why there is none.
fn source(by: GuestStates) -> (StateSource, Option<String>) {
    let programs = match by {
        GuestStates::Auto | GuestStates::Bpf => Programs::load().map_err(|e| e.to_string()),
        GuestStates::Off => Err("as configured".to_owned()),
    };
    match programs {
        Ok(programs) => (StateSource::Programs(programs), None),
        Err(reason) => (StateSource::Off, Some(reason)),
    }
}

/// Follows these threads and no others. Returns their slots; threads that do not fit have none.
fn follow(table: &mut Table, desired: &BTreeMap<PortId, Vec<u32>>) -> BTreeMap<PortId, Vec<Slot>> {
    let all: BTreeSet<u32> = desired.values().flatten().copied().collect();
    let had: Vec<u32> = table.threads().map(|(thread, _)| thread).collect();
    for thread in had {
        // The number of a thread that has ended may belong to another one now.
        if !all.contains(&thread) || table.has_ended(thread) {
            table.unfollow(thread);
        }
    }
    let mut slot_of = |thread: &u32| {
        let slot = table.follow(*thread)?;
        // The kernel reports only changes.
        if let Some((activity, core)) = stat::of_thread(*thread) {
            let since_ns = 0;
            table.set_first(
                slot,
                Vcpu {
                    activity,
                    core,
                    since_ns,
                },
            );
        }
        Some(slot)
    };
    let slots = desired.iter().map(|(port, threads)| {
        let slots: Vec<_> = threads.iter().filter_map(&mut slot_of).collect();
        (*port, slots)
    });
    slots.filter(|(_, slots)| !slots.is_empty()).collect()
}

#[cfg(test)]
mod tests;
