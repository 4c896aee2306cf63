//! The arguments of `lasthop acl`.

use clap::Subcommand;

use super::{Output, name};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Acl {
    /// Show all access lists with their hits
    List(Output),
    /// Show the rules of one access list in order of evaluation, with their hits
    Show {
        /// Access list
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}
