//! Facts about one VMM for one search. Reading them may take several turns: a VMM chooses how many
//! threads and descriptors it has.

use vcpus::vcpus::Work;
use vcpus::vcpus::debugfs::DescriptorScan;
use vcpus::vcpus::names::{self, Thread, ThreadScan};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Its threads, if they are visible.
    pub(super) threads: Option<Vec<Thread>>,
    /// Number of its descriptors of vCPUs, if they can be listed, and are needed because no thread
    /// has the name of a vCPU. 0: it does not use KVM.
    pub(super) vcpu_descriptors: Option<usize>,
}

/// Facts, as far as they were read.
#[derive(Debug)]
pub(super) enum Reading {
    Threads(u32, ThreadScan),
    Descriptors(Facts, DescriptorScan),
    Done(Facts),
}

impl Reading {
    /// Begins with a process.
    pub(super) fn of(process: u32) -> Self {
        match ThreadScan::of(process) {
            Ok(scan) => Self::Threads(process, scan),
            Err(_) => Self::with(process, None),
        }
    }

    /// Continues behind the threads.
    fn with(process: u32, threads: Option<Vec<Thread>>) -> Self {
        let named = names::named(threads.as_deref().unwrap_or_default(), None);
        let vcpu_descriptors = None;
        let facts = Facts {
            threads,
            vcpu_descriptors,
        };
        match DescriptorScan::of(process) {
            Ok(scan) if named.is_empty() => Self::Descriptors(facts, scan),
            _ => Self::Done(facts),
        }
    }

    /// Reads on. Returns the facts when all are there; else what is left for the next turn.
    pub(super) fn advance(self, work: &mut Work) -> Result<Facts, Self> {
        match self {
            Self::Threads(process, mut scan) => match scan.advance(work) {
                true => Self::with(process, Some(scan.threads())).advance(work),
                false => Err(Self::Threads(process, scan)),
            },
            Self::Descriptors(facts, mut scan) => match scan.advance(work) {
                Ok(None) => Err(Self::Descriptors(facts, scan)),
                counted => Ok(Facts {
                    vcpu_descriptors: counted.ok().flatten(),
                    ..facts
                }),
            },
            Self::Done(facts) => Ok(facts),
        }
    }
}
