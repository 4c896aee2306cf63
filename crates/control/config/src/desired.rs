//! The desired state, and changes to it.
//!
//! A desired state is a value. A change makes a new one, which is checked as a whole before
//! anything is done. Control's engine then applies it to the switch. This module does no I/O.

mod access;
mod at;
mod bursts;
mod change;
mod check;
mod connections;
mod device;
mod difference;
mod fdb;
mod invalid;
mod keys;
mod limits;
pub mod live;
mod metrics;
mod mirrors;
mod normalise;
mod owner;
mod patch;
pub(crate) mod pipes;
mod port_security;
mod ports;
pub(crate) mod process;
pub mod qos;
mod reach;
mod references;
mod segments;
mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod user;
mod version;
mod warnings;

pub use access::placed;
pub use access::{AccessChange, AccessDoubts, check_access};
pub use change::{Change, changed};
pub use check::check;
pub use connections::{connection_settings, layout_of, without_table};
pub use device::{dials, driver_of, has_prefilter, listens, prefilter_entries};
pub use difference::{Action, Difference, FieldChange, Step, Subject};
pub use fdb::FdbChange;
pub use invalid::{Invalid, LimitKind, Place, Why};
pub use limits::limits_of;
pub use metrics::metrics_socket;
pub use mirrors::{MirrorChange, mirrors};
pub use normalise::normalise;
pub use owner::{check_owners, owner_of, owner_of_pipe};
pub use pipes::{PipeSocket, pipe_sockets};
pub use port_security::{has_neighbour_suppression, port_security_of, port_security_status};
pub use ports::{add_port, remove_port, set_port};
pub use process::{clients_of, iommu_of, socket_type_of};
pub use reach::{check_reach, reach_of};
pub use segments::segments;
pub use settings::switch_settings;
pub use user::{forwards_of, gateway_for, user_networks};
pub use version::version;
pub use warnings::shared_macs;
pub use warnings::warnings;
