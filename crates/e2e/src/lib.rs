//! End-to-end harness: a running Lasthop, QEMU guests, testpmd.
