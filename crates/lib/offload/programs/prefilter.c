// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The prefilter: ends frames that meet an entry of the table, before the switch sees them. Two
// programs with one text: `xdp`, in front of the redirect to the AF_XDP sockets of an interface, and
// `socket`, for packet sockets.
//
// `make bpf` compiles this with clang 14 of Debian 12; the object is committed beside it. The
// verifier checks that no contents of the table and no frame lead out of bounds.
//
// Only plain frames can meet an entry: at most one 802.1Q tag, IPv4 without options or IPv6 without
// extension headers, no fragment, lengths that fit, a whole TCP, UDP or ICMP header. For these the
// key is that of `wire::FlowKey::new` without ingress port; all others pass.

#include "bpf.h"
#include "layout.h"

#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define ICMP 1
#define TCP 6
#define UDP 17
#define ICMPV6 58

#define ETHERNET_LEN 14
#define TAG_LEN 4
#define IPV4_LEN 20
#define IPV6_LEN 40
#define TCP_LEN 20
#define UDP_LEN 8
#define ICMP_LEN 8

/* All bytes of the frame, for the receiver of a socket. */
#define PASS -1

/* Table of lasthop-offload, in a map of one value. */
struct table {
	u8 bytes[SIZE];
};
struct table table SECTION(".bss.table");

/* Filter of connections, in another map, which all tables share and the switch writes. */
struct connections {
	u8 bytes[CONNECTION_SIZE];
};
struct connections connections SECTION(".bss.connections");

/* Sockets by receive queue, for the program of interfaces with AF_XDP. */
struct bpf_map_def sockets SECTION("maps") = {
	.type = BPF_MAP_TYPE_XSKMAP,
	.key_size = 4,
	.value_size = 4,
	.max_entries = 1,
};

struct key {
	u64 words[8];
};

static inline u64 load(u64 at)
{
	return *(const volatile u64 *)(table.bytes + at);
}

static inline void store(u64 at, u64 value)
{
	*(volatile u64 *)(table.bytes + at) = value;
}

static inline u64 be16(const u8 *bytes)
{
	return (u64)bytes[0] << 8 | bytes[1];
}

static inline u64 be32(const u8 *bytes)
{
	return be16(bytes) << 16 | be16(bytes + 2);
}

static inline u64 be48(const u8 *bytes)
{
	return be16(bytes) << 32 | be32(bytes + 2);
}

static inline u64 be64(const u8 *bytes)
{
	return be32(bytes) << 32 | be32(bytes + 4);
}

/* Returns the masks of entries for a destination. */
static inline u64 wanted(u64 vlan, u64 destination)
{
	u64 place = ((destination | vlan << 48) * FACTOR) >> (64 - DESTINATIONS_LOG2);

	return *(const volatile u8 *)(table.bytes + WANTED_AT + place);
}

/*
 * Returns a number below a power of two. The compiler knows the bounds of most numbers, and leaves
 * such a step out; the verifiers of some kernels (Linux 6.1) do not know them.
 */
static inline u64 bounded(u64 number, u64 end)
{
	asm volatile("" : "+r"(number));
	return number & (end - 1);
}

static inline u64 mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * FACTOR;
	return hash ^ hash >> 32;
}

static inline u64 hash_end(u64 seed, u64 low, u64 high, u64 port)
{
	return mix(mix(mix(seed, low), high), port);
}

static inline u64 load_of_connections(u64 at)
{
	return *(const volatile u64 *)(connections.bytes + at);
}

/* Returns whether a frame of this key may be of a connection that the switch knows. */
static inline int may_be_known(const struct key *key)
{
	u64 generation = load_of_connections(CONNECTION_GENERATION_AT), seed, hash, count;

	if (!generation)
		return 1;
	seed = load_of_connections(CONNECTION_SEED_AT);
	/* Both directions have one hash. Messages of ICMP have no ports. */
	hash = hash_end(seed, key->words[4], key->words[5], key->words[3] & 0xffff) +
	       hash_end(seed, key->words[6], key->words[7], key->words[3] >> 16 & 0xffff);
	hash = mix(hash, key->words[1] >> 48 & 0xff);
	count = *(const volatile u8 *)(connections.bytes + CONNECTION_COUNTERS_AT +
				       (hash & (CONNECTION_COUNTERS - 1)));
	/* The order of loads: see below. */
	return count || load_of_connections(CONNECTION_GENERATION_AT) != generation;
}

/*
 * Returns the offset of the slot with the entry for a key by one mask, or 0. It is one more if the
 * entry is for frames of no known connection.
 */
