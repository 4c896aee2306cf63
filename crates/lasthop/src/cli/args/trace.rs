//! The arguments of questions about single frames and flows.

use std::path::PathBuf;

use api::v1::{CAPTURE_BUFFER, CaptureDirection, CaptureQuery, FlowsFilter};
use clap::{Args, Subcommand, ValueEnum, value_parser};

use super::{Output, name};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("frames").required(true).args(["expression", "pcap", "next"])))]
pub(in crate::cli) struct TraceArgs {
    /// The port whose guest would send the frame
    #[arg(long, value_name = "PORT", value_parser = name)]
    pub(in crate::cli) port: String,
    /// The frame: [ether SOURCE > DESTINATION] [vlan N] and one of: icmp A > B, icmp6 A > B, tcp A:PORT > B:PORT [syn ...],
    /// udp A:PORT > B:PORT, ip [proto N] A > B, arp who-has A tell B, nd who-has A tell B, type N
    #[arg(value_name = "FRAME", num_args = 1..)]
    pub(in crate::cli) expression: Vec<String>,
    /// Each frame of a pcap or pcapng file instead; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) pcap: Option<PathBuf>,
    /// The next frames that the port sends instead; who interrupts it sees those that came until then
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=NEXT_MAX))]
    next: Option<u16>,
    /// Of these only frames that this means, in tcpdump's words, like 'tcp port 80 and host 10.0.0.1'
    #[arg(long, value_name = "EXPR", requires = "next", conflicts_with_all = ["expression", "pcap"])]
    filter: Option<String>,
    /// What should become of each frame: exit status 4 if something else would of any
    #[arg(long, value_enum, value_name = "pass|drop")]
    pub(in crate::cli) expect: Option<Expected>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

/// What should become of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Expected {
    /// It goes to one port or several, or the switch answers it
    Pass,
    /// It is dropped
    Drop,
}

/// Frames of `--next` at most: they are kept until all have come.
const NEXT_MAX: i64 = 1024;
/// Bytes of each that are looked at.
const NEXT_SNAPLEN: u32 = 192;

impl TraceArgs {
    /// Frames are told of one after the other.
    pub(in crate::cli) fn numbers(&self) -> bool {
        self.pcap.is_some() || self.next.is_some()
    }

    /// The capture that has the frames, if they are yet to come.
    pub(in crate::cli) fn capture(&self) -> Option<CaptureQuery> {
        self.next.map(|count| CaptureQuery {
            filter: self.filter.clone().unwrap_or_default(),
            snaplen: NEXT_SNAPLEN,
            count: Some(count.into()),
            direction: CaptureDirection::In,
            drops: false,
            buffer: CAPTURE_BUFFER,
        })
    }
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Flows {
    /// Forget the cached flows: they are decided anew, and no frame is lost
    Purge {
        /// Only flows from or to this port
        #[arg(long, value_name = "PORT", value_parser = name)]
        port: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct FlowsArgs {
    #[command(subcommand)]
    pub(in crate::cli) command: Option<Flows>,
    /// Only flows from or to this port
    #[arg(long, value_name = "PORT", value_parser = name)]
    port: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = api::v1::FLOWS_DEFAULT, value_parser = value_parser!(u16).range(1..=1024))]
    limit: u16,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl FlowsArgs {
    /// What to ask the API for.
    pub(in crate::cli) fn filter(&self) -> FlowsFilter {
        FlowsFilter {
            port: self.port.clone(),
            limit: Some(self.limit),
        }
    }
}
