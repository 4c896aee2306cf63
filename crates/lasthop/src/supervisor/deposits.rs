//! What the switch deposits, so that its successor goes on with its connections. None of it is understood here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use channel::keeping::{MAX_KEPT, MAX_RECORD, to_blame};
use channel::link::MAX_FDS;
use channel::supervision::Tell;
use port::PortId;
use port::counters::MAX_PORTS;
use rustix::process::{Resource, getrlimit};

use super::child::Child;
use super::replace::{Giving, PassedDeposit, Taking};

/// Deaths in a row that a connection is allowed to be the cause of.
const DEATHS: u32 = 3;
/// A connection that was served so long since the last death that it caused was not the cause.
const FORGIVEN: Duration = Duration::from_secs(30);
/// Descriptors that are left for everything else.
const RESERVE: u64 = 256;

/// What was deposited for one port.
#[derive(Debug, Default)]
struct Deposit {
    fds: BTreeMap<u64, OwnedFd>,
    record: Option<Vec<u8>>,
}

impl Deposit {
    /// Keeps a descriptor; `false` when the system gave none, or there is no room.
    fn keep(&mut self, number: u64, fds: Vec<OwnedFd>, full: bool) -> bool {
        match <[OwnedFd; 1]>::try_from(fds) {
            Ok([fd]) if !full && self.fds.len() < 2 * MAX_KEPT => {
                self.fds.insert(number, fd);
                true
            }
            _ => false,
        }
    }

    /// Keeps a record if all its descriptors are there, and no other ones.
    fn record(&mut self, record: Vec<u8>, numbers: &BTreeSet<u64>) {
        self.fds.retain(|number, _| numbers.contains(number));
        let whole = self.fds.len() == numbers.len();
        self.record = (whole && record.len() <= MAX_RECORD).then_some(record);
    }
}

/// How often the switch has died of itself while it served a port, and when it did last.
#[derive(Debug)]
struct Blame {
    deaths: u32,
    last: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Deposits {
    ports: BTreeMap<PortId, Deposit>,
    /// Descriptors of all ports.
    kept: u64,
    /// It outlives the connection: one that comes next may be of the same front end.
    blamed: BTreeMap<PortId, Blame>,
    /// Ports whose connections are not to go on.
    condemned: BTreeSet<PortId>,
}

impl Deposits {
    /// Keeps a descriptor.
    pub(super) fn keep(&mut self, port: PortId, number: u64, fds: Vec<OwnedFd>) {
        let full = self.kept >= limit();
        self.change(port, |deposit| {
            if !deposit.keep(number, fds, full) {
                tracing::warn!(port = port.0, "too many descriptors: not all are kept");
                // What is kept of the port is of no use without it.
                *deposit = Deposit::default();
            }
        });
    }

    /// Keeps a record, and only the descriptors of these numbers.
    pub(super) fn record(&mut self, port: PortId, record: Vec<u8>, numbers: &[u64]) {
        if numbers.len() > MAX_KEPT {
            return self.forget(port);
        }
        let numbers = numbers.iter().copied().collect();
        self.change(port, |deposit| deposit.record(record, &numbers));
    }

    /// Drops what was kept for a port.
    pub(super) fn forget(&mut self, port: PortId) {
        if let Some(deposit) = self.ports.remove(&port) {
            self.kept -= deposit.fds.len() as u64;
        }
    }

    /// Changes what is kept of a port, if there can be such a one.
    fn change(&mut self, port: PortId, change: impl FnOnce(&mut Deposit)) {
        if port.0 as usize >= MAX_PORTS {
            return tracing::error!(port = port.0, "there is no such port: nothing is kept");
        }
        let deposit = self.ports.entry(port).or_default();
        self.kept -= deposit.fds.len() as u64;
        change(deposit);
        self.kept += deposit.fds.len() as u64;
    }

    /// The switch has died like this. If it was not killed from outside, the port that it was serving is to blame, or
    /// all that it was serving where it did not say which.
    pub(super) fn blame(&mut self, status: ExitStatus, marks: &OwnedFd) {
        let mut to_blame = to_blame(marks).unwrap_or_default();
        self.condemned.clear();
        self.blamed
            .retain(|_, blame| blame.last.elapsed() < FORGIVEN);
        if !died_of_itself(status) {
            return;
        }
        to_blame.retain(|port| (port.0 as usize) < MAX_PORTS);
        for port in to_blame.into_iter().collect::<BTreeSet<_>>() {
            let last = Instant::now();
            let new = || Blame { deaths: 0, last };
            let blame = self.blamed.entry(port).or_insert_with(new);
            (blame.deaths, blame.last) = (blame.deaths + 1, last);
            let deaths = blame.deaths;
            if deaths >= DEATHS {
                self.condemned.insert(port);
            }
            tracing::warn!(
                port = port.0,
                deaths,
                "the switch died while it served this port"
            );
        }
    }

