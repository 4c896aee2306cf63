//! What the processors of guests do, for the switch: who notes it, and which threads are whose.
//!
//! ```text
//! control      says how, and which names the threads of some ports have
//! here         load the kernel's programs, or look into /proc
//!              find the VMM behind each connection that is kept, and its threads
//! the switch   gets the memory with the states, and for each port the places in it
//! ```
//!
//! A switch that is new is told everything, whoever it takes the place of. None of this outlives the supervisor: the one that
//! takes its place is told by its control, and loads programs of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use channel::peer::Peer;
use channel::supervision::{GuestStates, GuestWatch, Tell, WatchedGuests, monotonic_ns};
use port::PortId;
use sched::load::Programs;
use sched::sample::{self, Sampler};
use sched::{Slot, Table, Vcpu, threads};

use super::Supervisor;
use super::child::Child;
use super::deposits::Deposits;
use super::hand_over::HandOver;

/// After a connection came or went, threads are looked for so often, after such times: a VMM starts those that are processors
/// late. One that comes with many others waits for a moment with them.
const LOOKS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
];
/// Later, processors may be plugged.
const LATER: Duration = Duration::from_secs(30);

/// Sends a message to a switch without waiting.
type Tells<'a> = &'a dyn Fn(&Tell, &[BorrowedFd<'_>]) -> io::Result<()>;

/// Who notes states.
#[derive(Debug)]
enum Keeper {
    /// Nobody has said yet who is to.
    Unknown,
    /// The kernel.
    Programs(Programs),
    /// We.
    Samples(Table, Sampler),
    /// Nobody.
    Nobody,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Guests {
    keeper: Keeper,
    /// Why it is not the kernel.
    reason: Option<String>,
    /// Names of threads.
    patterns: BTreeMap<PortId, String>,
    /// The places of each port's threads.
    slots: BTreeMap<PortId, Vec<Slot>>,
    /// What each switch was told of them, by its process id.
    told: BTreeMap<u32, BTreeMap<PortId, Vec<Slot>>>,
    /// The connections that were looked at last.
    turnover: u64,
    /// How often threads were looked for since those changed.
    looks: usize,
    look_at: Option<Instant>,
    sample_at: Option<Instant>,
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            keeper: Keeper::Unknown,
            reason: None,
            patterns: BTreeMap::new(),
            slots: BTreeMap::new(),
            told: BTreeMap::new(),
            turnover: 0,
            looks: 0,
            look_at: None,
            sample_at: None,
        }
    }
}

impl Guests {
    /// Control says how guests are to be looked at.
    pub(super) fn watch(&mut self, watch: GuestWatch) {
        if matches!(self.keeper, Keeper::Unknown) {
            (self.keeper, self.reason) = keeper(watch.by);
            if let Keeper::Programs(_) = self.keeper {
                // It touches all of the host, so its operator should know.
                tracing::info!(
                    "loaded programs into the kernel, which note at each context switch what guests' processors do; \
                     guest_state = \"proc\" or \"off\" in [switch] does without"
                );
            }
            match &self.reason {
                Some(reason) if watch.by == GuestStates::Bpf => {
                    tracing::warn!("guests' processors are not watched: {reason}");
                }
                reason => tracing::debug!(?reason, "guests' processors: {}", self.by()),
            }
        }
        self.patterns = watch.threads.into_iter().collect();
        self.begin_to_look();
    }

    fn by(&self) -> &'static str {
        match self.keeper {
            Keeper::Programs(_) => GuestStates::Bpf,
            Keeper::Samples(..) => GuestStates::Proc,
            Keeper::Nobody | Keeper::Unknown => GuestStates::Off,
        }
        .word()
    }

    /// For `lasthop status`.
    pub(super) fn watched(&self) -> WatchedGuests {
        let count = |(port, slots): (&PortId, &Vec<Slot>)| (*port, slots.len() as u32);
        WatchedGuests {
            by: self.by().to_owned(),
            reason: self.reason.clone(),
            threads: self.slots.iter().map(count).collect(),
        }
    }

    fn begin_to_look(&mut self) {
        self.looks = 0;
        self.look_at = Some(Instant::now() + LOOKS[0]);
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let table = self.keeper.table()?;
        let samples =
            matches!(self.keeper, Keeper::Samples(..)) && table.threads().next().is_some();
        let sample_at = self.sample_at.filter(|_| samples);
        [self.look_at, sample_at].into_iter().flatten().min()
    }

    /// Looks for threads and at them, if it is time.
    fn turn(&mut self, deposits: &Deposits) {
        if self.keeper.table().is_none() {
            return;
        }
        if std::mem::replace(&mut self.turnover, deposits.turnover()) != deposits.turnover() {
            self.begin_to_look();
        }
        let now = Instant::now();
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_for_threads(deposits);
            self.looks += 1;
            let pause = LOOKS.get(self.looks).copied().unwrap_or(LATER);
            // Where nobody is connected, nothing changes by itself.
            self.look_at =
                (!self.slots.is_empty() || self.looks < LOOKS.len()).then(|| now + pause);
        }
        if self.sample_at.is_none_or(|at| at <= now)
            && let Keeper::Samples(table, sampler) = &mut self.keeper
        {
            self.sample_at = Some(now + sample::PERIOD);
            if table.threads().next().is_some() {
                sampler.look(table, monotonic_ns());
            }
        }
    }

    /// Follows the threads of all that are connected, and no others.
    fn look_for_threads(&mut self, deposits: &Deposits) {
        let mut wanted = BTreeMap::new();
        for (port, socket) in deposits.connections() {
            let pattern = self.patterns.get(&port).map(String::as_str);
            wanted.insert(port, threads_behind(socket, pattern));
        }
        if let Some(table) = self.keeper.table_mut() {
            self.slots = follow(table, &wanted);
        }
    }

    /// Tells a switch what it has not been told yet. There may be no room for it: then it is told later.
    fn tell(&mut self, pid: u32, tell: Tells<'_>) -> io::Result<()> {
        let Some(table) = self.keeper.table() else {
            return Ok(());
        };
        if !self.told.contains_key(&pid) {
            let ring = self.keeper.ring();
            let fds: Vec<_> = [table.reader()].into_iter().chain(ring).collect();
            tell(&Tell::GuestStates, &fds)?;
        }
        let told = self.told.entry(pid).or_default();
        let ports: BTreeSet<_> = self.slots.keys().chain(told.keys()).copied().collect();
        for port in ports {
            let slots = self.slots.get(&port).cloned().unwrap_or_default();
            if told.get(&port).map_or(&[][..], Vec::as_slice) != slots {
                let numbers = slots.iter().map(|slot| slot.0).collect();
                tell(
                    &Tell::GuestThreads {
                        port,
                        slots: numbers,
                    },
                    &[],
                )?;
                told.insert(port, slots);
            }
        }
        told.retain(|_, slots| !slots.is_empty());
        Ok(())
    }
}

