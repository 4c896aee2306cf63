//! Saved sessions of the switch, with which its successor continues the connections. Their contents
//! are opaque here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use ipc::keeping::{MAX_RECORD, MAX_SAVED, SOCKET, SlotSnapshot, suspects, wipe};
use ipc::supervision::{EventToSwitch, SavedPart};
use port::PortId;
use port::counters::MAX_PORTS;
use sys::descriptors::MANY_FDS;
use sys::foreign::{Author, ForeignFd};

use super::child::is_full;
use super::record::{
    IncomingFds, OutgoingFds, PassedCrashCounts, PassedSession, PassedSessions, RecordError,
    Transfer,
};
use super::shares::{self, Shares};

/// Number of crashes after which a connection is quarantined.
pub(super) const MAX_CRASHES: u32 = 3;
/// Time in which crashes of one port count: 30 seconds. A port that was served for so long since
/// its last crash starts from zero.
pub(super) const CRASH_WINDOW: Duration = Duration::from_secs(30);

/// Bytes of records after which a message is full: 32 KiB.
const MAX_PART_BYTES: usize = 32 << 10;

/// Saved session of one port.
#[derive(Debug, Default)]
struct SavedSession {
    /// Closed in the name of this connection.
    author: Option<Author>,
    fds: BTreeMap<u64, ForeignFd>,
    record: Option<Vec<u8>>,
    /// Number of the last change, of all sessions.
    changed: u64,
}

impl SavedSession {
    /// Stores a descriptor; `false` if it did not arrive or does not fit.
    fn store_descriptor(
        &mut self,
        port: PortId,
        number: u64,
        fds: Vec<ForeignFd>,
        full: bool,
    ) -> bool {
        let Ok([fd]) = <[ForeignFd; 1]>::try_from(fds) else {
            return false;
        };
        // The socket is the first of a connection.
        let author = match self.author {
            Some(author) if number != SOCKET => author,
            _ => *self.author.insert(Author::of(&fd).labelled(port.0)),
        };
        let fd = fd.of(author);
        let fits = !full && self.fds.len() < 2 * MAX_SAVED && author.may_send();
        if fits {
            self.fds.insert(number, fd);
        }
        fits
    }

    /// Returns whether the connection can be continued with it.
    fn is_complete(&self) -> bool {
        self.record.is_some()
    }

    /// Stores a record if all its descriptors are there; other descriptors are dropped.
    fn store_record(&mut self, record: Vec<u8>, numbers: &BTreeSet<u64>) {
        self.fds.retain(|number, _| numbers.contains(number));
        let complete = self.fds.len() == numbers.len();
        self.record = (complete && record.len() <= MAX_RECORD).then_some(record);
    }
}

/// Number of crashes of the switch while it served a port, and the time of the last one.
#[derive(Debug)]
struct CrashCount {
    crashes: u32,
    last: Instant,
}

/// Saved sessions of all ports, with crash counts.
#[derive(Debug, Default)]
pub(super) struct SavedSessions {
    ports: BTreeMap<PortId, SavedSession>,
    /// Crash counts outlive the connection: the next one may be of the same front end.
    crash_counts: BTreeMap<PortId, CrashCount>,
    /// Ports whose connections are not continued.
    quarantined: BTreeSet<PortId>,
    /// Thread slots at the last check of a switch that may hang.
    last_slots: Option<SlotSnapshot>,
    /// Transfers that a new switch has not received.
    queued: VecDeque<Transfer>,
    /// Sessions that were queued for the new switch, with their changes then.
    passed: BTreeMap<PortId, u64>,
    /// Number of all changes.
    changes: u64,
    /// Number of connections that came or went.
    generation: u64,
    /// There are user ports, whose forwards and flows have shares of the descriptors.
    has_user_ports: bool,
}

impl SavedSessions {
    /// Leaves user ports their shares of descriptors, if there are some.
    pub(super) fn set_user_ports(&mut self, are_there: bool) {
        self.has_user_ports = are_there;
    }

