//! The BPF programs: one at each context switch, one at each wake-up, one at each halt of a vCPU of
//! KVM.
//!
//! ```text
//! sched_switch(preempt, prev, next, prev_state):        sched_wakeup(task):
//!     if prev is followed:                                   if task is followed and was blocked:
//!         preempted or still running: it is runnable             it is runnable, since now
//!         dead:                       it is not followed any more
//!         else:                       it is blocked; with a subscription: a record
//!         on this core, since now
//!     if next is followed: it runs, on this core, since now
//!
//! kvm_vcpu_wakeup(ns, waited), at the end of a halt of so many nanoseconds:
//!     if the current thread is followed: it has one halt more, and
//!         if it did not sleep meanwhile, or blocked later than it halted: KVM has polled in its
//!         place, and its score rises, else it falls
//! ```
//!
//! Every context switch of the host pays for this, so threads that are not followed must cost next
//! to nothing: a thread is looked up by its id in the shared memory (two loads and two comparisons;
//! see [`crate::layout`]), and nothing is stored. The time is read for vCPUs only.

use std::os::fd::BorrowedFd;

use bpf::Instruction;
use bpf::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use bpf::assembler::{Assembler, AssemblyError, If, Label, Register, Width};
use bpf::btf::{Btf, BtfError, Id, Kind};

use crate::Activity;
use crate::layout::{
    BLOCKED_AT, BUCKETS, CORE_SHIFT, CORES, ENTRY, HALTS_AT, HOW, LINE, POLLED_AT, POLLED_MOST,
    POLLED_ONCE, SINCE_BELOW, SINCE_SHIFT, SLOTS, SUBSCRIPTION_AT, TIDS_AT, VCPUS_AT, WAYS,
};

/// `BPF_FUNC_ktime_get_ns`: the monotonic clock.
const TIME: i32 = 5;
/// `BPF_FUNC_get_smp_processor_id`; recent kernels replace it by one load.
const CORE: i32 = 8;
/// `BPF_FUNC_get_current_pid_tgid`: process id in the upper half, thread id in the lower.
pub(crate) const CURRENT: i32 = 14;
/// `BPF_FUNC_ringbuf_output`: a record for user space.
const RING_OUTPUT: i32 = 130;
/// `BPF_RB_FORCE_WAKEUP`: wakes the threads that wait for records.
const WAKE_UP: i32 = 2;
/// `TASK_DEAD` of `linux/sched.h`.
const DEAD: i32 = 0x80;

/// Nanoseconds from a halt to its end, or to the sleep, above which KVM has polled: an interrupt
/// that is there already ends a halt sooner.
const POLLED: i32 = 5000;

/// On the stack: the core, at its place in a state's word.
const OWN_CORE: i16 = -8;

/// Properties of a kernel that the programs need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kernel {
    /// The number of the tracepoint `sched_switch`.
    pub(crate) switch: Id,
    /// The number of the tracepoint `sched_wakeup`.
    pub(crate) wakeup: Id,
    /// Offset of the thread's id in `struct task_struct`.
    pid: i16,
    /// Source of the previous thread's state at `sched_switch`.
    state: PrevState,
}

/// Place of the previous thread's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PrevState {
    /// The fourth argument (Linux 5.18 and later).
    Argument,
    /// A member of `struct task_struct`, at this place.
    Member(i16),
}

impl Kernel {
    /// Reads the properties from the type information.
    ///
    /// # Errors
    /// The programs do not fit this kernel.
    pub(crate) fn of(btf: &Btf) -> Result<Self, BtfError> {
        let member = |name| {
            let offset = btf.member("task_struct", name)?;
            let missing = || BtfError::Missing(format!("task_struct.{name} that can be loaded"));
            i16::try_from(offset).map_err(|_| missing())
        };
        let (switch, arguments) = btf.tracepoint("sched_switch")?;
        let (wakeup, of_wakeup) = btf.tracepoint("sched_wakeup")?;
        let is_task = |kind: Option<&Kind>| kind == Some(&Kind::Pointer);
        let fits =
            is_task(arguments.get(1)) && is_task(arguments.get(2)) && is_task(of_wakeup.first());
        if !fits {
            let text = "tracepoint sched_switch as it is known";
            return Err(BtfError::Missing(text.to_owned()));
        }
        let state = match arguments.len() {
            4.. => PrevState::Argument,
            _ => PrevState::Member(member("__state").or_else(|_| member("state"))?),
        };
        Ok(Self {
            switch,
            wakeup,
            pid: member("pid")?,
            state,
        })
    }

