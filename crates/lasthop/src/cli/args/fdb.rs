//! What was learned, as commands.

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
