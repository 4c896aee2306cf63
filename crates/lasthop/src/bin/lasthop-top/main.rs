//! `lasthop top`: a client of the API with a terminal screen.

#[path = "../../cli/client.rs"]
#[expect(dead_code, reason = "the command line uses more of it")]
mod client;
#[path = "../../cli/failure.rs"]
#[expect(dead_code, reason = "the command line uses more of it")]
mod failure;
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

use client::Client;
use failure::Failure;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let status = match (args.next(), args.next()) {
        (Some(dir), None) => run(&PathBuf::from(dir)),
        _ => Err(Failure::Invalid(
            "expected one argument: use `lasthop top`".to_owned(),
        )),
    };
    match status {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(false),
    }
}

fn run(runtime_dir: &std::path::Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    runtime.block_on(top::top(&Client::new(runtime_dir)))
}