    /// Assembles the program for `sched_switch`.
    ///
    /// # Errors
    /// None, unless there is a mistake here.
    pub(crate) fn at_switch(
        &self,
        map: BorrowedFd<'_>,
        ring: BorrowedFd<'_>,
    ) -> Result<Vec<Instruction>, AssemblyError> {
        let mut a = Assembler::default();
        let (end, next) = (a.label(), a.label());
        // Until the end: R9 is the context, R7 the id of the next thread.
        a.set(R9, R1);
        a.load(Width::Double, R6, R9, 8)
            .load(Width::Double, R7, R9, 16);
        a.load(Width::Word, R6, R6, self.pid)
            .load(Width::Word, R7, R7, self.pid);
        a.call(CORE);
        a.jump_if(R0, If::More, CORES as i32 - 1, end);
        a.shift_left(R0, CORE_SHIFT as i32);
        a.store(Width::Double, R10, OWN_CORE, R0);
        find(&mut a, map, R6, next);
        self.unfollow_dead(&mut a, map, next);
        now(&mut a);
        self.add_activity(&mut a);
        note(&mut a, map);
        emit_event(&mut a, ring, next);
        a.place(next);
        find(&mut a, map, R7, end);
        now(&mut a);
        a.or(R0, Activity::Running as i32);
        note(&mut a, map);
        a.place(end).set(R0, 0).exit();
        a.finish()
    }

    /// If the previous thread is dead: clears its entry, at R8, and its slot, whose line is R6
    /// bytes behind the first.
    fn unfollow_dead(&self, a: &mut Assembler, map: BorrowedFd<'_>, next: Label) {
        let alive = a.label();
        self.load_state(a);
        a.and(R2, DEAD).jump_if(R2, If::Equal, 0, alive);
        a.store(Width::Word, R8, 0, 0);
        a.map_value(R1, map, VCPUS_AT as u32).add(R1, R6);
        a.store(Width::Double, R1, 0, 0).jump(next);
        a.place(alive);
    }

    /// Loads the state of the previous thread into R2.
    fn load_state(&self, a: &mut Assembler) {
        match self.state {
            PrevState::Argument => a.load(Width::Double, R2, R9, 24),
            PrevState::Member(at) => a
                .load(Width::Double, R2, R9, 8)
                .load(Width::Word, R2, R2, at),
        };
    }

    /// Adds the activity of the previous thread to the word in R0.
    fn add_activity(&self, a: &mut Assembler) {
        let (runnable, done) = (a.label(), a.label());
        a.load(Width::Double, R1, R9, 0)
            .jump_if(R1, If::Other, 0, runnable);
        self.load_state(a);
        a.jump_if(R2, If::Equal, 0, runnable);
        a.or(R0, Activity::Blocked as i32).jump(done);
        a.place(runnable).or(R0, Activity::Runnable as i32);
        a.place(done);
    }

    /// Assembles the program for `sched_wakeup`.
    ///
    /// # Errors
    /// None, unless there is a mistake here.
    pub(crate) fn at_wakeup(&self, map: BorrowedFd<'_>) -> Result<Vec<Instruction>, AssemblyError> {
        let mut a = Assembler::default();
        let end = a.label();
        a.load(Width::Double, R6, R1, 0)
            .load(Width::Word, R7, R6, self.pid);
        find(&mut a, map, R7, end);
        a.map_value(R1, map, VCPUS_AT as u32)
            .add(R1, R6)
            .load(Width::Double, R7, R1, 0);
        a.set(R2, R7).and(R2, HOW as i32);
        a.jump_if(R2, If::Other, Activity::Blocked as i32, end);
        // On the core that it ran on last.
        a.and(R7, (SINCE_BELOW & !HOW) as i32)
            .store(Width::Double, R10, OWN_CORE, R7);
        now(&mut a);
        a.or(R0, Activity::Runnable as i32);
        note(&mut a, map);
        a.place(end).set(R0, 0).exit();
        a.finish()
    }
}

