//! From the first setting of a queue to its last word.

use super::super::LeftFrames;
use super::super::message::F_PROTOCOL_FEATURES;
use super::*;

/// The messages that together start queue 0.
const STEPS: [fn(&mut Rig); 6] = [
    |rig| rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES),
    Rig::memory,
    |rig| rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]),
    |rig| rig.tell(code::SET_VRING_BASE, state(0, 9), vec![]),
    |rig| rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]),
    |rig| rig.kick(0),
];

/// All orders of `left`, depth first.
fn orders(left: &[usize], taken: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize])) {
    if left.is_empty() {
        visit(taken);
    }
    for (i, step) in left.iter().enumerate() {
        taken.push(*step);
        orders(&[&left[..i], &left[i + 1..]].concat(), taken, visit);
        taken.pop();
    }
}

#[test]
fn a_queue_starts_when_it_is_complete_in_whatever_order() {
    orders(&[0, 1, 2, 3, 4, 5], &mut vec![], &mut |order| {
        let mut rig = Rig::fresh();
        for step in order {
            STEPS[*step](&mut rig);
        }
        let setup = &rig.backend.running[&0];
        assert_eq!((setup.layout.size, setup.position), (256, 9), "{order:?}");
        assert_eq!(rig.state_of(0), "disabled");
    });
}

#[test]
fn a_queue_says_what_it_waits_for() {
    let mut rig = Rig::fresh();
    assert_eq!(rig.state_of(0), "waits for a kick descriptor");
    rig.kick(0);
    assert_eq!(rig.state_of(0), "waits for its size");
    rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
    assert_eq!(rig.state_of(0), "waits for its addresses");
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    assert_eq!(rig.state_of(0), "waits for guest memory");
    rig.memory();
    assert_eq!(rig.state_of(0), "waits for features");
    rig.features(Features::VERSION_1, 0);
    assert_eq!(rig.state_of(0), "running");
}

#[test]
fn the_setup_of_a_split_queue() {
    let mut rig = Rig::ready();
    rig.tell(code::SET_VRING_ADDR, addr(3, 1), vec![]);
    rig.set_up(3);
    let setup = &rig.backend.running[&3];
    let base = GPA + 3 * 0x8000;
    let layout = setup.layout;
    assert_eq!(
        (layout.desc, layout.driver, layout.device),
        (base, base + 0x2000, base + 0x4000)
    );
    assert_eq!(setup.features, Features::VERSION_1);
    assert!(setup.call.is_some() && setup.inflight.is_none());
}

#[test]
fn the_setup_of_a_packed_queue() {
    let mut rig = Rig::ready();
    rig.features(
        Features::VERSION_1 | Features::RING_PACKED,
        F_PROTOCOL_FEATURES,
    );
    rig.tell(code::SET_VRING_NUM, state(1, 300), vec![]);
    rig.tell(code::SET_VRING_ADDR, addr(1, 0), vec![]);
    rig.kick(1);
    assert_eq!(rig.backend.take(), ["start 1 at 0x80008000 disabled"]);
    rig.backend.position = Some(0x8003_8005);
    assert_eq!(
        rig.ask(code::GET_VRING_BASE, state(1, 0)),
        state(1, 0x8003_8005)
    );
    assert_eq!(
        rig.ask(code::GET_VRING_BASE, state(0, 0)),
        state(0, 0x8000_8000)
    );
}

#[test]
fn without_protocol_features_rings_start_enabled() {
    let mut rig = Rig::ready();
    rig.features(Features::VERSION_1, 0);
    rig.set_up(0);
    assert_eq!(rig.backend.take(), ["start 0 at 0x0 enabled"]);
    assert!(
        rig.fault(code::SET_VRING_ENABLE, state(0, 0), vec![])
            .contains("always enabled")
    );
}

