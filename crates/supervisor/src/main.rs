//! Supervisor: the process of `lasthop run`, which reads the configuration and executes this
//! program with the [record](channel::start) of the sockets, interfaces and settings in it.
//!
//! The supervisor binds every listening socket, makes the files that outlive the other processes,
//! and starts those. Then it waits for their requests, their deaths and signals.
//!
//! ```text
//! control dies      it is restarted, with a new link to the switch, which forwards meanwhile; the
//!                   delay grows with each death before control is ready
//! switch dies       it is restarted and gets the saved sessions; control is restarted to set it up
//! driver dies       see [`drivers`]
//! upgrade           see [`upgrade`]
//! SIGTERM, SIGINT   all processes are stopped, sockets are removed, exit status 0
//! SIGHUP            see [`reload`]
//! supervisor dies   the kernel sends SIGKILL to all others
//! ```

mod admin;
mod binaries;
mod check;
mod child;
mod drivers;
mod environment;
mod events;
mod groups;
mod guests;
mod hand_over;
mod heartbeat;
mod lock;
mod notify;
mod paths;
mod reload;
mod renew;
mod replace;
mod rights;
mod running;
mod saved_sessions;
mod signals;
mod sockets;
mod start;
mod supervisor;
mod upgrade;
mod usage;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use channel::start::Start;
use process::self_check::{self, SelfCheck};

use supervisor::{
    Home, MAX_LAST_MESSAGES, Pair, ProcessRef, Reply, SWITCH, Setup, Supervisor, opened,
};

/// Reason why Lasthop did not start, with its exit status.
struct StartError {
    status: u8,
    text: String,
}

impl StartError {
    /// Returns the error for an invalid configuration or environment; nothing was changed.
    fn invalid(text: String) -> Self {
        Self { status: 2, text }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        let text = error.to_string();
        Self { status: 1, text }
    }
}

/// Way in which this program was started.
enum Started {
    /// Before an upgrade, to report its version; with a record of the running supervisor or not.
    SelfCheck { record: bool },
    /// By another supervisor in this process.
    Resumed,
    /// By `lasthop run`.
    New,
}

impl Started {
    fn by(arguments: &[String]) -> Self {
        let is = |at: usize, text| arguments.get(at).is_some_and(|argument| argument == text);
        if is(1, self_check::ARGUMENT) {
            let record = is(2, self_check::RECORD_ARGUMENT);
            return Self::SelfCheck { record };
        }
        match std::env::var_os(replace::RESUME) {
            Some(_) => Self::Resumed,
            None => Self::New,
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    match Started::by(&arguments) {
        Started::SelfCheck { record } => self_check(record),
        Started::Resumed => supervise(|| {
            let resumed = replace::resume();
            resumed.map_err(|text| StartError { status: 1, text })
        }),
        Started::New => match start::record() {
            Ok(record) => supervise(|| start_new(record)),
            Err(error) => report(&error),
        },
    }
}

/// Prints the versions and formats of this build; with `record`, also checks that the record of a
/// running supervisor on standard input can be read.
fn self_check(record: bool) -> ExitCode {
    let readable = || {
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = File::from(input.map_err(|error| error.to_string())?);
        replace::load(&input).map(drop)
    };
    let checked = if record { readable() } else { Ok(()) };
    let printed =
        checked.and_then(|()| SelfCheck::own().print().map_err(|error| error.to_string()));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => report(&StartError { status: 1, text }),
    }
}

fn start_new(record: Start) -> Result<Supervisor, StartError> {
    environment::check().map_err(StartError::invalid)?;
    let mut supervisor = start::start(record)?;
    supervisor.set_up_switch()?;
    supervisor.set_up_control()?;
    Ok(supervisor)
}

/// Prints an error, and returns its exit status.
fn report(error: &StartError) -> ExitCode {
    drop(writeln!(io::stderr(), "lasthop: {}", error.text));
    ExitCode::from(error.status)
}

fn supervise(start: impl FnOnce() -> Result<Supervisor, StartError>) -> ExitCode {
    process::log::start();
    // A process that was started from an open file has no useful name.
    let _ = rustix::thread::set_name(c"lasthop");
    let supervised = || {
        let signals = signals::block()?;
        // The closer has a share of it.
        child::raise_descriptor_limit();
        sys::closer::start(None)?;
        let mut supervisor = start()?;
        let done = supervisor.serve(&signals);
        supervisor.stop();
        Ok::<_, StartError>(done?)
    };
    match supervised() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}
