//! Commands of prefilters.

use clap::Subcommand;

use super::{Output, name};

/// Commands about denied frames that end before the switch.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Prefilter {
    /// Show flows of denied frames that end at the wire
    List {
        /// Uplink [default: all]
        #[arg(long, value_name = "NAME", value_parser = name)]
        port: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}
