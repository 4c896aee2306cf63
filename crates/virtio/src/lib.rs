//! Virtio 1.3 queues, the network header, and the vhost-user protocol.
