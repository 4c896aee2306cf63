//! The arguments of `lasthop segment`.

use api::v1::SegmentSpec;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::{Output, change, name, patch};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Segment {
    /// Show all segments and their ports
    List(Output),
    /// Add a segment
    Add(Add),
    /// Change a segment
    Set(Set),
    /// Remove a segment that no port uses
    Remove {
        /// Segment
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Add {
    /// Name of the new segment
    #[arg(value_parser = name)]
    name: String,
    /// VLAN tag on trunk ports; untagged without one
    #[arg(long, value_name = "TAG", value_parser = vlan())]
    vlan: Option<u16>,
    /// Reply to ARP and ND requests for known addresses instead of flooding them (RFC 9161)
    #[arg(long)]
    neighbour_suppression: bool,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Add {
    /// Returns the API's object.
    pub(in crate::cli) fn spec(&self) -> SegmentSpec {
        SegmentSpec {
            name: self.name.clone(),
            vlan: self.vlan,
            neighbour_suppression: self.neighbour_suppression,
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Set {
    /// Segment
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// New VLAN tag on trunk ports
    #[arg(long, value_name = "TAG", value_parser = vlan())]
    vlan: Option<u16>,
    /// Make it untagged on trunk ports
    #[arg(long, conflicts_with = "vlan")]
    no_vlan: bool,
    /// Reply to ARP and ND requests for known addresses instead of flooding them (RFC 9161)
    #[arg(long, value_name = "BOOL")]
    neighbour_suppression: Option<bool>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Set {
    /// Returns the merge patch for the API; `null` without a change.
    pub(in crate::cli) fn patch(&self) -> Value {
        patch([
            ("vlan", change(self.vlan, self.no_vlan)),
            (
                "neighbour_suppression",
                change(self.neighbour_suppression, false),
            ),
        ])
    }
}

/// Returns the parser of a VLAN tag (IEEE 802.1Q).
fn vlan() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=4094)
}