    /// Stores a descriptor. A connection has at most as many as are left.
    pub(super) fn store_descriptor(&mut self, port: PortId, number: u64, fds: Vec<ForeignFd>) {
        let limit = Shares::now().sessions(self.has_user_ports);
        let own = self.ports.get(&port).map_or(0, |session| session.fds.len()) as u64;
        let full = own >= shares::of_one(limit, self.stored() - own);
        self.change(port, |session| {
            if !session.store_descriptor(port, number, fds, full) {
                tracing::warn!(port = port.0, "too many descriptors: session not saved");
                // The rest of the session is useless without it.
                *session = SavedSession::default();
            }
        });
    }

    /// Stores a record, and drops all descriptors but those of these numbers.
    pub(super) fn store_session(&mut self, port: PortId, record: Vec<u8>, numbers: &[u64]) {
        if numbers.len() > MAX_SAVED {
            return self.drop_session(port);
        }
        let numbers = numbers.iter().copied().collect();
        let known = |saved_sessions: &Self| {
            saved_sessions
                .ports
                .get(&port)
                .is_some_and(SavedSession::is_complete)
        };
        let before = known(self);
        self.change(port, |session| session.store_record(record, &numbers));
        self.generation += u64::from(known(self) != before);
    }

    /// Drops the session of a port.
    pub(super) fn drop_session(&mut self, port: PortId) {
        self.generation += u64::from(self.ports.remove(&port).is_some());
    }

    /// Returns the number of descriptors of all ports.
    fn stored(&self) -> u64 {
        self.ports
            .values()
            .map(|session| session.fds.len() as u64)
            .sum()
    }

