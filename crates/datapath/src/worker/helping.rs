//! A helper: a thread of the lowest priority that serves the queue pairs that workers assign to it,
//! a chunk at a time.
//!
//! It has its own tables and receives messages as every worker does. It is home to no pair, waits
//! for no kicks, and has no pending frames. Between two chunks it holds no lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use super::{TICK_INTERVAL, Worker, WorkerHandle, millis, nanos};
use crate::forward::switch::{Chunk, RecentUpcalls};
use crate::ports::{crash_record, watchdog};
use crate::worker::idle::boost::Boost;
use crate::worker::idle::handoff::{HandoffSlots, Next, Reason, SLOTS};
use crate::worker::idle::helper::{Help, Helper, Helpers, Hysteresis, desired, register_waiter};
use crate::worker::idle::system::Thread;
use crate::worker::idle::worth::FrameLengths;

/// Starts one helper on each desired core, and makes them known to the workers of `handles`.
/// `worker` prepares the thread of a number, counted with the workers.
pub(super) fn start(
    help: Help,
    handles: &mut Vec<WorkerHandle>,
    worker: impl Fn(usize) -> io::Result<(Worker, WorkerHandle)>,
) -> io::Result<Arc<Helpers>> {
    let mut list = Vec::new();
    let workers = handles.len();
    for core in desired(&help.settings, &help.topology) {
        let (worker, handle) = worker(handles.len())?;
        match spawn(worker, handle, core, &help) {
            Ok((handle, helper)) => {
                handles.push(handle);
                list.push(helper);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!("no helpers: RLIMIT_NICE is below 20 ({error})");
                break;
            }
            Err(error) => tracing::warn!("no helper on core {core}: {error}"),
        }
    }
    let any = !list.is_empty();
    let helpers = Arc::new(Helpers { list, help });
    for (number, handle) in handles.iter().enumerate().filter(|_| any) {
        let helpers = Arc::clone(&helpers);
        handle.call(move |w| {
            if number < workers {
                w.assignments.set_helpers(helpers)
            } else {
                register_waiter(helpers)
            }
        });
    }
    register_waiter(Arc::clone(&helpers));
    Ok(helpers)
}

/// The thread's side of a [`Helper`].
struct Helping {
    helper: Arc<Helper>,
    asked: RecentUpcalls,
    hysteresis: Hysteresis,
    /// By slot: the time since when its pair has no frames.
    empty_since: [Option<Duration>; SLOTS],
    /// By slot: a pair was assigned at the last check.
    had: [bool; SLOTS],
    /// By slot: the frame lengths of its pair.
    spans: [FrameLengths; SLOTS],
    eager: bool,
}

/// Starts a helper on `core`, with the tables of `worker`.
///
/// # Errors
/// A system error for the thread, its core, or its return from the lowest priority.
pub(super) fn spawn(
    mut worker: Worker,
    handle: WorkerHandle,
    core: u16,
    help: &Help,
) -> io::Result<(WorkerHandle, Arc<Helper>)> {
    let hysteresis = Duration::from_micros(help.settings.hysteresis_us.into());
    let lowest = !help.eager;
    worker.pacing.helps = true;
    let bell = worker.events.inbox_bell.clone();
    let (reply, result) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name(format!("helper {core}"))
        .spawn(move || {
            // The watchdog inherits the priority and affinity of this thread, so it starts before
            // they change.
            if let Err(error) = watchdog::watch_this_thread() {
                tracing::error!("no watchdog: {error}");
            }
            let helper = Thread::current(core, lowest).map(|thread| {
                Arc::new(Helper {
                    core,
                    handoff: HandoffSlots::new(),
                    boost: Boost::new(thread),
                    bell,
                    frames: 0.into(),
                })
            });
            let own = helper.as_ref().ok().cloned();
            let _ = reply.send(helper);
            let Some(helper) = own else {
                return;
            };
            let mut own = Helping {
                helper,
                asked: RecentUpcalls::default(),
                hysteresis: Hysteresis::new(hysteresis),
                empty_since: [None; SLOTS],
                had: [false; SLOTS],
                spans: [FrameLengths::default(); SLOTS],
                eager: !lowest,
            };
            while worker.help(&mut own) {}
        })?;
    let helper = result.recv().map_err(io::Error::other)??;
    Ok((handle.for_helper(Arc::clone(&helper)), helper))
}

impl Worker {
    /// Runs one pass of the helper's loop. Returns `false` when all handles are dropped.
    fn help(&mut self, own: &mut Helping) -> bool {
        if !self.run_jobs() {
            return false;
        }
        if self.switch.has_work() {
            self.continue_sweeps();
        }
        if own.helper.boost.is_raised() {
            // Other threads wait for jobs, not for frames: frames are served when the core idles.
            if self.switch.has_work() || !own.helper.boost.lower() {
                return true;
            }
        }
        let assigned = self.serve_assigned(own);
        self.control.ring_bell();
        let now = self.upkeep.started.elapsed();
        if now.saturating_sub(self.upkeep.last_tick) >= TICK_INTERVAL {
            self.tick(now);
        }
        let idle = !assigned && !self.switch.has_work() && !self.control.take_unfinished();
        if idle && own.helper.handoff.prepare_sleep() {
            self.wait_for_events(None);
            own.helper.handoff.woke();
        } else if assigned {
            std::hint::spin_loop();
        } else {
            self.wait_for_events(Some(Duration::ZERO));
        }
        true
    }

    /// Serves a chunk of each assigned pair. Returns `false` when none is assigned.
    fn serve_assigned(&mut self, own: &mut Helping) -> bool {
        let mut any = false;
        for slot in 0..SLOTS {
            let Some(pair) = own.helper.handoff.claim(slot) else {
                own.had[slot] = false;
                continue;
            };
            any = true;
            let _served = crash_record::serve(Some(pair.0));
            let now = self.upkeep.started.elapsed();
            if !std::mem::replace(&mut own.had[slot], true) {
                own.hysteresis.arrived(now);
                own.empty_since[slot] = None;
                own.spans[slot] = FrameLengths::default();
            }
            self.switch.set_clock(nanos(now));
            let ms = millis(now);
            let piece = self
                .switch
                .serve_chunk(pair, ms, &mut own.asked, &mut self.control);
            if let (Chunk::Done(_), Some(receiver)) = (piece, self.switch.last_receiver()) {
                let cost = self.switch.last_cost();
                own.helper
                    .handoff
                    .note_copies(slot, receiver, cost.all - cost.of_sender);
            }
            let next = own.next(slot, (piece, self.switch.last_load()), now);
            own.helper.handoff.done(slot, next);
        }
        any
    }
}

impl Helping {
    /// Decides whether a pair stays after a chunk of this load.
    fn next(&mut self, slot: usize, (piece, load): (Chunk, u64), now: Duration) -> Next {
        match piece {
            Chunk::Done(frames) => {
                self.helper.frames.fetch_add(frames, Ordering::Relaxed);
                self.empty_since[slot] = None;
                if self.spans[slot].add(frames, load) || self.eager {
                    Next::Keep
                } else {
                    Next::Back(Reason::ShortFrames)
                }
            }
            Chunk::Unknown => Next::Back(Reason::Unknown),
            Chunk::Empty => {
                let since = *self.empty_since[slot].get_or_insert(now);
                if self.hysteresis.is_over(now - since, now) {
                    Next::Back(Reason::Quiet)
                } else {
                    Next::Keep
                }
            }
        }
    }
}
