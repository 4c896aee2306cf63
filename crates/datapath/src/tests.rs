//! What needs neither threads nor sockets.

mod access;
mod batches;
mod bench;
mod changes;
mod explosion;
mod flow_table;
mod guards;
mod header;
mod limits;
mod mirrors;
mod offload;
mod parking;
mod pieces;
mod segments;
mod switching;
mod threats;
mod told;
mod upkeep;
mod watching;
