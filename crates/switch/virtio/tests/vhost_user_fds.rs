//! Whatever a front end sends in whatever order: no panic, no descriptor left behind.
//!
//! Open descriptors are counted for the whole process, so everything here is one test.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::GuestMemory;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use virtio::vhost_user::{Backend, Message, Offer, QueueSetup, Session};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{ProtocolFeatures, code};

/// Holds what it is given, as a data path would.
#[derive(Default)]
struct Holder {
    running: std::collections::BTreeMap<u16, QueueSetup>,
    memory: Option<Arc<GuestMemory>>,
    stopped_at: u32,
}

impl Backend for Holder {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        self.memory = mem;
        for setup in self.running.values() {
            let memory = self.memory.as_ref().expect("queues run on memory");
            for gpa in [setup.layout.desc, setup.layout.driver, setup.layout.device] {
                assert!(memory.translate(gpa, 4).is_some(), "an area that is gone");
            }
        }
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        if setup.layout.size == 8 {
            return Err("no".into());
        }
        assert!(setup.features.contains(Features::VERSION_1));
        let before = self.running.insert(index, setup);
        assert!(before.is_none(), "started twice");
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.running.remove(&index).expect("it ran");
        self.stopped_at = self.stopped_at.wrapping_add(7);
        Some(self.stopped_at & 0xffff)
    }

    fn enable_queue(&mut self, index: u16, _: bool) {
        assert!(self.running.contains_key(&index));
    }

    fn set_call(&mut self, index: u16, call: Option<sys::foreign::ForeignFd>) {
        self.running.get_mut(&index).expect("it runs").call = call;
    }

    fn reset(&mut self) {
        assert!(self.running.is_empty());
    }
}

#[derive(Debug, Clone)]
struct Step {
    code: u32,
    need_reply: bool,
    payload: Vec<u8>,
    fds: usize,
    /// An ordinary file instead of an eventfd.
    file: bool,
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn pair(low: u32, high: u32) -> Vec<u8> {
    [low.to_ne_bytes(), high.to_ne_bytes()].concat()
}

/// Numbers near what matters: small, in the memory used here, and absurd.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..10,
        3 => (0u64..32).prop_map(|n| n * 4096),
        2 => (0u64..64).prop_map(|n| 1 << n),
        1 => any::<u64>(),
    ]
}

