//! The command line: what the operator types, and what he reads.
//!
//! `run` becomes the supervisor; everything else is a client of the API on `DIR/api.sock` and knows nothing
//! that the API does not say; `upgrade` and `reload` ask the supervisor itself. Exit statuses: 0 done, 1 it failed, 2 what was
//! asked for is wrong (usage, configuration, a name of nothing, or a request that Lasthop refuses as invalid or taken), 3 a dry run would
//! change something, 4 something else would become of a traced frame than was expected.

mod apply;
mod args;
mod capture;
mod client;
mod events;
mod failure;
mod generate;
mod limits;
mod order;
mod pcap;
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
use apply::Teller;
use args::{Cli, Command, How, Run, Upgrade};
pub(crate) use args::{LOG, SELF_CHECK};
use client::Client;
use failure::Failure;

/// What a command gives back.
type Done = Result<(), Failure>;

/// Does what the arguments of this process say.
pub(crate) fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let json = wants_json(&matches);
    let Cli {
        runtime_dir,
        command,
    } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match command {
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
        Command::Top => Err(top::become_top(&runtime_dir)),
        Command::SelfCheck { record } => self_check(record),
        Command::Apply {
            file,
            log: true,
            how,
        } => return apply_for_log(&runtime_dir, file, how),
        Command::Apply { file, how, .. } => ask(&runtime_dir, async |client| {
            apply::apply(client, &runtime_dir, file, how, Teller::People).await
        }),
        Command::Reload { how } => ask(&runtime_dir, async |client| {
            apply::reload(client, &runtime_dir, how).await
        }),
        other => ask(&runtime_dir, async |client| {
            order::obey(client, other).await
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

/// Applies a file for the supervisor, whose log gets all that is said.
fn apply_for_log(runtime_dir: &Path, file: PathBuf, how: How) -> ExitCode {
    crate::log::start();
    let done = ask(runtime_dir, async |client| {
        apply::apply(client, runtime_dir, file, how, Teller::Log).await
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.log(),
    }
}

/// Whether a command prints a document, of itself and of what goes wrong. What clap refuses is never known that well.
fn wants_json(matches: &ArgMatches) -> bool {
    let flag = matches.try_get_one::<bool>("json").ok().flatten();
    let within = matches.subcommand().map(|(_, matches)| matches);
    flag == Some(&true) || within.is_some_and(wants_json)
}

/// Says whether a configuration is right; nothing is started.
fn check(config: &Path, runtime_dir: &Path) -> Done {
    let wanted = control::config::load(config, runtime_dir);
    let wanted = wanted.map_err(|error| Failure::Wrong(error.to_string()))?;
    supervisor::names::check(&wanted).map_err(|no| {
        let error = control::config::error_in(config, &no);
        Failure::Wrong(error.to_string())
    })?;
    warn(&control::wanted::warnings(&wanted));
    let segments = units::several(wanted.segments.len() as u64, "segment");
    let ports = units::several(wanted.ports.len() as u64, "port");
    emit(&format!("{}: ok, {segments}, {ports}\n", config.display()))
}

/// Tells what is right and may not be meant.
fn warn(warnings: &[Warning]) {
    for warning in warnings {
        // Without a standard error there is nobody to tell.
        drop(writeln!(io::stderr(), "warning: {}", warning.text));
    }
}

/// Says what this build is; `record`: whether standard input is what a supervisor would leave to it.
fn self_check(record: bool) -> Done {
    if record {
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|error| Failure::Failed(error.to_string()))?;
        supervisor::understand(&input.into()).map_err(Failure::Failed)?;
    }
    let said = SelfCheck::own().print();
    said.map_err(|error| Failure::Failed(error.to_string()))
}

/// The file that the arguments of this process have `lasthop run` start from.
pub(crate) fn configuration() -> Option<PathBuf> {
    match Cli::try_parse().ok()?.command {
        Command::Run(Run { config, .. }) => std::path::absolute(config).ok(),
        _ => None,
    }
}

/// Does a command that needs a running Lasthop.
fn ask(runtime_dir: &Path, command: impl AsyncFnOnce(&Client) -> Done) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    let client = Client::new(runtime_dir);
    runtime.block_on(command(&client))
}

/// Prints to standard output; a closed pipe ends the command quietly.
fn emit(text: &str) -> Done {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Failed(format!("cannot write: {error}")),
    })
}

/// The same with a JSON document, in a line of its own.
fn emit_json(document: &str) -> Done {
    emit(&format!("{}\n", units::printable_json(document.trim_end())))
}