    /// For the supervisor that takes the place of this one. Who is to blame for what, it does not hear.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> Vec<PassedDeposit> {
        let pass = |(port, deposit): (&PortId, &'a Deposit)| {
            let fds = deposit.fds.iter();
            PassedDeposit {
                port: *port,
                fds: fds.map(|(n, fd)| (*n, giving.give(fd.as_fd()))).collect(),
                record: deposit.record.clone(),
            }
        };
        self.ports.iter().map(pass).collect()
    }

    /// What the supervisor before this one has kept.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub(super) fn take(from: Vec<PassedDeposit>, fds: &mut Taking) -> Result<Self, String> {
        let mut deposits = Self::default();
        for PassedDeposit {
            port,
            fds: kept,
            record,
        } in from
        {
            let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
            for (number, place) in kept {
                deposits.keep(port, number, vec![fds.take(place)?]);
            }
            if let Some(record) = record {
                deposits.record(port, record, &numbers);
            }
        }
        Ok(deposits)
    }

    /// Gives everything to a new switch.
    ///
    /// # Errors
    /// It is gone or does not read.
    pub(super) fn hand_over(&mut self, switch: &Child) -> io::Result<()> {
        // A connection whose deposit is not whole is lost: it was the dead switch's alone.
        let kept = &mut self.kept;
        self.ports.retain(|_, deposit| {
            let whole = deposit.record.is_some();
            if !whole {
                *kept -= deposit.fds.len() as u64;
            }
            whole
        });
        for (port, deposit) in &self.ports {
            let port = *port;
            let all: Vec<_> = deposit.fds.iter().collect();
            for some in all.chunks(MAX_FDS) {
                let numbers = some.iter().map(|(number, _)| **number).collect();
                let fds: Vec<_> = some.iter().map(|(_, fd)| fd.as_fd()).collect();
                switch.tell(&Tell::Kept { port, numbers }, &fds)?;
            }
            if let Some(record) = deposit.record.clone() {
                let condemned = self.condemned.contains(&port);
                let tell = Tell::KeptRecord {
                    port,
                    record,
                    condemned,
                };
                switch.tell(&tell, &[])?;
            }
        }
        Ok(())
    }
}

/// Descriptors that may be kept in all.
fn limit() -> u64 {
    let limit = getrlimit(Resource::Nofile).current;
    limit.unwrap_or(u64::MAX).saturating_sub(RESERVE)
}

