//! The other side, for tests: a guest's virtio driver and vhost-user front end, packet builder, virtual clock.
