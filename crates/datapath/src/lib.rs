//! The switch: workers, flow cache, delivery, and the vhost-user ports.