static inline u64 look_up_with(const struct key *key, u64 mask, u64 seed)
{
	u64 mask_generation = load(MASK_GENERATIONS_AT + 8 * mask);
	u64 hash = seed, set;
	struct key masked;
	int word, way;

	if (!mask_generation)
		return 0;
	for (word = 0; word < 8; word++) {
		masked.words[word] = key->words[word] & load(MASKS_AT + KEY * mask + 8 * word);
		hash = (hash ^ masked.words[word]) * FACTOR;
		hash ^= hash >> 32;
	}
	set = SLOTS_AT + (hash & (SETS - 1)) * (WAYS * SLOT);
	for (way = 0; way < WAYS; way++) {
		u64 slot = set + way * SLOT;
		u64 generation = load(slot);
		u64 entry = load(slot + ENTRY_AT);
		u64 action = entry >> 8 & 0xff, differs = 0;

		if (!generation || (entry ^ action << 8) != (mask | hash >> 32 << 32) ||
		    (action != DROP && action != DROP_NEW))
			continue;
		for (word = 0; word < 8; word++)
			differs |= load(slot + KEY_AT + 8 * word) ^ masked.words[word];
		/* x86-64 keeps the order of loads, and the compiler that of volatile ones. */
		if (differs || load(slot) != generation ||
		    load(MASK_GENERATIONS_AT + 8 * mask) != mask_generation)
			continue;
		return slot | (action == DROP_NEW);
	}
	return 0;
}

/* Returns whether a frame of this key and length meets an entry, and counts it then. */
static inline int meets(const struct key *key, u64 masks, u64 bytes)
{
	u64 seed = load(SEED_AT), slot = 0, counts;
	int mask, of_tracked;

#pragma clang loop unroll(disable)
	for (mask = 0; mask < MASKS; mask++) {
		if (!(masks >> mask & 1))
			continue;
		slot = look_up_with(key, mask, seed);
		if (slot)
			break;
	}
	of_tracked = slot & 1;
	slot &= ~1ull;
	if (!slot || slot > SIZE - SLOT || ktime_get_coarse_ns() >= load(LEASE_AT))
		return 0;
	if (of_tracked && may_be_known(key))
		return 0;
	counts = slot + COUNTS_AT + 16 * (get_smp_processor_id() & (CPUS - 1));
	__sync_fetch_and_add((u64 *)(table.bytes + counts), 1);
	__sync_fetch_and_add((u64 *)(table.bytes + counts + 8), bytes);
	return 1;
}

/*
 * Stores the key of every so many frames without an entry. CPUs that share a place may mix their
 * keys: the reader decides about each as about a frame of unknown origin.
 */
static inline void sample(const struct key *key, u64 shift)
{
	u64 cpu = get_smp_processor_id() & (CPUS - 1);
	u64 count = load(CURSORS_AT + CURSOR * cpu) + 1, place;
	int word;

	store(CURSORS_AT + CURSOR * cpu, count);
	if (count & ((1ull << (shift & 31)) - 1))
		return;
	place = SAMPLES * cpu + (count >> (shift & 31) & (SAMPLES - 1));
	place = SAMPLES_AT + KEY * bounded(place, SAMPLES * CPUS);
	for (word = 0; word < 8; word++)
		store(place + 8 * word, key->words[word]);
}

/* A frame: where it is, and what is known of it. */
struct frame {
	void *context;
	/* It is that of an XDP program, not of a socket. */
	int is_xdp;
	/* Bytes in memory, where a tag may be missing, and bytes with it. */
	u64 length;
	u64 counted;
	/* The tag as in a key, the type behind it, the end of the Ethernet header in memory. */
	u64 vlan;
	u64 type;
	u64 at;
	u8 ethernet[ETHERNET_LEN];
};

/*
 * Reads bytes of a frame; returns whether they are not there. XDP programs read memory themselves;
 * those of sockets cannot, as a frame may be in pieces.
 */
static inline int read(const struct frame *frame, u64 at, u8 *to, u64 len)
{
	const struct xdp_md *xdp = frame->context;
	const u8 *start;

	if (!frame->is_xdp)
		return skb_load_bytes_relative(frame->context, at, to, len, HDR_START_MAC) != 0;
	start = (const u8 *)(long)xdp->data + at;
	if (start + len > (const u8 *)(long)xdp->data_end)
		return 1;
	__builtin_memcpy(to, start, len);
	return 0;
}

/* Reads a tag that is in the frame; returns whether it is not there. */
static inline int read_tag(struct frame *frame)
{
	u8 tag[TAG_LEN];

	if (read(frame, ETHERNET_LEN, tag, TAG_LEN))
		return 1;
	frame->vlan = VLAN_PRESENT | (be16(tag) & 0xfff);
	frame->type = be16(tag + 2);
	frame->at += TAG_LEN;
	return 0;
}

