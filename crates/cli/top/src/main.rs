//! `lasthop top`: a client of the API with a terminal screen.

mod screen;
mod top;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use client::Failure;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let status = match (args.next(), args.next()) {
        (Some(dir), None) => client::block_on(&PathBuf::from(dir), top::top),
        _ => Err(Failure::Invalid(
            "expected one argument: use `lasthop top`".to_owned(),
        )),
    };
    status.map_or_else(|failure| failure.report(false), |()| ExitCode::SUCCESS)
}
