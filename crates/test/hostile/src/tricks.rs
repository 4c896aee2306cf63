//! The table of tricks.

use std::fmt;

use super::arena::Arena;

mod memory;
mod messages;
mod queues;
mod rings;
mod sockets;

/// One trick.
pub struct Trick {
    /// Its name on the command line.
    pub name: &'static str,
    /// The record that it repeats, or what it is about.
    pub source: &'static str,
    pub(super) run: fn(&Arena<'_>),
}

impl fmt::Debug for Trick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const fn trick(name: &'static str, source: &'static str, run: fn(&Arena<'_>)) -> Trick {
    Trick { name, source, run }
}

/// All tricks, in the order in which they run.
pub const TRICKS: &[Trick] = &[
    trick(
        "hugetlb-odd-2m",
        "firecracker#6043: huge pages, empty pool",
        memory::hugetlb_2m,
    ),
    trick(
        "hugetlb-odd-1g",
        "the same with pages of 1 GiB",
        memory::hugetlb_1g,
    ),
    trick(
        "hugetlb-loop",
        "mappings of huge pages that munmap refuses",
        memory::hugetlb_loop,
    ),
    trick(
        "log-sparse",
        "dirty logs of terabytes: address space",
        memory::log_sparse,
    ),
    trick(
        "table-refused",
        "memory tables that are refused late",
        memory::table_refused,
    ),
    trick(
        "regions-loop",
        "ADD_MEM_REG and REM_MEM_REG again and again",
        memory::regions_loop,
    ),
    trick(
        "regions-many",
        "all slots of all ports",
        memory::regions_many,
    ),
    trick(
        "regions-one-byte",
        "pieces of one byte in indirect chains",
        memory::one_byte,
    ),
    trick(
        "regions-any-file",
        "memory tables of every kind of descriptor",
        memory::any_file,
    ),
    trick(
        "memory-sparse",
        "pages that the back end is the first to touch",
        memory::sparse,
    ),
    trick(
        "memory-punched",
        "holes in memory under traffic",
        memory::punched,
    ),
    trick(
        "memory-truncated",
        "CVE-2026-86567's kind: memory that ends under traffic",
        memory::truncated,
    ),
    trick(
        "log-truncated",
        "a dirty log that ends under traffic",
        memory::log_truncated,
    ),
    trick(
        "kick-blocked-call",
        "SET_VRING_KICK in a loop, call descriptor blocks",
        queues::kick_loop,
    ),
    trick(
        "base-blocked-call",
        "SET_VRING_BASE likewise",
        queues::base_loop,
    ),
    trick(
        "num-blocked-call",
        "SET_VRING_NUM likewise",
        queues::num_loop,
    ),
    trick(
        "call-blocked",
        "a call descriptor that blocks under traffic",
        queues::call_blocks,
    ),
    trick(
        "err-blocked",
        "an err descriptor that blocks, and faults",
        queues::err_blocks,
    ),
    trick(
        "queues-restarted",
        "GET_VRING_BASE and start in a loop",
        queues::restarts,
    ),
    trick(
        "queues-toggled",
        "SET_VRING_ENABLE and features in a loop",
        queues::toggles,
    ),
    trick(
        "kick-always-ready",
        "kick descriptors that are always readable",
        queues::ready_kicks,
    ),
    trick(
        "kick-spin",
        "millions of kicks for nothing",
        queues::kick_spin,
    ),
    trick(
        "connect-flood",
        "connections that come and go",
        sockets::connect_flood,
    ),
    trick(
        "connect-second",
        "second connections to a port in use",
        sockets::second,
    ),
    trick(
        "half-messages",
        "messages that never end, with descriptors",
        sockets::half,
    ),
    trick(
        "dripped-messages",
        "messages byte by byte",
        sockets::dripped,
    ),
    trick(
        "answers-unread",
        "replies that are never read",
        sockets::unread,
    ),
    trick(
        "messages-random",
        "random bytes with random descriptors",
        messages::random,
    ),
    trick(
        "messages-shaped",
        "messages of right shape with random content",
        messages::shaped,
    ),
    trick(
        "messages-any-file",
        "every request with every kind of descriptor",
        messages::any_file,
    ),
    trick("rarp-flood", "SEND_RARP without end", messages::rarp_flood),
    trick(
        "inflight",
        "CVE-2020-10726's kind: in-flight files in a loop",
        messages::inflight,
    ),
    trick(
        "backend-channel",
        "back-end channels that are full or no sockets",
        messages::backend_channel,
    ),
    trick(
        "log-lines",
        "faults and connections that are worth a log line",
        messages::log_lines,
    ),
    trick(
        "rings-rewritten",
        "split rings rewritten while they run",
        rings::rewritten_split,
    ),
    trick(
        "rings-rewritten-packed",
        "packed rings rewritten while they run",
        rings::rewritten_packed,
    ),
    trick(
        "chains",
        "chains in circles, tables in tables",
        rings::chains,
    ),
    trick(
        "frames-random",
        "random frames with random headers",
        rings::random_frames,
    ),
    trick(
        "segments",
        "super-frames of 47-byte segments to receivers without offloads",
        rings::segments,
    ),
    trick("flood", "broadcasts as fast as they go", rings::flood),
];
