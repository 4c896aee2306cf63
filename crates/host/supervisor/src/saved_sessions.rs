//! Saved sessions of the switch, with which its successor continues the connections. Their contents
//! are opaque here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use ipc::keeping::{MAX_RECORD, MAX_SAVED, SOCKET, SlotSnapshot, suspects, wipe};
use ipc::supervision::EventToSwitch;
use port::PortId;
use port::counters::MAX_PORTS;
use sys::descriptors::MAX_FDS;
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

/// Saved session of one port.
#[derive(Debug, Default)]
struct SavedSession {
    /// Closed in the name of this connection.
    author: Option<Author>,
    fds: BTreeMap<u64, ForeignFd>,
    record: Option<Vec<u8>>,
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
        change(self.ports.entry(port).or_default());
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

    /// Queues all sessions for a new switch; [`SavedSessions::send_queued`] sends them.
    pub(super) fn queue_all(&mut self) {
        // An incomplete session is lost: only the dead switch had the rest.
        self.ports.retain(|_, session| session.is_complete());
        self.queued.clear();
        for (port, session) in &self.ports {
            let all: Vec<_> = session.fds.keys().copied().collect();
            let files = all.chunks(MAX_FDS).map(<[u64]>::to_vec);
            let files = files.map(|numbers| Transfer::Descriptors(*port, numbers));
            self.queued.extend(files);
            self.queued.push_back(Transfer::Record(*port));
        }
    }

    /// Drops what is queued for a new switch.
    pub(super) fn clear_queue(&mut self) {
        self.queued.clear();
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
        while let Some(transfer) = self.queued.front() {
            let sent = self.send_transfer(transfer, &send);
            if is_full(&sent) {
                break;
            }
            sent?;
            self.queued.pop_front();
        }
        Ok(())
    }

