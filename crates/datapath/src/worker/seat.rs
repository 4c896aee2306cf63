//! Where the worker sleeps: wherever the kernel likes, or on the core of a guest that sends something and sleeps at once, again and again.
//!
//! Such a guest leaves its core at the moment in which there is work, and so close nobody else is: woken there, the worker begins
//! without waking another core from its sleep, and with the frames in its caches (Hyper-Switch does the same, 4.3.5: what a guest that blocks
//! has queued is processed on its processor). Where the operator, or a control group, lets the worker run, it may run before and after.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a thread may run.
pub(super) trait Affinity {
    /// `None`: the system does not say.
    fn get(&self) -> Option<CpuSet>;

    /// Whether it may run on these from now on, and on no others.
    fn set(&mut self, cores: &CpuSet) -> bool;
}

/// The calling thread.
#[derive(Debug)]
pub(super) struct ThisThread;

impl Affinity for ThisThread {
    fn get(&self) -> Option<CpuSet> {
        sched_getaffinity(None).ok()
    }

    fn set(&mut self, cores: &CpuSet) -> bool {
        sched_setaffinity(None, cores).is_ok()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Seat<A = ThisThread> {
    affinity: A,
    /// What others have allowed.
    allowed: CpuSet,
    /// The core that it keeps to of its own accord.
    beside: Option<usize>,
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

impl<A: Affinity> Seat<A> {
    pub(super) fn new(affinity: A) -> Self {
        Self {
            allowed: affinity.get().unwrap_or_default(),
            affinity,
            beside: None,
        }
    }

    /// Whether it may run on this core, as of a while ago.
    pub(super) fn allows(&self, core: usize) -> bool {
        core < CpuSet::MAX_CPU && self.allowed.is_set(core)
    }

    /// Looks again where it may run. What others have set meanwhile holds.
    pub(super) fn look(&mut self) {
        let Some(now) = self.affinity.get() else {
            return;
        };
        if self.beside.is_none_or(|core| now != only(core)) {
            self.allowed = now;
            self.beside = None;
        }
    }

    /// Keeps to a core from now on, or to none.
    pub(super) fn take(&mut self, core: Option<usize>) {
        if self.beside == core {
            return;
        }
        self.look();
        let core = core.filter(|core| self.allows(*core));
        let set = core.map_or(self.allowed, only);
        if (core.is_some() || self.beside.is_some()) && self.affinity.set(&set) {
            self.beside = core;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is set.
    #[derive(Debug)]
    struct Told {
        cores: CpuSet,
        sets: u32,
    }

    impl Affinity for &mut Told {
        fn get(&self) -> Option<CpuSet> {
            Some(self.cores)
        }

        fn set(&mut self, cores: &CpuSet) -> bool {
            self.cores = *cores;
            self.sets += 1;
            true
        }
    }

    fn several(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        set
    }

    fn told(cores: &[usize]) -> Told {
        Told {
            cores: several(cores),
            sets: 0,
        }
    }

    #[test]
    fn it_keeps_to_a_core_and_comes_back() {
        let mut system = told(&[0, 1, 5]);
        let mut seat = Seat::new(&mut system);
        seat.take(None);
        seat.take(Some(5));
        seat.take(Some(5));
        assert_eq!((seat.affinity.cores, seat.affinity.sets), (only(5), 1));
        assert!(seat.allows(1));
        seat.take(Some(1));
        assert_eq!(seat.affinity.cores, only(1));
        seat.take(None);
        assert_eq!(seat.affinity.cores, several(&[0, 1, 5]));
        assert_eq!(seat.affinity.sets, 3);
    }

    #[test]
    fn nobody_is_followed_to_where_it_may_not_run() {
        let mut system = told(&[0]);
        let mut seat = Seat::new(&mut system);
        assert!(!seat.allows(1) && !seat.allows(usize::MAX));
        seat.take(Some(1));
        assert_eq!(seat.affinity.sets, 0);
    }

    #[test]
    fn what_others_set_meanwhile_holds() {
        let mut system = told(&[0, 1]);
        let mut seat = Seat::new(&mut system);
        seat.take(Some(1));
        seat.affinity.cores = several(&[0, 2]);
        seat.look();
        assert!(seat.allows(2) && !seat.allows(1));
        seat.take(None);
        assert_eq!(seat.affinity.cores, several(&[0, 2]));
        seat.take(Some(2));
        seat.affinity.cores = several(&[0, 3]);
        seat.take(None);
        assert_eq!(seat.affinity.cores, several(&[0, 3]));
    }
}
