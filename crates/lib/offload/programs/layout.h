/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Numbers of src/layout.rs and src/connections.rs, where they are explained; a test compares them. */

#define SEED_AT 16
#define ACTIVE_AT 24
#define SAMPLING_SHIFT 32
#define LEASE_AT 64
#define MASKS_AT 256
#define MASKS 8
#define MASK_GENERATIONS_AT 768
#define WANTED_AT 1024
#define DESTINATIONS_LOG2 10
#define SLOTS_AT 4096
#define WAYS 4
#define SETS 1024
#define SLOT 256
#define KEY 64
#define SIZE 1089536
#define ENTRY_AT 8
#define KEY_AT 64
#define COUNTS_AT 128
#define CPUS 8
#define CURSORS_AT 1052672
#define CURSOR 64
#define SAMPLES_AT 1056768
#define SAMPLES 64
#define DROP 1ull
#define DROP_NEW 2ull
#define CONNECTION_SEED_AT 8
#define CONNECTION_GENERATION_AT 64
#define CONNECTION_COUNTERS_AT 4096
#define CONNECTION_COUNTERS 2097152
#define CONNECTION_SIZE 2101248
#define FACTOR 0x9e3779b97f4a7c15ull
#define VLAN_PRESENT 0x1000ull
