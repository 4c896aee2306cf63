//! Access lists, as commands.

use clap::Subcommand;

use super::{Output, name};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Acl {
    /// Show all access lists, and how many frames their rules have decided about
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show the rules of one access list in the order in which they are asked, and what each was used for
    Show {
        /// The access list
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}
