//! Experiments, and their durations.

pub(crate) mod bulk;
pub(crate) mod capture;
pub(crate) mod external;
pub(crate) mod grants;
pub(crate) mod holding;
pub(crate) mod load;
pub(crate) mod migration;
pub(crate) mod neighbours;
pub(crate) mod netmap;
mod outputs;
pub(crate) mod parts;
pub(crate) mod policy;
pub(crate) mod ports;
pub(crate) mod priority;
pub(crate) mod scaling;
pub(crate) mod scheduling;
pub(crate) mod shaping;
pub(crate) mod sharing;
pub(crate) mod signals;
pub(crate) mod throughput;
mod uplink;
pub(crate) mod vifs;
pub(crate) mod wakeups;
