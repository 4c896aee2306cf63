//! Binary `lasthop`: the command line, and with `run` the supervisor.

mod admin;
mod cli;
mod log;
mod self_check;
mod supervisor;

use std::process::ExitCode;

fn main() -> ExitCode {
    supervisor::resume().unwrap_or_else(cli::main)
}
