//! Load generators. The library has clients of vhost-user ports:
//!
//! * [`lean`]: a client that is faster than the switch, for measurements
//! * [`vcpu`]: a client that computes, is interrupted and sleeps, as guests do
//!
//! And, in the place of a switch:
//!
//! * [`relay`]: a back end between a guest and a TAP device
//!
//! The program `slotgen` has the loops of netmap's programs, over netmap's C interface; it shares
//! nothing with the library.

pub mod lean;
pub mod relay;
pub mod vcpu;