/// Assembles the program for KVM's `kvm_vcpu_wakeup`, which the vCPU's thread passes at the end of
/// each halt, whether it slept or KVM polled in its place. It needs no type information, so that
/// KVM may be a module.
///
/// # Errors
/// None, unless there is a mistake here.
pub(crate) fn at_halt(map: BorrowedFd<'_>) -> Result<Vec<Instruction>, AssemblyError> {
    let mut a = Assembler::default();
    let (end, slept) = (a.label(), a.label());
    let (polled, not_polled) = (a.label(), a.label());
    a.set(R9, R1).call(CURRENT);
    // The lower half.
    a.store(Width::Double, R10, OWN_CORE, R0)
        .load(Width::Word, R7, R10, OWN_CORE);
    find(&mut a, map, R7, end);
    // Until the end: R8 is the line, R7 the length of the halt.
    a.map_value(R8, map, VCPUS_AT as u32)
        .add(R8, R6)
        .load(Width::Double, R2, R8, HALTS_AT as i16)
        .add(R2, 1)
        .store(Width::Double, R8, HALTS_AT as i16, R2);
    a.load(Width::Double, R7, R9, 0)
        .load(Width::Double, R3, R9, 8)
        .jump_if(R3, If::Other, 0, slept)
        .jump_if(R7, If::More, POLLED, polled)
        .jump(not_polled);
    // blocked - (now - length) > POLLED, without subtractions, and with times as in a state's word.
    a.place(slept)
        .call(TIME)
        .add(R0, POLLED)
        .shift_left(R0, SINCE_SHIFT as i32);
    a.load(Width::Double, R2, R8, BLOCKED_AT as i16)
        .and(R2, !(SINCE_BELOW as i32))
        .shift_left(R7, SINCE_SHIFT as i32)
        .add(R2, R7)
        .jump_if(R2, If::More, R0, polled)
        .jump(not_polled);
    let most = (POLLED_MOST - POLLED_ONCE) as i32;
    for (label, change) in [(polled, POLLED_ONCE as i32), (not_polled, -1)] {
        a.place(label).load(Width::Double, R2, R8, POLLED_AT as i16);
        match change {
            1.. => a.jump_if(R2, If::More, most, end),
            _ => a.jump_if(R2, If::Equal, 0, end),
        };
        a.add(R2, change)
            .store(Width::Double, R8, POLLED_AT as i16, R2)
            .jump(end);
    }
    a.place(end).set(R0, 0).exit();
    a.finish()
}

/// Looks up the thread whose id a register holds, and jumps to `missing` if it is not followed.
/// Else R8 points to its entry and R6 is the offset of its slot's line behind the first. R1 and R2
/// are clobbered.
fn find(a: &mut Assembler, map: BorrowedFd<'_>, id: Register, missing: Label) {
    let found = a.label();
    // The idle threads have all the same id, and are on every other side of a switch.
    a.jump_if(id, If::Equal, 0, missing);
    a.map_value(R8, map, TIDS_AT as u32)
        .set(R1, id)
        .and(R1, BUCKETS as i32 - 1);
    a.shift_left(R1, (WAYS * ENTRY).ilog2() as i32).add(R8, R1);
    for way in 1..=WAYS {
        a.load(Width::Word, R2, R8, 0);
        if way < WAYS {
            a.jump_if(R2, If::Equal, id, found).add(R8, ENTRY as i32);
        } else {
            a.jump_if(R2, If::Other, id, missing);
        }
    }
    a.place(found).load(Width::Word, R6, R8, 4);
    a.jump_if(R6, If::More, SLOTS as i32 - 1, missing);
    a.shift_left(R6, LINE.ilog2() as i32);
}

/// Sets R0 to the time and the core, as in a state's word. R1 to R5 are clobbered.
fn now(a: &mut Assembler) {
    a.call(TIME).shift_left(R0, SINCE_SHIFT as i32);
    a.and(R0, !(SINCE_BELOW as i32))
        .load(Width::Double, R1, R10, OWN_CORE)
        .or(R0, R1);
}

/// Keeps the state in R0, just stored in the line that R1 points to, if it is that of a blocked
/// thread, and emits a record if that has a subscription, which is cleared. Else jumps to `next`.
/// R1 to R5 are clobbered.
fn emit_event(a: &mut Assembler, ring: BorrowedFd<'_>, next: Label) {
    a.set(R2, R0)
        .and(R2, HOW as i32)
        .jump_if(R2, If::Other, Activity::Blocked as i32, next);
    a.store(Width::Double, R1, BLOCKED_AT as i16, R0);
    // Adds nothing, but on x86-64 it is a full barrier: the state is stored before the subscription
    // is loaded.
    a.set(R2, 0).add_shared(R1, SUBSCRIPTION_AT as i16, R2);
    a.load(Width::Double, R2, R1, SUBSCRIPTION_AT as i16)
        .jump_if(R2, If::Equal, 0, next);
    a.store(Width::Double, R1, SUBSCRIPTION_AT as i16, 0);
    // A record of eight bytes of any value.
    a.map(R1, ring).set(R2, R10).add(R2, i32::from(OWN_CORE));
    a.set(R3, 8).set(R4, WAKE_UP).call(RING_OUTPUT);
}

/// Stores the word in R0 in the line that is R6 bytes behind the first.
fn note(a: &mut Assembler, map: BorrowedFd<'_>) {
    a.map_value(R1, map, VCPUS_AT as u32)
        .add(R1, R6)
        .store(Width::Double, R1, 0, R0);
}

const _: () = assert!(LINE.is_power_of_two() && (WAYS * ENTRY).is_power_of_two());
