//! Forwarding: all state that decides an upcall, and the rings to and from the switch. Nothing here
//! waits for a peer, so upcalls are decided while a change is made. They are decided by the
//! program that was published last; an answer has the program's epoch, and the switch caches no
//! flow of another epoch than that of its own program.

mod access_log;
mod answers;
mod neighbour_proxy;
mod port_security;
mod seen;
mod upcalls;
pub(super) mod wire_tables;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::time::Duration;

use ipc::records::{Answer, SourceRole, StaleFlows, Upcall};
use ipc::shared;
use ipc::switching::{PortPhase, Station, StationUse};
use policy::acl::RuleId;
use policy::port_security::Bindings;
use policy::{Decision, Lookup, Program, SegmentId};
use port::PortId;
use wire::MacAddr;

use super::Clock;
use super::ports::Ports;
use super::store::Store;
use crate::learning::{Effect, Fdb, Limits};
use access_log::AccessLog;
pub(super) use answers::Answers;
use ipc::rules::MAX_RULES;
use neighbour_proxy::Owners;
use port_security::KnownAddresses;
use seen::SeenAddresses;
use upcalls::BETWEEN_READS;
pub(super) use upcalls::Upcalls;
use wire_tables::Prefilters;

/// Upcalls handled in a row before the API has its turn.
const UPCALLS_PER_TURN: usize = 256;

/// Names and desired state in effect.
#[derive(Clone, Copy)]
pub(super) struct Directory<'a> {
    pub(super) ports: &'a Ports,
    pub(super) store: &'a Store,
}

impl<'a> Directory<'a> {
    pub(super) fn new(ports: &'a Ports, store: &'a Store) -> Self {
        Self { ports, store }
    }
}

/// Something that a guest has caused and that is published as an event.
#[derive(Debug)]
pub(super) enum Notice {
    /// A station has moved between two ports.
    Moved((SegmentId, MacAddr), PortId, PortId),
    /// The first port claims an address again and again that the second one has.
    Flapping((SegmentId, MacAddr), PortId, PortId),
    /// The addresses that are bound to a port are these now.
    Bound(PortId, Bindings),
}

/// See the module documentation.
pub(super) struct Forwarding {
    clock: Clock,
    /// The program that the switch runs.
    pub(super) program: Program,
    pub(super) fdb: Fdb,
    /// Addresses that are bound to ports.
    pub(super) bound: BTreeMap<PortId, Bindings>,
    /// Ports with a guest or a driver, and their phases.
    pub(super) connected: BTreeMap<PortId, PortPhase>,
    owners: Owners,
    pub(super) seen: SeenAddresses,
    pub(super) upcalls: Upcalls,
    pub(super) answers: Answers,
    pub(super) upcall_count: u64,
    pub(super) prefilters: Prefilters,
    access_log: AccessLog,
    /// An FDB entry has moved since the state file was written. A control that started from that
    /// file would send its frames to the wrong port, and the flows that say otherwise may be gone,
    /// too.
    pub(super) unsaved_move: bool,
    notices: Vec<Notice>,
}

/// Returns the rules for which a decision's frames are counted.
fn deciding(decision: &Decision) -> Vec<RuleId> {
    let mut rules = decision.rules();
    rules.truncate(MAX_RULES);
    rules
}

impl Forwarding {
    /// Creates the state before anything was published, with control's ends of the rings.
    pub(super) fn new(clock: Clock, answers: shared::Sender, upcalls: shared::Receiver) -> Self {
        Self {
            clock,
            program: Program::default(),
            fdb: Fdb::new(Limits::default()),
            bound: BTreeMap::new(),
            connected: BTreeMap::new(),
            owners: Owners::default(),
            seen: SeenAddresses::default(),
            upcalls: Upcalls::new(upcalls),
            answers: Answers::new(answers),
            upcall_count: 0,
            prefilters: Prefilters::default(),
            access_log: AccessLog::default(),
            unsaved_move: false,
            notices: Vec::new(),
        }
    }

    /// Returns the time until prefilters change, if any is active.
    pub(super) fn until_prefilters(&self) -> Option<Duration> {
        let due = self.prefilters.due()?;
        Some(due.saturating_sub(self.now()))
    }

    pub(super) fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Handles queued upcalls. Returns `true` when there may be more.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn handle_upcalls(&mut self, directory: Directory<'_>) -> io::Result<bool> {
        self.answers.send_backlog();
        for handled in 0..UPCALLS_PER_TURN {
            if handled % BETWEEN_READS == 0 {
                self.upcalls.drain()?;
            }
            let Some(upcall) = self.upcalls.next() else {
                return Ok(false);
            };
            self.decide(&upcall, directory);
        }
        Ok(true)
    }

    /// Decides one upcall and learns from it.
    fn decide(&mut self, upcall: &Upcall, directory: Directory<'_>) {
        self.upcall_count += 1;
        let now = self.now();
        let key = self.key_of(upcall);
        let may_bind = !directory.store.frozen;
        let Some((decision, alone)) = self.decide_and_learn(upcall, &key, now, may_bind) else {
            return;
        };
        let port = PortId(key.in_port());
        self.access_log
            .write(now, &key, &decision, directory.ports.name(port));
        let epoch = self.program.epoch();
        if alone {
            if let Some(reply) = self.reply_to_upcall(upcall, &key, &decision, directory) {
                let (upcall, frame) = (upcall.id, reply.frame);
                return self.answers.send(Answer::Reply { upcall, frame });
            }
            return self.answers.send(Answer::Once {
                upcall: upcall.id,
                action: decision.action,
                class: decision.class,
                connection: decision.connection,
                except: decision.excluded().collect(),
                rules: deciding(&decision),
                epoch,
            });
        }
        let role = |(segment, mac)| self.fdb.role(segment, mac, port);
        let source = decision.learn.map_or(SourceRole::Unlearned, role);
        self.answers.send(Answer::Install {
            upcall: Some(upcall.id),
            key: *key.masked(&decision.mask).words(),
            mask: *decision.mask.words(),
            action: decision.action,
            class: decision.class,
            connection: decision.connection,
            segment: decision.segment,
            source,
            except: decision.excluded().collect(),
            rules: deciding(&decision),
            epoch,
        });
    }

