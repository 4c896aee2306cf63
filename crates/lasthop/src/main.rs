//! The binary `lasthop`: the command line, and with `run` the supervisor.

mod cli;
mod log;
mod supervisor;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
