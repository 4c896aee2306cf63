//! A thread of the lowest priority, which serves the queue pairs that workers lend it, a piece at a time.
//!
//! It has tables of its own and hears messages as every worker does. It is home to no pair, hears no kicks, and keeps no frame
//! that waits for control. Between two pieces it holds nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use channel::cores::CoreFacts;
use channel::supervision::Offload;

use super::{TICK, Worker, WorkerHandle, millis, nanos};
use crate::idle::boost::Boost;
use crate::idle::desk::{Desk, Next, Reason, SLOTS};
use crate::idle::helper::{Cores, Helper, Helpers, Hysteresis, Unknown, depend_on};
use crate::idle::system::Thread;
use crate::idle::topology::Topology;
use crate::idle::worth::Span;
use crate::switch::piece::{Asked, Piece};
use crate::{culprit, watchdog};

/// Helpers at most: questions to control have their asker's number in a byte, and marks are as many as threads may be.
const MAX_HELPERS: usize = 64;

/// What helpers are started with.
pub struct Help {
    /// What is configured.
    pub settings: Offload,
    /// The host's cores.
    pub topology: Topology,
    /// What they do.
    pub cores: Box<dyn Cores>,
    /// For tests, on machines where nothing idles: helpers are ordinary threads, and whatever has frames is lent.
    pub eager: bool,
}