    /// Removes the flows that changes of the FDB concern.
    pub(super) fn apply_effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Invalidate { segment, mac } => {
                    wire_tables::station_changed(self, mac);
                    let mac = mac.0;
                    let stale = StaleFlows::Station { segment, mac };
                    self.answers.send(Answer::Forget(stale));
                }
                Effect::Moved {
                    segment,
                    mac,
                    from,
                    to,
                } => {
                    wire_tables::station_changed(self, mac);
                    self.unsaved_move = true;
                    self.notices.push(Notice::Moved((segment, mac), from, to));
                }
                Effect::Damped {
                    segment,
                    mac,
                    port,
                    holder,
                } => {
                    let notice = Notice::Flapping((segment, mac), port, holder);
                    self.notices.push(notice);
                }
                Effect::Learned { mac, .. } | Effect::Forgotten { mac, .. } => {
                    wire_tables::station_changed(self, mac);
                    tracing::debug!(?effect);
                }
                Effect::Refused { .. } => tracing::debug!(?effect),
            }
        }
    }

    /// Returns what is to be published, in order.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub(super) fn remove_flows(&mut self, port: PortId) {
        self.answers.send(Answer::Forget(StaleFlows::Port(port)));
    }

    /// Restores FDB entries that flows show, after a restart. A flow of a holder shows where its
    /// address is: a move would have removed it. At the saved port it shows that the address has
    /// not moved since it was saved.
    pub(super) fn adopt_stations(&mut self, uses: &[StationUse]) {
        let now = self.now();
        let key = |station: &Station| (station.segment, MacAddr(station.mac));
        let is_there = |StationUse { station, held, .. }: &&StationUse| {
            let (segment, mac) = key(station);
            *held && self.fdb.at(now).port_of(segment, mac) == Some(station.port)
        };
        let unmoved = uses.iter().filter(is_there).map(|used| key(&used.station));
        let unmoved: HashSet<_> = unmoved.collect();
        let (holders, rivals): (Vec<&StationUse>, Vec<_>) = uses.iter().partition(|used| used.held);
        for used in holders.iter().chain(&rivals) {
            let station = &used.station;
            // Rounded up: a holder's flow is no older than the entry that was saved before it.
            let idle = Duration::from_millis(used.idle_ms.saturating_sub(1).into());
            let seen = now.saturating_sub(idle);
            let (segment, mac) = key(station);
            let is_known = self.fdb.at(now).port_of(segment, mac).is_some();
            if unmoved.contains(&(segment, mac)) || (is_known && !used.held) {
                self.fdb.adopt_claim(seen, segment, mac, station.port);
            } else {
                self.fdb.adopt(seen, segment, mac, station.port);
            }
            self.invalidate_barred(station);
        }
        // Flows that tell another holder than the FDB are removed: they would mislead the next
        // restart.
        let at = self.fdb.at(now);
        let is_wrong = |used: &&StationUse| {
            let (segment, mac) = key(&used.station);
            let is_holder = at.port_of(segment, mac) == Some(used.station.port);
            used.held != is_holder
        };
        let wrong = uses.iter().filter(is_wrong).map(|used| key(&used.station));
        let wrong: BTreeSet<_> = wrong.collect();
        let effects = wrong.into_iter();
        let effects = effects.map(|(segment, mac)| Effect::Invalidate { segment, mac });
        self.apply_effects(effects.collect());
    }

    /// Records the use of flows.
    pub(super) fn refresh_stations(&mut self, uses: &[StationUse]) {
        let now = self.now();
        for StationUse {
            station, idle_ms, ..
        } in uses
        {
            let seen = now.saturating_sub(Duration::from_millis((*idle_ms).into()));
            let mac = MacAddr(station.mac);
            self.fdb.refresh(seen, station.segment, mac, station.port);
        }
    }

    /// Moves contested addresses to where they are in use: the use of all flows is recorded.
    pub(super) fn settle_stations(&mut self) {
        let effects = self.fdb.settle(self.now());
        if !effects.is_empty() {
            self.apply_effects(effects);
            self.answers.ring_bell();
        }
    }

    /// Publishes a program that the switch runs now. Flows of ports whose segments changed are
    /// removed; all others stay.
    pub(super) fn publish(&mut self, program: Program, ports: &Ports) {
        let old = std::mem::replace(&mut self.program, program);
        if old.epoch() == 0 {
            return;
        }
        for port in ports.configs.keys().copied() {
            if old.ingress(port) != self.program.ingress(port) {
                let effects = self.fdb.forget_port(port);
                self.apply_effects(effects);
                self.remove_flows(port);
            }
            self.port_security_changed(port, old.port_security(port));
        }
    }

    /// Forgets a port that the switch has removed. Its last upcalls are in the ring by now, and its
    /// number may soon be another port's.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn forget_port(&mut self, port: PortId) -> io::Result<()> {
        self.upcalls.discard(port)?;
        let effects = self.fdb.forget_port(port);
        self.apply_effects(effects);
        self.connected.remove(&port);
        self.bound.remove(&port);
        self.remove_flows(port);
        Ok(())
    }
}
