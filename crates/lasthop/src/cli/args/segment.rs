//! The arguments of `lasthop segment`.

use api::v1::{SegmentPatch, SegmentSpec};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::{Output, change, name};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Segment {
    /// Show all segments and their ports
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Add a segment
    Add(Add),
    /// Change a segment
    Set(Set),
    /// Remove a segment; no port may be in it
    Remove {
        /// The segment
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Add {
    /// The new segment's name
    #[arg(value_parser = name)]
    name: String,
    /// Its tag on trunk ports; without one it is untagged there
    #[arg(long, value_name = "TAG", value_parser = vlan())]
    vlan: Option<u16>,
    /// Answer ARP and neighbour discovery for addresses whose owner is known for sure, and flood no such question
    #[arg(long)]
    neighbour_suppression: bool,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Add {
    /// What to ask the API for.
    pub(in crate::cli) fn spec(&self) -> SegmentSpec {
        SegmentSpec {
            name: self.name.clone(),
            vlan: self.vlan,
            neighbour_suppression: self.neighbour_suppression,
        }
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true))]
pub(in crate::cli) struct Set {
    /// The segment
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// Its new tag on trunk ports
    #[arg(long, value_name = "TAG", value_parser = vlan(), group = "change")]
    vlan: Option<u16>,
    /// Make it untagged on trunk ports
    #[arg(long, group = "change")]
    no_vlan: bool,
    /// Answer ARP and neighbour discovery for addresses whose owner is known for sure, and flood no such question
    #[arg(long, value_name = "BOOL", group = "change")]
    neighbour_suppression: Option<bool>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Set {
    /// What to ask the API for.
    pub(in crate::cli) fn patch(&self) -> SegmentPatch {
        SegmentPatch {
            vlan: change(self.vlan, self.no_vlan),
            neighbour_suppression: self.neighbour_suppression.map(Some),
        }
    }
}

/// A tag of IEEE 802.1Q.
fn vlan() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=4094)
}
