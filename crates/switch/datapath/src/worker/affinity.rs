//! The CPU affinity of a worker: unrestricted, or the core of a guest that repeatedly sends
//! something and sleeps at once.
//!
//! Such a guest leaves its core at the moment when the worker has work. Woken there, the worker
//! needs no other core to wake up, and finds the frames in its caches (Hyper-Switch does the same,
//! 4.3.5: frames that a guest has queued when it blocks are processed on its processor). The worker
//! stays within the cores that the operator or a control group allows.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The affinity of a thread.
pub(super) trait Affinity {
    /// Returns the allowed cores; `None` on a system error.
    fn get(&self) -> Option<CpuSet>;

    /// Restricts the thread to these cores. Returns whether that succeeded.
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

/// The affinity of a worker.
#[derive(Debug)]
pub(super) struct CpuAffinity<A = ThisThread> {
    affinity: A,
    /// The cores that others have allowed.
    allowed: CpuSet,
    /// The core of the guest that the worker follows.
    followed: Option<usize>,
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

impl<A: Affinity> CpuAffinity<A> {
    pub(super) fn new(affinity: A) -> Self {
        Self {
            allowed: affinity.get().unwrap_or_default(),
            affinity,
            followed: None,
        }
    }

    /// Returns whether the worker may run on this core, as of the last read.
    pub(super) fn allows(&self, core: usize) -> bool {
        core < CpuSet::MAX_CPU && self.allowed.is_set(core)
    }

    /// Reads the allowed cores again. A mask that others have set meanwhile stays in force.
    pub(super) fn refresh(&mut self) {
        let Some(now) = self.affinity.get() else {
            return;
        };
        if self.followed.is_none_or(|core| now != only(core)) {
            self.allowed = now;
            self.followed = None;
        }
    }

    /// Restricts the worker to one core, or removes the restriction.
    pub(super) fn take(&mut self, core: Option<usize>) {
        if self.followed == core {
            return;
        }
        self.refresh();
        let core = core.filter(|core| self.allows(*core));
        let set = core.map_or(self.allowed, only);
        if (core.is_some() || self.followed.is_some()) && self.affinity.set(&set) {
            self.followed = core;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An affinity that counts the calls.
    #[derive(Debug)]
    struct CountingAffinity {
        cores: CpuSet,
        sets: u32,
    }

    impl Affinity for &mut CountingAffinity {
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

    fn system_with(cores: &[usize]) -> CountingAffinity {
        CountingAffinity {
            cores: several(cores),
            sets: 0,
        }
    }

    #[test]
    fn it_keeps_to_a_core_and_comes_back() {
        let mut system = system_with(&[0, 1, 5]);
        let mut affinity = CpuAffinity::new(&mut system);
        affinity.take(None);
        affinity.take(Some(5));
        affinity.take(Some(5));
        assert_eq!(
            (affinity.affinity.cores, affinity.affinity.sets),
            (only(5), 1)
        );
        assert!(affinity.allows(1));
        affinity.take(Some(1));
        assert_eq!(affinity.affinity.cores, only(1));
        affinity.take(None);
        assert_eq!(affinity.affinity.cores, several(&[0, 1, 5]));
        assert_eq!(affinity.affinity.sets, 3);
    }

    #[test]
    fn a_core_that_is_not_allowed_is_not_taken() {
        let mut system = system_with(&[0]);
        let mut affinity = CpuAffinity::new(&mut system);
        assert!(!affinity.allows(1) && !affinity.allows(usize::MAX));
        affinity.take(Some(1));
        assert_eq!(affinity.affinity.sets, 0);
    }

    #[test]
    fn a_mask_that_others_set_meanwhile_stays() {
        let mut system = system_with(&[0, 1]);
        let mut affinity = CpuAffinity::new(&mut system);
        affinity.take(Some(1));
        affinity.affinity.cores = several(&[0, 2]);
        affinity.refresh();
        assert!(affinity.allows(2) && !affinity.allows(1));
        affinity.take(None);
        assert_eq!(affinity.affinity.cores, several(&[0, 2]));
        affinity.take(Some(2));
        affinity.affinity.cores = several(&[0, 3]);
        affinity.take(None);
        assert_eq!(affinity.affinity.cores, several(&[0, 3]));
    }
}
