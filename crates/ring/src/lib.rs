//! Lasthop's own shared-memory rings: a written ABI of offsets, indices and doorbells.
