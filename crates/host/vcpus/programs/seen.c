// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Threads that enter a guest of KVM, which are vCPUs: each stores its ids in an entry of the memory
// of src/vcpus/tracepoints.rs, at three tracepoints of KVM. While the program is disarmed, it costs
// a load and a branch.
//
// `make bpf` compiles this with clang 14 of Debian 12; the object is committed beside it.

#include "bpf.h"
#include "layout.h"

/* Memory of the search, in a map of one value. */
struct seen {
	u8 header[ARMED_AT];
	volatile u32 armed;
	u8 unused[SEEN_AT - ARMED_AT - 4];
	/* Process id in the upper half, thread id in the lower. */
	volatile u64 threads[SEEN];
	u8 rest[SEEN_SIZE - SEEN_AT - SEEN * 8];
};
struct seen seen SECTION(".bss.seen");

_Static_assert(__builtin_offsetof(struct seen, armed) == ARMED_AT, "armed");
_Static_assert(__builtin_offsetof(struct seen, threads) == SEEN_AT, "threads");
_Static_assert(sizeof(struct seen) == SEEN_SIZE, "size of all");

SECTION("raw_tp/kvm")
int at_entry(void)
{
	u64 ids;

	if (!seen.armed)
		return 0;
	ids = get_current_pid_tgid();
	seen.threads[ids & (SEEN - 1)] = ids;
	return 0;
}

char program_license[] SECTION("license") = "Dual MIT/GPL";
