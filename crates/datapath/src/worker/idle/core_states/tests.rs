//! The choice of a helper by injected states.

use std::sync::Arc;

use channel::cores::CoreFacts;
use channel::supervision::HelpersConfig;
use rustix::event::{EventfdFlags, eventfd};
use sched::{Slot, Table, Vcpu};

use super::*;
use crate::worker::guests::States;
use crate::worker::idle::boost::Boost;
use crate::worker::idle::handoff::HandoffSlots;
use crate::worker::idle::helper::Help;
use crate::worker::idle::helper::{Helper, Helpers};
use crate::worker::idle::system::Thread;

const RECEIVER: PortId = PortId(3);
const OTHER: PortId = PortId(9);
/// The core of the worker.
const HERE: u16 = 7;

/// Two clusters of two modules of two cores, each core with a helper; one guest with two vCPUs,
/// another one with one.
struct Host {
    table: Table,
    guests: Guests,
    slots: Vec<Slot>,
    helpers: Helpers,
}

impl Host {
    fn new() -> Self {
        let mut table = Table::in_memory().unwrap();
        let slots: Vec<Slot> = (1..4).map(|n| table.follow(n).unwrap()).collect();
        let mut guests = Guests::default();
        let view = View::map(table.reader()).unwrap();
        guests.set_states(Arc::new(States {
            view,
            block_events: None,
        }));
        guests.set_slots(RECEIVER, slots[..2].into());
        guests.set_slots(OTHER, slots[2..].into());
        let facts = |core: u16| CoreFacts {
            core,
            allowed: true,
            smt: core / 2 * 2,
            l1: core / 2 * 2,
            l2: core / 2 * 2,
            l3: core / 4 * 4,
            node: 0,
        };
        let helper = |core| {
            Arc::new(Helper {
                core,
                handoff: HandoffSlots::new(),
                boost: Boost::new(Thread::imagined(core)),
                bell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
                frames: 0.into(),
            })
        };
        let help = Help::new(HelpersConfig::default(), (0..8).map(facts).collect());
        let list = (0..8).map(helper).collect();
        let helpers = Helpers { list, help };
        let host = Self {
            table,
            guests,
            slots,
            helpers,
        };
        (0..8).for_each(|core| host.table.set_core(core, true));
        host
    }

    fn set(&self, slot: usize, activity: Activity, core: u16, since_ns: u64) {
        if activity == Activity::Running {
            self.table.set_core(core.into(), false);
        }
        let vcpu = Vcpu {
            activity,
            core,
            since_ns,
        };
        self.table.set(self.slots[slot], vcpu);
    }

    /// Returns all cores that help for frames to the receiver, over all hashes; a core is its
    /// helper's index.
    fn help(&self) -> Vec<usize> {
        let states = CoreStates::now(&self.guests).expect("the kernel says");
        let hashes = (0..=u64::MAX).step_by(1 << 59);
        let of = |hash| {
            let (to, here) = (Some(RECEIVER), Some(HERE));
            self.helpers.choose(Some(&states), to, here, hash, |_| true)
        };
        let mut all: Vec<usize> = hashes.filter_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[test]
fn cores_help_in_the_order_of_the_paper_as_the_kernel_sees_them() {
    let host = Host::new();
    host.set(0, Activity::Running, 0, 512);
    assert_eq!(host.help(), [2, 3], "in its cluster, not in its module");
    host.table.set_core(2, false);
    assert_eq!(host.help(), [3]);
    host.set(2, Activity::Running, 2, 512);
    assert_eq!(host.help(), [4, 5], "a guest runs in the module: elsewhere");
    host.set(2, Activity::Runnable, 2, 768);
    assert_eq!(host.help(), [4, 5], "it is about to");
    host.set(2, Activity::Blocked, 2, 1024);
    assert_eq!(host.help(), [3], "it sleeps");
    for core in [3, 4, 5, 6] {
        host.table.set_core(core, false);
    }
    assert_eq!(host.help(), [0; 0], "no helper");
}

#[test]
fn near_is_where_the_receiver_runs_or_ran_last() {
    let host = Host::new();
    let states = |port| CoreStates::now(&host.guests).and_then(|states| states.core_of(port));
    assert_eq!(states(RECEIVER), None);
    host.set(0, Activity::Blocked, 0, 512);
    host.set(1, Activity::Blocked, 4, 1024);
    assert_eq!(states(RECEIVER), Some(4));
    host.set(0, Activity::Running, 1, 768);
    assert_eq!(states(RECEIVER), Some(1));
    assert_eq!(states(OTHER), None);
}

#[test]
fn a_busy_helper_is_chosen_when_no_core_idles() {
    let host = Host::new();
    host.set(0, Activity::Running, 0, 512);
    host.helpers.list[2].handoff.assign(OTHER, 0).unwrap();
    // The helper itself runs there.
    host.table.set_core(2, false);
    assert_eq!(host.help(), [3]);
    (3..8).for_each(|core| host.table.set_core(core, false));
    assert_eq!(host.help(), [2]);
    host.set(2, Activity::Running, 2, 512);
    assert_eq!(host.help(), [0; 0], "a guest has taken its core");
}

#[test]
fn a_helper_is_beside_a_guest_that_runs_in_its_module() {
    let host = Host::new();
    let beside = || {
        let states = CoreStates::now(&host.guests).unwrap();
        let is = |helper: &usize| host.helpers.is_beside_a_guest(*helper, &states);
        (0..8).filter(is).collect::<Vec<_>>()
    };
    assert_eq!(beside(), [0; 0]);
    host.set(0, Activity::Running, 5, 512);
    assert_eq!(beside(), [4, 5]);
    host.set(0, Activity::Blocked, 5, 768);
    assert_eq!(beside(), [0; 0]);
}

#[test]
fn without_states_each_core_may_idle() {
    let host = Host::new();
    let no_guests = Guests::default();
    assert!(CoreStates::now(&no_guests).is_none());
    // Every core but the worker's own may idle, and near means near that core.
    let chosen = |hash| host.helpers.choose(None, None, Some(HERE), hash, |_| true);
    let mut all: Vec<_> = (0..=u64::MAX).step_by(1 << 59).map(chosen).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, [4, 5].map(Some));
}
