//! Workers and ports of the switch in this process, with guests at their queues. A module is a file
//! of tests: `cargo test -p lasthop-datapath --test switch garbage`.
//!
//! | a program of its own | because |
//! |---|---|
//! | `allocations` | it has an allocator that counts |
//! | `culprit` | its children end by signals |
//! | `process` | the switch process, whose handlers of signals and records are the process's own |
//! | those of loom | they have other types of `std` |

#[path = "../common/mod.rs"]
mod common;
mod congestion;
mod forwarding;
mod garbage;
mod offload_pairs;
#[path = "../common/slot_clients.rs"]
mod slot_clients;
mod untranslated;
