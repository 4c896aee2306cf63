//! Commands of user ports.

use api::v1::UserFlowsFilter;
use clap::{Args, Subcommand, value_parser};

use super::{Output, name};

/// Commands about the outside of a user port.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum UserPort {
    /// Show connections and UDP mappings of a user port
    Flows(UserFlowsArgs),
    /// Show the addresses that guests of a user port have by DHCP
    Leases {
        /// Port
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct UserFlowsArgs {
    /// Port
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// Maximum number of flows
    #[arg(
        long,
        value_name = "N",
        default_value_t = api::v1::USER_LIST_DEFAULT,
        value_parser = value_parser!(u16).range(1..=1024)
    )]
    limit: u16,
    /// Show flows that wait for something and have made no progress for this many seconds, with the
    /// reason [without a number: 5]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5",
        value_parser = value_parser!(u32).range(..=i64::from(api::v1::USER_STALLED_MAX))
    )]
    stalled: Option<u32>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl UserFlowsArgs {
    /// Returns whether stalled flows alone are shown.
    pub(in crate::cli) fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Returns the API's query.
    pub(in crate::cli) fn filter(&self) -> UserFlowsFilter {
        UserFlowsFilter {
            limit: Some(self.limit),
            stalled_seconds: self.stalled,
        }
    }
}

/// Changes of single forwards.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Forward {
    /// Show the forwards of a user port, and why some are not ready
    List {
        /// User port
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Add a forward; connections of others stay
    Add {
        /// User port
        #[arg(value_parser = name)]
        name: String,
        /// Where the host listens, like "tcp 127.0.0.1:2222"
        #[arg(value_name = "LISTEN")]
        listen: String,
        /// Where it leads: the port of a guest or an address, and a port there, like vm1:22
        #[arg(value_name = "TO")]
        to: String,
        #[command(flatten)]
        output: Output,
    },
    /// Remove a forward; its connections stay, its UDP mappings end
    Remove {
        /// User port
        #[arg(value_parser = name)]
        name: String,
        /// Where the host listens, like "tcp 127.0.0.1:2222"
        #[arg(value_name = "LISTEN")]
        listen: String,
        #[command(flatten)]
        output: Output,
    },
}
