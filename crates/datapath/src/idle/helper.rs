//! A thread that helps while its core idles, as others see it.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use channel::supervision::Offload;
use port::PortId;

use super::boost::Boost;
use super::choice::{CoreState, choose};
use super::desk::Desk;
use super::seen::Seen;
use super::system::Thread;
use super::topology::{Topology, share_module};
use crate::worker::Help;

/// What is known of the host's cores in this moment; all of it is a hint.
pub trait Cores: Send + Sync {
    /// What a core does.
    fn state(&self, core: u16) -> CoreState;
    /// Where the guest behind a port runs, or ran last.
    fn core_of(&self, port: PortId) -> Option<u16>;
}

/// When nobody says more: every core may idle. A thread of the lowest priority runs only where that is so, and where it does not
/// begin soon, its core is left alone for a while.
#[derive(Debug)]
pub struct Unknown;

impl Cores for Unknown {
    fn state(&self, _: u16) -> CoreState {
        CoreState::Idle
    }

    fn core_of(&self, _: PortId) -> Option<u16> {
        None
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Helper {
    pub(crate) core: u16,
    pub(crate) desk: Desk,
    pub(crate) boost: Boost<Thread>,
    /// Wakes it.
    pub(crate) bell: Arc<OwnedFd>,
    /// Frames that it has served.
    pub(crate) frames: AtomicU64,
}

/// All helpers of a switch, with what it takes to choose one.
pub(crate) struct Helpers {
    pub(crate) list: Vec<Arc<Helper>>,
    topology: Topology,
    /// What is known where the kernel does not say.
    cores: Box<dyn Cores>,
    pub(crate) eager: bool,
    pub(crate) settings: Offload,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.list).finish()
    }
}

impl Helpers {
    /// These, as they were started.
    pub(crate) fn new(list: Vec<Arc<Helper>>, help: Help) -> Self {
        Self {
            list,
            topology: help.topology,
            cores: help.cores,
            eager: help.eager,
            settings: help.settings,
        }
    }

    /// The helper for frames to `receiver` that a worker on core `here` has, by its place; `seen` is what the kernel says, and `ready`
    /// says whether one may be asked. Who helps already is asked when nobody else is left.
    pub(crate) fn choose(
        &self,
        seen: Option<&Seen<'_>>,
        receiver: Option<PortId>,
        here: Option<u16>,
        hash: u64,
        ready: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let cores = self.cores(seen);
        let near = receiver.and_then(|port| cores.core_of(port)).or(here);
        let at = |core: u16| self.list.iter().position(|helper| helper.core == core);
        let chosen = |also_used: bool| {
            let state = |core: u16| {
                let helper = at(core).filter(|helper| ready(*helper));
                let used = helper.is_some_and(|helper| self.list[helper].desk.is_used());
                match cores.state(core) {
                    _ if here == Some(core) => CoreState::Ours,
                    CoreState::Guest => CoreState::Guest,
                    // It is what the kernel sees run there.
                    CoreState::Idle | CoreState::Busy if used && also_used => CoreState::Idle,
                    // It has enough to do, or there is none. What else shares the core's caches counts all the same.
                    CoreState::Idle if used || helper.is_none() => CoreState::Busy,
                    other => other,
                }
            };
            choose(&self.topology, near, state, hash)
        };
        at(chosen(false).or_else(|| chosen(true))?)
    }

    fn cores<'a>(&'a self, seen: Option<&'a Seen<'_>>) -> &'a dyn Cores {
        seen.map_or(&*self.cores, |seen| seen)
    }

    /// Whether a guest runs where this helper would take its caches from it.
    pub(crate) fn is_beside_a_guest(&self, helper: usize, seen: &Seen<'_>) -> bool {
        let own = self.topology.get(self.list[helper].core);
        let mut cores = self.topology.cores().iter();
        own.is_some_and(|own| {
            cores
                .any(|facts| share_module(own, facts) && seen.state(facts.core) == CoreState::Guest)
        })
    }

    /// Frames that helpers have served.
    pub(crate) fn frames(&self) -> u64 {
        let each = self
            .list
            .iter()
            .map(|helper| helper.frames.load(Ordering::Relaxed));
        each.sum()
    }

    /// Has every helper that is in a piece end it soon, on the calling thread's core: the caller is about to offer it.
    #[cold]
    fn rescue(&self) {
        for helper in &self.list {
            if helper.desk.in_piece() {
                helper.boost.raise(super::system::current_core());
            }
        }
    }
}

thread_local! {
    static RESCUES: RefCell<Option<Arc<Helpers>>> = const { RefCell::new(None) };
}

/// From now on the calling thread may wait for queues that one of these holds.
pub(crate) fn depend_on(helpers: Arc<Helpers>) {
    RESCUES.set(Some(helpers));
}

/// The calling thread has waited for a queue in vain: if a helper holds it whose core has something else to do, it lets go soon.
#[cold]
pub(crate) fn rescue() {
    RESCUES.with_borrow(|helpers| {
        if let Some(helpers) = helpers {
            helpers.rescue();
        }
    });
}

/// How long a helper looks at a pair without frames before it gives it back: as long as it is told, and up to ten times that
/// while pairs that went back come again at once.
#[derive(Debug)]
pub(crate) struct Hysteresis {
    base: Duration,
    now: Duration,
    given_back: Option<Duration>,
}

/// A pair that comes again within this time would better have stayed.
const AT_ONCE: Duration = Duration::from_micros(200);
/// How much longer than told it gets.
const STRETCH: u32 = 10;

impl Hysteresis {
    /// Begins with what is told.
    pub(crate) fn new(base: Duration) -> Self {
        Self {
            base,
            now: base,
            given_back: None,
        }
    }

    /// Whether a pair without frames for so long goes back at `now`.
    pub(crate) fn is_over(&mut self, empty_for: Duration, now: Duration) -> bool {
        let over = empty_for >= self.now;
        if over {
            self.given_back = Some(now);
        }
        over
    }

    /// A pair has come at `now`.
    pub(crate) fn came(&mut self, now: Duration) {
        let Some(back) = self.given_back.take() else {
            return;
        };
        self.now = match now.saturating_sub(back) < AT_ONCE {
            true => (2 * self.now).min(STRETCH * self.base),
            false => (self.now / 2).max(self.base),
        };
    }
}

/// When a core that did not help is asked again: twice as long as the last time, from 1 ms to 128 ms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Whether it is time.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// It did not help.
    pub(crate) fn failed(&mut self, now: Duration) {
        self.until = now + Duration::from_millis(1 << self.failures);
        self.failures = (self.failures + 1).min(7);
    }

    /// It helped.
    pub(crate) fn helped(&mut self) {
        self.failures = 0;
    }
}
