//! The arguments of `lasthop net`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Net {
    /// Start a program whose sockets are those of a port: a TCP/IP stack in its own process
    Run(NetRun),
}

#[derive(Debug, Args)]
#[command(override_usage = "lasthop net run --socket <PATH> [OPTIONS] -- <PROGRAM> [ARGS]...")]
pub(in crate::cli) struct NetRun {
    /// Socket of a vhost-user port; relative to the runtime directory
    #[arg(long, value_name = "PATH")]
    pub(in crate::cli) socket: PathBuf,
    /// Address of the program; several are allowed [default: one by DHCP]
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub(in crate::cli) address: Vec<String>,
    /// Router, of everything or of a network (NETWORK/PREFIX=ROUTER); several are allowed
    /// [default: that of DHCP]
    #[arg(long, value_name = "ROUTER")]
    pub(in crate::cli) route: Vec<String>,
    /// Resolver for names; several are allowed [default: those of DHCP]
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) dns: Vec<String>,
    /// Address of the interface [default: made of the socket's path and the machine's id]
    #[arg(long, value_name = "MAC")]
    pub(in crate::cli) mac: Option<String>,
    /// Bytes of an IP packet, 1280 to 9000 [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub(in crate::cli) mtu: Option<String>,
    /// Bytes of each buffer of a socket, 4K to 256M [default: 256K]
    #[arg(long, value_name = "BYTES")]
    pub(in crate::cli) buffer: Option<String>,
    /// Maximum time for which a blocking call looks for frames before it sleeps, microseconds
    /// [default: 100]
    #[arg(long, value_name = "N")]
    pub(in crate::cli) spin_us: Option<String>,
    /// Leave the host's network to what is not the port's: loopback, abstract Unix sockets, other
    /// kinds of sockets, programs whose calls are not taken [default: an empty network namespace]
    #[arg(long)]
    pub(in crate::cli) host_network: bool,
    /// Program, dynamically linked, and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub(in crate::cli) command: Vec<OsString>,
}
