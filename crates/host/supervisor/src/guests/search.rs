//! The search for vCPU threads: asks each source in its order ([`vcpus::vcpus`]), and keeps what
//! sources must see more than once.
//!
//! A search reads what VMMs have chosen: their threads, descriptors and VMs. So it is a round of
//! turns, each of bounded work; a VMM keeps its former outcome until all its facts are read. A
//! round has the VMMs with something new ([`schedule`](super::schedule)), and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ipc::peer::Peer;
use ipc::supervision::{FoundVcpus, PortVcpus, VcpuSource};
use port::PortId;
use port::counters::Counters;
use rustix::net::{SocketAddrUnix, SocketType};
use vcpus::load::{Descriptors, LoadError};
use vcpus::vcpus::Work;
use vcpus::vcpus::activity::{self, Effect, Record, Sample};
use vcpus::vcpus::debugfs::{self, ListError, NoList, VmScan, Vms};
use vcpus::vcpus::names::{self, Thread};
use vcpus::vcpus::tracepoints::Tracepoints;

use super::facts::{Facts, Reading};
use super::schedule::{Question, Schedule, SearchReport, VmmState};

/// Entries of directories that are read in a turn: some ten milliseconds.
const WORK: usize = 4096;
/// Time until the next turn of a round: 200 milliseconds, for the supervisor's other work.
const TURN: Duration = Duration::from_millis(200);
/// Next search while vCPUs are unknown, and evidence is coming: a little more than a window of
/// [`activity`].
const SOON: Duration = Duration::from_millis(1100);
/// Searches without a further thread until the threads that were seen count as all: one second or
/// more.
const UNCHANGED: u32 = 2;
/// Names of the tracepoints' memory and links among the descriptors of an upgrade.
const KVM_MEMORY: &str = "kvm";
const KVM_LINK: &str = "kvm_link_";
/// Reason why a supervisor has no tracepoints after an upgrade.
const NOT_PASSED: &str = "the version before has not handed them over; restart to have them";
/// Exists while KVM is loaded, be it a module or not.
const KVM: &str = "/sys/module/kvm";

/// Result of a search for one port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Outcome {
    /// The vCPU threads, none if they are unknown.
    pub(super) threads: Vec<u32>,
    pub(super) by: VcpuSource,
    /// Reason why they are unknown.
    pub(super) reason: Option<String>,
}

impl Outcome {
    fn found(threads: Vec<u32>, by: VcpuSource) -> Self {
        Self {
            threads,
            by,
            reason: None,
        }
    }

    fn unknown(reason: String) -> Self {
        Self {
            reason: Some(reason),
            ..Self::default()
        }
    }
}

/// Evidence about one VMM that was seen over time.
#[derive(Debug, Default)]
struct Vmm {
    record: Record,
    /// Threads that KVM's tracepoints have shown.
    seen: BTreeSet<u32>,
    /// Searches since there was a new one.
    unchanged: u32,
    /// KVM's tracepoints are needed until its next search.
    arms: bool,
}

/// Facts about a VMM at one search.
struct Process<'a> {
    id: u32,
    /// Its threads, if they are visible.
    threads: Option<&'a [Thread]>,
    /// Number of its descriptors of vCPUs, if they can be listed. 0: it does not use KVM.
    vcpu_descriptors: Option<usize>,
    /// Frames that its guest has received.
    frames: u64,
    now: Duration,
}

impl Process<'_> {
    fn thread_ids(&self) -> Option<Vec<u32>> {
        let threads = self.threads?.iter();
        Some(threads.map(|(id, _)| *id).collect())
    }
}

/// The next search that the search of one VMM asks for.
#[derive(Debug, Default)]
struct NextSearch {
    /// Another one after this time: evidence is coming.
    soon: Option<Duration>,
    open: Question,
    /// KVM's tracepoints, until the next one.
    arm: bool,
}

/// Returns the tracepoints among the descriptors of an upgrade, by copies of these.
fn adopt_tracepoints(passed: &Descriptors) -> io::Result<Tracepoints> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let map = passed.get(KVM_MEMORY).ok_or_else(missing)?.try_clone()?;
    let links = passed.iter().filter(|(name, _)| name.starts_with(KVM_LINK));
    let links: io::Result<Vec<_>> = links.map(|(_, link)| link.try_clone()).collect();
    Tracepoints::over(map, links?)
}