#[test]
fn enabling_before_and_while_it_runs() {
    let mut rig = Rig::fresh();
    rig.tell(code::SET_VRING_ENABLE, state(0, 1), vec![]);
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.memory();
    rig.set_up(0);
    rig.set_up(1);
    rig.tell(code::SET_VRING_ENABLE, state(1, 1), vec![]);
    rig.tell(code::SET_VRING_ENABLE, state(1, 1), vec![]);
    rig.tell(code::SET_VRING_ENABLE, state(1, 0), vec![]);
    let events = rig.backend.take();
    assert_eq!(
        events[1..],
        [
            "start 0 at 0x0 enabled",
            "start 1 at 0x0 disabled",
            "enable 1 true",
            "enable 1 false"
        ]
    );
    assert!(
        rig.fault(code::SET_VRING_ENABLE, state(1, 2), vec![])
            .contains("neither on nor off")
    );
}

#[test]
fn a_legacy_guest_gets_its_queue_and_a_modern_one_after_it() {
    let mut rig = Rig::ready();
    for features in [
        Features::NET_MRG_RXBUF,
        Features::empty(),
        Features::VERSION_1,
    ] {
        rig.features(features, F_PROTOCOL_FEATURES);
        rig.set_up(0);
        assert_eq!(rig.backend.take(), ["start 0 at 0x0 disabled"]);
        assert_eq!(rig.backend.running[&0].features, features);
        rig.ask(code::GET_VRING_BASE, state(0, 0));
        assert_eq!(rig.backend.take(), ["stop 0"]);
    }
}

#[test]
fn a_packed_ring_without_version_1_gets_a_reason_and_its_successor_a_queue() {
    let reason = "features 0x400000000 without VERSION_1, which they need";
    let mut rig = Rig::ready();
    rig.features(Features::RING_PACKED, F_PROTOCOL_FEATURES);
    rig.set_up(0);
    assert_eq!(rig.backend.take(), [format!("refused 0: {reason}")]);
    assert_eq!(rig.state_of(0), format!("stopped: {reason}"));
    let kick = rig.ack(code::SET_VRING_KICK, u64s(&[0]), vec![event()]);
    assert_eq!(kick, 1);
    assert!(rig.backend.take().is_empty(), "said once");

    rig.ask(code::GET_VRING_BASE, state(0, 0));
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.set_up(0);
    assert_eq!(rig.backend.take(), ["start 0 at 0x0 disabled"]);
}

#[test]
fn get_vring_base_stops_until_the_next_kick() {
    let mut rig = Rig::running();
    rig.backend.position = Some(1234);
    assert_eq!(rig.ask(code::GET_VRING_BASE, state(0, 0)), state(0, 1234));
    assert_eq!(
        rig.ask(code::GET_VRING_BASE, state(0, 0)),
        state(0, 1234),
        "and again"
    );
    rig.tell(code::SET_VRING_BASE, state(0, 1234), vec![]);
    rig.memory();
    assert_eq!(rig.backend.take(), ["stop 0", "memory: 1 regions"]);
    rig.kick(0);
    assert_eq!(rig.backend.take(), ["start 0 at 0x4d2 disabled"]);
}

#[test]
fn qemu_asks_for_the_position_after_it_reset_the_device() {
    let resets = [(code::SET_STATUS, u64s(&[0])), (code::RESET_DEVICE, vec![])];
    for (reset, payload) in resets {
        let mut rig = Rig::running();
        rig.backend.position = Some(1234);
        rig.tell(reset, payload, vec![]);
        assert_eq!(rig.ask(code::GET_VRING_BASE, state(0, 0)), state(0, 1234));
        assert_eq!(rig.ask(code::GET_VRING_BASE, state(1, 0)), state(1, 0));

        // A driver that starts anew begins at the start, also without a message about it.
        rig.backend.take();
        rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
        rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
        rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
        rig.kick(0);
        assert_eq!(rig.backend.take(), ["start 0 at 0x0 disabled"]);
    }
}

#[test]
fn a_packed_queue_whose_position_is_lost_goes_on_where_it_began() {
    let mut rig = Rig::ready();
    rig.features(
        Features::VERSION_1 | Features::RING_PACKED,
        F_PROTOCOL_FEATURES,
    );
    rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    rig.kick(0);
    rig.tell(code::SET_STATUS, u64s(&[0]), vec![]);
    assert_eq!(
        rig.ask(code::GET_VRING_BASE, state(0, 0)),
        state(0, 0x8000_8000),
        "although no features are negotiated any more"
    );
}

