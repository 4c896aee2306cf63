//! A helper as other threads see it, and the choice of one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use channel::cores::CoreFacts;
use channel::supervision::HelpersConfig;
use port::PortId;

use sched::topology::{Topology, share_module};

use super::boost::Boost;
use super::choice::{CoreState, choose};
use super::core_states::CoreStates;
use super::handoff::HandoffSlots;
use super::system::Thread;
use crate::ports::queue_lock;

/// The present states of the host's cores; all of them are hints.
pub trait Cores: Send + Sync {
    /// Returns the state of a core.
    fn state(&self, core: u16) -> CoreState;
    /// Returns the core on which the guest of a port runs, or ran last.
    fn core_of(&self, port: PortId) -> Option<u16>;
}

/// Core states without a source: every core may idle. A thread of the lowest priority runs only on
/// idle cores, and a core on which it does not start soon is left alone for a while.
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

/// Largest number of helpers: the worker's number in an upcall is a byte, and the thread slots are
/// limited.
const MAX_HELPERS: usize = 64;

/// The settings of helpers at their start.
pub struct Help {
    /// The configuration.
    pub settings: HelpersConfig,
    /// The host's cores.
    pub topology: Topology,
    /// The states of the cores, where the kernel does not report them.
    pub cores: Box<dyn Cores>,
    /// For tests on machines without idle cores: helpers are ordinary threads, and every pair with
    /// frames is assigned.
    pub eager: bool,
}

impl Help {
    /// Returns settings without helpers.
    #[must_use]
    pub fn none() -> Self {
        Self::new(HelpersConfig::default(), Vec::new())
    }

    /// Returns settings by the configuration, for cores of unknown states.
    #[must_use]
    pub fn new(settings: HelpersConfig, cores: Vec<CoreFacts>) -> Self {
        Self {
            settings,
            topology: Topology::new(cores),
            cores: Box::new(Unknown),
            eager: false,
        }
    }
}

impl std::fmt::Debug for Help {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Help")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Returns the cores that get a helper: the allowed ones, and of them the listed ones, if any are
/// listed.
pub(crate) fn desired(settings: &HelpersConfig, topology: &Topology) -> Vec<u16> {
    if !settings.enabled {
        return Vec::new();
    }
    let listed = |core: &u16| settings.cores.is_empty() || settings.cores.contains(core);
    let allowed = topology.cores().iter().filter(|facts| facts.allowed);
    let mut cores: Vec<_> = allowed.map(|facts| facts.core).filter(listed).collect();
    cores.truncate(MAX_HELPERS);
    cores
}

/// A helper thread.
#[derive(Debug)]
pub(crate) struct Helper {
    pub(crate) core: u16,
    pub(crate) handoff: HandoffSlots,
    pub(crate) boost: Boost<Thread>,
    /// The bell that wakes it.
    pub(crate) bell: Arc<OwnedFd>,
    /// Frames that it has forwarded.
    pub(crate) frames: AtomicU64,
}

/// All helpers of a switch, with the data for choosing one.
#[derive(Debug)]
pub(crate) struct Helpers {
    pub(crate) list: Vec<Arc<Helper>>,
    pub(crate) help: Help,
}

impl Helpers {
    /// Returns the index of the helper for frames to `receiver` that a worker on core `here` has;
    /// `states` are the kernel's reports, and `ready` returns whether a helper may be used. A
    /// helper that has pairs is chosen when no other is left.
    pub(crate) fn choose(
        &self,
        states: Option<&CoreStates<'_>>,
        receiver: Option<PortId>,
        here: Option<u16>,
        hash: u64,
        ready: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let cores = self.cores(states);
        let near = receiver.and_then(|port| cores.core_of(port)).or(here);
        let at = |core: u16| self.list.iter().position(|helper| helper.core == core);
        let chosen = |also_used: bool| {
            let state = |core: u16| {
                let helper = at(core).filter(|helper| ready(*helper));
                let used = helper.is_some_and(|helper| self.list[helper].handoff.is_used());
                match cores.state(core) {
                    _ if here == Some(core) => CoreState::Worker,
                    CoreState::Guest => CoreState::Guest,
                    // The thread that the kernel sees there is the helper.
                    CoreState::Idle | CoreState::Busy if used && also_used => CoreState::Idle,
                    // The helper has enough to do, or there is none. Neighbours of the core count
                    // all the same.
                    CoreState::Idle if used || helper.is_none() => CoreState::Busy,
                    other => other,
                }
            };
            choose(&self.help.topology, near, state, hash)
        };
        at(chosen(false).or_else(|| chosen(true))?)
    }

    fn cores<'a>(&'a self, states: Option<&'a CoreStates<'_>>) -> &'a dyn Cores {
        states.map_or(&*self.help.cores, |states| states)
    }

    /// Returns whether a guest runs in the module of this helper.
    pub(crate) fn is_beside_a_guest(&self, helper: usize, states: &CoreStates<'_>) -> bool {
        let own = self.help.topology.get(self.list[helper].core);
        let mut cores = self.help.topology.cores().iter();
        own.is_some_and(|own| {
            cores.any(|facts| {
                share_module(own, facts) && states.state(facts.core) == CoreState::Guest
            })
        })
    }

    /// Returns the number of frames that helpers have forwarded.
    pub(crate) fn frames(&self) -> u64 {
        let each = self
            .list
            .iter()
            .map(|helper| helper.frames.load(Ordering::Relaxed));
        each.sum()
    }

    /// Boosts every helper that is in a chunk, on the calling thread's core: the caller is about to
    /// yield.
    #[cold]
    fn boost_priority(&self) {
        for helper in &self.list {
            if helper.handoff.in_chunk() {
                helper.boost.raise(super::system::current_core());
            }
        }
    }
}

/// Sets the helpers whose queue locks the calling thread may wait for: a helper that holds one may
/// have lost its core.
pub(crate) fn register_waiter(helpers: Arc<Helpers>) {
    queue_lock::set_wait_hook(move || helpers.boost_priority());
}

/// The time for which a helper polls an empty pair before it returns it: the configured time, and
/// up to ten times that while returned pairs come again early.
#[derive(Debug)]
pub(crate) struct Hysteresis {
    base: Duration,
    now: Duration,
    returned: Option<Duration>,
}

/// Time within which a returned pair had better have stayed, microseconds.
const EARLY_RETURN: Duration = Duration::from_micros(200);
/// Largest factor to the configured time.
const MAX_FACTOR: u32 = 10;

impl Hysteresis {
    /// Starts with the configured time.
    pub(crate) fn new(base: Duration) -> Self {
        Self {
            base,
            now: base,
            returned: None,
        }
    }

    /// Returns whether a pair that is empty for so long is returned at `now`.
    pub(crate) fn is_over(&mut self, empty_for: Duration, now: Duration) -> bool {
        let over = empty_for >= self.now;
        if over {
            self.returned = Some(now);
        }
        over
    }

    /// Notes that a pair was assigned at `now`.
    pub(crate) fn arrived(&mut self, now: Duration) {
        let Some(back) = self.returned.take() else {
            return;
        };
        self.now = if now.saturating_sub(back) < EARLY_RETURN {
            (2 * self.now).min(MAX_FACTOR * self.base)
        } else {
            (self.now / 2).max(self.base)
        };
    }
}

/// The backoff of a core that did not help: twice the last one, from 1 ms to 128 ms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Returns whether the backoff is over.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// Notes a failure.
    pub(crate) fn failed(&mut self, now: Duration) {
        self.until = now + Duration::from_millis(1 << self.failures);
        self.failures = (self.failures + 1).min(7);
    }

    /// Notes a success.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }
}
