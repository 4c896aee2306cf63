//! The arguments of `lasthop mirror`.

use api::v1::MirrorSpec;
use clap::{Args, Subcommand};

use super::capture::Direction;
use super::{Output, name};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Mirror {
    /// Show all mirrors, and what each has copied, or could not
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Add a mirror: of ports, of segments, or of what a filter means
    Add(Add),
    /// Remove a mirror; no more copies are made
    Remove {
        /// The mirror
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("of").required(true).multiple(true).args(["ports", "segments", "filter"])))]
pub(in crate::cli) struct Add {
    /// The new mirror's name
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// The port that gets the copies
    #[arg(long, value_name = "PORT", value_parser = name)]
    to: String,
    /// Copy frames of these ports
    #[arg(long, value_name = "PORTS", value_delimiter = ',', value_parser = name)]
    ports: Vec<String>,
    /// Of these ports only what they send (in), or what they are delivered (out)
    #[arg(long, value_enum, default_value = "both", requires = "ports")]
    direction: Direction,
    /// Copy each frame of these segments once, as it was sent
    #[arg(long, value_name = "SEGMENTS", value_delimiter = ',', value_parser = name)]
    segments: Vec<String>,
    /// Only frames that this means, in tcpdump's words, like 'tcp port 80 and host 10.0.0.1'; without ports and segments, those of all ports
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Put it in the place of the mirror that has this name, if there is one
    #[arg(long)]
    pub(in crate::cli) replace: bool,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Add {
    /// What to ask the API for.
    pub(in crate::cli) fn spec(&self) -> MirrorSpec {
        MirrorSpec {
            name: self.name.clone(),
            to: self.to.clone(),
            ports: self.ports.clone(),
            direction: self.direction.into(),
            segments: self.segments.clone(),
            filter: self.filter.clone(),
        }
    }
}
