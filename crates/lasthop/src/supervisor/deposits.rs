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
use rustix::process::{Resource, getrlimit};

use super::child::Child;

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
    /// It outlives the connection: one that comes next may be of the same front end.
    blamed: BTreeMap<PortId, Blame>,
    /// Ports whose connections are not to go on.
    condemned: BTreeSet<PortId>,
}

impl Deposits {
    /// Keeps a descriptor.
    pub(super) fn keep(&mut self, port: PortId, number: u64, fds: Vec<OwnedFd>) {
        let full = self.count() >= limit();
        let deposit = self.ports.entry(port).or_default();
        match <[OwnedFd; 1]>::try_from(fds) {
            Ok([fd]) if !full && deposit.fds.len() < 2 * MAX_KEPT => {
                deposit.fds.insert(number, fd);
            }
            // The system gave us none, or there is no room. What is kept of the port is of no use without it.
            _ => {
                tracing::warn!(port = port.0, "too many descriptors: not all are kept");
                deposit.fds.clear();
                deposit.record = None;
            }
        }
    }

    /// Keeps a record, and only the descriptors of these numbers.
    pub(super) fn record(&mut self, port: PortId, record: Vec<u8>, numbers: &[u64]) {
        let deposit = self.ports.entry(port).or_default();
        deposit.fds.retain(|number, _| numbers.contains(number));
        let whole = deposit.fds.len() == numbers.len() && numbers.len() <= MAX_KEPT;
        deposit.record = (whole && record.len() <= MAX_RECORD).then_some(record);
    }

    /// Drops what was kept for a port.
    pub(super) fn forget(&mut self, port: PortId) {
        self.ports.remove(&port);
    }

    fn count(&self) -> u64 {
        self.ports.values().map(|d| d.fds.len() as u64).sum()
    }

    /// The switch has died like this. If it was not killed from outside, the port that it was serving is to blame, or
    /// all that it was serving where it did not say which.
    pub(super) fn blame(&mut self, status: ExitStatus, marks: &OwnedFd) {
        let to_blame = to_blame(marks).unwrap_or_default();
        self.condemned.clear();
        self.blamed
            .retain(|_, blame| blame.last.elapsed() < FORGIVEN);
        if !died_of_itself(status) {
            return;
        }
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

    /// Gives everything to a new switch.
    ///
    /// # Errors
    /// It is gone or does not read.
    pub(super) fn hand_over(&mut self, switch: &Child) -> io::Result<()> {
        // A connection whose deposit is not whole is lost: it was the dead switch's alone.
        self.ports.retain(|_, deposit| deposit.record.is_some());
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
        assert_eq!((deposits.count(), deposits.ports.len()), (1, 1));
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