/// Whether nobody has killed it: it gave up, or did what the system does not allow.
fn died_of_itself(status: ExitStatus) -> bool {
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

    fn fd() -> Vec<OwnedFd> {
        vec![rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()]
    }

    fn killed_by(signal: i32) -> ExitStatus {
        ExitStatus::from_raw(signal)
    }

    /// Marks as a switch leaves them that serves these ports.
    fn marks(ports: &[PortId]) -> OwnedFd {
        let marks = fd().remove(0);
        rustix::fs::ftruncate(&marks, channel::keeping::MARKS).unwrap();
        let all = channel::keeping::Marks::map(&marks).unwrap();
        for (thread, port) in ports.iter().enumerate() {
            all.of(thread).serve(*port);
        }
        marks
    }

    fn numbers(deposits: &Deposits, port: PortId) -> Vec<u64> {
        deposits.ports[&port].fds.keys().copied().collect()
    }

    #[test]
    fn a_record_keeps_its_descriptors_and_no_others() {
        let mut deposits = Deposits::default();
        (0..4).for_each(|n| deposits.keep(A, n, fd()));
        deposits.keep(B, 0, fd());
        deposits.record(A, vec![1], &[1, 3]);
        assert_eq!(numbers(&deposits, A), [1, 3]);
        assert_eq!(numbers(&deposits, B), [0]);
        deposits.record(A, vec![2], &[1, 3, 9]);
        assert_eq!(deposits.ports[&A].record, None, "one is missing");
        deposits.keep(A, 9, fd());
        deposits.record(A, vec![2], &[1, 3, 9]);
        assert_eq!(deposits.ports[&A].record, Some(vec![2]));
        deposits.record(A, vec![0; MAX_RECORD + 1], &[1, 3, 9]);
        assert_eq!(deposits.ports[&A].record, None, "too long");
        deposits.forget(A);
        assert_eq!((deposits.kept, deposits.ports.len()), (1, 1));
    }

    #[test]
    fn ports_that_cannot_be_and_too_many_numbers_are_refused_at_once() {
        let mut deposits = Deposits::default();
        for port in [PortId(MAX_PORTS as u32), PortId(u32::MAX)] {
            deposits.keep(port, 0, fd());
            deposits.record(port, vec![1], &[]);
        }
        assert!(deposits.ports.is_empty());
        deposits.keep(A, 0, fd());
        let many: Vec<u64> = (0..=MAX_KEPT as u64).collect();
        deposits.record(A, vec![1], &many);
        assert!(deposits.ports.is_empty(), "a deposit that is not whole");
        deposits.blame(killed_by(libc::SIGABRT), &marks(&[PortId(u32::MAX - 1)]));
        assert!(deposits.blamed.is_empty());
    }

    #[test]
    fn what_is_kept_of_all_is_counted_as_it_comes_and_goes() {
        let mut deposits = Deposits::default();
        let count = |deposits: &Deposits| {
            let all = deposits.ports.values().map(|d| d.fds.len() as u64);
            (deposits.kept, all.sum::<u64>())
        };
        for number in [0, 1, 1, 2] {
            deposits.keep(A, number, fd());
            deposits.keep(B, number, fd());
        }
        assert_eq!(count(&deposits), (6, 6));
        deposits.record(A, vec![1], &[2]);
        assert_eq!(count(&deposits), (4, 4));
        deposits.keep(B, 7, Vec::new());
        assert_eq!(count(&deposits), (1, 1));
        deposits.forget(A);
        deposits.forget(A);
        assert_eq!(count(&deposits), (0, 0));
    }

    #[test]
    fn a_descriptor_that_did_not_come_spoils_the_deposit() {
        let mut deposits = Deposits::default();
        deposits.keep(A, 0, fd());
        deposits.record(A, vec![1], &[0]);
        deposits.keep(A, 1, Vec::new());
        assert_eq!(deposits.ports[&A].record, None);
    }

    #[test]
    fn blame_is_for_those_that_were_served_when_it_died_of_itself() {
        let mut deposits = Deposits::default();
        let deaths = |deposits: &Deposits| {
            [A, B].map(|port| deposits.blamed.get(&port).map_or(0, |blame| blame.deaths))
        };
        let condemned =
            |deposits: &Deposits| deposits.condemned.iter().copied().collect::<Vec<_>>();
        deposits.blame(killed_by(libc::SIGKILL), &marks(&[A]));
        assert_eq!(deaths(&deposits), [0, 0]);
        let marks = marks(&[A]);
        deposits.blame(killed_by(libc::SIGSEGV), &marks);
        assert_eq!(deaths(&deposits), [1, 0]);
        deposits.blame(killed_by(libc::SIGABRT), &marks);
        assert_eq!(deaths(&deposits), [1, 0], "marks count once");
        deposits.blame(killed_by(libc::SIGABRT), &self::marks(&[B, A]));
        assert_eq!(deaths(&deposits), [2, 1]);
        assert_eq!(condemned(&deposits), []);
        deposits.blame(killed_by(libc::SIGABRT), &self::marks(&[A]));
        assert_eq!((deaths(&deposits), condemned(&deposits)), ([3, 1], vec![A]));
        deposits.blame(killed_by(libc::SIGABRT), &self::marks(&[B]));
        assert_eq!((deaths(&deposits), condemned(&deposits)), ([3, 2], vec![]));
        deposits.forget(A);
        deposits.blame(killed_by(libc::SIGABRT), &self::marks(&[A]));
        assert_eq!((deaths(&deposits), condemned(&deposits)), ([4, 2], vec![A]));
        if let Some(long_ago) = Instant::now().checked_sub(2 * FORGIVEN) {
            deposits.blamed.get_mut(&A).unwrap().last = long_ago;
            deposits.blame(killed_by(libc::SIGABRT), &self::marks(&[A]));
            assert_eq!((deaths(&deposits), condemned(&deposits)), ([1, 2], vec![]));
        }
    }
}
