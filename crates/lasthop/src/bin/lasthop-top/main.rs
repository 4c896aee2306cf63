//! What `lasthop top` becomes: a client of the API with a screen.

#[path = "../../cli/client.rs"]
#[expect(dead_code, reason = "the command line asks for more")]
mod client;
#[path = "../../cli/failure.rs"]
#[expect(dead_code, reason = "the command line fails in more ways")]
mod failure;
mod screen;
mod top;
#[path = "../../cli/units.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the command line tells more"))]
mod units;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use client::Client;
use failure::Failure;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let done = match (args.next(), args.next()) {
        (Some(dir), None) => run(&PathBuf::from(dir)),
        _ => Err(Failure::Wrong("`lasthop top` runs this".to_owned())),
    };
    match done {
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
