//! What needs neither threads nor sockets.

mod bench;
mod flow_table;
mod header;
mod offload;
mod parking;
mod switching;
