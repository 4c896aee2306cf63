use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

use testkit::procfs::cpu_seconds;
use testkit::wait::wait_until;

use super::*;

const A: PortId = PortId(1);

/// A process of one thread, as a VMM that neither names threads nor uses KVM.
struct Emulator(Child);

impl Emulator {
    fn start(script: &str) -> Self {
        Self(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A round with this VMM.
fn round_of(vmm: u32) -> Round {
    Round {
        todo: BTreeSet::from([vmm]),
        reading: None,
        facts: None,
        list: List::default(),
        was_armed: false,
        entries: 0,
        turn_at: Duration::ZERO,
    }
}

/// Searches once a second, while so many frames arrive each time and the process runs or sleeps.
/// Returns the last outcome.
fn search(search: &mut Search, vmm: &Emulator, frames: u64, runs: bool) -> Outcome {
    let mut last = Outcome::default();
    for second in 1..=activity::WINDOWS as u64 + 1 {
        search.next = NextSearch::default();
        let before = cpu_seconds(vmm.id());
        match runs {
            true => wait_until("it runs", || cpu_seconds(vmm.id()) > before),
            false => std::thread::sleep(Duration::from_millis(30)),
        }
        let now = Duration::from_secs(second);
        let mut round = round_of(vmm.id());
        let work = &mut Work::of(usize::MAX);
        let facts = round.facts_of(vmm.id(), work).unwrap();
        last = search.search_vmm(vmm.id(), &facts, (second * frames, now), &round);
    }
    last
}

#[test]
fn the_thread_that_runs_while_frames_arrive_is_found_by_activity() {
    let vmm = Emulator::start("while :; do :; done");
    let mut state = Search::default();
    let outcome = search(&mut state, &vmm, activity::FRAMES, true);
    assert_eq!(
        outcome,
        Outcome::found(vec![vmm.id()], VcpuSource::Activity)
    );
    assert_eq!(state.next.soon, None);
    assert_eq!(state.next.open, Question::Frames { found: true });
    state.outcomes.insert(A, outcome);
    let vcpus = PortVcpus {
        found: 1,
        by: "activity".to_owned(),
        reason: None,
    };
    assert_eq!(state.report().ports, [(A, vcpus)]);
    assert_eq!(state.threads(), BTreeMap::from([(A, vec![vmm.id()])]));
}

#[test]
fn nothing_is_guessed() {
    let sleeps = Emulator::start("exec sleep 1000");
    let mut state = Search::default();
    let outcome = search(&mut state, &sleeps, activity::FRAMES - 1, false);
    let reason = "no thread has the name of a vCPU; the guest has received too few frames to tell \
                  by activity";
    assert_eq!(outcome, Outcome::unknown(reason.to_owned()));
    assert_eq!(state.next.soon, None);
    assert_eq!(state.next.open, Question::Frames { found: false });
    assert!(!state.next.arm, "it has no descriptor of KVM's");
    let outcome = search(&mut Search::default(), &sleeps, activity::FRAMES, false);
    assert_eq!(outcome.by, VcpuSource::Unknown);
    let reason = "no thread ran whenever the guest received frames";
    assert!(outcome.reason.unwrap().ends_with(reason));
}

#[test]
fn the_pattern_of_the_operator_is_all_that_counts() {
    let vmm = Emulator::start("exec sleep 1000");
    let threads = names::threads_of(vmm.id()).unwrap();
    let outcome = by_pattern(Some(&threads), "vcpu*");
    let reason = "no thread has a name that matches the pattern \"vcpu*\" of the port";
    assert_eq!(outcome, Outcome::unknown(reason.to_owned()));
    let names = VcpuSource::Names;
    assert_eq!(
        by_pattern(Some(&threads), "*"),
        Outcome::found(vec![vmm.id()], names)
    );
}

/// A VMM whose descriptors are hidden or not, of which the tracepoints have shown some threads.
fn by_tracepoints(
    seen: &[u32],
    unchanged: u32,
    vcpu_descriptors: Option<usize>,
) -> Result<Vec<u32>, String> {
    let mut state = Search::default();
    let vmm = Vmm {
        record: Record::default(),
        seen: seen.iter().copied().collect(),
        unchanged,
        arms: false,
    };
    state.vmms.insert(10, vmm);
    let process = Process {
        id: 10,
        threads: None,
        vcpu_descriptors,
        frames: 0,
        now: Duration::ZERO,
    };
    state.by_seen(&process).map_err(|error| error.to_string())
}

#[test]
fn tracepoints_count_when_each_vcpu_was_seen() {
    assert_eq!(by_tracepoints(&[11, 12], 0, Some(2)), Ok(vec![11, 12]));
    let one = by_tracepoints(&[11], 9, Some(2)).unwrap_err();
    assert_eq!(one, "1 of 2 vCPUs were seen to enter the guest");
    let none = by_tracepoints(&[], 9, None).unwrap_err();
    assert_eq!(none, "no thread was seen to enter a guest of KVM's");
}

#[test]
fn without_descriptors_the_threads_must_have_been_the_same_for_a_while() {
    assert!(by_tracepoints(&[11], UNCHANGED - 1, None).is_err());
    assert_eq!(by_tracepoints(&[11], UNCHANGED, None), Ok(vec![11]));
}

#[test]
fn what_kvm_has_is_missed_only_with_kvm() {
    let late = Search {
        no_tracepoints: Some(String::new()),
        without_kvm: true,
        ..Search::default()
    };
    let expected = usize::from(Path::new(KVM).exists());
    let missing = late.report().missing;
    assert_eq!(missing.len(), expected, "{missing:?}");
    assert!(
        missing
            .iter()
            .all(|missing| missing.contains("restart Lasthop"))
    );
}

#[test]
fn connections_of_drivers_have_no_vcpus() {
    // A driver's connection is like this: the supervisor made both ends.
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert_eq!(vmm_at(ours.as_fd()), None);
}

#[test]
fn tracepoints_are_handed_over_by_name() {
    let mut search = Search::default();
    search.load();
    if let Some(reason) = &search.no_tracepoints {
        return testkit::skip::skipped(reason);
    }
    let copies = search.descriptors();
    let mut passed: Descriptors = copies
        .map(|(name, fd)| (name, fd.try_clone_to_owned().unwrap()))
        .collect();
    assert!(passed.len() >= 2, "the memory and a link");
    let other = sys::file::fixed("test", 8).unwrap();
    passed.insert("states".to_owned(), other);
    let mut successor = Search::default();
    successor.adopt(&mut passed);
    assert!(successor.tracepoints.is_some());
    assert_eq!(passed.into_keys().collect::<Vec<_>>(), ["states"]);
    drop(search);
    assert!(!successor.tracepoints.unwrap().is_armed());
}

#[test]
fn tracepoints_that_were_not_handed_over_are_missing() {
    let mut successor = Search::default();
    let memory = sys::file::fixed("test", 8).unwrap();
    let mut passed = Descriptors::from([(KVM_LINK.to_owned() + "0", memory)]);
    successor.adopt(&mut passed);
    assert!(successor.tracepoints.is_none());
    assert_eq!(successor.no_tracepoints.as_deref(), Some(NOT_PASSED));
    assert_eq!(passed.len(), 1, "they are the version before's");
}

#[test]
fn memif_clients_have_no_vcpus() {
    let pair = |kind| {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap()
    };
    let (stream, _other) = pair(SocketType::STREAM);
    assert!(may_be_a_guest(stream.as_fd()));
    let (messages, _other) = pair(SocketType::SEQPACKET);
    assert!(!may_be_a_guest(messages.as_fd()));
    assert_eq!(vmm_at(messages.as_fd()), None);
}

#[test]
fn netmap_clients_have_no_vcpus() {
    let folder = tempfile::tempdir().unwrap();
    for (name, is_guest) in [("a.sock", true), ("a.netmap", false)] {
        let path = folder.path().join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (socket, _) = listener.accept().unwrap();
        assert_eq!(may_be_a_guest(socket.as_fd()), is_guest, "{name}");
    }
}

/// A VMM with many descriptors, another with one thread: neither takes more than a turn's work, and
/// the search continues where it stopped.
#[test]
fn a_turn_of_the_search_has_bounded_work() {
    const LEAST: usize = 4;
    let many = "exec 3</dev/null 4</dev/null 5</dev/null 6</dev/null 7</dev/null 8</dev/null; \
                exec sleep 1000";
    let vmms = [Emulator::start(many), Emulator::start("exec sleep 1000")];
    wait_until("it has its descriptors", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", vmms[0].id())).unwrap();
        fds.count() >= 9
    });
    let [a, b] = [1, 2].map(PortId);
    let peers = BTreeMap::from([(a, Some(vmms[0].id())), (b, Some(vmms[1].id()))]);
    let now = Duration::from_secs(1);
    let patterns = BTreeMap::new();
    let started = |peers: &BTreeMap<PortId, Option<u32>>| {
        let mut state = Search::default();
        state.set_peers(Duration::ZERO, peers);
        assert!(state.due().is_some_and(|due| due <= now));
        state
    };
    let mut state = started(&peers);
    let (mut turns, mut all) = (0, 0);
    loop {
        let mut work = Work::of(LEAST);
        state.turn(now, &patterns, &mut work);
        assert!(work.used() <= LEAST);
        turns += 1;
        all += work.used();
        if state.round.is_none() {
            break;
        }
        assert_eq!(state.due(), Some(now + TURN));
        assert!(turns < 100, "it comes to an end");
    }
    // At least a thread and 9 descriptors, and a thread and 3 descriptors.
    assert!(turns >= 4 && all >= 14, "{turns} turns, {all} entries");
    let mut whole = started(&peers);
    assert!(whole.turn(now, &patterns, &mut Work::of(WORK)));
    assert!(whole.round.is_none(), "that is the usual case");
    assert_eq!(state.outcomes, whole.outcomes);
    assert_eq!(whole.outcomes.len(), 2);
    // A VMM that goes meanwhile ends nothing else.
    let mut state = started(&peers);
    state.turn(now, &patterns, &mut Work::of(LEAST));
    assert!(state.round.is_some());
    state.set_peers(now, &BTreeMap::from([(b, Some(vmms[1].id()))]));
    state.turn(now, &patterns, &mut Work::of(WORK));
    assert!(state.round.is_none());
    assert_eq!(state.outcomes.keys().collect::<Vec<_>>(), [&b]);
}

/// A guest that comes costs what it has, however many others there are.
#[test]
fn a_connection_has_its_own_vmm_searched_and_no_other() {
    let vmms: Vec<_> = (0..4).map(|_| Emulator::start("exec sleep 1000")).collect();
    let peers = |count: usize| -> BTreeMap<PortId, Option<u32>> {
        let numbered = (0..).map(PortId).zip(&vmms[..count]);
        numbered.map(|(port, vmm)| (port, Some(vmm.id()))).collect()
    };
    let mut state = Search::default();
    let patterns = BTreeMap::new();
    let searched = |state: &mut Search, until: Duration| {
        let mut entries = 0;
        while let Some(now) = state.due().filter(|now| *now <= until) {
            let mut work = Work::of(WORK);
            state.turn(now, &patterns, &mut work);
            entries += work.used();
        }
        entries
    };
    state.set_peers(Duration::ZERO, &peers(3));
    let of_three = searched(&mut state, Duration::from_secs(30));
    assert!(of_three > 0);
    assert_eq!(searched(&mut state, Duration::from_secs(3600)), 0, "idle");
    let now = Duration::from_secs(3600);
    state.set_peers(now, &peers(4));
    let of_one = searched(&mut state, now + Duration::from_secs(30));
    assert!(
        of_one > 0 && of_one <= of_three / 2,
        "{of_one} of {of_three}"
    );
    assert_eq!(state.outcomes.len(), 4);
    // Names that an operator changes concern one VMM.
    state.search_again(2 * now, &BTreeSet::from([PortId(1)]));
    let named = searched(&mut state, 2 * now + Duration::from_secs(30));
    assert!(named > 0 && named <= of_three / 2, "{named} of {of_three}");
}
