//! `lasthop` with real processes, without guests of QEMU. A module is a file of tests:
//! `cargo test -p lasthop --test processes reload`.
//!
//! | a program of its own | because |
//! |---|---|
//! | `foreign_descriptors` | a child that another test starts would have copies of its descriptors |
//! | `guests`, `kvm` | the threads of the whole process are searched for vCPUs |

mod api_client;
mod cli;
mod connections;
mod crashes;
mod dense;
mod descriptors;
mod events;
mod exit_statuses;
mod forward_addresses;
mod hangs;
mod interfaces;
mod libvirt_hook;
mod metrics;
mod privileges;
mod readers;
mod reload;
mod shared_sockets;
mod socket_dirs;
mod supervisor;
mod support;
mod survival;
mod unit;
mod upgrade;
mod user_ports;
mod warnings;
