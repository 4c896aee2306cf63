//! What was learned, as commands.

use api::v1::DEFAULT_SEGMENT;
use clap::Subcommand;

use super::{Output, name};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Fdb {
    /// Show what was learned
    List {
        /// Only in this segment
        #[arg(long, value_name = "SEGMENT", value_parser = name)]
        segment: Option<String>,
        /// Only behind this port
        #[arg(long, value_name = "PORT", value_parser = name)]
        port: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Say behind which port an address is: it is not learned, and no other port may use it
    Add {
        /// The MAC address
        mac: String,
        /// The port
        #[arg(long, value_name = "PORT", value_parser = name)]
        port: String,
        /// The segment
        #[arg(long, value_name = "SEGMENT", value_parser = name, default_value = DEFAULT_SEGMENT)]
        segment: String,
        #[command(flatten)]
        output: Output,
    },
    /// Have an address learned again that was added
    Remove {
        /// The MAC address
        mac: String,
        /// The segment
        #[arg(long, value_name = "SEGMENT", value_parser = name, default_value = DEFAULT_SEGMENT)]
        segment: String,
        #[command(flatten)]
        output: Output,
    },
    /// Forget what was learned; it is learned anew from the next frames
    Flush {
        /// Only in this segment
        #[arg(long, value_name = "SEGMENT", value_parser = name)]
        segment: Option<String>,
        /// Only behind this port
        #[arg(long, value_name = "PORT", value_parser = name)]
        port: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}