/* Reads an IP header; returns the bytes behind it in the datagram, or 0. */
static inline u64 read_network(const struct frame *frame, struct key *key, u64 *header)
{
	u64 total, protocol, tos;
	u8 ip[IPV6_LEN];

	if (frame->type == ETHERTYPE_IPV4) {
		if (read(frame, frame->at, ip, IPV4_LEN) || ip[0] != 0x45 || be16(ip + 6) & 0x3fff)
			return 0;
		total = be16(ip + 2);
		protocol = ip[9];
		tos = ip[1];
		*header = IPV4_LEN;
		key->words[4] = be32(ip + 12);
		key->words[6] = be32(ip + 16);
	} else if (frame->type == ETHERTYPE_IPV6) {
		if (read(frame, frame->at, ip, IPV6_LEN) || ip[0] >> 4 != 6)
			return 0;
		total = be16(ip + 4) + IPV6_LEN;
		protocol = ip[6];
		tos = be16(ip) >> 4 & 0xff;
		*header = IPV6_LEN;
		key->words[4] = be64(ip + 16);
		key->words[5] = be64(ip + 8);
		key->words[6] = be64(ip + 32);
		key->words[7] = be64(ip + 24);
	} else {
		return 0;
	}
	if (total < *header || frame->at + total > frame->length)
		return 0;
	key->words[1] |= protocol << 48 | tos << 56;
	return total - *header;
}

/* Reads the header behind IP, of so many bytes; returns whether it is none that is known, whole. */
static inline int read_transport(const struct frame *frame, struct key *key, u64 at, u64 bytes)
{
	u64 protocol = key->words[1] >> 48 & 0xff;
	u8 header[TCP_LEN];

	if (protocol == TCP) {
		if (bytes < TCP_LEN || read(frame, at, header, TCP_LEN))
			return 1;
		if (header[12] >> 4 < 5 || bytes < (header[12] >> 4) * 4ull)
			return 1;
		key->words[2] |= (be16(header + 12) & 0xfff) << 48;
	} else if (protocol == UDP) {
		if (bytes < UDP_LEN || read(frame, at, header, UDP_LEN))
			return 1;
	} else if (protocol == (frame->type == ETHERTYPE_IPV4 ? ICMP : ICMPV6)) {
		if (bytes < ICMP_LEN || read(frame, at, header, ICMP_LEN))
			return 1;
		key->words[2] |= be16(header) << 48;
		return 0;
	} else {
		return 1;
	}
	key->words[3] = be16(header) | be16(header + 2) << 16;
	return 0;
}

/*
 * Returns whether a frame whose Ethernet header is read meets an entry. `active`: the word of the
 * table of that name, which is not zero.
 */
static inline int ends(const struct frame *frame, u64 active)
{
	u64 destination = be48(frame->ethernet), bytes, header = 0;
	u64 masks = wanted(frame->vlan, destination);
	struct key key = {};

	if (!masks && !(active >> SAMPLING_SHIFT))
		return 0;
	key.words[0] = frame->vlan << 32 | frame->type << 48;
	key.words[1] = destination;
	key.words[2] = be48(frame->ethernet + 6);
	bytes = read_network(frame, &key, &header);
	if (!bytes || read_transport(frame, &key, frame->at + header, bytes))
		return 0;
	if (meets(&key, masks, frame->counted))
		return 1;
	if (active >> SAMPLING_SHIFT)
		sample(&key, (active >> SAMPLING_SHIFT) - 1);
	return 0;
}

SECTION("xdp")
int prefilter_xdp(struct xdp_md *context)
{
	u64 length = context->data_end - context->data, active = load(ACTIVE_AT);
	struct frame frame = {
		.context = context,
		.is_xdp = 1,
		.length = length,
		.counted = length,
		.at = ETHERNET_LEN,
	};

	if (!active || read(&frame, 0, frame.ethernet, ETHERNET_LEN))
		goto passes;
	frame.type = be16(frame.ethernet + 12);
	if (frame.type == ETHERTYPE_VLAN && read_tag(&frame))
		goto passes;
	if (ends(&frame, active))
		return XDP_DROP;
passes:
	return redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

SECTION("socket")
int prefilter_socket(struct __sk_buff *context)
{
	u64 active = load(ACTIVE_AT);
	struct frame frame = {
		.context = context,
		.length = context->len,
		.counted = context->len,
		.at = ETHERNET_LEN,
	};

	if (!active || read(&frame, 0, frame.ethernet, ETHERNET_LEN))
		return PASS;
	frame.type = be16(frame.ethernet + 12);
	if (context->vlan_present) {
		/* Receivers get this tag beside the frame. Its type is in network byte order. */
		if (context->vlan_proto != 0x0081)
			return PASS;
		frame.vlan = VLAN_PRESENT | (context->vlan_tci & 0xfff);
		frame.counted += TAG_LEN;
	} else if (frame.type == ETHERTYPE_VLAN && read_tag(&frame)) {
		return PASS;
	}
	return ends(&frame, active) ? 0 : PASS;
}

char program_license[] SECTION("license") = "Dual MIT/GPL";
