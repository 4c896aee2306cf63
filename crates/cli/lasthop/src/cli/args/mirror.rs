//! The arguments of `lasthop mirror`.

use api::v1::{MirrorDirection, MirrorSpec};
use clap::{Args, Subcommand};

use super::{DIRECTIONS, Output, name, one_of};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Mirror {
    /// Show all mirrors with copied and lost frames
    List(Output),
    /// Add a mirror of ports, segments or filtered frames
    Add(Add),
    /// Remove a mirror
    Remove {
        /// Mirror
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
#[command(group(
    clap::ArgGroup::new("of")
        .required(true)
        .multiple(true)
        .args(["ports", "segments", "filter"])
))]
pub(in crate::cli) struct Add {
    /// Name of the mirror
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// Port that receives the copies
    #[arg(long, value_name = "PORT", value_parser = name)]
    to: String,
    /// Mirror these ports
    #[arg(long, value_name = "PORTS", value_delimiter = ',', value_parser = name)]
    ports: Vec<String>,
    /// Direction of the frames of --ports
    #[arg(
        long,
        value_parser = one_of::<MirrorDirection>(DIRECTIONS),
        default_value = "both",
        requires = "ports"
    )]
    direction: MirrorDirection,
    /// Mirror these segments; each frame is copied once, as it was sent
    #[arg(long, value_name = "SEGMENTS", value_delimiter = ',', value_parser = name)]
    segments: Vec<String>,
    /// Filter expression as of tcpdump, like 'tcp port 80 and host 10.0.0.1'; applies to all ports
    /// if there are neither --ports nor --segments
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Replace a mirror of this name
    #[arg(long)]
    pub(in crate::cli) replace: bool,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Add {
    /// Returns the API's object.
    pub(in crate::cli) fn spec(&self) -> MirrorSpec {
        MirrorSpec {
            name: self.name.clone(),
            to: self.to.clone(),
            ports: self.ports.clone(),
            direction: self.direction,
            segments: self.segments.clone(),
            filter: self.filter.clone(),
        }
    }
}