#[test]
fn a_setting_that_changes_restarts_the_queue_where_it_was() {
    let mut rig = Rig::running();
    rig.backend.position = Some(5);
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
    assert!(rig.backend.take().is_empty(), "nothing changed");
    let elsewhere = addr_at(
        0,
        0,
        [UVA + 0x8000, UVA + 0x8000 + 0x4000, UVA + 0x8000 + 0x2000],
    );
    rig.tell(code::SET_VRING_ADDR, elsewhere, vec![]);
    assert_eq!(rig.backend.take(), ["stop 0", "start 0 at 0x5 disabled"]);
    rig.kick(0);
    assert_eq!(rig.backend.take(), ["stop 0", "start 0 at 0x5 disabled"]);
    rig.tell(code::SET_VRING_BASE, state(0, 6), vec![]);
    assert_eq!(rig.backend.take(), ["stop 0", "start 0 at 0x6 disabled"]);
}

#[test]
fn another_call_descriptor_does_not_stop_the_queue() {
    let mut rig = Rig::running();
    rig.call(0);
    rig.tell(code::SET_VRING_CALL, u64s(&[0x100]), vec![]);
    assert_eq!(rig.backend.take(), ["call 0 true", "call 0 false"]);
    assert!(rig.backend.running[&0].call.is_none());
}

#[test]
fn descriptors_and_their_flag_have_to_agree() {
    let mut rig = Rig::ready();
    for which in DESCRIPTORS {
        assert!(
            rig.fault(which, u64s(&[0]), vec![])
                .contains("says otherwise")
        );
        assert!(
            rig.fault(which, u64s(&[0x100]), vec![event()])
                .contains("says otherwise")
        );
        assert!(
            rig.fault(which, u64s(&[0x200]), vec![event()])
                .contains("unknown bits")
        );
    }
    assert!(
        rig.fault(code::SET_VRING_KICK, u64s(&[0x100]), vec![])
            .contains("polled")
    );
}

