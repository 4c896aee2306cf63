//! The search for the vCPU threads of a VMM: the process that holds a port's connection.
//!
//! | source | evidence | exact |
//! |---|---|---|
//! | [`names`] | the names that VMMs give their threads | yes, where they do |
//! | [`debugfs`] | KVM's list of its VMs and their vCPU threads | yes |
//! | [`tracepoints`] | threads of the VMM that have entered a guest of KVM | as soon as all have |
//! | [`activity`] | threads that ran while the guest received frames | no vCPU is left out |
//!
//! The supervisor asks them in this order, and takes the first that knows. A source that does not
//! know says why. Nothing is guessed: where none knows, the vCPUs are unknown, and their states
//! are not used.

pub mod activity;
pub mod debugfs;
pub mod names;
pub mod tracepoints;

/// Most threads of one process that are followed.
pub const MOST_FOLLOWED: usize = 512;