/// Search in progress.
#[derive(Debug)]
struct Round {
    /// VMMs that are still to be searched.
    todo: BTreeSet<u32>,
    /// Facts about one of them that are being read.
    reading: Option<(u32, Reading)>,
    /// Facts about it that are complete.
    facts: Option<(u32, Facts)>,
    list: List,
    /// Tracepoints were armed before the search.
    was_armed: bool,
    /// Entries that were read for the VMM in turn.
    entries: usize,
    /// Time of the next turn.
    turn_at: Duration,
}

/// KVM's list of VMs, which all VMMs of a round share.
#[derive(Debug, Default)]
enum List {
    #[default]
    Unread,
    Reading(VmScan),
    Read(Result<Vms, NoList>),
}

impl List {
    /// Reads on; `false`: there is more for the next turn.
    fn advance(&mut self, work: &mut Work) -> bool {
        if matches!(self, Self::Unread) {
            *self = match VmScan::of(Path::new(debugfs::MOUNTED_AT)) {
                Ok(scan) => Self::Reading(scan),
                Err(reason) => Self::Read(Err(reason)),
            };
        }
        *self = match std::mem::take(self) {
            Self::Reading(mut scan) => match scan.advance(work) {
                true => Self::Read(Ok(scan.vms())),
                false => Self::Reading(scan),
            },
            other => other,
        };
        matches!(self, Self::Read(_))
    }
}

/// State of the search.
#[derive(Debug, Default)]
pub(super) struct Search {
    tracepoints: Option<Tracepoints>,
    /// Reason why there are no tracepoints.
    no_tracepoints: Option<String>,
    /// KVM was not loaded at the attempt to attach tracepoints.
    without_kvm: bool,
    /// Reason why there is no list of KVM's, at the last search that asked for one.
    no_list: Option<String>,
    counters: Option<Counters>,
    /// Ports of each VMM.
    ports: BTreeMap<u32, Vec<PortId>>,
    vmms: BTreeMap<u32, Vmm>,
    outcomes: BTreeMap<PortId, Outcome>,
    schedule: Schedule,
    round: Option<Round>,
    next: NextSearch,
}

impl Search {
    /// Attaches to KVM's tracepoints. It needs the rights once.
    pub(super) fn load(&mut self) {
        match Tracepoints::load() {
            Ok(tracepoints) => self.tracepoints = Some(tracepoints),
            Err(error) => {
                self.without_kvm = matches!(error, LoadError::NoKvm);
                self.no_tracepoints = Some(error.to_string());
            }
        }
    }

