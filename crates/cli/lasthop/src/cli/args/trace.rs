//! The arguments of `lasthop trace` and `lasthop flows`.

use std::path::PathBuf;

use api::v1::{CAPTURE_BUFFER, CaptureDirection, CaptureQuery, FlowsFilter};
use clap::{Args, Subcommand, ValueEnum, value_parser};
use client::Failure;

use super::{Output, name};

#[derive(Debug, Args)]
#[command(group(
    clap::ArgGroup::new("frames")
        .required(true)
        .args(["expression", "pcap", "next"])
))]
pub(in crate::cli) struct TraceArgs {
    /// Port whose guest sends the frame
    #[arg(long, value_name = "PORT", value_parser = name)]
    pub(in crate::cli) port: String,
    // `help`, as rustdoc would read the brackets as links.
    #[arg(
        value_name = "FRAME",
        num_args = 1..,
        help = "Frame: [ether SOURCE > DESTINATION] [vlan N] and one of: icmp A > B, icmp6 A > B, \
                tcp A:PORT > B:PORT [syn ...], udp A:PORT > B:PORT, ip [proto N] A > B, \
                arp who-has A tell B, nd who-has A tell B, type N"
    )]
    pub(in crate::cli) expression: Vec<String>,
    /// Trace each frame of a pcap or pcapng file; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) pcap: Option<PathBuf>,
    /// Trace the next N frames that the port sends; an interrupt traces those captured so far
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=NEXT_MAX))]
    next: Option<u16>,
    /// Filter expression as of tcpdump for --next, like 'tcp port 80 and host 10.0.0.1'
    #[arg(
        long,
        value_name = "EXPR",
        requires = "next",
        conflicts_with_all = ["expression", "pcap"]
    )]
    filter: Option<String>,
    /// Expected result of every frame; exit status 4 if any differs
    #[arg(long, value_enum, value_name = "pass|drop")]
    pub(in crate::cli) expect: Option<ExpectedResult>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

/// The expected result of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ExpectedResult {
    /// Delivered to at least one port, or replied to by the switch
    Pass,
    /// Dropped
    Drop,
}

/// Maximum of `--next`; the frames are held in memory until all are captured.
const NEXT_MAX: i64 = 1024;
/// Bytes that are captured of each frame of `--next`.
const NEXT_SNAPLEN: u32 = 192;

impl TraceArgs {
    /// Returns the end of the command when the reader of its output is gone. The exit status is a
    /// result, too: of one frame it comes at once, and others were not all compared.
    pub(in crate::cli) fn without_reader(&self) -> Option<Failure> {
        let partly = "the output was closed before all frames were compared";
        match (self.expect, self.is_numbered()) {
            (None, _) => Some(Failure::OutputClosed),
            (Some(_), true) => Some(Failure::Failed(partly.to_owned())),
            (Some(_), false) => None,
        }
    }

    /// Returns whether the output numbers the frames.
    pub(in crate::cli) fn is_numbered(&self) -> bool {
        self.pcap.is_some() || self.next.is_some()
    }

    /// Returns the capture query of `--next`.
    pub(in crate::cli) fn capture(&self) -> Option<CaptureQuery> {
        self.next.map(|count| CaptureQuery {
            filter: self.filter.clone().unwrap_or_default(),
            snaplen: NEXT_SNAPLEN,
            count: Some(count.into()),
            direction: CaptureDirection::In,
            drops: false,
            buffer: CAPTURE_BUFFER,
            keep_prefilter: false,
        })
    }
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Flows {
    /// Remove cached flows; the next frames cause upcalls, none is lost
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
    /// Maximum number of flows
    #[arg(
        long,
        value_name = "N",
        default_value_t = api::v1::FLOWS_DEFAULT,
        value_parser = value_parser!(u16).range(1..=1024)
    )]
    limit: u16,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl FlowsArgs {
    /// Returns the API's query.
    pub(in crate::cli) fn filter(&self) -> FlowsFilter {
        FlowsFilter {
            port: self.port.clone(),
            limit: Some(self.limit),
        }
    }
}
