// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Scheduling states of vCPUs: a program at each context switch, one at each wake-up, one at each
// halt of a vCPU of KVM. They store the states in the memory of src/layout.rs.
//
// `make bpf` compiles this with clang 14 of Debian 12; the object is committed beside it. The
// verifier checks that no contents of the memory lead out of bounds.
//
// Cost. Every context switch of the host pays for this, so threads that are not followed must cost
// next to nothing: a thread is looked up by its id in the memory, with two loads and two
// comparisons, and nothing is stored. Core and time are read for followed threads only. A test
// counts the instructions.
//
// Order. A line has one writer at a time, because events of a thread happen under the lock of its
// core's run queue. Its fields are volatile, so that the compiler keeps the order of their accesses.

#include "bpf.h"
#include "layout.h"

/* TASK_DEAD of linux/sched.h. */
#define TASK_DEAD 0x80

/*
 * Nanoseconds from a halt to its end, or to the sleep, above which KVM has polled: an interrupt that
 * is there already ends a halt sooner.
 */
#define POLLED_NS 5000

/* Offset of the thread's id in struct task_struct. */
CONSTANT(pid_at);
/*
 * Offset of the thread's state in struct task_struct, where sched_switch has no argument with it
 * (before Linux 5.18). Else 0.
 */
CONSTANT(state_at);

/* The state of a followed thread, its subscription, its halts. */
struct line {
	volatile u64 state;
	volatile u64 subscription;
	volatile u64 halts;
	volatile u64 polled;
	volatile u64 blocked;
	u64 unused[3];
};

/* A followed thread; its id is 0 in a free entry. */
struct entry {
	volatile u32 thread;
	volatile u32 slot;
};

/* Memory of lasthop-vcpus, in a map of one value. */
struct states {
	u8 header[VCPUS_AT];
	struct line lines[SLOTS];
	struct entry buckets[BUCKETS][WAYS];
};
struct states states SECTION(".bss.states");

/* Its records wake the threads that wait for block events, and have no content. */
struct bpf_map_def ring SECTION("maps") = {
	.type = BPF_MAP_TYPE_RINGBUF,
};

