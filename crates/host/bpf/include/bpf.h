/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel's side of BPF programs, as far as these use it (linux/bpf.h, whose layouts and numbers
 * are stable). It is here so that the objects do not depend on the headers of a machine.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define inline inline __attribute__((always_inline))
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/*
 * A number that is known when the program is loaded. Its value is the address of a symbol that no
 * file defines: the loader puts the number in its place, so that the verifier sees a constant.
 * Without the second attribute, the compiler would know that it is not zero.
 */
#define CONSTANT(name) extern const char name[] __attribute__((weak))

/* Has the compiler calculate a value here, and know nothing about it from here on. */
#define KEEP(value) asm volatile("" : "+r"(value))

#define BPF_MAP_TYPE_XSKMAP 17
#define BPF_MAP_TYPE_RINGBUF 27

/* Of the helper ringbuf_output: wakes the threads that wait for records. */
#define BPF_RB_FORCE_WAKEUP 2

#define XDP_DROP 1
#define XDP_PASS 2

/* Of the helper skb_load_bytes_relative: from the Ethernet header on. */
#define HDR_START_MAC 0

struct bpf_map_def {
	u32 type;
	u32 key_size;
	u32 value_size;
	u32 max_entries;
	u32 map_flags;
};

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
};

static u64 (*const ktime_get_ns)(void) = (void *)5;
static u32 (*const get_smp_processor_id)(void) = (void *)8;
static u64 (*const get_current_pid_tgid)(void) = (void *)14;
static long (*const redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*const skb_load_bytes_relative)(const void *context, u32 at, void *to, u32 len,
					     u32 from) = (void *)68;
static long (*const ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static u64 (*const ktime_get_coarse_ns)(void) = (void *)160;

/*
 * Stores before it come before loads after it, on x86-64: an atomic operation is a full barrier
 * there. It adds nothing to the memory. The compiler would make another operation of it, which is
 * not known before Linux 5.12.
 */
static inline void full_barrier(volatile u64 *memory)
{
	asm volatile("lock *(u64 *)(%0 + 0) += %1" : : "r"(memory), "r"(0ull) : "memory");
}