    /// Returns a number that changes with the set of connections.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the sockets of all connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = (PortId, BorrowedFd<'_>)> {
        let complete = self
            .ports
            .iter()
            .filter(|(_, session)| session.is_complete());
        complete.filter_map(|(port, session)| Some((*port, session.fds.get(&SOCKET)?.as_fd())))
    }

    /// Changes the session of a port, if the port number is valid.
    fn change(&mut self, port: PortId, change: impl FnOnce(&mut SavedSession)) {
        if port.0 as usize >= MAX_PORTS {
            return tracing::error!(port = port.0, "no such port: session not saved");
        }
        self.changes += 1;
        let session = self.ports.entry(port).or_default();
        change(session);
        session.changed = self.changes;
    }

    /// Reads the thread slots of a switch that has not replied. Returns whether its session thread
    /// has made progress since the last call.
    pub(super) fn session_thread_progressed(&mut self, thread_slots: &OwnedFd) -> bool {
        let before = std::mem::replace(&mut self.last_slots, SlotSnapshot::at(thread_slots).ok());
        let both = self.last_slots.as_ref().zip(before.as_ref());
        both.is_some_and(|(now, before)| now.session_progressed_since(before))
    }

    /// Counts a crash of a switch that was killed because it hung, for ports whose threads have
    /// made no progress since the last check.
    pub(super) fn record_hang(&mut self, thread_slots: &OwnedFd) {
        let now = SlotSnapshot::at(thread_slots).ok();
        let stuck = now.zip(self.last_slots.take());
        let stuck = stuck.map(|(now, before)| now.stuck_since(&before));
        if let Err(error) = wipe(thread_slots) {
            tracing::error!("cannot clear the thread slots: {error}");
        }
        self.count_crashes(stuck.unwrap_or_default());
    }

    /// Counts a crash of the switch for its suspects: the port of the crash record, or all served
    /// ports without one. A kill from outside is no crash.
    pub(super) fn record_crash(&mut self, status: ExitStatus, thread_slots: &OwnedFd) {
        let mut suspects = suspects(thread_slots).unwrap_or_default();
        if !is_crash(status) {
            suspects.clear();
        }
        self.count_crashes(suspects);
    }

    /// Quarantines connections whose descriptors a switch could not close when it was killed: its
    /// successor would meet the same.
    pub(super) fn quarantine(&mut self, ports: Vec<PortId>) {
        for port in ports
            .into_iter()
            .filter(|port| (port.0 as usize) < MAX_PORTS)
        {
            if self.quarantined.insert(port) {
                let port = port.0;
                tracing::warn!(
                    port,
                    "quarantined: its front end's descriptor does not close"
                );
            }
        }
    }

    /// Returns whether the port is not served for now, because the switch has crashed again and
    /// again while it served it.
    pub(super) fn is_quarantined(&self, port: PortId, now: Instant) -> bool {
        self.crash_counts.get(&port).is_some_and(|count| {
            let elapsed = now.saturating_duration_since(count.last);
            count.crashes >= MAX_CRASHES && elapsed < CRASH_WINDOW
        })
    }

    fn count_crashes(&mut self, mut suspects: Vec<PortId>) {
        self.quarantined.clear();
        self.crash_counts
            .retain(|_, count| count.last.elapsed() < CRASH_WINDOW);
        suspects.retain(|port| (port.0 as usize) < MAX_PORTS);
        for port in suspects.into_iter().collect::<BTreeSet<_>>() {
            let last = Instant::now();
            let new = || CrashCount { crashes: 0, last };
            let count = self.crash_counts.entry(port).or_insert_with(new);
            (count.crashes, count.last) = (count.crashes + 1, last);
            let crashes = count.crashes;
            if crashes >= MAX_CRASHES {
                self.quarantined.insert(port);
            }
            tracing::warn!(
                port = port.0,
                crashes,
                "switch crashed while serving this port"
            );
        }
    }

    /// Adds the sessions to the record for the next supervisor.
    pub(super) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedSessions {
        let pass = |(port, session): (&PortId, &'a SavedSession)| {
            let fds = session.fds.iter();
            PassedSession {
                port: *port,
                fds: fds.map(|(n, fd)| (*n, outgoing.add(fd.as_fd()))).collect(),
                record: session.record.clone(),
            }
        };
        PassedSessions {
            ports: self.ports.iter().map(pass).collect(),
            queued: self.queued.clone(),
            crash_counts: self.pass_crash_counts(),
        }
    }

    fn pass_crash_counts(&self) -> PassedCrashCounts {
        let pass = |(port, count): (&PortId, &CrashCount)| {
            let ago = count.last.elapsed().as_millis() as u64;
            (*port, count.crashes, ago)
        };
        PassedCrashCounts {
            ports: self.crash_counts.iter().map(pass).collect(),
            quarantined: self.quarantined.iter().copied().collect(),
        }
    }

    fn take_crash_counts(&mut self, from: PassedCrashCounts) {
        let now = Instant::now();
        // A time before the start of the clock is long ago, too.
        let crash_counts = from.ports.into_iter().filter_map(|(port, crashes, ago)| {
            let last = now.checked_sub(Duration::from_millis(ago))?;
            Some((port, CrashCount { crashes, last }))
        });
        self.crash_counts = crash_counts.collect();
        self.quarantined = from.quarantined.into_iter().collect();
    }

    /// Takes the sessions from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take(from: PassedSessions, fds: &mut IncomingFds) -> Result<Self, RecordError> {
        let mut saved_sessions = Self::default();
        for PassedSession {
            port,
            fds: stored,
            record,
        } in from.ports
        {
            let numbers: Vec<u64> = stored.iter().map(|(number, _)| *number).collect();
            for (number, index) in stored {
                saved_sessions.store_descriptor(port, number, vec![fds.take(index)?.into()]);
            }
            if let Some(record) = record {
                saved_sessions.store_session(port, record, &numbers);
            }
        }
        saved_sessions.queued = from.queued;
        saved_sessions.take_crash_counts(from.crash_counts);
        Ok(saved_sessions)
    }

    /// Queues all sessions of a dead switch for a new one; [`SavedSessions::send_queued`] sends
    /// them.
    pub(super) fn queue_all(&mut self) {
        // An incomplete session is lost: only the dead switch had the rest.
        self.ports.retain(|_, session| session.is_complete());
        self.clear_queue();
        self.queue_changes();
    }

    /// Queues for the new switch the sessions that it has not got as they are now, and the ends of
    /// those that are over.
    pub(super) fn queue_changes(&mut self) {
        let of_complete = |(port, session): (&PortId, &SavedSession)| {
            session.is_complete().then_some((*port, session.changed))
        };
        let now: BTreeMap<_, _> = self.ports.iter().filter_map(of_complete).collect();
        let before = std::mem::replace(&mut self.passed, now);
        for (port, changed) in &self.passed {
            let is_new = before.get(port) != Some(changed);
            let Some(session) = self.ports.get(port).filter(|_| is_new) else {
                continue;
            };
            let all: Vec<_> = session.fds.keys().copied().collect();
            let files = all.chunks(MANY_FDS / 2).map(<[u64]>::to_vec);
            let files = files.map(|numbers| Transfer::Descriptors(*port, numbers));
            self.queued.extend(files);
            self.queued.push_back(Transfer::Record(*port));
        }
        let over = before.keys().filter(|port| !self.passed.contains_key(port));
        self.queued.extend(over.map(|port| Transfer::Record(*port)));
    }

    /// Drops what is queued for a new switch, which has got nothing then.
    pub(super) fn clear_queue(&mut self) {
        self.queued.clear();
        self.passed.clear();
    }

    /// Returns whether transfers to a new switch are queued.
    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Sends a new switch what fits into its link, without waiting: the switch may still be
    /// starting. `send` sends a message, or fails with [`io::ErrorKind::WouldBlock`] if it does not
    /// fit.
    ///
    /// # Errors
    /// Other errors of `send`.
    pub(super) fn send_queued(
        &mut self,
        send: impl Fn(&EventToSwitch, &[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        while !self.queued.is_empty() {
            let (mut parts, mut fds, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut taken = 0;
            for transfer in &self.queued {
                let (part, more) = self.part(transfer);
                if taken > 0 && (fds.len() + more.len() >= MANY_FDS || bytes >= MAX_PART_BYTES) {
                    break;
                }
                if let SavedPart::Record { record, .. } = &part {
                    bytes += record.len();
                }
                parts.push(part);
                fds.extend(more);
                taken += 1;
            }
            let sent = send(&EventToSwitch::SavedSessions(parts), &fds);
            if is_full(&sent) {
                break;
            }
            sent?;
            self.queued.drain(..taken);
        }
        Ok(())
    }

    /// Returns what a transfer sends, with its descriptors. A session that has changed since it was
    /// queued is over, until its change is queued.
    fn part(&self, transfer: &Transfer) -> (SavedPart, Vec<BorrowedFd<'_>>) {
        let (Transfer::Descriptors(port, _) | Transfer::Record(port)) = *transfer;
        let over = (SavedPart::Over { port }, Vec::new());
        let Some(session) = self.ports.get(&port) else {
            return over;
        };
        match (transfer, &session.record) {
            (Transfer::Descriptors(_, numbers), _) => {
                let fds = numbers.iter().map(|number| session.fds.get(number));
                let Some(fds) = fds.collect::<Option<Vec<_>>>() else {
                    return over;
                };
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                let numbers = numbers.clone();
                (SavedPart::Descriptors { port, numbers }, fds)
            }
            (Transfer::Record(_), Some(record)) => {
                let stored = SavedPart::Record {
                    port,
                    record: record.clone(),
                    quarantined: self.quarantined.contains(&port),
                };
                (stored, Vec::new())
            }
            (Transfer::Record(_), None) => over,
        }
    }
}

/// Returns whether a process ended by its own fault, and was not killed from outside.
fn is_crash(status: ExitStatus) -> bool {
    !matches!(
        status.signal(),
        Some(libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT)
    )
}

#[cfg(test)]
mod tests;