#define IS_AT(type, field, at) \
	_Static_assert(__builtin_offsetof(struct type, field) == (at), #field)
IS_AT(line, subscription, SUBSCRIPTION_AT);
IS_AT(line, halts, HALTS_AT);
IS_AT(line, polled, POLLED_AT);
IS_AT(line, blocked, BLOCKED_AT);
IS_AT(states, lines, VCPUS_AT);
IS_AT(states, buckets, TIDS_AT);
_Static_assert(sizeof(struct line) == LINE && sizeof(struct entry) == ENTRY, "sizes of parts");
_Static_assert(sizeof(struct states) == SIZE && WAYS == 2, "size of all");

/* Returns the id of a thread by the address of its struct task_struct. */
static inline u64 id_of(u64 task)
{
	return *(const volatile u32 *)(task + (u64)pid_at);
}

/* Returns the entry of a thread, or 0 if it is not followed. */
static inline struct entry *find(u64 thread)
{
	struct entry *entry = states.buckets[thread & (BUCKETS - 1)];

	/* The idle threads have all the same id, and are on every other side of a switch. */
	if (!thread)
		return 0;
	/* The compiler would calculate the address for each load anew. */
	KEEP(entry);
	if (unlikely(entry->thread == thread))
		return entry;
	entry++;
	KEEP(entry);
	if (unlikely(entry->thread == thread))
		return entry;
	return 0;
}

/* Returns a state's word that begins now. */
static inline u64 since_now(u64 core, u64 how)
{
	return ((ktime_get_ns() << SINCE_SHIFT) & ~SINCE_BELOW) | core << CORE_SHIFT | how;
}

/*
 * A thread blocks: stores its state, and then emits a record if it has a subscription, which is
 * cleared.
 */
static inline void block(struct line *line, u64 core)
{
	u64 state = since_now(core, BLOCKED), record = 0;

	line->state = state;
	line->blocked = state;
	/* The state is stored before the subscription is loaded: see src/block_events.rs. */
	full_barrier(&line->subscription);
	if (!line->subscription)
		return;
	line->subscription = 0;
	ringbuf_output(&ring, &record, sizeof(record), BPF_RB_FORCE_WAKEUP);
}

/* A followed thread leaves this core. It is dead and not followed any more, runnable, or blocked. */
static inline void leave(struct entry *entry, u64 preempted, u64 state)
{
	u64 slot = entry->slot, core = get_smp_processor_id();

	if (slot >= SLOTS || core >= CORES)
		return;
	if (state & TASK_DEAD) {
		entry->thread = 0;
		states.lines[slot].state = 0;
	} else if (preempted || !state) {
		states.lines[slot].state = since_now(core, RUNNABLE);
	} else {
		block(&states.lines[slot], core);
	}
}

/* A followed thread runs on this core. */
static inline void run(const struct entry *entry)
{
	u64 slot = entry->slot, core = get_smp_processor_id();

	if (slot < SLOTS && core < CORES)
		states.lines[slot].state = since_now(core, RUNNING);
}

/* Returns the state of the thread that leaves a core, with the arguments of sched_switch. */
static inline u64 state_of_previous(const u64 *arguments)
{
	if (state_at)
		return *(const volatile u32 *)(arguments[1] + (u64)state_at);
	return arguments[3];
}

/* sched_switch(preempt, prev, next, prev_state), with the lock of this core's run queue. */
SECTION("tp_btf/sched_switch")
int at_switch(const u64 *arguments)
{
	struct entry *entry = find(id_of(arguments[1]));

	if (entry)
		leave(entry, arguments[0], state_of_previous(arguments));
	entry = find(id_of(arguments[2]));
	if (entry)
		run(entry);
	return 0;
}

/* sched_wakeup(task): a thread that was blocked is runnable, on the core that it ran on last. */
SECTION("tp_btf/sched_wakeup")
int at_wakeup(const u64 *arguments)
{
	struct entry *entry = find(id_of(arguments[0]));
	u64 slot, state;

	if (!entry)
		return 0;
	slot = entry->slot;
	if (slot >= SLOTS)
		return 0;
	state = states.lines[slot].state;
	if ((state & HOW) == BLOCKED)
		states.lines[slot].state =
			since_now((state & SINCE_BELOW) >> CORE_SHIFT, RUNNABLE);
	return 0;
}

/*
 * Returns whether KVM has polled in the place of a vCPU that has halted for so long: it did not
 * sleep meanwhile, or blocked later than it halted.
 */
static inline int has_polled(const struct line *line, u64 length, u64 slept)
{
	if (!slept)
		return length > POLLED_NS;
	/* blocked - (now - length) > POLLED_NS without subtractions, with times as in a state's word. */
	return (line->blocked & ~SINCE_BELOW) + (length << SINCE_SHIFT) >
	       (ktime_get_ns() + POLLED_NS) << SINCE_SHIFT;
}

/*
 * kvm_vcpu_wakeup(ns, waited) of KVM, which the vCPU's thread passes at the end of each halt of so
 * many nanoseconds, whether it slept or KVM polled in its place. It needs no type information, so
 * that KVM may be a module.
 */
SECTION("raw_tp/kvm_vcpu_wakeup")
int at_halt(const u64 *arguments)
{
	struct entry *entry = find((u32)get_current_pid_tgid());
	struct line *line;
	u64 slot, score;

	if (!entry)
		return 0;
	slot = entry->slot;
	if (slot >= SLOTS)
		return 0;
	line = &states.lines[slot];
	line->halts = line->halts + 1;
	if (has_polled(line, arguments[0], arguments[1])) {
		score = line->polled;
		if (score <= POLLED_MOST - POLLED_ONCE)
			line->polled = score + POLLED_ONCE;
	} else {
		score = line->polled;
		if (score)
			line->polled = score - 1;
	}
	return 0;
}

char program_license[] SECTION("license") = "Dual MIT/GPL";