impl Help {
    /// No helpers.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Offload::default(), Vec::new())
    }

    /// As it is configured, where nobody says what cores do.
    #[must_use]
    pub fn new(settings: Offload, cores: Vec<CoreFacts>) -> Self {
        Self {
            settings,
            topology: Topology::new(cores),
            cores: Box::new(Unknown),
            eager: false,
        }
    }

    /// Starts one on each core that is wanted, and makes them known to the workers that `handles` has. `worker` prepares the
    /// one of this number, counted with the workers.
    pub(super) fn start(
        self,
        handles: &mut Vec<WorkerHandle>,
        worker: impl Fn(usize) -> io::Result<(Worker, WorkerHandle)>,
    ) -> io::Result<Arc<Helpers>> {
        let mut list = Vec::new();
        let workers = handles.len();
        for core in wanted(&self.settings, &self.topology) {
            let (worker, handle) = worker(handles.len())?;
            match spawn(worker, handle, core, &self) {
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
        let helpers = Arc::new(Helpers::new(list, self));
        for (number, handle) in handles.iter().enumerate().filter(|_| any) {
            let helpers = Arc::clone(&helpers);
            handle.call(move |w| match number < workers {
                true => w.set_helpers(helpers),
                false => depend_on(helpers),
            });
        }
        depend_on(Arc::clone(&helpers));
        Ok(helpers)
    }
}

impl std::fmt::Debug for Help {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Help")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Cores that get a helper: those that the switch may use, and of them those that are listed, if any are.
fn wanted(settings: &Offload, topology: &Topology) -> Vec<u16> {
    if !settings.enabled {
        return Vec::new();
    }
    let listed = |core: &u16| settings.cores.is_empty() || settings.cores.contains(core);
    let allowed = topology.cores().iter().filter(|facts| facts.allowed);
    let mut cores: Vec<_> = allowed.map(|facts| facts.core).filter(listed).collect();
    cores.truncate(MAX_HELPERS);
    cores
}

/// The thread's side of a [`Helper`].
struct Helping {
    helper: Arc<Helper>,
    asked: Asked,
    hysteresis: Hysteresis,
    /// By slot: since when its pair has no frames.
    empty_since: [Option<Duration>; SLOTS],
    /// By slot: somebody's pair was there at the last look.
    had: [bool; SLOTS],
    /// By slot: what its frames are like.
    spans: [Span; SLOTS],
    eager: bool,
}

/// Starts a helper on `core`, with the tables of `worker`.
///
/// # Errors
/// The system's refusal of a thread, of its core, or of what it takes to come back from the lowest priority.
pub(super) fn spawn(
    mut worker: Worker,
    handle: WorkerHandle,
    core: u16,
    help: &Help,
) -> io::Result<(WorkerHandle, Arc<Helper>)> {
    let hysteresis = Duration::from_micros(help.settings.hysteresis_us.into());
    let lowest = !help.eager;
    worker.lending.helps = true;
    let bell = worker.inbox_bell.clone();
    let (reply, result) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name(format!("helper {core}"))
        .spawn(move || {
            // Its watchdog inherits what this thread is now, which is why it comes first.
            if let Err(error) = watchdog::guard_this_thread() {
                tracing::error!("no watchdog: {error}");
            }
            let helper = Thread::current(core, lowest).map(|thread| {
                Arc::new(Helper {
                    core,
                    desk: Desk::new(),
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
                asked: Asked::default(),
                hysteresis: Hysteresis::new(hysteresis),
                empty_since: [None; SLOTS],
                had: [false; SLOTS],
                spans: [Span::default(); SLOTS],
                eager: !lowest,
            };
            while worker.help(&mut own) {}
        })?;
    let helper = result.recv().map_err(io::Error::other)??;
    Ok((handle.of_helper(Arc::clone(&helper)), helper))
}

impl Worker {
    /// One turn of the helper's loop. `false` when everybody who could ask for something is gone.
    fn help(&mut self, own: &mut Helping) -> bool {
        if !self.run_jobs() {
            return false;
        }
        if self.switch.has_to_do() {
            self.go_on();
        }
        if own.helper.boost.is_raised() {
            // Others wait for this, and not for frames: those are served when the core idles.
            if self.switch.has_to_do() || !own.helper.boost.settle() {
                return true;
            }
        }
        let lent = self.serve_lent(own);
        self.control.ring_bell();
        let now = self.started.elapsed();
        if now.saturating_sub(self.last_tick) >= TICK {
            self.tick(now);
        }
        if !lent && !self.switch.has_to_do() && own.helper.desk.prepare_sleep() {
            self.follow_events(None);
            own.helper.desk.woke();
        } else if lent {
            std::hint::spin_loop();
        } else {
            self.follow_events(Some(Duration::ZERO));
        }
        true
    }

    /// Serves a piece of each pair that is lent. `false` when none is.
    fn serve_lent(&mut self, own: &mut Helping) -> bool {
        let mut any = false;
        for slot in 0..SLOTS {
            let Some(pair) = own.helper.desk.claim(slot) else {
                own.had[slot] = false;
                continue;
            };
            any = true;
            let _served = culprit::serve(Some(pair.0));
            let now = self.started.elapsed();
            if !std::mem::replace(&mut own.had[slot], true) {
                own.hysteresis.came(now);
                own.empty_since[slot] = None;
                own.spans[slot] = Span::default();
            }
            self.switch.set_clock(nanos(now));
            let ms = millis(now);
            let piece = self
                .switch
                .serve_piece(pair, ms, &mut own.asked, &mut self.control);
            let next = own.next(slot, (piece, self.switch.last_load()), now);
            own.helper.desk.done(slot, next);
        }
        any
    }
}

impl Helping {
    /// What becomes of a pair behind a piece of this load.
    fn next(&mut self, slot: usize, (piece, load): (Piece, u64), now: Duration) -> Next {
        match piece {
            Piece::Done(frames) => {
                self.helper.frames.fetch_add(frames, Ordering::Relaxed);
                self.empty_since[slot] = None;
                match self.spans[slot].add(frames, load) || self.eager {
                    true => Next::Keep,
                    false => Next::Back(Reason::Unworthy),
                }
            }
            Piece::Unknown => Next::Back(Reason::Unknown),
            Piece::Nothing => {
                let since = *self.empty_since[slot].get_or_insert(now);
                match self.hysteresis.is_over(now - since, now) {
                    true => Next::Back(Reason::Quiet),
                    false => Next::Keep,
                }
            }
        }
    }
}
