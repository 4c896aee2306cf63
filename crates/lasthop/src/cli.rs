//! The command line.
//!
//! `lasthop run` is the supervisor. All other commands are clients of the API on `DIR/api.sock`;
//! `upgrade` and `reload` use the supervisor's own socket, too. Exit statuses: 0 done, 1 failed (a
//! retry may succeed), 2 wrong request (usage, configuration, an unknown or used name) and nothing
//! changed, 3 a dry run would change something, 4 `trace --expect` found another result.

mod apply;
mod args;
mod capture;
mod client;
mod events;
mod failure;
mod generate;
mod limits;
mod pcap;
mod rates;
#[cfg(test)]
mod reference;
mod run;
mod show;
mod stop;
mod tables;
mod top;
mod trace;
mod units;
mod upgrade;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::v1::Warning;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};

use crate::self_check::SelfCheck;
use crate::supervisor::{self, RunArgs};
use apply::Reporter;
use args::{Cli, Command, How, Run, Upgrade};
pub(crate) use args::{LOG, SELF_CHECK};
use client::{ExitStatus, block_on};
use failure::Failure;

/// Runs the command of this process's arguments.
pub(crate) fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let json = json_requested(&matches);
    let Cli {
        runtime_dir,
        command,
    } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let status = match command {
        Command::Run(Run {
            config,
            check: false,
        }) => {
            return supervisor::run(&RunArgs {
                config,
                runtime_dir,
            });
        }
        Command::Run(Run { config, .. }) => check(&config, &runtime_dir),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { out } => generate::man(out.as_deref()),
        Command::Upgrade(Upgrade { to, json }) => upgrade::upgrade(&runtime_dir, to, json),
        Command::Top => Err(top::exec(&runtime_dir)),
        Command::SelfCheck { record } => self_check(record),
        Command::Apply {
            file,
            log: true,
            how,
        } => return apply_for_log(&runtime_dir, file, how),
        Command::Apply { file, how, .. } => block_on(&runtime_dir, async |client| {
            apply::apply(client, &runtime_dir, file, how, Reporter::Output).await
        }),
        Command::Reload(how) => block_on(&runtime_dir, async |client| {
            apply::reload(client, &runtime_dir, how).await
        }),
        other => block_on(&runtime_dir, async |client| run::run(client, other).await),
    };
    status.map_or_else(|failure| failure.report(json), |()| ExitCode::SUCCESS)
}

/// Applies a file for the supervisor; all output goes to its log.
fn apply_for_log(runtime_dir: &Path, file: PathBuf, how: How) -> ExitCode {
    crate::log::start();
    let status = block_on(runtime_dir, async |client| {
        apply::apply(client, runtime_dir, file, how, Reporter::Log).await
    });
    status.map_or_else(|failure| failure.log(), |()| ExitCode::SUCCESS)
}

/// Returns whether `--json` was given: results and errors are JSON documents. Usage errors are
/// always plain text.
fn json_requested(matches: &ArgMatches) -> bool {
    let flag = matches.try_get_one::<bool>("json").ok().flatten();
    let within = matches.subcommand().map(|(_, matches)| matches);
    flag == Some(&true) || within.is_some_and(json_requested)
}

/// Checks a configuration file; starts nothing.
fn check(config: &Path, runtime_dir: &Path) -> ExitStatus {
    let desired = config::load(config, runtime_dir);
    let desired = desired.map_err(|error| Failure::Invalid(error.to_string()))?;
    supervisor::names::check(&desired).map_err(|invalid| {
        let error = config::error_in(config, &invalid);
        Failure::Invalid(error.to_string())
    })?;
    warn(&config::desired::warnings(&desired));
    let segments = units::plural(desired.segments.len() as u64, "segment");
    let ports = units::plural(desired.ports.len() as u64, "port");
    emit(&format!("{}: ok, {segments}, {ports}\n", config.display()))
}

/// Prints warnings about valid but unlikely requests.
fn warn(warnings: &[Warning]) {
    for warning in warnings {
        // Without a standard error the warning is lost.
        drop(writeln!(io::stderr(), "warning: {}", warning.text));
    }
}

/// Prints the versions and formats of this build; with `record`, also checks that the supervisor's
/// record on standard input can be read.
fn self_check(record: bool) -> ExitStatus {
    if record {
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|error| Failure::Failed(error.to_string()))?;
        supervisor::understand(&input.into()).map_err(Failure::Failed)?;
    }
    let printed = SelfCheck::own().print();
    printed.map_err(|error| Failure::Failed(error.to_string()))
}

/// Returns the configuration file of `lasthop run` in this process's arguments.
pub(crate) fn configuration() -> Option<PathBuf> {
    match Cli::try_parse().ok()?.command {
        Command::Run(Run { config, .. }) => std::path::absolute(config).ok(),
        _ => None,
    }
}

/// Prints to standard output; a closed pipe ends the command without an error.
fn emit(text: &str) -> ExitStatus {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(format!("cannot write: {error}")),
    })
}

/// Prints a JSON document as one line.
fn emit_json(document: &str) -> ExitStatus {
    emit(&format!("{}\n", units::printable_json(document.trim_end())))
}