fn sensible() -> impl Strategy<Value = (u32, Vec<u8>, usize, bool)> {
    let index = || prop_oneof![9 => 0u32..4, 1 => any::<u32>()];
    let size = prop_oneof![8 => Just(16u32), 1 => Just(8), 1 => any::<u32>()];
    let features = prop_oneof![
        6 => Just(1u64 << 32 | 1 << 30),
        2 => Just(1u64 << 32 | 1 << 30 | 1 << 26),
        2 => Just(1u64 << 34 | 1 << 32),
        1 => any::<u64>(),
    ];
    prop_oneof![
        features.prop_map(|f| (code::SET_FEATURES, bytes(&[f]), 0, false)),
        prop_oneof![9 => Just(ProtocolFeatures::all().bits()), 1 => any::<u64>()].prop_map(|f| (
            code::SET_PROTOCOL_FEATURES,
            bytes(&[f]),
            0,
            false
        )),
        (0u64..3, prop_oneof![Just(0x2_0000u64), number()]).prop_map(|(gpa, size)| {
            let table = [pair(1, 0), bytes(&[gpa * 4096, size, 0, 0])].concat();
            (code::SET_MEM_TABLE, table, 1, true)
        }),
        (number(), number(), number()).prop_map(|(gpa, size, uva)| {
            (code::ADD_MEM_REG, bytes(&[0, gpa, size, uva, 0]), 1, true)
        }),
        (number(), number(), number()).prop_map(|(gpa, size, uva)| {
            (code::REM_MEM_REG, bytes(&[0, gpa, size, uva, 0]), 0, true)
        }),
        (index(), size).prop_map(|(i, n)| (code::SET_VRING_NUM, pair(i, n), 0, false)),
        (index(), 0u32..2, 0u64..30).prop_map(|(i, flags, page)| {
            let at = page * 4096;
            let areas = bytes(&[at, at + 1024, at + 2048, at]);
            (
                code::SET_VRING_ADDR,
                [pair(i, flags), areas].concat(),
                0,
                false,
            )
        }),
        (index(), number()).prop_map(|(i, n)| (code::SET_VRING_BASE, pair(i, n as u32), 0, false)),
        index().prop_map(|i| (code::GET_VRING_BASE, pair(i, 0), 0, false)),
        (index(), 0u32..2).prop_map(|(i, on)| (code::SET_VRING_ENABLE, pair(i, on), 0, false)),
        (
            index(),
            code::SET_VRING_KICK..=code::SET_VRING_ERR,
            0usize..10
        )
            .prop_map(|(i, which, none)| {
                let flag = u64::from(none == 0) << 8;
                (
                    which,
                    bytes(&[u64::from(i) | flag]),
                    usize::from(none != 0),
                    false,
                )
            }),
        (number(), number()).prop_map(|(size, at)| (
            code::SET_LOG_BASE,
            bytes(&[size, at]),
            1,
            true
        )),
        (number(), number(), 0u64..6, 0u64..40).prop_map(|(size, at, queues, n)| {
            (
                code::SET_INFLIGHT_FD,
                bytes(&[size, at, queues | n << 16]),
                1,
                true,
            )
        }),
        (0u64..6, 0u64..40).prop_map(|(q, n)| (
            code::GET_INFLIGHT_FD,
            bytes(&[0, 0, q | n << 16]),
            0,
            false
        )),
        (0u64..16).prop_map(|status| (code::SET_STATUS, bytes(&[status]), 0, false)),
        Just((code::RESET_DEVICE, vec![], 0, false)),
        Just((code::SET_BACKEND_REQ_FD, vec![], 1, false)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let wild = (
        0u32..50,
        prop::collection::vec(any::<u8>(), 0..64),
        0usize..4,
        any::<bool>(),
    );
    (prop_oneof![9 => sensible(), 1 => wild], any::<bool>()).prop_map(
        |((code, payload, fds, file), need_reply)| Step {
            code,
            need_reply,
            payload,
            fds,
            file,
        },
    )
}

fn make_fd(file: bool) -> OwnedFd {
    if file {
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC);
        let fd = fd.expect("a memfd");
        rustix::fs::ftruncate(&fd, 0x2_0000).expect("its size");
        return fd;
    }
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd")
}

/// A VMM that repeats valid messages as well as invalid ones, and continues after every fault.
fn play(steps: &[Step]) -> (u32, u32) {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    let mut session = Session::new(Offer::new(features, 2));
    let mut backend = Holder::default();
    let (mut faults, mut started) = (0, 0);
    for step in steps {
        let fds = (0..step.fds).map(|_| make_fd(step.file)).collect();
        let message = Message {
            code: step.code,
            need_reply: step.need_reply,
            payload: step.payload.clone(),
        };
        match session.handle(message, fds, &mut backend) {
            Ok(reply) => drop(reply),
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                faults += 1;
            }
        }
        started += u32::from(!backend.running.is_empty());
        let info = session.info();
        for queue in &info.queues {
            assert_eq!(queue.running, backend.running.contains_key(&queue.index));
        }
        session.set_link(step.need_reply);
    }
    session.close(&mut backend);
    assert!(backend.running.is_empty() && backend.memory.is_none());
    (faults, started)
}

fn open_fds() -> Option<u64> {
    testkit::procfs::descriptors(std::process::id())
}

#[test]
fn random_message_sequences_never_panic_nor_leak_fds() {
    let config = Config {
        cases: 1500,
        failure_persistence: None,
        ..Config::default()
    };
    let (faults, started) = (Cell::new(0), Cell::new(0));
    let before = open_fds();
    let result = TestRunner::new(config).run(&prop::collection::vec(step(), 1..120), |steps| {
        let (f, s) = play(&steps);
        faults.set(faults.get() + f);
        started.set(started.get() + s);
        prop_assert_eq!(open_fds(), before);
        Ok(())
    });
    result.expect("no sequence breaks it");
    let (faults, started) = (faults.get(), started.get());
    assert!(faults > 100, "bad messages were among them");
    assert!(started > 100, "queues ran in some of them: {started}");
}
