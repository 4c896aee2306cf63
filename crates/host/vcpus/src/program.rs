//! The BPF programs: one at each context switch, one at each wake-up, one at each halt of a vCPU of
//! KVM (`programs/states.c`).
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
//! see [`crate::layout`]), and nothing is stored. Time and core are read for vCPUs only.

use std::os::fd::BorrowedFd;

use bpf::Instruction;
use bpf::btf::{Btf, BtfError, Id, Kind};
use bpf::object::{self, ObjectError};

/// The object with the programs.
const OBJECT: &[u8] = include_bytes!("../programs/states.o");
/// Its section with the memory of states, and its ring buffer.
const STATES: &str = ".bss.states";
const RING: &str = "ring";

/// Properties of a kernel that the programs need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kernel {
    /// The number of the tracepoint `sched_switch`.
    pub(crate) switch: Id,
    /// The number of the tracepoint `sched_wakeup`.
    pub(crate) wakeup: Id,
    /// Offset of the thread's id in `struct task_struct`.
    pid: u32,
    /// Offset of the previous thread's state in it. `None`: the state is an argument of
    /// `sched_switch` (Linux 5.18 and later).
    state: Option<u32>,
}

impl Kernel {
    /// Reads the properties from the type information.
    ///
    /// # Errors
    /// The programs do not fit this kernel.
    pub(crate) fn of(btf: &Btf) -> Result<Self, BtfError> {
        let member = |name| btf.member("task_struct", name);
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
            4.. => None,
            _ => Some(member("__state").or_else(|_| member("state"))?),
        };
        Ok(Self {
            switch,
            wakeup,
            pid: member("pid")?,
            state,
        })
    }

    /// Returns the program for `sched_switch`.
    ///
    /// # Errors
    /// None, unless there is a mistake in the object.
    pub(crate) fn at_switch(
        &self,
        map: BorrowedFd<'_>,
        ring: BorrowedFd<'_>,
    ) -> Result<Vec<Instruction>, ObjectError> {
        let maps = [(STATES, map), (RING, ring)];
        object::with_numbers(OBJECT, "at_switch", &maps, &self.numbers())
    }

    /// Returns the program for `sched_wakeup`.
    ///
    /// # Errors
    /// None, unless there is a mistake in the object.
    pub(crate) fn at_wakeup(&self, map: BorrowedFd<'_>) -> Result<Vec<Instruction>, ObjectError> {
        object::with_numbers(OBJECT, "at_wakeup", &[(STATES, map)], &self.numbers())
    }

    /// Returns the numbers that the programs need.
    fn numbers(&self) -> [(&str, u64); 2] {
        let state = self.state.unwrap_or(0);
        [("pid_at", self.pid.into()), ("state_at", state.into())]
    }
}

/// Returns the program for KVM's `kvm_vcpu_wakeup`.
///
/// # Errors
/// None, unless there is a mistake in the object.
pub(crate) fn at_halt(map: BorrowedFd<'_>) -> Result<Vec<Instruction>, ObjectError> {
    object::program(OBJECT, "at_halt", &[(STATES, map)])
}

#[cfg(test)]
mod tests;