    /// Sends a transfer; dropped sessions are skipped.
    fn send_transfer(
        &self,
        transfer: &Transfer,
        send: impl Fn(&EventToSwitch, &[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (Transfer::Descriptors(port, _) | Transfer::Record(port)) = *transfer;
        let Some(session) = self.ports.get(&port) else {
            return Ok(());
        };
        match (transfer, &session.record) {
            (Transfer::Descriptors(_, numbers), _) => {
                let fds = numbers.iter().map(|number| session.fds.get(number));
                let Some(fds) = fds.collect::<Option<Vec<_>>>() else {
                    return Ok(());
                };
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                let numbers = numbers.clone();
                send(&EventToSwitch::SavedDescriptors { port, numbers }, &fds)
            }
            (Transfer::Record(_), Some(record)) => {
                let stored = EventToSwitch::SavedSession {
                    port,
                    record: record.clone(),
                    quarantined: self.quarantined.contains(&port),
                };
                send(&stored, &[])
            }
            (Transfer::Record(_), None) => Ok(()),
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
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    const A: PortId = PortId(1);
    const B: PortId = PortId(2);

    fn fd() -> Vec<ForeignFd> {
        vec![
            rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC)
                .unwrap()
                .into(),
        ]
    }

    fn killed_by(signal: i32) -> ExitStatus {
        ExitStatus::from_raw(signal)
    }

    /// Returns thread slots of a switch that serves these ports.
    fn thread_slots(ports: &[PortId]) -> OwnedFd {
        let thread_slots = fd().remove(0).vouch();
        rustix::fs::ftruncate(&thread_slots, ipc::keeping::CRASH_RECORD_LEN).unwrap();
        let all = ipc::keeping::ThreadSlots::map(&thread_slots).unwrap();
        for (thread, port) in ports.iter().enumerate() {
            all.of(thread).serve(*port);
        }
        thread_slots
    }

    #[test]
    fn quarantined_connections_are_those_whose_descriptors_stand() {
        let slots = thread_slots(&[A]);
        let all = ipc::keeping::ThreadSlots::map(&slots).unwrap();
        all.note_closing(0, Some(B));
        all.note_closing(1, Some(A));
        all.note_closing(1, None);
        all.note_closing(2, Some(A));
        let slots_now = ipc::keeping::SlotSnapshot::at(&slots).unwrap();
        let culprits = slots_now.closed_by(&[0, 1, sys::closer::THREADS]);
        assert_eq!(
            culprits,
            [B],
            "the third closer was interrupted by the kill"
        );
        let mut saved_sessions = SavedSessions::default();
        // A crash has other suspects: the ports that threads serve.
        saved_sessions.record_crash(killed_by(libc::SIGSEGV), &slots);
        assert!(saved_sessions.crash_counts.keys().eq([&A]));
        saved_sessions.quarantine(culprits);
        assert!(saved_sessions.quarantined.iter().eq([&B]));
    }

    fn numbers(saved_sessions: &SavedSessions, port: PortId) -> Vec<u64> {
        saved_sessions.ports[&port].fds.keys().copied().collect()
    }

    #[test]
    fn a_record_keeps_its_descriptors_and_no_others() {
        let mut saved_sessions = SavedSessions::default();
        (0..4).for_each(|n| saved_sessions.store_descriptor(A, n, fd()));
        saved_sessions.store_descriptor(B, 0, fd());
        saved_sessions.store_session(A, vec![1], &[1, 3]);
        assert_eq!(numbers(&saved_sessions, A), [1, 3]);
        assert_eq!(numbers(&saved_sessions, B), [0]);
        saved_sessions.store_session(A, vec![2], &[1, 3, 9]);
        assert_eq!(saved_sessions.ports[&A].record, None, "one is missing");
        saved_sessions.store_descriptor(A, 9, fd());
        saved_sessions.store_session(A, vec![2], &[1, 3, 9]);
        assert_eq!(saved_sessions.ports[&A].record, Some(vec![2]));
        saved_sessions.store_session(A, vec![0; MAX_RECORD + 1], &[1, 3, 9]);
        assert_eq!(saved_sessions.ports[&A].record, None, "too long");
        saved_sessions.drop_session(A);
        assert_eq!(
            (saved_sessions.stored(), saved_sessions.ports.len()),
            (1, 1)
        );
    }

    #[test]
    fn ports_that_cannot_be_and_too_many_numbers_are_refused_at_once() {
        let mut saved_sessions = SavedSessions::default();
        for port in [PortId(MAX_PORTS as u32), PortId(u32::MAX)] {
            saved_sessions.store_descriptor(port, 0, fd());
            saved_sessions.store_session(port, vec![1], &[]);
        }
        assert!(saved_sessions.ports.is_empty());
        saved_sessions.store_descriptor(A, 0, fd());
        let many: Vec<u64> = (0..=MAX_SAVED as u64).collect();
        saved_sessions.store_session(A, vec![1], &many);
        assert!(saved_sessions.ports.is_empty(), "an incomplete session");
        saved_sessions.record_crash(
            killed_by(libc::SIGABRT),
            &thread_slots(&[PortId(u32::MAX - 1)]),
        );
        assert!(saved_sessions.crash_counts.is_empty());
    }

    #[test]
    fn stored_descriptors_are_counted() {
        let mut saved_sessions = SavedSessions::default();
        for number in [0, 1, 1, 2] {
            saved_sessions.store_descriptor(A, number, fd());
            saved_sessions.store_descriptor(B, number, fd());
        }
        assert_eq!(saved_sessions.stored(), 6);
        saved_sessions.store_session(A, vec![1], &[2]);
        assert_eq!(saved_sessions.stored(), 4);
        saved_sessions.store_descriptor(B, 7, Vec::new());
        assert_eq!(saved_sessions.stored(), 1);
        saved_sessions.drop_session(A);
        saved_sessions.drop_session(A);
        assert_eq!(saved_sessions.stored(), 0);
    }

    #[test]
    fn a_new_switch_gets_everything_as_fast_as_it_reads_without_waiting() {
        let mut saved_sessions = SavedSessions::default();
        for port in [A, B] {
            (0..20).for_each(|n| saved_sessions.store_descriptor(port, n, fd()));
            saved_sessions.store_session(port, vec![port.0 as u8], &(0..20).collect::<Vec<_>>());
        }
        // An incomplete session is not sent.
        saved_sessions.store_descriptor(PortId(3), 0, fd());
        saved_sessions.queue_all();
        let got = std::cell::RefCell::new(Vec::new());
        for turn in 1.. {
            saved_sessions
                .send_queued(|event, fds| {
                    let mut got = got.borrow_mut();
                    if got.len() == 3 * turn {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    let expected = match event {
                        EventToSwitch::SavedDescriptors { numbers, .. } => numbers.len(),
                        _ => 0,
                    };
                    assert_eq!(fds.len(), expected);
                    got.push(event.clone());
                    Ok(())
                })
                .unwrap();
            if !saved_sessions.has_queued() {
                break;
            }
            assert_eq!(got.borrow().len(), 3 * turn, "only what fits");
        }
        let got = got.into_inner();
        assert_eq!(
            got.len(),
            2 * 4,
            "three times up to eight descriptors, and a record"
        );
        for (port, sent) in [A, B].into_iter().zip(got.chunks(4)) {
            let numbers = sent.iter().flat_map(|event| match event {
                EventToSwitch::SavedDescriptors { port: of, numbers } if *of == port => {
                    numbers.clone()
                }
                _ => Vec::new(),
            });
            assert!(numbers.eq(0..20));
            let quarantined = false;
            let record = vec![port.0 as u8];
            let last = EventToSwitch::SavedSession {
                port,
                record,
                quarantined,
            };
            assert_eq!(sent[3], last);
        }
        saved_sessions.queue_all();
        assert!(saved_sessions.has_queued());
        let gone = saved_sessions.send_queued(|_, _| Err(io::ErrorKind::BrokenPipe.into()));
        assert!(gone.is_err() && saved_sessions.has_queued());
        saved_sessions.drop_session(A);
        saved_sessions.drop_session(B);
        saved_sessions.send_queued(|_, _| unreachable!()).unwrap();
        assert!(!saved_sessions.has_queued());
    }

    #[test]
    fn a_hang_counts_for_ports_without_progress() {
        let mut saved_sessions = SavedSessions::default();
        let file = thread_slots(&[]);
        let all = ipc::keeping::ThreadSlots::map(&file).unwrap();
        for (thread, port) in [(1, A), (2, B)] {
            all.of(thread).serve(port);
        }
        assert!(
            !saved_sessions.session_thread_progressed(&file),
            "nothing to compare with"
        );
        all.of(0).rest();
        assert!(
            saved_sessions.session_thread_progressed(&file),
            "the session thread"
        );
        all.of(2).serve(B);
        saved_sessions.record_hang(&file);
        let crash_counts: Vec<_> = saved_sessions.crash_counts.keys().copied().collect();
        assert_eq!(crash_counts, [A], "the other one made progress");
        saved_sessions.record_hang(&file);
        assert_eq!(
            saved_sessions.crash_counts[&A].crashes, 1,
            "no earlier check, and slots are cleared"
        );
    }

    #[test]
    fn crash_counts_pass_to_the_next_supervisor() {
        let mut before = SavedSessions::default();
        let dies = |saved_sessions: &mut SavedSessions, port| {
            saved_sessions.record_crash(killed_by(libc::SIGABRT), &thread_slots(&[port]));
        };
        (0..2).for_each(|_| dies(&mut before, B));
        (0..3).for_each(|_| dies(&mut before, A));
        let passed = before.pass(&mut OutgoingFds::default());
        let mut fds = IncomingFds::new(Vec::new()).unwrap();
        let mut saved_sessions = SavedSessions::take(passed, &mut fds).unwrap();
        assert!(saved_sessions.quarantined.iter().eq([&A]));
        let now = Instant::now();
        let quarantined = [(A, now), (B, now), (A, now + CRASH_WINDOW)];
        let quarantined = quarantined.map(|(port, at)| saved_sessions.is_quarantined(port, at));
        assert_eq!(quarantined, [true, false, false]);
        dies(&mut saved_sessions, B);
        assert!(
            saved_sessions.quarantined.iter().eq([&B]),
            "for the third time"
        );
        for (_, _, ago) in &mut saved_sessions.pass_crash_counts().ports {
            assert!(u128::from(*ago) < CRASH_WINDOW.as_millis());
        }
        let long_ago = PassedCrashCounts {
            ports: vec![
                (A, 2, 2 * CRASH_WINDOW.as_millis() as u64),
                (B, 2, u64::MAX),
            ],
            quarantined: Vec::new(),
        };
        saved_sessions.take_crash_counts(long_ago);
        dies(&mut saved_sessions, A);
        dies(&mut saved_sessions, B);
        assert!(
            saved_sessions.quarantined.is_empty(),
            "outside of the window"
        );
    }

    #[test]
    fn complete_sessions_are_connections_and_change_the_generation() {
        let mut saved_sessions = SavedSessions::default();
        let ports = |d: &SavedSessions| d.connections().map(|(port, _)| port).collect::<Vec<_>>();
        let mut seen = BTreeSet::from([saved_sessions.generation()]);
        let mut changed = |saved_sessions: &SavedSessions| seen.insert(saved_sessions.generation());
        saved_sessions.store_descriptor(A, SOCKET, fd());
        assert_eq!(
            (ports(&saved_sessions), changed(&saved_sessions)),
            (vec![], false)
        );
        saved_sessions.store_session(A, vec![1], &[SOCKET]);
        assert_eq!(
            (ports(&saved_sessions), changed(&saved_sessions)),
            (vec![A], true)
        );
        saved_sessions.store_session(A, vec![2], &[SOCKET]);
        assert_eq!(
            (ports(&saved_sessions), changed(&saved_sessions)),
            (vec![A], false)
        );
        saved_sessions.drop_session(A);
        assert_eq!(
            (ports(&saved_sessions), changed(&saved_sessions)),
            (vec![], true)
        );
    }

    #[test]
    fn a_missing_descriptor_invalidates_the_session() {
        let mut saved_sessions = SavedSessions::default();
        saved_sessions.store_descriptor(A, 0, fd());
        saved_sessions.store_session(A, vec![1], &[0]);
        saved_sessions.store_descriptor(A, 1, Vec::new());
        assert_eq!(saved_sessions.ports[&A].record, None);
    }

    #[test]
    fn crashes_count_for_served_ports_unless_the_kill_came_from_outside() {
        let mut saved_sessions = SavedSessions::default();
        let crashes = |saved_sessions: &SavedSessions| {
            [A, B].map(|port| {
                saved_sessions
                    .crash_counts
                    .get(&port)
                    .map_or(0, |count| count.crashes)
            })
        };
        let quarantined = |saved_sessions: &SavedSessions| {
            saved_sessions
                .quarantined
                .iter()
                .copied()
                .collect::<Vec<_>>()
        };
        saved_sessions.record_crash(killed_by(libc::SIGKILL), &thread_slots(&[A]));
        assert_eq!(crashes(&saved_sessions), [0, 0]);
        let thread_slots = thread_slots(&[A]);
        saved_sessions.record_crash(killed_by(libc::SIGSEGV), &thread_slots);
        assert_eq!(crashes(&saved_sessions), [1, 0]);
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &thread_slots);
        assert_eq!(crashes(&saved_sessions), [1, 0], "slots count once");
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[B, A]));
        assert_eq!(crashes(&saved_sessions), [2, 1]);
        assert_eq!(quarantined(&saved_sessions), []);
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[A]));
        assert_eq!(
            (crashes(&saved_sessions), quarantined(&saved_sessions)),
            ([3, 1], vec![A])
        );
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[B]));
        assert_eq!(
            (crashes(&saved_sessions), quarantined(&saved_sessions)),
            ([3, 2], vec![])
        );
        saved_sessions.drop_session(A);
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[A]));
        assert_eq!(
            (crashes(&saved_sessions), quarantined(&saved_sessions)),
            ([4, 2], vec![A])
        );
        if let Some(long_ago) = Instant::now().checked_sub(2 * CRASH_WINDOW) {
            saved_sessions.crash_counts.get_mut(&A).unwrap().last = long_ago;
            saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[A]));
            assert_eq!(
                (crashes(&saved_sessions), quarantined(&saved_sessions)),
                ([1, 2], vec![])
            );
        }
    }
}