    /// Returns the descriptors of the tracepoints by name, for the next supervisor.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        self.tracepoints.iter().flat_map(|tracepoints| {
            let (map, links) = tracepoints.descriptors();
            let links = links.enumerate();
            let links = links.map(|(number, link)| (format!("{KVM_LINK}{number}"), link));
            std::iter::once((KVM_MEMORY.to_owned(), map)).chain(links)
        })
    }

    /// Adopts the tracepoints of the supervisor before, which stay attached. Without success, their
    /// descriptors stay in `passed`: that one needs them after a rollback.
    pub(super) fn adopt(&mut self, passed: &mut Descriptors) {
        match adopt_tracepoints(passed) {
            Ok(tracepoints) => {
                passed.retain(|name, _| name != KVM_MEMORY && !name.starts_with(KVM_LINK));
                self.tracepoints = Some(tracepoints);
            }
            Err(_) => self.no_tracepoints = Some(NOT_PASSED.to_owned()),
        }
    }

    /// Maps the counters of ports, which show whether guests receive frames.
    pub(super) fn map_counters(&mut self, counters: &OwnedFd) {
        if self.counters.is_none() {
            // Without them, nothing is found by activity.
            self.counters = Counters::map(counters).ok();
        }
    }

    /// Takes the connections that there are now; the VMMs at the other ends of new ones are
    /// searched soon. Costs three system calls a connection. `now`: of any clock, the same in all
    /// calls.
    pub(super) fn set_connections<'a>(
        &mut self,
        now: Duration,
        connections: impl Iterator<Item = (PortId, BorrowedFd<'a>)>,
    ) {
        let peers = connections.filter_map(|(port, socket)| Some((port, vmm_at(socket)?)));
        self.set_peers(now, &peers.collect());
    }

    fn set_peers(&mut self, now: Duration, peers: &BTreeMap<PortId, Option<u32>>) {
        let mut ports: BTreeMap<u32, Vec<PortId>> = BTreeMap::new();
        self.outcomes.retain(|port, _| peers.contains_key(port));
        for (port, peer) in peers {
            match peer {
                Some(vmm) => ports.entry(*vmm).or_default().push(*port),
                None => {
                    let reason = "the VMM is in another PID namespace".to_owned();
                    self.outcomes.insert(*port, Outcome::unknown(reason));
                }
            }
        }
        let before = std::mem::replace(&mut self.ports, ports);
        self.schedule.retain(|vmm| self.ports.contains_key(&vmm));
        self.vmms.retain(|vmm, _| self.ports.contains_key(vmm));
        for (vmm, of) in &self.ports {
            if before.get(vmm) != Some(of) {
                self.schedule.note_event(now, *vmm);
            }
        }
    }

    /// Searches the VMMs of these ports soon.
    pub(super) fn search_again(&mut self, now: Duration, ports: &BTreeSet<PortId>) {
        for (vmm, of) in &self.ports {
            if of.iter().any(|port| ports.contains(port)) {
                self.schedule.note_event(now, *vmm);
            }
        }
    }

    /// Returns the time of the next turn or visit.
    pub(super) fn due(&self) -> Option<Duration> {
        let turn = self.round.as_ref().map(|round| round.turn_at);
        turn.or_else(|| self.schedule.next())
    }

    /// Does what is due. Returns whether a VMM was searched.
    pub(super) fn run(&mut self, now: Duration, patterns: &BTreeMap<PortId, String>) -> bool {
        self.due().is_some_and(|due| due <= now) && self.turn(now, patterns, &mut Work::of(WORK))
    }

    /// Does one turn of the search, or as much as there is to do. Returns whether a VMM was
    /// searched.
    fn turn(
        &mut self,
        now: Duration,
        patterns: &BTreeMap<PortId, String>,
        work: &mut Work,
    ) -> bool {
        let Some(mut round) = self.round.take().or_else(|| self.begin(now)) else {
            return false;
        };
        round.todo.retain(|vmm| self.ports.contains_key(vmm));
        let mut is_any = false;
        while let Some(vmm) = round.todo.first().copied() {
            let before = work.used();
            let is_done = self.search_ports(vmm, &mut round, patterns, now, work);
            round.entries += work.used() - before;
            if !is_done {
                round.turn_at = now + TURN;
                self.round = Some(round);
                return is_any;
            }
            is_any = true;
            round.todo.remove(&vmm);
            let next = std::mem::take(&mut self.next);
            self.vmms.entry(vmm).or_default().arms = next.arm;
            let searched = SearchReport {
                open: next.open,
                soon: next.soon,
                entries: std::mem::take(&mut round.entries),
            };
            self.schedule.note_search(now, vmm, &searched);
        }
        if let Some(tracepoints) = &self.tracepoints {
            tracepoints.arm(self.vmms.values().any(|vmm| vmm.arms));
        }
        is_any
    }

    /// Begins a round with the VMMs that must be searched, if there are any.
    fn begin(&mut self, now: Duration) -> Option<Round> {
        let (ports, counters) = (&self.ports, self.counters.as_ref());
        let todo = self.schedule.visit(now, |vmm| VmmState {
            threads: names::thread_count(vmm),
            frames: frames_of(counters, ports.get(&vmm).into_iter().flatten()),
        });
        if todo.is_empty() {
            return None;
        }
        self.see(&todo);
        Some(Round {
            todo,
            reading: None,
            facts: None,
            list: List::default(),
            was_armed: self.tracepoints.as_ref().is_some_and(Tracepoints::is_armed),
            entries: 0,
            turn_at: now,
        })
    }

    /// Searches the vCPUs of the ports of a VMM; `false`: there is more for the next turn.
    fn search_ports(
        &mut self,
        vmm: u32,
        round: &mut Round,
        patterns: &BTreeMap<PortId, String>,
        now: Duration,
        work: &mut Work,
    ) -> bool {
        let Some(facts) = round.facts_of(vmm, work) else {
            return false;
        };
        self.next = NextSearch::default();
        let ports = self.ports.get(&vmm).cloned().unwrap_or_default();
        let mut outcome = None;
        for port in &ports {
            let found = match patterns.get(port) {
                Some(pattern) => by_pattern(facts.threads.as_deref(), pattern),
                None => {
                    let frames = frames_of(self.counters.as_ref(), &ports);
                    let search = || self.search_vmm(vmm, &facts, (frames, now), round);
                    outcome.get_or_insert_with(search).clone()
                }
            };
            self.outcomes.insert(*port, found);
        }
        true
    }

    /// Returns the threads to follow for each port.
    pub(super) fn threads(&self) -> BTreeMap<PortId, Vec<u32>> {
        let outcomes = self.outcomes.iter();
        outcomes
            .map(|(port, outcome)| (*port, outcome.threads.clone()))
            .collect()
    }

    /// Returns the report for control.
    pub(super) fn report(&self) -> FoundVcpus {
        let ports = self.outcomes.iter().map(|(port, outcome)| {
            let vcpus = PortVcpus {
                found: outcome.threads.len() as u32,
                by: outcome.by.as_str().to_owned(),
                reason: outcome.reason.clone(),
            };
            (*port, vcpus)
        });
        FoundVcpus {
            ports: ports.collect(),
            missing: self.missing(),
        }
    }

    /// Returns the sources that cannot be used. Where KVM is not loaded, none of its is missed.
    fn missing(&self) -> Vec<String> {
        let tracepoints = match (&self.no_tracepoints, self.without_kvm) {
            (Some(_), true) => Some(
                "KVM was loaded after Lasthop: restart Lasthop to have KVM's tracepoints"
                    .to_owned(),
            ),
            (Some(reason), false) => Some(format!("no tracepoints of KVM's: {reason}")),
            (None, _) => None,
        };
        let missing = self.no_list.clone().into_iter().chain(tracepoints);
        let has_kvm = Path::new(KVM).exists();
        missing.filter(|_| has_kvm).collect()
    }

    /// Takes the threads that were seen by tracepoints. These VMMs are searched now.
    fn see(&mut self, searched: &BTreeSet<u32>) {
        let Some(tracepoints) = &self.tracepoints else {
            return;
        };
        let armed = tracepoints.is_armed();
        for vmm in searched {
            let known = self.vmms.entry(*vmm).or_default();
            known.unchanged = known.unchanged.saturating_add(u32::from(armed));
        }
        for (vmm, threads) in tracepoints.seen() {
            let Some(known) = self.vmms.get_mut(&vmm) else {
                continue;
            };
            let before = known.seen.len();
            known.seen.extend(threads);
            if known.seen.len() > before {
                known.unchanged = 0;
            }
        }
    }

    /// Searches the vCPUs of a VMM by these facts. `frames`: those that its guest has received.
    fn search_vmm(
        &mut self,
        id: u32,
        facts: &Facts,
        (frames, now): (u64, Duration),
        round: &Round,
    ) -> Outcome {
        let threads = facts.threads.as_deref();
        let named = names::named(threads.unwrap_or_default(), None);
        if !named.is_empty() {
            return Outcome::found(named, VcpuSource::Names);
        }
        let process = Process {
            id,
            threads,
            vcpu_descriptors: facts.vcpu_descriptors,
            frames,
            now,
        };
        let uses_kvm = process.vcpu_descriptors != Some(0);
        let mut reasons = vec![SearchError::Unnamed];
        if uses_kvm {
            // Further vCPUs may run later, on threads that are there already.
            let open = |threads: &[u32]| match process.vcpu_descriptors {
                Some(count) if count == threads.len() => Question::Nothing,
                _ => Question::Search { found: true },
            };
            match self.by_debugfs(&process, &round.list) {
                Ok(threads) => {
                    self.next.open = open(&threads);
                    return Outcome::found(threads, VcpuSource::Debugfs);
                }
                Err(reason) => reasons.push(reason),
            }
            match self.by_tracepoints(&process) {
                Ok(threads) => {
                    self.recheck(&process, round.was_armed);
                    self.next.open = open(&threads);
                    return Outcome::found(threads, VcpuSource::Tracepoints);
                }
                Err(reason) => reasons.push(reason),
            }
        }
        self.next.open = match uses_kvm || process.threads.is_none() {
            true => Question::Search { found: false },
            false => Question::Frames { found: false },
        };
        match self.by_activity(&process) {
            Ok(threads) => {
                self.next.open = Question::Frames { found: true };
                Outcome::found(threads, VcpuSource::Activity)
            }
            Err(reason) => {
                reasons.push(reason);
                self.next.arm |= uses_kvm;
                let reasons = reasons.iter().map(ToString::to_string);
                Outcome::unknown(reasons.collect::<Vec<_>>().join("; "))
            }
        }
    }

    fn by_debugfs(&mut self, process: &Process<'_>, list: &List) -> SearchResult {
        let List::Read(vms) = list else {
            return Err(SearchError::Unread);
        };
        self.no_list = vms.as_ref().err().map(ToString::to_string);
        let vms = vms
            .as_ref()
            .map_err(|error| SearchError::NoList(error.to_string()))?;
        let threads = process.thread_ids();
        Ok(vms.of_process(process.id, threads.as_deref(), process.vcpu_descriptors)?)
    }

    /// Returns the threads that tracepoints have shown, if they are all.
    fn by_tracepoints(&mut self, process: &Process<'_>) -> SearchResult {
        if self.tracepoints.is_none() {
            return Err(match &self.no_tracepoints {
                Some(reason) => SearchError::NoTracepoints(reason.clone()),
                None => SearchError::Unattached,
            });
        }
        self.by_seen(process)
    }

    fn by_seen(&mut self, process: &Process<'_>) -> SearchResult {
        let vmm = self.vmms.entry(process.id).or_default();
        if let Some(threads) = process.thread_ids() {
            vmm.seen.retain(|thread| threads.contains(thread));
        }
        let seen = vmm.seen.len();
        let all = match process.vcpu_descriptors {
            Some(count) => seen == count,
            None => seen > 0 && vmm.unchanged >= UNCHANGED,
        };
        if all {
            return Ok(vmm.seen.iter().copied().collect());
        }
        if seen > 0 {
            self.next.soon = Some(SOON);
        }
        Err(match process.vcpu_descriptors {
            _ if seen == 0 => SearchError::Unseen,
            Some(count) => SearchError::SeenOf(seen, count),
            None => SearchError::SeenSoFar(seen),
        })
    }

    /// Has the tracepoints armed for a moment at each usual search: without the VMM's descriptors,
    /// a vCPU that ran for the first time later would be missed.
    fn recheck(&mut self, process: &Process<'_>, was_armed: bool) {
        if process.vcpu_descriptors.is_none() && !was_armed {
            self.next.arm = true;
            self.next.soon = Some(SOON);
        }
    }

    /// Returns the threads that ran whenever the guest received frames.
    fn by_activity(&mut self, process: &Process<'_>) -> SearchResult {
        let threads = process.thread_ids().ok_or(SearchError::HiddenThreads)?;
        let record = &mut self.vmms.entry(process.id).or_default().record;
        let mut effect = record.effect(process.now, process.frames);
        if effect != Effect::Nothing {
            effect = record.note(Sample {
                at: process.now,
                frames: process.frames,
                threads: activity::run_times(process.id, &threads),
            });
        }
        let found = record.vcpus(process.id);
        let needed = record.needed();
        // The set is compared once more at each usual search.
        if effect == Effect::Begins || (effect == Effect::Ends && found.is_none()) {
            self.next.soon = Some(SOON);
        }
        found.ok_or(match needed {
            0 => SearchError::NoActivity,
            _ => SearchError::FewFrames,
        })
    }
}

