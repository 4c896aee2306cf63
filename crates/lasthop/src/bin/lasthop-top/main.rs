//! `lasthop top`: a client of the API with a terminal screen.

#[path = "../../cli/client.rs"]
#[expect(dead_code, reason = "the command line uses more of it")]
mod client;
#[path = "../../cli/failure.rs"]
#[expect(dead_code, reason = "the command line uses more of it")]
mod failure;
#[path = "../../cli/rates.rs"]
mod rates;
mod screen;
mod top;
#[path = "../../cli/units.rs"]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the command line uses more of it")
)]
mod units;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use failure::Failure;

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
