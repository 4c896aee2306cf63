//! Virtio 1.3 queues and the vhost-user protocol.
//!
//! This is the device side: [`queue`] takes chains of descriptors from a driver and returns them,
//! [`vhost_user`] is the back end with which a VMM sets up those queues. Neither interprets frames;
//! the data path does.

pub mod queue;
pub mod vhost_user;