/// Returns the frames that the guest of these ports has received.
fn frames_of<'a>(counters: Option<&Counters>, ports: impl IntoIterator<Item = &'a PortId>) -> u64 {
    let Some(counters) = counters else {
        return 0;
    };
    let ports = ports.into_iter();
    ports
        .map(|port| counters.read(*port).to_guest.packets)
        .sum()
}

impl Round {
    /// Returns all facts about a VMM; `None`: there is more to read in the next turn. A sample of
    /// its threads' run times is a part of this work.
    fn facts_of(&mut self, vmm: u32, work: &mut Work) -> Option<Facts> {
        let known = self.facts.take().filter(|(of, _)| *of == vmm);
        let facts = match known {
            Some((_, facts)) => facts,
            None => {
                let begun = self.reading.take().filter(|(of, _)| *of == vmm);
                let reading = begun.map_or_else(|| Reading::of(vmm), |(_, reading)| reading);
                match reading.advance(work) {
                    Ok(facts) => facts,
                    Err(rest) => {
                        self.reading = Some((vmm, rest));
                        return None;
                    }
                }
            }
        };
        let threads = facts.threads.as_deref().unwrap_or_default();
        let is_named = !names::named(threads, None).is_empty();
        let uses_kvm = facts.vcpu_descriptors != Some(0);
        let has_list = is_named || !uses_kvm || self.list.advance(work);
        if has_list && (is_named || work.take_at_once(threads.len())) {
            return Some(facts);
        }
        self.facts = Some((vmm, facts));
        None
    }
}

