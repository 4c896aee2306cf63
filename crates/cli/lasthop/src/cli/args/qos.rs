//! The arguments of `lasthop qos-class`, `qos-group` and `egress`.

use api::v1::{QosClassSpec, QosGroupSpec};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::super::qos::number;
use super::{Output, change, name, patch};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum QosClass {
    /// Show all traffic classes
    List(Output),
    /// Add a traffic class
    Add(AddClass),
    /// Change a traffic class
    Set(SetClass),
    /// Remove a traffic class that no port and no rule names
    Remove {
        /// Class
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct AddClass {
    /// Name of the new class
    #[arg(value_parser = name)]
    name: String,
    /// Priority, 0 to 7: higher ones are served first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = three_bits())]
    priority: u8,
    /// DSCP values of its frames from ports that are trusted
    #[arg(long, value_name = "VALUES", value_delimiter = ',', value_parser = code_point())]
    dscp: Vec<u8>,
    /// Priority code point (IEEE 802.1Q) for VLAN tags of its frames
    #[arg(long, value_name = "N", value_parser = three_bits())]
    pcp: Option<u8>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl AddClass {
    /// Returns the API's object.
    pub(in crate::cli) fn spec(&self) -> QosClassSpec {
        QosClassSpec {
            name: self.name.clone(),
            priority: self.priority,
            dscp: self.dscp.clone(),
            pcp: self.pcp,
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SetClass {
    /// Class
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// Priority, 0 to 7: higher ones are served first
    #[arg(long = "priority", value_name = "N", value_parser = three_bits())]
    new_priority: Option<u8>,
    /// DSCP values of its frames from ports that are trusted
    #[arg(
        long = "dscp",
        value_name = "VALUES",
        value_delimiter = ',',
        value_parser = code_point(),
        conflicts_with = "no_dscp"
    )]
    new_dscp: Option<Vec<u8>>,
    /// No DSCP value gives frames this class
    #[arg(long)]
    no_dscp: bool,
    /// Priority code point (IEEE 802.1Q) for VLAN tags of its frames
    #[arg(long = "pcp", value_name = "N", value_parser = three_bits(), conflicts_with = "no_pcp")]
    new_pcp: Option<u8>,
    /// Leave the priority code points of tags as they are
    #[arg(long)]
    no_pcp: bool,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl SetClass {
    /// Returns the merge patch for the API; `null` without a change.
    pub(in crate::cli) fn patch(&self) -> Value {
        patch([
            ("priority", change(self.new_priority, false)),
            ("dscp", change(self.new_dscp.clone(), self.no_dscp)),
            ("pcp", change(self.new_pcp, self.no_pcp)),
        ])
    }
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum QosGroup {
    /// Show all groups of senders and their ports
    List(Output),
    /// Add a group of senders
    Add(AddGroup),
    /// Change a group of senders
    Set(SetGroup),
    /// Remove a group of senders that no port is in
    Remove {
        /// Group
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct AddGroup {
    /// Name of the new group
    #[arg(value_parser = name)]
    name: String,
    /// Guaranteed bits a second, like 500M
    #[arg(long, value_name = "BITS", value_parser = number)]
    min: Option<u64>,
    /// Most bits a second, like 2G
    #[arg(long, value_name = "BITS", value_parser = number)]
    max: Option<u64>,
    /// Burst in bits, like 20M
    #[arg(long, value_name = "BITS", value_parser = number)]
    burst: Option<u64>,
    /// Part of what is left, relative to other groups and ports
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = weight())]
    weight: u16,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl AddGroup {
    /// Returns the API's object.
    pub(in crate::cli) fn spec(&self) -> QosGroupSpec {
        QosGroupSpec {
            name: self.name.clone(),
            min: self.min,
            max: self.max,
            burst: self.burst,
            weight: self.weight,
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SetGroup {
    /// Group
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// Guaranteed bits a second, like 500M
    #[arg(long = "min", value_name = "BITS", value_parser = number, conflicts_with = "no_min")]
    new_min: Option<u64>,
    /// Remove the guarantee
    #[arg(long)]
    no_min: bool,
    /// Most bits a second, like 2G
    #[arg(long = "max", value_name = "BITS", value_parser = number, conflicts_with = "no_max")]
    new_max: Option<u64>,
    /// Remove the ceiling
    #[arg(long)]
    no_max: bool,
    /// Burst in bits, like 20M
    #[arg(long = "burst", value_name = "BITS", value_parser = number, conflicts_with = "no_burst")]
    new_burst: Option<u64>,
    /// Use the default burst
    #[arg(long)]
    no_burst: bool,
    /// Part of what is left, relative to other groups and ports
    #[arg(long = "weight", value_name = "N", value_parser = weight())]
    new_weight: Option<u16>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl SetGroup {
    /// Returns the merge patch for the API; `null` without a change.
    pub(in crate::cli) fn patch(&self) -> Value {
        patch([
            ("min", change(self.new_min, self.no_min)),
            ("max", change(self.new_max, self.no_max)),
            ("burst", change(self.new_burst, self.no_burst)),
            ("weight", change(self.new_weight, false)),
        ])
    }
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Egress {
    /// Show what each sender and class may have at a scheduled port, gets within a second, and
    /// waits for
    Show {
        /// Scheduled port
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

/// Returns the parser of a priority.
fn three_bits() -> RangedU64ValueParser<u8> {
    RangedU64ValueParser::new().range(0..=7)
}

/// Returns the parser of a DSCP.
fn code_point() -> RangedU64ValueParser<u8> {
    RangedU64ValueParser::new().range(0..=63)
}

/// Returns the parser of a weight.
fn weight() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=1000)
}
