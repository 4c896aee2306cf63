//! Starting workers.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender as Outbox};
use std::time::Instant;

use ipc::supervision::{Poll, WORKER_THREAD};
use polling::AdaptivePoll;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::thread::set_current_timer_slack;

use super::affinity::{CpuAffinity, ThisThread};
use super::coalesced_kicks::CoalescedKicks;
use super::fair::{ActivePairs, FairQueue};
use super::handle::{Notice, Notices, WorkerHandle};
use super::paused::PausedPairs;
use super::rings::{ControlRings, UpcallRing};
use super::second_looks::SecondLooks;
use super::served_pairs::ServedPairs;
use super::suppressed_kicks::SuppressedKicks;
use super::{Events, Pacing, TOKEN_INBOX, TOKEN_TIMER, Upkeep, Worker};
use crate::forward::cycles::TickRate;
use crate::forward::switch::Switch;
use crate::ports::attached::AttachedPort;
use crate::ports::watchdog;
use crate::worker::guests::Guests;

/// Timer slack, nanoseconds; the default of 50 us is long compared with the delays of coalescing
/// and the waits for a batch.
const TIMER_SLACK: u64 = 1000;

/// Starts a thread for each switch; `poll` says whether they may sleep. The first one reads
/// control's answers.
///
/// # Errors
/// A system error of a descriptor or a thread.
pub(crate) fn spawn_all(
    switches: Vec<Switch<AttachedPort>>,
    poll: Poll,
) -> io::Result<(Vec<WorkerHandle>, Notices)> {
    // One start time for all: workers share queues, which store times. It is that of the machine's
    // monotonic clock, because the next process reads the times in the table of connections.
    let now = Instant::now();
    let started = now.checked_sub(sys::time::monotonic()).unwrap_or(now);
    let (notices, notices_out) = mpsc::channel();
    let notices_bell = Arc::new(sys::event::create()?);
    let receiver = Notices::new(notices_out, notices_bell.clone());
    let upcalls = UpcallRing::default();
    let mut handles = Vec::new();
    for switch in switches {
        let notify = (notices.clone(), notices_bell.clone());
        let (worker, handle) = prepare(switch, (poll, started), Arc::clone(&upcalls), notify)?;
        handles.push(spawn(worker, handle)?);
    }
    if handles.len() > 1 {
        for (number, worker) in handles.iter().enumerate() {
            let all = handles.clone();
            worker.call(move |w| (w.number, w.all) = (number, all));
        }
    }
    Ok((handles, receiver))
}

/// Prepares a worker without a thread.
fn prepare(
    switch: Switch<AttachedPort>,
    (poll, started): (Poll, Instant),
    upcalls: UpcallRing,
    (notices, notices_bell): (Outbox<Notice>, Arc<OwnedFd>),
) -> io::Result<(Worker, WorkerHandle)> {
    let (jobs, inbox) = mpsc::channel();
    let inbox_bell = Arc::new(sys::event::create()?);
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let token = EventData::new_u64(TOKEN_INBOX);
    epoll::add(&epoll, &*inbox_bell, token, EventFlags::IN)?;
    let kicks = CoalescedKicks::new()?;
    let token = EventData::new_u64(TOKEN_TIMER);
    // Edge-triggered: the timer is never read.
    epoll::add(&epoll, &kicks, token, EventFlags::IN | EventFlags::ET)?;
    let handle = WorkerHandle::new(jobs, inbox_bell.clone());
    let worker = Worker {
        switch,
        guests: Guests::default(),
        control: ControlRings::sharing(upcalls),
        number: 0,
        all: Vec::new(),
        loads: BTreeMap::new(),
        active: ActivePairs::default(),
        suppressed: SuppressedKicks::default(),
        paused: PausedPairs::default(),
        served: ServedPairs::default(),
        fair: FairQueue::default(),
        pacing: pacing(poll, kicks),
        events: Events {
            epoll,
            inbox,
            inbox_bell,
            notices,
            notices_bell,
        },
        upkeep: Upkeep {
            started,
            tick_rate: TickRate::start(),
            last_tick: started.elapsed(),
            last_resend: Instant::now(),
            answered: false,
            lost_mappings: 0,
            faults: 0,
            counted: 0,
        },
    };
    Ok((worker, handle))
}

fn pacing(poll: Poll, kicks: CoalescedKicks) -> Pacing {
    Pacing {
        second_looks: SecondLooks::default(),
        poll: AdaptivePoll::new(match poll {
            Poll::Adaptive => polling::Poll::Adaptive,
            Poll::Always => polling::Poll::Always,
        }),
        answers: AdaptivePoll::for_answers(),
        affinity: CpuAffinity::new(ThisThread),
        kicks,
        awake: 0,
    }
}

/// Has the calling thread wake from a sleep when it is due.
pub(crate) fn shorten_timer_slack() {
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK)) {
        tracing::warn!("timer slack not set, notifications and answers may be late: {error}");
    }
}

fn spawn(mut worker: Worker, handle: WorkerHandle) -> io::Result<WorkerHandle> {
    let thread = std::thread::Builder::new().name(WORKER_THREAD.into());
    sys::thread::start(thread, move || {
        if let Err(error) = watchdog::watch_this_thread() {
            tracing::error!("no watchdog: {error}");
        }
        shorten_timer_slack();
        while worker.run_pass() {}
    })?;
    Ok(handle)
}
