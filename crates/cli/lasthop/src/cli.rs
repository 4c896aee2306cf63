//! The command line.
//!
//! `lasthop run` reads the configuration file and becomes the supervisor. All other commands are
//! clients of the API on `DIR/api.sock`; `upgrade` and `reload` use the supervisor's own socket,
//! too. Exit statuses: 0 done, 1 failed at run time (a retry may succeed), 2 wrong request,
//! configuration or environment and nothing changed, 3 a dry run would change something,
//! 4 `trace --expect` found another result.

mod apply;
mod args;
mod capture;
mod connections;
mod events;
mod forward;
mod generate;
mod libvirt_hook;
mod limits;
mod net;
mod netmap;
mod pcap;
mod preload;
mod qos;
#[cfg(test)]
mod reference;
mod run;
mod show;
mod siblings;
mod start;
mod stop;
mod tables;
mod trace;
mod upgrade;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::v1::Warning;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use client::{ExitStatus, Failure, block_on, units};
use process::self_check::{self, SelfCheck};

use apply::Reporter;
use args::{ApplyHow, Cli, Command, Net, Run, Upgrade};
use siblings::TOP;

/// Runs the command of this process's arguments.
pub(crate) fn main() -> ExitCode {
    if std::env::args_os().skip(1).eq([self_check::ARGUMENT]) {
        return finish(self_check(), false);
    }
    let matches = Cli::command().try_get_matches();
    let matches = matches.unwrap_or_else(|error| usage(&error));
    let json = json_requested(&matches);
    let Cli {
        runtime_dir,
        command,
    } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(failure) = command.without_reader()
        && let Err(failure) = client::end_without_reader(io::stdout(), failure)
    {
        return failure.report(json);
    }
    let status = match command {
        Command::Run(Run {
            config,
            check: false,
        }) => {
            process::log::start();
            start::start(&config, &runtime_dir)
        }
        Command::Run(Run { config, .. }) => start::check(&config, &runtime_dir),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { out } => generate::man(out.as_deref()),
        Command::Upgrade(Upgrade { to, json }) => upgrade::upgrade(&runtime_dir, to, json),
        Command::Net(Net::Run(arguments)) => Err(net::start(&runtime_dir, &arguments)),
        Command::Netmap(arguments) => Err(netmap::start(&runtime_dir, &arguments)),
        Command::LibvirtHook(hook) => return libvirt_hook::run(runtime_dir, hook),
        Command::Top => Err(siblings::execute(TOP, |top| top.arg(&runtime_dir))),
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
    finish(status, json)
}

/// Ends with a usage error, or after help. Reasons of the standard library are in our words.
fn usage(error: &clap::Error) -> ! {
    let reason = std::error::Error::source(error).map(ToString::to_string);
    let ours = reason.as_deref().and_then(config::words::expected);
    let (Some(reason), Some(ours)) = (reason, ours) else {
        error.exit()
    };
    let text = error.render().to_string();
    let text = text.replacen(&reason, &format!("expected {ours}"), 1);
    // Without a standard error only the exit status remains.
    drop(io::stderr().write_all(text.as_bytes()));
    std::process::exit(error.exit_code())
}

/// Reports a failure, and returns the exit status.
fn finish(status: ExitStatus, json: bool) -> ExitCode {
    status.map_or_else(|failure| failure.report(json), |()| ExitCode::SUCCESS)
}

/// Applies a file for the supervisor; all output goes to its log.
fn apply_for_log(runtime_dir: &Path, file: PathBuf, how: ApplyHow) -> ExitCode {
    process::log::start();
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

/// Prints warnings about valid but unlikely requests.
fn warn(warnings: &[Warning]) {
    for warning in warnings {
        // Without a standard error the warning is lost.
        drop(writeln!(io::stderr(), "warning: {}", warning.text));
    }
}

/// Prints the versions and formats of this build.
fn self_check() -> ExitStatus {
    let printed = SelfCheck::own().print();
    printed.map_err(|error| Failure::Failed(error.to_string()))
}

/// Prints to standard output. That its reader is gone is no error here: a command that needs one is
/// ended by [`client::end_without_reader`], and a change is made without one.
fn emit(text: &str) -> ExitStatus {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if client::has_reader(io::stdout()) => {
            Err(Failure::Failed(format!("cannot write: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a JSON document as one line.
fn emit_json(document: &str) -> ExitStatus {
    emit(&format!("{}\n", units::printable_json(document.trim_end())))
}
