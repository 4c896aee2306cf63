//! Tests without threads and sockets.

mod access;
mod batches;
mod bench;
mod changes;
mod classes;
mod explosion;
mod faulty;
mod header;
mod limits;
mod mirrors;
mod null;
mod offload;
mod pending_upcalls;
mod port_security;
mod receive_shares;
mod scheduled;
mod segments;
mod switching;
mod taps;
mod threats;
mod tracked;
mod tracked_connections;
mod upkeep;
