//! Options and commands of user ports.

use api::v1::{ForwardSpec, PortPatch, PortSpec, UserFlowsFilter};
use clap::{Args, Subcommand, value_parser};

use super::{Output, name};

/// The options of `port add`.
#[derive(Debug, Default, Args)]
pub(super) struct User {
    /// IPv4 network of a user port [default: 10.0.2.0/24]
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
    /// IPv6 network of a user port, of 64 bits, auto or off [default: auto]
    #[arg(long, value_name = "NETWORK")]
    network6: Option<String>,
    /// Resolvers of a user port: auto for the host's, off, or addresses with blanks between them
    #[arg(long, value_name = "RESOLVERS")]
    dns: Option<String>,
    /// Memory of the host in the buffers of a user port's sockets, in MiB [default: 1024]
    #[arg(long, value_name = "MIB")]
    buffers_mib: Option<u32>,
    /// The same for each guest [default: 256]
    #[arg(long, value_name = "MIB")]
    guest_buffers_mib: Option<u32>,
    /// Service of the host that guests of a user port reach at the gateway, like "tcp 5432"; may be
    /// repeated
    #[arg(long, value_name = "SERVICE")]
    host: Option<Vec<String>>,
    /// Network that guests of a user port do not reach, like "10.0.0.0/8 tcp 1-1023"; may be
    /// repeated
    #[arg(long, value_name = "RULE")]
    deny: Option<Vec<String>>,
    /// Network that guests of a user port reach; may be repeated [default: all]
    #[arg(long, value_name = "RULE")]
    allow: Option<Vec<String>>,
    /// Port of the host that leads to a guest, like "tcp 127.0.0.1:2222 vm1:22"; may be repeated
    #[arg(long = "forward", value_name = "FORWARD", value_parser = forward)]
    forwards: Vec<ForwardSpec>,
}

/// Reads a forward: where the host listens, a blank, and where it leads.
fn forward(text: &str) -> Result<ForwardSpec, String> {
    let (listen, to) = text
        .rsplit_once(' ')
        .ok_or("like \"tcp 127.0.0.1:2222 vm1:22\"")?;
    let (listen, to) = (listen.to_owned(), to.to_owned());
    Ok(ForwardSpec { listen, to })
}

/// The options of `port set`.
#[derive(Debug, Default, Args)]
pub(super) struct UserChanges {
    /// IPv4 network of a user port, whose flows end
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
    /// IPv6 network of a user port, auto or off; its flows end
    #[arg(long, value_name = "NETWORK")]
    network6: Option<String>,
    /// Resolvers of a user port: auto for the host's, off, or addresses with blanks between them
    #[arg(long, value_name = "RESOLVERS")]
    dns: Option<String>,
    /// Memory of the host in the buffers of a user port's sockets, in MiB
    #[arg(long, value_name = "MIB")]
    buffers_mib: Option<u32>,
    /// The same for each guest
    #[arg(long, value_name = "MIB")]
    guest_buffers_mib: Option<u32>,
    /// Service of the host that guests of a user port reach at the gateway, in place of those
    /// before; may be repeated
    #[arg(long, value_name = "SERVICE")]
    host: Option<Vec<String>>,
    /// Guests of a user port reach no service of the host
    #[arg(long, conflicts_with = "host")]
    no_host: bool,
    /// Network that guests of a user port do not reach, in place of those before; may be repeated
    #[arg(long, value_name = "RULE")]
    deny: Option<Vec<String>>,
    /// Deny guests of a user port no network
    #[arg(long, conflicts_with = "deny")]
    no_deny: bool,
    /// Network that guests of a user port reach, in place of those before; may be repeated
    #[arg(long, value_name = "RULE")]
    allow: Option<Vec<String>>,
    /// Guests of a user port reach all networks that are not denied
    #[arg(long, conflicts_with = "allow")]
    allow_all: bool,
    /// Port of the host that leads to a guest, in place of those before; may be repeated
    #[arg(long = "forward", value_name = "FORWARD", value_parser = forward)]
    forwards: Option<Vec<ForwardSpec>>,
    /// Remove all forwards of a user port
    #[arg(long, conflicts_with = "forwards")]
    no_forward: bool,
}

impl User {
    /// Adds the options to a new port.
    pub(super) fn spec(&self, port: PortSpec) -> PortSpec {
        PortSpec {
            network: self.network.clone(),
            network6: self.network6.clone(),
            buffers_mib: self.buffers_mib,
            guest_buffers_mib: self.guest_buffers_mib,
            dns: self.dns.clone(),
            host: self.host.clone(),
            deny: self.deny.clone(),
            allow: self.allow.clone(),
            forward: self.forwards.clone(),
            ..port
        }
    }
}

impl UserChanges {
    /// Adds the options to a merge patch.
    pub(super) fn patch(&self, port: PortPatch) -> PortPatch {
        PortPatch {
            network: self.network.clone().map(Some),
            network6: self.network6.clone().map(Some),
            buffers_mib: self.buffers_mib.map(Some),
            guest_buffers_mib: self.guest_buffers_mib.map(Some),
            dns: self.dns.clone().map(Some),
            host: super::change(self.host.clone(), self.no_host),
            deny: super::change(self.deny.clone(), self.no_deny),
            allow: super::change(self.allow.clone(), self.allow_all),
            forward: super::change(self.forwards.clone(), self.no_forward)
                .map(Option::unwrap_or_default),
            ..port
        }
    }
}

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
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl UserFlowsArgs {
    /// Returns the API's query.
    pub(in crate::cli) fn filter(&self) -> UserFlowsFilter {
        let limit = Some(self.limit);
        UserFlowsFilter { limit }
    }
}

/// Changes of single forwards.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Forward {
    /// Show the forwards of a user port
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
