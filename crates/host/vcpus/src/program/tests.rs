use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::mpsc::channel;

use rustix::thread::gettid;
use testkit::skip::skipped;
use testkit::wait::wait_until;

use super::*;
use crate::layout as rust;
use crate::load::{LoadError, attach, make_ring};
use crate::vcpus::tracepoints as seen;
use crate::{Activity, Table};

#[test]
fn the_programs_have_the_same_layout() {
    let header = include_str!("../../programs/layout.h");
    let number = |text: &str| {
        let text = text.trim_end_matches("ull");
        let hex = text.strip_prefix("0x");
        hex.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16))
    };
    let lines = header.lines();
    let of_c: BTreeMap<&str, u64> = lines
        .filter_map(|line| line.strip_prefix("#define ")?.split_once(' '))
        .map(|(name, text)| (name, number(text).unwrap()))
        .collect();
    let of_rust = [
        ("CORES", rust::CORES),
        ("SLOTS", rust::SLOTS),
        ("BUCKETS", rust::BUCKETS),
        ("WAYS", rust::WAYS),
        ("LINE", rust::LINE),
        ("ENTRY", rust::ENTRY),
        ("VCPUS_AT", rust::VCPUS_AT),
        ("SUBSCRIPTION_AT", rust::SUBSCRIPTION_AT),
        ("HALTS_AT", rust::HALTS_AT),
        ("POLLED_AT", rust::POLLED_AT),
        ("BLOCKED_AT", rust::BLOCKED_AT),
        ("TIDS_AT", rust::TIDS_AT),
        ("SIZE", rust::SIZE),
        ("POLLED_ONCE", rust::POLLED_ONCE as usize),
        ("POLLED_MOST", rust::POLLED_MOST as usize),
        ("CORE_SHIFT", rust::CORE_SHIFT as usize),
        ("SINCE_SHIFT", rust::SINCE_SHIFT as usize),
        ("SINCE_BELOW", rust::SINCE_BELOW as usize),
        ("HOW", rust::HOW as usize),
        ("RUNNING", Activity::Running as usize),
        ("RUNNABLE", Activity::Runnable as usize),
        ("BLOCKED", Activity::Blocked as usize),
        ("ARMED_AT", seen::ARMED_AT),
        ("SEEN_AT", seen::SEEN_AT),
        ("SEEN", seen::SEEN),
        ("SEEN_SIZE", seen::SIZE),
    ];
    assert_eq!(of_c.len(), of_rust.len());
    for (name, value) in of_rust {
        assert_eq!(of_c.get(name), Some(&(value as u64)), "{name}");
    }
}

/// Offset of the thread's id in the imagined `struct task_struct`.
const PID_AT: u32 = 1234;
/// Bits of addresses above those in a task, the memory of states, or the arguments.
const INSIDE: u32 = 32;
/// The memory of states, where no thread is followed, and the arguments of a tracepoint.
const MEMORY: u64 = 1 << INSIDE;
const ARGUMENTS: u64 = 2 << INSIDE;
/// The task of the thread 0; that of others follow.
const TASKS: u64 = 3 << INSIDE;

