//! What needs neither threads nor sockets.

mod batches;
mod bench;
mod flow_table;
mod header;
mod offload;
mod parking;
mod switching;
mod threats;
mod upkeep;
