//! The BPF programs in the running kernel: states of threads are seen. Without the rights for that,
//! the tests only print so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use testkit::kvm::{KvmGuest, KvmGuestConfig, Task};
use testkit::skip::skipped;
use testkit::turn::{Turn, machine};
use testkit::wait::{LIMIT, wait_for, wait_until, within};
use vcpus::load::{Descriptors, LoadError, Programs};
use vcpus::{Activity, BlockEvents, Slot, Vcpu, View};

/// Time limit of every event, longer than any takes on a busy machine.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// The programs, and a core that is observed from another one: an observer on the same core would
/// keep it busy. So would other tests.
fn programs() -> Option<(Programs, usize, Turn)> {
    let alone = machine();
    let (first, last) = first_and_last_core();
    if first != last {
        stay_on(first);
    }
    match Programs::load() {
        Ok(programs) => Some((programs, last, alone)),
        Err(error @ (LoadError::Bpf(bpf::LoadError::Refused { .. }) | LoadError::Object(_))) => {
            panic!("{error}")
        }
        Err(error) => {
            skipped(error);
            None
        }
    }
}

fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).expect("a core of ours");
}

/// Returns the first and the last of the cores that this process may use.
fn first_and_last_core() -> (usize, usize) {
    let all = sched_getaffinity(None).expect("our cores");
    let mut ours = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
    let first = ours.next().expect("a core");
    (first, ours.next_back().unwrap_or(first))
}

/// A thread on one core that sleeps until it has to spin.
struct Subject {
    id: u32,
    spins: Arc<AtomicBool>,
    orders: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Subject {
    fn start(core: usize) -> Self {
        let spins = Arc::new(AtomicBool::new(false));
        let (orders, inbox) = mpsc::channel::<()>();
        let (say, hear) = mpsc::channel();
        let go_on = Arc::clone(&spins);
        let thread = std::thread::spawn(move || {
            stay_on(core);
            say.send(gettid().as_raw_nonzero().get() as u32).unwrap();
            while inbox.recv().is_ok() {
                while go_on.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        });
        Self {
            id: hear.recv().unwrap(),
            spins,
            orders: Some(orders),
            thread: Some(thread),
        }
    }

    fn spin(&self) {
        self.spins.store(true, Ordering::Relaxed);
        self.orders.as_ref().unwrap().send(()).unwrap();
    }

    fn rest(&self) {
        self.spins.store(false, Ordering::Relaxed);
    }

    fn end(&mut self) {
        self.rest();
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.spins.store(false, Ordering::Relaxed);
    }
}

/// Waits until a thread is in such a state.
fn reaches(view: &View, slot: Slot, activity: Activity) -> Vcpu {
    let reached = || view.state(slot).filter(|state| state.activity == activity);
    wait_for(&format!("the thread is {activity:?}"), reached)
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn a_thread_is_seen_to_run_to_wait_and_to_sleep() {
    let Some((mut programs, core, _alone)) = programs() else {
        return;
    };
    let view = View::map(programs.table.reader()).unwrap();
    let before = now_ns();
    let subject = Subject::start(core);
    let slot = programs.table.follow(subject.id).unwrap();
    subject.spin();
    let running = reaches(&view, slot, Activity::Running);
    assert_eq!(usize::from(running.core), core);
    assert!(running.since_ns + 256 > before && running.since_ns <= now_ns());
    // Another one that spins on the same core: the first waits for it now and then.
    let rival = Subject::start(core);
    rival.spin();
    let runnable = reaches(&view, slot, Activity::Runnable);
    assert_eq!(usize::from(runnable.core), core);
    rival.rest();
    subject.rest();
    let blocked = reaches(&view, slot, Activity::Blocked);
    assert!(blocked.since_ns >= running.since_ns);
    subject.spin();
    let again = reaches(&view, slot, Activity::Running);
    assert!(again.since_ns >= blocked.since_ns);
}

#[test]
fn programs_run_on_for_the_successor_that_adopts_them() {
    let Some((mut programs, core, _alone)) = programs() else {
        return;
    };
    let subject = Subject::start(core);
    let slot = programs.table.follow(subject.id).unwrap();
    let copies = programs.descriptors();
    let copies = copies.map(|(name, fd)| (name.to_owned(), fd.try_clone_to_owned().unwrap()));
    let mut copies: Descriptors = copies.collect();
    // States, ring, two links, and that of halts where there is KVM.
    assert_eq!(copies.len(), 4 + usize::from(programs.table.counts_halts()));
    drop(programs);
    let next = Programs::adopt(&mut copies).unwrap();
    assert!(next.table.threads().eq([(subject.id, slot)]));
    let view = View::map(next.table.reader()).unwrap();
    subject.spin();
    reaches(&view, slot, Activity::Running);
    subject.rest();
    reaches(&view, slot, Activity::Blocked);
}

#[test]
fn a_thread_that_has_ended_is_known_to_have() {
    let Some((mut programs, core, _alone)) = programs() else {
        return;
    };
    let view = View::map(programs.table.reader()).unwrap();
    let mut subject = Subject::start(core);
    let slot = programs.table.follow(subject.id).unwrap();
    subject.spin();
    reaches(&view, slot, Activity::Running);
    assert!(!programs.table.has_ended(subject.id));
    subject.end();
    wait_until("its end", || programs.table.has_ended(subject.id));
    assert_eq!(view.state(slot), None);
    programs.table.unfollow(subject.id);
    assert_eq!(programs.table.threads().count(), 0);
}

/// Interrupts of a guest whose halts are counted.
const INTERRUPTS: u64 = 100;
/// Interrupts within which KVM learns to poll for a millisecond: it begins with none and 10 us.
const GROWS: u64 = 6;

/// Returns the halts of a guest that is interrupted so often, after a pause each or when it sleeps,
/// and whether KVM polled in its place; `None` where there is no KVM.
fn halts(
    programs: &mut Programs,
    core: usize,
    (task, polls_ns): (Task, u32),
    (times, pause): (u64, Option<Duration>),
) -> Option<(u64, bool)> {
    let config = KvmGuestConfig {
        task,
        halt_poll_ns: Some(polls_ns),
        ..KvmGuestConfig::default()
    };
    let guest = KvmGuest::unconnected(config).map_err(skipped).ok()?;
    guest.set_affinity(0, core).unwrap();
    let view = View::map(programs.table.reader()).unwrap();
    let slot = programs.table.follow(guest.vcpu_threads()[0]).unwrap();
    let interrupt = || {
        match pause {
            Some(Duration::ZERO) => {}
            Some(pause) => std::thread::sleep(pause),
            None => drop(reaches(&view, slot, Activity::Blocked)),
        }
        guest.interrupt();
        assert!(guest.answered().wait(EVENT_TIMEOUT) > 0);
    };
    interrupt();
    let before = view.halts(slot);
    (0..times).for_each(|_| interrupt());
    Some((view.halts(slot) - before, view.polls_for(slot)))
}

/// Idle seconds of a core (proc_stat(5)).
fn idle_seconds(core: usize) -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name));
    // Its numbers are user, nice, system and idle, in hundredths of a second.
    let ticks = line.and_then(|line| line.split_whitespace().nth(3));
    ticks.unwrap().parse::<f64>().unwrap() / 100.0
}