/// Runs a program at a tracepoint with these threads as arguments, none of which is followed.
/// Returns the number of instructions. The program calls nothing, and stores nothing.
fn run(code: &[Instruction], threads: &[u64]) -> usize {
    let mut registers = [0u64; 11];
    registers[1] = ARGUMENTS;
    let load = |address: u64| match (address >> INSIDE) << INSIDE {
        MEMORY => 0,
        ARGUMENTS => TASKS + (threads[(address - ARGUMENTS) as usize / 8] << INSIDE),
        task => {
            assert_eq!(address - task, u64::from(PID_AT));
            (task - TASKS) >> INSIDE
        }
    };
    let (mut at, mut count) = (0, 0);
    loop {
        let Instruction {
            code: operation,
            registers: both,
            offset,
            immediate,
        } = code[at];
        (at, count) = (at + 1, count + 1);
        let (to, from) = (usize::from(both & 0xf), usize::from(both >> 4));
        let number = i64::from(immediate).cast_unsigned();
        let other = if operation & 0x08 == 0 {
            number
        } else {
            registers[from]
        };
        // RFC 9669; 0x04 and 0x06 are the classes of 32 bits.
        let mask = match operation & 0x07 {
            0x04 | 0x06 => u64::from(u32::MAX),
            _ => u64::MAX,
        };
        let (value, other) = (registers[to] & mask, other & mask);
        let distance = usize::try_from(offset);
        match (operation & 0x07, operation & 0xf0) {
            _ if operation == 0x95 => return count,
            _ if operation == 0x18 => {
                registers[to] = if from == 2 { MEMORY } else { number };
                at += 1;
            }
            _ if operation == 0x61 || operation == 0x79 => {
                registers[to] = load(registers[from].wrapping_add_signed(offset.into()));
            }
            (0x04 | 0x07, 0x00) => registers[to] = value.wrapping_add(other) & mask,
            (0x04 | 0x07, 0x50) => registers[to] = value & other,
            (0x04 | 0x07, 0x60) => registers[to] = value << other & mask,
            (0x04 | 0x07, 0xb0) => registers[to] = other,
            (0x05 | 0x06, 0x10) if value != other => {}
            (0x05 | 0x06, 0x50) if value == other => {}
            (0x05 | 0x06, 0x10 | 0x50) | (0x05, 0x00) => at += distance.unwrap(),
            _ => panic!("{operation:#x} before {at}"),
        }
    }
}

#[test]
fn threads_that_are_not_followed_cost_two_look_ups_and_no_store() {
    let kernel = Kernel {
        switch: 0,
        wakeup: 0,
        pid: PID_AT,
        state: None,
    };
    let map = File::open("/").unwrap();
    let switch = kernel.at_switch(map.as_fd(), map.as_fd()).unwrap();
    let wakeup = kernel.at_wakeup(map.as_fd()).unwrap();
    let of_switch = |previous, next| run(&switch, &[0, previous, next, 0]);
    let counts = [
        of_switch(7, 8),
        of_switch(7, 0),
        of_switch(0, 8),
        of_switch(0, 0),
    ];
    assert_eq!((counts, run(&wakeup, &[7])), ([34, 23, 23, 12], 18));
}

/// As before Linux 5.18, where `sched_switch` has no argument with the state.
#[test]
fn the_state_may_be_a_member_of_the_task() {
    let map = match bpf::load::memory(rust::SIZE as u32) {
        Ok(map) => map,
        Err(error) => return skipped(error),
    };
    let btf = Btf::of_kernel().unwrap();
    let kernel = Kernel {
        state: Some(btf.member("task_struct", "__state").unwrap()),
        ..Kernel::of(&btf).unwrap()
    };
    let ring = make_ring().unwrap();
    let code = kernel.at_switch(map.as_fd(), ring.as_fd()).unwrap();
    let _link = match attach(kernel.switch, &code) {
        Err(LoadError::Bpf(bpf::LoadError::Rights(error))) => return skipped(error),
        link => link.unwrap(),
    };
    let mut table = Table::over(map.as_fd(), map.try_clone().unwrap()).unwrap();
    let (say, hear) = channel();
    let (end, wait) = channel::<()>();
    let thread = std::thread::spawn(move || {
        say.send(gettid().as_raw_nonzero().get().cast_unsigned())
            .unwrap();
        wait.recv().unwrap_or_default();
        wait.recv().unwrap_or_default();
    });
    let id = hear.recv().unwrap();
    let slot = table.follow(id).unwrap();
    end.send(()).unwrap();
    let blocked = || table.state(slot).map(|state| state.activity) == Some(Activity::Blocked);
    wait_until("it is seen to block", blocked);
    drop(end);
    thread.join().unwrap();
    wait_until("it is seen to end", || table.has_ended(id));
}
