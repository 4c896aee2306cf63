//! What the switch deposits, so that its successor goes on with its connections. None of it is understood here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use channel::keeping::{Look, MAX_KEPT, MAX_RECORD, SOCKET, to_blame, wipe};
use channel::link::MAX_FDS;
use channel::supervision::Tell;
use port::PortId;
use port::counters::MAX_PORTS;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::child::is_full;
use super::replace::{Giving, PassedBlame, PassedDeposit, PassedDeposits, Taking};

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

    /// Whether the connection can go on with it.
    fn is_whole(&self) -> bool {
        self.record.is_some()
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
    /// The marks when a switch that may hang was looked at last.
    look: Option<Look>,
    /// What a new switch has not got yet.
    leaving: VecDeque<Parcel>,
    /// Connections that came or went so far.
    turnover: u64,
}

/// What goes with one message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Parcel {
    /// Descriptors of these numbers.
    Files(PortId, Vec<u64>),
    Record(PortId),
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
        let known = |deposits: &Self| deposits.ports.get(&port).is_some_and(Deposit::is_whole);
        let before = known(self);
        self.change(port, |deposit| deposit.record(record, &numbers));
        self.turnover += u64::from(known(self) != before);
    }

    /// Drops what was kept for a port.
    pub(super) fn forget(&mut self, port: PortId) {
        if let Some(deposit) = self.ports.remove(&port) {
            self.kept -= deposit.fds.len() as u64;
            self.turnover += 1;
        }
    }

    /// A number that changes with the connections that there are.
    pub(super) fn turnover(&self) -> u64 {
        self.turnover
    }

    /// The sockets of all connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = (PortId, BorrowedFd<'_>)> {
        let whole = self.ports.iter().filter(|(_, deposit)| deposit.is_whole());
        whole.filter_map(|(port, deposit)| Some((*port, deposit.fds.get(&SOCKET)?.as_fd())))
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

    /// The switch has not answered: looks at whom it serves, to compare with later. Whether its session thread has got on
    /// since the last look.
    pub(super) fn look(&mut self, marks: &OwnedFd) -> bool {
        let before = std::mem::replace(&mut self.look, Look::at(marks).ok());
        let both = self.look.as_ref().zip(before.as_ref());
        both.is_some_and(|(now, before)| now.session_gets_on_since(before))
    }

    /// The switch was killed because it hung: ports whose threads have not got on since the last look are to blame.
    pub(super) fn blame_hung(&mut self, marks: &OwnedFd) {
        let now = Look::at(marks).ok();
        let stuck = now.zip(self.look.take());
        let stuck = stuck.map(|(now, before)| now.stuck_since(&before));
        if let Err(error) = wipe(marks) {
            tracing::error!("marks cannot be wiped: {error}");
        }
        self.blame_ports(stuck.unwrap_or_default());
    }

    /// The switch has died like this. If it was not killed from outside, the port that it was serving is to blame, or
    /// all that it was serving where it did not say which.
    pub(super) fn blame(&mut self, status: ExitStatus, marks: &OwnedFd) {
        let mut to_blame = to_blame(marks).unwrap_or_default();
        if !died_of_itself(status) {
            to_blame.clear();
        }
        self.blame_ports(to_blame);
    }

    fn blame_ports(&mut self, mut to_blame: Vec<PortId>) {
        self.condemned.clear();
        self.blamed
            .retain(|_, blame| blame.last.elapsed() < FORGIVEN);
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

    /// For the supervisor that takes the place of this one.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> PassedDeposits {
        let pass = |(port, deposit): (&PortId, &'a Deposit)| {
            let fds = deposit.fds.iter();
            PassedDeposit {
                port: *port,
                fds: fds.map(|(n, fd)| (*n, giving.give(fd.as_fd()))).collect(),
                record: deposit.record.clone(),
            }
        };
        PassedDeposits {
            ports: self.ports.iter().map(pass).collect(),
            leaving: self.leaving.clone(),
            blame: self.pass_blame(),
        }
    }

    fn pass_blame(&self) -> PassedBlame {
        let pass = |(port, blame): (&PortId, &Blame)| {
            let ago = blame.last.elapsed().as_millis() as u64;
            (*port, blame.deaths, ago)
        };
        PassedBlame {
            ports: self.blamed.iter().map(pass).collect(),
            condemned: self.condemned.iter().copied().collect(),
        }
    }

    fn take_blame(&mut self, from: PassedBlame) {
        let now = Instant::now();
        // A time that the clock does not reach back to is long ago, too.
        let blamed = from.ports.into_iter().filter_map(|(port, deaths, ago)| {
            let last = now.checked_sub(Duration::from_millis(ago))?;
            Some((port, Blame { deaths, last }))
        });
        self.blamed = blamed.collect();
        self.condemned = from.condemned.into_iter().collect();
    }

    /// What the supervisor before this one has kept.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub(super) fn take(from: PassedDeposits, fds: &mut Taking) -> Result<Self, String> {
        let mut deposits = Self::default();
        for PassedDeposit {
            port,
            fds: kept,
            record,
        } in from.ports
        {
            let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
            for (number, place) in kept {
                deposits.keep(port, number, vec![fds.take(place)?]);
            }
            if let Some(record) = record {
                deposits.record(port, record, &numbers);
            }
        }
        deposits.leaving = from.leaving;
        deposits.take_blame(from.blame);
        Ok(deposits)
    }

    /// A new switch is to have everything: [`Deposits::hand_over`] gives it.
    pub(super) fn pack(&mut self) {
        // A connection whose deposit is not whole is lost: it was the dead switch's alone.
        let kept = &mut self.kept;
        self.ports.retain(|_, deposit| {
            let whole = deposit.record.is_some();
            if !whole {
                *kept -= deposit.fds.len() as u64;
            }
            whole
        });
        self.leaving.clear();
        for (port, deposit) in &self.ports {
            let all: Vec<_> = deposit.fds.keys().copied().collect();
            let files = all.chunks(MAX_FDS).map(<[u64]>::to_vec);
            let files = files.map(|numbers| Parcel::Files(*port, numbers));
            self.leaving.extend(files);
            self.leaving.push_back(Parcel::Record(*port));
        }
    }

    /// The new switch is not to have the rest.
    pub(super) fn unpack(&mut self) {
        self.leaving.clear();
    }

    /// Whether a new switch has not got everything yet.
    pub(super) fn is_handing_over(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Gives a new switch what there is room for; it may be busy with its start, and nobody waits for it. `tell` sends it a
    /// message at once, or says that there is no room ([`io::ErrorKind::WouldBlock`]).
    ///
    /// # Errors
    /// Others of `tell`.
    pub(super) fn hand_over(
        &mut self,
        tell: impl Fn(&Tell, &[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some(parcel) = self.leaving.front() {
            let told = self.send(parcel, &tell);
            if is_full(&told) {
                break;
            }
            told?;
            self.leaving.pop_front();
        }
        Ok(())
    }

    /// Sends a parcel; what was dropped meanwhile needs no room.
    fn send(
        &self,
        parcel: &Parcel,
        tell: impl Fn(&Tell, &[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (Parcel::Files(port, _) | Parcel::Record(port)) = *parcel;
        let Some(deposit) = self.ports.get(&port) else {
            return Ok(());
        };
        match (parcel, &deposit.record) {
            (Parcel::Files(_, numbers), _) => {
                let fds = numbers.iter().map(|number| deposit.fds.get(number));
                let Some(fds) = fds.collect::<Option<Vec<_>>>() else {
                    return Ok(());
                };
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                let numbers = numbers.clone();
                tell(&Tell::Kept { port, numbers }, &fds)
            }
            (Parcel::Record(_), Some(record)) => {
                let kept = Tell::KeptRecord {
                    port,
                    record: record.clone(),
                    condemned: self.condemned.contains(&port),
                };
                tell(&kept, &[])
            }
            (Parcel::Record(_), None) => Ok(()),
        }
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
    fn a_new_switch_gets_everything_as_fast_as_it_reads_and_nobody_waits_for_it() {
        let mut deposits = Deposits::default();
        for port in [A, B] {
            (0..20).for_each(|n| deposits.keep(port, n, fd()));
            deposits.record(port, vec![port.0 as u8], &(0..20).collect::<Vec<_>>());
        }
        // What is not whole stays behind.
        deposits.keep(PortId(3), 0, fd());
        deposits.pack();
        let got = std::cell::RefCell::new(Vec::new());
        for turn in 1.. {
            deposits
                .hand_over(|tell, fds| {
                    let mut got = got.borrow_mut();
                    if got.len() == 3 * turn {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    let expected = match tell {
                        Tell::Kept { numbers, .. } => numbers.len(),
                        _ => 0,
                    };
                    assert_eq!(fds.len(), expected);
                    got.push(tell.clone());
                    Ok(())
                })
                .unwrap();
            if !deposits.is_handing_over() {
                break;
            }
            assert_eq!(
                got.borrow().len(),
                3 * turn,
                "no more than there is room for"
            );
        }
        let got = got.into_inner();
        assert_eq!(
            got.len(),
            2 * 4,
            "three times up to eight descriptors, and a record"
        );
        for (port, told) in [A, B].into_iter().zip(got.chunks(4)) {
            let numbers = told.iter().flat_map(|tell| match tell {
                Tell::Kept { port: of, numbers } if *of == port => numbers.clone(),
                _ => Vec::new(),
            });
            assert!(numbers.eq(0..20));
            let condemned = false;
            let record = vec![port.0 as u8];
            let last = Tell::KeptRecord {
                port,
                record,
                condemned,
            };
            assert_eq!(told[3], last);
        }
        deposits.pack();
        assert!(deposits.is_handing_over());
        let gone = deposits.hand_over(|_, _| Err(io::ErrorKind::BrokenPipe.into()));
        assert!(gone.is_err() && deposits.is_handing_over());
        deposits.forget(A);
        deposits.forget(B);
        deposits.hand_over(|_, _| unreachable!()).unwrap();
        assert!(!deposits.is_handing_over());
    }

    #[test]
    fn who_made_the_switch_hang_is_to_blame() {
        let mut deposits = Deposits::default();
        let file = marks(&[]);
        let all = channel::keeping::Marks::map(&file).unwrap();
        for (thread, port) in [(1, A), (2, B)] {
            all.of(thread).serve(port);
        }
        assert!(!deposits.look(&file), "there is nothing to compare with");
        all.of(0).rest();
        assert!(deposits.look(&file), "the session thread");
        all.of(2).serve(B);
        deposits.blame_hung(&file);
        let blamed: Vec<_> = deposits.blamed.keys().copied().collect();
        assert_eq!(blamed, [A], "the other one got on");
        deposits.blame_hung(&file);
        assert_eq!(
            deposits.blamed[&A].deaths, 1,
            "nobody has looked, and marks are wiped"
        );
    }

    #[test]
    fn the_next_supervisor_knows_who_is_to_blame() {
        let mut before = Deposits::default();
        let dies = |deposits: &mut Deposits, port| {
            deposits.blame(killed_by(libc::SIGABRT), &marks(&[port]));
        };
        (0..2).for_each(|_| dies(&mut before, B));
        (0..3).for_each(|_| dies(&mut before, A));
        let passed = before.pass(&mut Giving::default());
        let mut fds = Taking::new(Vec::new()).unwrap();
        let mut deposits = Deposits::take(passed, &mut fds).unwrap();
        assert!(deposits.condemned.iter().eq([&A]));
        dies(&mut deposits, B);
        assert!(deposits.condemned.iter().eq([&B]), "for the third time");
        for (_, _, ago) in &mut deposits.pass_blame().ports {
            assert!(u128::from(*ago) < FORGIVEN.as_millis());
        }
        let long_ago = PassedBlame {
            ports: vec![(A, 2, 2 * FORGIVEN.as_millis() as u64), (B, 2, u64::MAX)],
            condemned: Vec::new(),
        };
        deposits.take_blame(long_ago);
        dies(&mut deposits, A);
        dies(&mut deposits, B);
        assert!(deposits.condemned.is_empty(), "forgiven");
    }

    #[test]
    fn connections_are_those_that_are_whole_and_it_is_seen_that_they_change() {
        let mut deposits = Deposits::default();
        let ports = |d: &Deposits| d.connections().map(|(port, _)| port).collect::<Vec<_>>();
        let mut seen = BTreeSet::from([deposits.turnover()]);
        let mut changed = |deposits: &Deposits| seen.insert(deposits.turnover());
        deposits.keep(A, SOCKET, fd());
        assert_eq!((ports(&deposits), changed(&deposits)), (vec![], false));
        deposits.record(A, vec![1], &[SOCKET]);
        assert_eq!((ports(&deposits), changed(&deposits)), (vec![A], true));
        deposits.record(A, vec![2], &[SOCKET]);
        assert_eq!((ports(&deposits), changed(&deposits)), (vec![A], false));
        deposits.forget(A);
        assert_eq!((ports(&deposits), changed(&deposits)), (vec![], true));
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