#[test]
fn event_descriptors_never_block() {
    let rig = Rig::running();
    let setup = &rig.backend.running[&0];
    for fd in [&setup.kick, setup.call.as_ref().expect("a call descriptor")] {
        let flags = rustix::fs::fcntl_getfl(fd).expect("flags");
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
        let flags = rustix::io::fcntl_getfd(fd).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn the_same_memory_again_leaves_queues_alone() {
    let mut rig = Rig::running();
    rig.memory();
    assert_eq!(rig.backend.take(), ["memory: 1 regions"]);
    rig.tell(
        code::ADD_MEM_REG,
        single([0, 4096, 0x1000, 0]),
        vec![memfd(4096)],
    );
    rig.tell(
        code::REM_MEM_REG,
        single([0, 4096, 0x1000, 0]),
        vec![event()],
    );
    assert_eq!(
        rig.backend.take(),
        ["memory: 2 regions", "memory: 1 regions"]
    );
}

#[test]
fn qemu_adds_and_removes_a_region_once_for_every_queue_pair() {
    let mut rig = Rig::running();
    let region = || single([GPA, MEM, UVA, 0]);
    let (fd, watch) = watched();
    assert_eq!(rig.ack(code::ADD_MEM_REG, region(), vec![memfd(MEM)]), 0);
    assert_eq!(
        rig.backend.take(),
        ["memory: 1 regions"],
        "the queue continues"
    );
    assert_eq!(rig.ack(code::ADD_MEM_REG, region(), vec![fd]), 1, "a pipe");
    assert!(is_closed(&watch));
    let overlapping = single([GPA, 2 * MEM, UVA, 0]);
    assert_eq!(
        rig.ack(code::ADD_MEM_REG, overlapping, vec![memfd(2 * MEM)]),
        1
    );
    assert!(rig.backend.take().is_empty());

    assert_eq!(
        rig.ack(code::REM_MEM_REG, single([GPA, MEM, 0, 0]), vec![]),
        0
    );
    assert!(
        rig.backend.take().is_empty(),
        "another one, so nothing went"
    );
    assert_eq!(rig.ack(code::REM_MEM_REG, region(), vec![]), 0);
    assert_eq!(rig.ack(code::REM_MEM_REG, region(), vec![]), 0);
    assert_eq!(rig.backend.take(), ["stop 0", "no memory"]);
}

#[test]
fn memory_that_goes_stops_its_queues_and_starts_them_when_it_is_back() {
    let mut rig = Rig::running();
    rig.backend.position = Some(40);
    rig.tell(code::REM_MEM_REG, single([GPA, MEM, UVA, 0]), vec![]);
    assert_eq!(rig.backend.take(), ["stop 0", "no memory"]);
    assert_eq!(rig.state_of(0), "stopped: its memory was taken away");
    rig.tell(
        code::ADD_MEM_REG,
        single([GPA, 0x1000, UVA, 0]),
        vec![memfd(MEM)],
    );
    let events = rig.backend.take();
    assert_eq!(events[0], "memory: 1 regions");
    assert!(events[1].contains("its driver area"), "{events:?}");
    rig.tell(code::REM_MEM_REG, single([GPA, 0x1000, UVA, 0]), vec![]);
    rig.tell(
        code::ADD_MEM_REG,
        single([GPA, MEM, UVA, 0]),
        vec![memfd(MEM)],
    );
    assert_eq!(
        rig.backend.events.last().expect("an event"),
        "start 0 at 0x28 disabled"
    );
}

#[test]
fn a_queue_that_moves_in_the_guest_is_restarted_there() {
    let mut rig = Rig::running();
    let payload = mem_table(&[[0, MEM, UVA, 0]]);
    rig.tell(code::SET_MEM_TABLE, payload, vec![memfd(MEM)]);
    let expected = ["stop 0", "memory: 1 regions", "start 0 at 0x0 disabled"];
    assert_eq!(rig.backend.take(), expected);
    assert_eq!(rig.backend.running[&0].layout.desc, 0);
}

#[test]
fn memory_that_is_not_shared_gets_a_hint() {
    let mut rig = Rig::fresh();
    let one = mem_table(&[[GPA, MEM, UVA, 0]]);
    assert!(
        rig.fault(code::SET_MEM_TABLE, one, vec![])
            .contains("share=on")
    );
    assert!(
        rig.fault(code::SET_MEM_TABLE, mem_table(&[]), vec![])
            .contains("share=on")
    );
    let mut rig = Rig::ready();
    let one = single([0, 4096, 0, 0]);
    assert!(
        rig.fault(code::ADD_MEM_REG, one, vec![])
            .contains("share=on")
    );
}

#[test]
fn bad_memory_leaves_the_old_one() {
    let mut rig = Rig::running();
    let overlapping = mem_table(&[[0, MEM, UVA, 0], [4096, 4096, UVA + MEM, 0]]);
    let fds = || vec![memfd(MEM), memfd(MEM)];
    assert_eq!(rig.ack(code::SET_MEM_TABLE, overlapping, fds()), 1);
    let lying = [u32s(&[3, 0]), vec![0; 64]].concat();
    assert_eq!(rig.ack(code::SET_MEM_TABLE, lying, fds()), 1);
    let one = mem_table(&[[0, MEM, UVA, 0]]);
    assert_eq!(
        rig.ack(code::SET_MEM_TABLE, one, fds()),
        1,
        "a descriptor too many"
    );
    assert!(rig.backend.take().is_empty());
    assert_eq!(rig.state_of(0), "disabled");
}

#[test]
fn logging_goes_on_and_off_with_the_feature() {
    let mut rig = Rig::running();
    let answer = rig.send(code::SET_LOG_BASE, u64s(&[4096, 4096]), vec![memfd(8192)]);
    assert_eq!(
        answer.expect("served").expect("an answer").payload,
        u64s(&[4096, 4096])
    );
    assert!(rig.backend.take().is_empty(), "not yet");
    rig.logging(true);
    rig.tell(code::SET_LOG_FD, vec![], vec![event()]);
    assert!(rig.session.info().logging);
    rig.memory();
    rig.logging(false);
    // QEMU sends the addresses with and without the flag for the used ring's log, at the start and
    // the end.
    for flags in [1, 0] {
        rig.tell(code::SET_VRING_ADDR, addr(0, flags), vec![]);
    }
    assert_eq!(rig.state_of(0), "disabled", "the session continues");
    let expected = [
        "memory: 1 regions, logged",
        "memory: 1 regions, logged",
        "memory: 1 regions",
    ];
    assert_eq!(rig.backend.take(), expected);
}

fn refusal(rig: &Rig) -> String {
    rig.session.info().last_refusal.expect("a refusal")
}

#[test]
fn nothing_is_written_that_is_to_be_logged_before_the_log_is_there() {
    let mut rig = Rig::ready();
    rig.logging(true);
    rig.set_up(0);
    assert_eq!(rig.state_of(0), "waits for the dirty log");
    rig.send(code::SET_LOG_BASE, u64s(&[4096, 0]), vec![memfd(4096)])
        .expect("served");
    assert_eq!(rig.state_of(0), "disabled");

    let mut rig = Rig::running();
    let on = Features::VERSION_1.bits() | F_PROTOCOL_FEATURES | F_LOG_ALL;
    assert_eq!(rig.ack(code::SET_FEATURES, u64s(&[on]), vec![]), 1);
    assert!(refusal(&rig).contains("there is no dirty log"));
    assert!(!rig.session.info().logging);
    assert_eq!(rig.state_of(0), "disabled", "the session continues");
}

#[test]
fn a_log_covers_all_of_guest_memory() {
    let bytes = (GPA + MEM).div_ceil(8 * 4096);
    let log = |rig: &mut Rig, bytes: u64| {
        let sent = rig.send(code::SET_LOG_BASE, u64s(&[bytes, 0]), vec![memfd(bytes)]);
        sent.map(drop)
    };
    let on = u64s(&[Features::VERSION_1.bits() | F_PROTOCOL_FEATURES | F_LOG_ALL]);
    let mut rig = Rig::running();
    log(&mut rig, bytes - 1).expect("it is not used yet");
    assert_eq!(rig.ack(code::SET_FEATURES, on.clone(), vec![]), 1);
    assert!(refusal(&rig).contains("guest memory ends at 0x300000"));
    log(&mut rig, bytes).expect("it is long enough");
    assert_eq!(rig.ack(code::SET_FEATURES, on, vec![]), 0);
    let more = mem_table(&[[GPA, MEM, UVA, 0], [GPA + MEM, 32768, UVA + MEM, 0]]);
    let files = vec![memfd(MEM), memfd(32768)];
    assert_eq!(
        rig.ack(code::SET_MEM_TABLE, more, files),
        1,
        "it has no bits"
    );
    assert_eq!(rig.session.info().regions, 1);
    assert!(log(&mut rig, bytes - 1).is_err(), "nor has a new one");
}

#[test]
fn a_back_end_that_cannot_start_says_why_and_is_asked_again() {
    let mut rig = Rig::ready();
    rig.backend.no_start = Some("no worker".into());
    rig.set_up(0);
    assert_eq!(rig.state_of(0), "stopped: no worker");
    rig.backend.no_start = None;
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    assert_eq!(
        rig.backend.take(),
        ["refused 0: no worker", "start 0 at 0x0 disabled"]
    );
}

#[test]
fn a_broken_queue_stays_stopped_until_it_is_set_up_anew() {
    let mut rig = Rig::running();
    let err = event();
    let copy = err.try_clone().expect("a copy");
    rig.tell(code::SET_VRING_ERR, u64s(&[0]), vec![copy]);
    rig.session
        .queue_failed(0, "descriptor loop", &mut rig.backend);
    assert_eq!(rig.backend.take(), ["stop 0"]);
    assert_eq!(rig.state_of(0), "stopped: descriptor loop");
    let faults: Vec<_> = rig
        .session
        .info()
        .queues
        .into_iter()
        .map(|q| q.fault)
        .collect();
    assert_eq!(faults, [Some("descriptor loop".into()), None, None, None]);
    assert_eq!(rig.session.info().status, 64);
    let mut count = [0; 8];
    rustix::io::read(&err, &mut count).expect("it was signalled");
    rig.memory();
    assert_eq!(rig.state_of(0), "stopped: descriptor loop");
    rig.kick(0);
    assert_eq!(rig.state_of(0), "disabled");
    rig.session
        .queue_failed(99, "no such queue", &mut rig.backend);
}

#[test]
fn sizes_and_positions_that_cannot_be() {
    let mut rig = Rig::running();
    for size in [0, 4097, 65536, 65536 + 256, u32::MAX] {
        let fault = rig.fault(code::SET_VRING_NUM, state(0, size), vec![]);
        assert!(fault.contains("1 to 4096"), "{fault}");
    }
    rig.tell(code::SET_VRING_NUM, state(0, 100), vec![]);
    assert_eq!(
        rig.state_of(0),
        "stopped: size 100 of a split queue is no power of two"
    );
    rig.tell(code::SET_VRING_NUM, state(0, 128), vec![]);
    rig.tell(code::SET_VRING_BASE, state(0, 0x10000), vec![]);
    assert!(rig.state_of(0).contains("more than 16 bits"));
    let flags = addr(0, 2);
    assert!(
        rig.fault(code::SET_VRING_ADDR, flags, vec![])
            .contains("unknown flags")
    );
}

#[test]
fn the_inflight_area_comes_back_with_the_queue() {
    let mut rig = Rig::ready();
    let reply = rig.send(code::GET_INFLIGHT_FD, inflight(0, 0, 4, 256), vec![]);
    let reply = reply.expect("served").expect("an answer");
    let fd = reply.fd.expect("a descriptor");
    assert_eq!(reply.payload.len(), 24);
    rig.tell(code::SET_INFLIGHT_FD, reply.payload, vec![fd]);
    assert!(rig.session.info().inflight);
    rig.set_up(0);
    assert!(rig.backend.running[&0].inflight.is_some());
}

/// Writes the available index of a queue of 256 entries.
fn offer_up_to(rig: &Rig, index: u16, available: u16) {
    let memory = rig.backend.memory.as_ref().expect("memory");
    let ring = GPA + u64::from(index) * 0x8000 + 0x2000;
    let at = memory.translate(ring + 2, 2).expect("mapped").ptr;
    // SAFETY: the index is mapped and aligned, and no other thread accesses it.
    unsafe { at.cast::<u16>().write(available.to_le()) };
}

#[test]
fn frames_left_in_the_rings_of_a_driver_are_counted() {
    let mut rig = Rig::ready();
    rig.backend.position = Some(3);
    (0..2).for_each(|index| rig.set_up(index));
    let left = |to_front_end, from_front_end| LeftFrames {
        to_front_end,
        from_front_end,
    };
    // All buffers were offered at first, three were used, and one of these was offered again.
    offer_up_to(&rig, 0, 256 + 1);
    // Seven frames were sent, and three taken.
    offer_up_to(&rig, 1, 7);
    // It was asked to end, and has not completed all.
    rig.ask(code::GET_VRING_BASE, state(0, 0));
    assert_eq!(rig.session.left_frames(&mut rig.backend), left(2, 4));
    assert!(rig.backend.running.is_empty());
    // Whatever it writes, there are no more than buffers.
    offer_up_to(&rig, 0, 9);
    offer_up_to(&rig, 1, 0x8000);
    assert_eq!(rig.session.left_frames(&mut rig.backend), left(250, 256));
    rig.session.close(&mut rig.backend);
    assert_eq!(rig.session.left_frames(&mut rig.backend), left(0, 0));
}