#[test]
fn each_halt_of_a_vcpu_is_counted_and_none_of_one_that_works() {
    let Some((mut programs, core, _alone)) = programs() else {
        return;
    };
    if let Some(error) = &programs.no_halts {
        return skipped(error);
    }
    let mut halts = |scene, interrupts| halts(&mut programs, core, scene, interrupts);
    let (at_once, later) = (Some(Duration::ZERO), Some(Duration::from_millis(1)));
    // Of a guest that sleeps each interrupt ends a halt. KVM may end one for a reason of its own,
    // the more often the busier the host is. If each was counted twice, there would be twice as
    // many.
    let all = INTERRUPTS..2 * INTERRUPTS;
    for polls_ns in [0, 200_000] {
        let Some((count, _)) = halts((Task::Halt, polls_ns), (INTERRUPTS, None)) else {
            return;
        };
        assert!(all.contains(&count), "{count}");
    }
    let working = halts((Task::Work, 200_000), (INTERRUPTS, at_once));
    assert_eq!(working, Some((0, false)));
    // A busy machine may delay what is measured.
    let mut polled = |polls_ns, times, pause| {
        let halted = halts((Task::Halt, polls_ns), (times, pause));
        halted.unwrap().1
    };
    // KVM polls only on a core that has nothing else to run.
    let idle = idle_seconds(core);
    let polls = within(LIMIT, || polled(200_000, INTERRUPTS, at_once).then_some(()))
        .and_then(|()| within(LIMIT, || polled(10_000_000, GROWS, later).then_some(())));
    if polls.is_none() {
        // A halted guest that could have polled leaves its core idle.
        let idle = idle_seconds(core) - idle;
        assert!(idle < LIMIT.as_secs_f64() / 2.0, "idle for {idle} s");
        return skipped(format!("core {core} always has something else to run"));
    }
    wait_until("nothing is polled for", || !polled(0, INTERRUPTS, at_once));
    wait_until("no sleep is late", || !polled(0, INTERRUPTS, later));
}

/// Returns whether an event comes within the limit.
fn has_event(events: &BlockEvents, limit: Duration) -> bool {
    let limit = rustix::event::Timespec::try_from(limit).unwrap();
    let mut fds = [PollFd::new(events, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0
}

#[test]
fn a_bell_is_rung_once_when_a_thread_blocks_that_somebody_listens_to() {
    let Some((mut programs, core, _alone)) = programs() else {
        return;
    };
    let view = View::map(programs.table.reader()).unwrap();
    let ring = programs.ring.try_clone().unwrap();
    let events = BlockEvents::map(programs.table.reader(), ring).unwrap();
    let subject = Subject::start(core);
    let slot = programs.table.follow(subject.id).unwrap();
    // More events than the ring has room for, without consumption.
    for round in 0..600 {
        subject.spin();
        reaches(&view, slot, Activity::Running);
        let listens = round % 2 == 0;
        if listens {
            events.subscribe(&[slot]);
        }
        subject.rest();
        if listens {
            assert!(has_event(&events, EVENT_TIMEOUT), "round {round}");
            events.drain();
        }
        reaches(&view, slot, Activity::Blocked);
        assert!(!has_event(&events, Duration::ZERO), "no subscription");
    }
}
