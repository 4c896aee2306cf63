//! The arguments of `lasthop connections`.

use api::v1::{ConnectionsFilter, ConnectionsSelection};
use clap::{Args, Subcommand, value_parser};

use super::{Output, name};

/// Commands about tracked connections.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Connections {
    /// Show connections that stateful rules have let in
    List(ConnectionsList),
    /// Print the number of connections
    Count(Selection),
    /// Forget connections: rules decide their next frames as those of new ones
    Flush(Selection),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ConnectionsList {
    /// Maximum number of connections
    #[arg(
        long,
        value_name = "N",
        default_value_t = api::v1::CONNECTIONS_DEFAULT,
        value_parser = value_parser!(u16).range(1..=1024)
    )]
    limit: u16,
    #[command(flatten)]
    pub(in crate::cli) selection: Selection,
}

/// The connections that a command is about.
#[derive(Debug, Args)]
pub(in crate::cli) struct Selection {
    /// Only connections from or to this port
    #[arg(long, value_name = "PORT", value_parser = name)]
    port: Option<String>,
    /// Only connections of this segment
    #[arg(long, value_name = "SEGMENT", value_parser = name)]
    segment: Option<String>,
    /// Only connections that match: a filter expression as of captures, like 'dst port 80 and src
    /// net 10.0.0.0/8'; the source is the side that opened the connection
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Selection {
    /// Returns the API's query.
    pub(in crate::cli) fn query(&self) -> ConnectionsSelection {
        let filter = self.filter.join(" ");
        ConnectionsSelection {
            port: self.port.clone(),
            segment: self.segment.clone(),
            filter: (!filter.is_empty()).then_some(filter),
        }
    }
}

impl ConnectionsList {
    /// Returns the API's query.
    pub(in crate::cli) fn query(&self) -> ConnectionsFilter {
        let ConnectionsSelection {
            port,
            segment,
            filter,
        } = self.selection.query();
        ConnectionsFilter {
            port,
            segment,
            filter,
            limit: Some(self.limit),
        }
    }
}