/// Returns the threads of a VMM that match the operator's pattern; none where it is gone, or hidden
/// from us.
fn by_pattern(threads: Option<&[Thread]>, pattern: &str) -> Outcome {
    let named = names::named(threads.unwrap_or_default(), Some(pattern));
    if named.is_empty() {
        return Outcome::unknown(format!(
            "no thread has a name that matches the pattern {pattern:?} of the port"
        ));
    }
    Outcome::found(named, VcpuSource::Names)
}

/// The vCPU threads that one way of searching has found.
type SearchResult = Result<Vec<u32>, SearchError>;

/// Reason why one way of searching has not found the vCPUs of a VMM.
#[derive(Debug, thiserror::Error)]
enum SearchError {
    #[error("no thread has the name of a vCPU")]
    Unnamed,
    #[error("KVM's list is not read yet")]
    Unread,
    #[error("{0}")]
    NoList(String),
    #[error(transparent)]
    Unlisted(#[from] ListError),
    #[error("KVM's tracepoints are not attached")]
    Unattached,
    #[error("{0}")]
    NoTracepoints(String),
    #[error("no thread was seen to enter a guest of KVM's")]
    Unseen,
    #[error("{0} of {1} vCPUs were seen to enter the guest")]
    SeenOf(usize, usize),
    #[error("{0} vCPUs were seen to enter the guest so far")]
    SeenSoFar(usize),
    #[error("the threads of the VMM are hidden")]
    HiddenThreads,
    #[error("no thread ran whenever the guest received frames")]
    NoActivity,
    #[error("the guest has received too few frames to tell by activity")]
    FewFrames,
}

/// Returns the process that connected or listened; `Some(None)` if its number is not visible.
/// `None` for connections without vCPUs: a driver's (this process made both ends), and those of
/// memif and netmap clients.
fn vmm_at(socket: BorrowedFd<'_>) -> Option<Option<u32>> {
    if !may_be_a_guest(socket) {
        return None;
    }
    let peer = Peer::of(&socket).ok()?.process;
    let peer = peer.map(|peer| peer.as_raw_pid().cast_unsigned());
    (peer != Some(std::process::id())).then_some(peer)
}

/// Returns whether the connection may be a guest's: memif has messages instead of a stream, and the
/// sockets of netmap ports end in `.netmap`, unless the operator names them otherwise.
fn may_be_a_guest(socket: BorrowedFd<'_>) -> bool {
    let is_stream = rustix::net::sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    is_stream && !local_path(socket).is_some_and(|path| path.ends_with(b".netmap"))
}

/// Returns the path that a socket is bound to.
fn local_path(socket: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let address = rustix::net::getsockname(socket).ok()?;
    let address = SocketAddrUnix::try_from(address).ok()?;
    address.path_bytes().map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests;
