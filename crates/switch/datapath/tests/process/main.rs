//! The whole switch process, in a thread, with guests on its sockets.

mod access_platform;
mod dirty;
mod ends;
mod guests;
mod host;
mod hostile;
mod interfaces;
mod leaks;
mod lean;
mod legacy;
mod load;
mod memory;
mod migration;
mod stations;
mod threats;
mod tracking;
mod traffic;