impl Keeper {
    fn table(&self) -> Option<&Table> {
        match self {
            Self::Programs(programs) => Some(&programs.table),
            Self::Samples(table, _) => Some(table),
            Self::Nobody | Self::Unknown => None,
        }
    }

    /// Where bells are heard.
    fn ring(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Programs(programs) => Some(programs.ring.as_fd()),
            _ => None,
        }
    }

    fn table_mut(&mut self) -> Option<&mut Table> {
        match self {
            Self::Programs(programs) => Some(&mut programs.table),
            Self::Samples(table, _) => Some(table),
            Self::Nobody | Self::Unknown => None,
        }
    }
}

/// Who is to note states, and why it is not the kernel.
fn keeper(by: GuestStates) -> (Keeper, Option<String>) {
    let samples = |reason: String| match Table::in_memory() {
        Ok(table) => (Keeper::Samples(table, Sampler::default()), Some(reason)),
        Err(error) => (Keeper::Nobody, Some(format!("{reason}; memory: {error}"))),
    };
    let programs = || Programs::load().map_err(|error| error.to_string());
    match by {
        GuestStates::Off => (Keeper::Nobody, Some("as configured".to_owned())),
        GuestStates::Proc => samples("as configured".to_owned()),
        GuestStates::Auto => match programs() {
            Ok(programs) => (Keeper::Programs(programs), None),
            Err(reason) => samples(reason),
        },
        GuestStates::Bpf => match programs() {
            Ok(programs) => (Keeper::Programs(programs), None),
            Err(reason) => (Keeper::Nobody, Some(reason)),
        },
    }
}

/// The threads to follow of who is at the other end of a connection: the VMM that made it, or that listened for it. A driver of
/// ours has none.
fn threads_behind(socket: BorrowedFd<'_>, pattern: Option<&str>) -> Vec<u32> {
    let Some(peer) = Peer::of(&socket).ok().and_then(|peer| peer.process) else {
        return Vec::new();
    };
    let peer = peer.as_raw_pid().cast_unsigned();
    if peer == std::process::id() {
        return Vec::new();
    }
    // It is gone, or hidden from us.
    threads::of_process(peer, pattern).unwrap_or_default()
}

/// Follows these threads and no others; their slots. Of those that there is no room for nothing is known.
fn follow(table: &mut Table, wanted: &BTreeMap<PortId, Vec<u32>>) -> BTreeMap<PortId, Vec<Slot>> {
    let all: BTreeSet<u32> = wanted.values().flatten().copied().collect();
    let had: Vec<u32> = table.threads().map(|(thread, _)| thread).collect();
    for thread in had {
        // One that has ended may have left its number to another.
        if !all.contains(&thread) || table.has_ended(thread) {
            table.leave(thread);
        }
    }
    let mut slot_of = |thread: &u32| {
        let slot = table.follow(*thread)?;
        // Until it does something else, that is not noted by the kernel.
        if let Some((activity, core)) = sample::of_thread(*thread) {
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
    let slots = wanted.iter().map(|(port, threads)| {
        let slots: Vec<_> = threads.iter().filter_map(&mut slot_of).collect();
        (*port, slots)
    });
    slots.filter(|(_, slots)| !slots.is_empty()).collect()
}

impl Supervisor {
    /// Looks after guests, and tells the switches what is new.
    pub(super) fn turn_guests(&mut self) {
        self.guests.turn(&self.deposits);
        let next = self.next.as_ref().map(HandOver::switch);
        let switches: Vec<&Child> = [Some(&self.switch), next].into_iter().flatten().collect();
        let alive = switches.iter().filter(|switch| switch.is_alive());
        let pids: Vec<u32> = alive.clone().map(|switch| switch.info().pid).collect();
        self.guests.told.retain(|pid, _| pids.contains(pid));
        for (switch, pid) in alive.zip(&pids) {
            let told = self
                .guests
                .tell(*pid, &|tell, fds| switch.tell_at_once(tell, fds));
            if let Err(error) = told {
                // One that has no room yet is told later, and one that is gone never.
                tracing::debug!("the switch is not told of guests: {error}");
                let soon = Instant::now() + LOOKS[0];
                self.guests.look_at = Some(self.guests.look_at.map_or(soon, |at| at.min(soon)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
