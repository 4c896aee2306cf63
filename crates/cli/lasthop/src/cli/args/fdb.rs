//! The arguments of `lasthop fdb`.

use api::v1::{DEFAULT_SEGMENT, FdbFilter};
use clap::{Args, Subcommand};

use super::{Output, name};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Fdb {
    /// Show learned and static entries
    List(Entries),
    /// Add a static entry; no other port may use the address
    Add {
        /// MAC address
        mac: String,
        /// Port
        #[arg(long, value_name = "PORT", value_parser = name)]
        port: String,
        /// Segment
        #[arg(long, value_name = "SEGMENT", value_parser = name, default_value = DEFAULT_SEGMENT)]
        segment: String,
        /// Move an entry that is at another port
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Remove a static entry
    Remove {
        /// MAC address
        mac: String,
        /// Segment
        #[arg(long, value_name = "SEGMENT", value_parser = name, default_value = DEFAULT_SEGMENT)]
        segment: String,
        #[command(flatten)]
        output: Output,
    },
    /// Remove learned entries; static entries stay
    Flush(Entries),
}

/// The entries that a command is about.
#[derive(Debug, Args)]
pub(in crate::cli) struct Entries {
    /// Only entries of this segment
    #[arg(long, value_name = "SEGMENT", value_parser = name)]
    segment: Option<String>,
    /// Only entries of this port
    #[arg(long, value_name = "PORT", value_parser = name)]
    port: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Entries {
    /// Returns the query.
    pub(in crate::cli) fn filter(&self) -> FdbFilter {
        FdbFilter {
            segment: self.segment.clone(),
            port: self.port.clone(),
        }
    }
}
