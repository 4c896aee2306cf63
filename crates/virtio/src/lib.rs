//! Virtio 1.3 queues, the network header, and the vhost-user protocol.
//!
//! This is the device side: [`queue`] takes chains of descriptors from a driver and gives them back,
//! [`vhost_user`] is the back end that a VMM sets those queues up with. Neither knows what a frame is
//! for; the datapath does.

pub mod features;
pub mod net;
pub mod queue;
pub mod vhost_user;
