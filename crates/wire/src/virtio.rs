//! The formats of a virtio network device that both sides share: its feature bits, the header in
//! front of its frames, and the header and codes of vhost-user messages.

pub mod features;
pub mod net;
pub mod vhost_user;
