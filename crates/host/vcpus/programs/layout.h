/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Numbers of src/layout.rs, where they are explained; a test compares them. */

#define CORES 1024
#define SLOTS 4096
#define BUCKETS 16384
#define WAYS 2
#define LINE 64
#define ENTRY 8
#define VCPUS_AT 4096
#define SUBSCRIPTION_AT 8
#define HALTS_AT 16
#define POLLED_AT 24
#define BLOCKED_AT 32
#define TIDS_AT 266240
#define SIZE 528384
#define POLLED_ONCE 32
#define POLLED_MOST 1024
#define CORE_SHIFT 2
#define SINCE_SHIFT 6
#define SINCE_BELOW 0x3fffull
#define HOW 3ull
#define RUNNING 1
#define RUNNABLE 2
#define BLOCKED 3

/* Numbers of src/vcpus/tracepoints.rs. */

#define ARMED_AT 64
#define SEEN_AT 128
#define SEEN 8192
#define SEEN_SIZE 69632
