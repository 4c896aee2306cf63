//! The formats of a virtio network device that both sides share: its feature bits, the header in
//! front of its frames, the header and codes of vhost-user messages, and the size of a front end's
//! memory.

pub mod features;
pub mod net;
pub mod shape;
pub mod vhost_user;
