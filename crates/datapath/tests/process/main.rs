//! The whole switch process, in a thread, with guests on its sockets.

mod guests;
mod host;
mod hostile;
mod traffic;
