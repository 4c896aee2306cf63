//! Supervisor: the process of `lasthop run`, which reads the configuration and executes this
//! program with the [record](ipc::start) of the sockets, interfaces and settings in it.
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
//!
//! The modules, the lowest first; a module uses only those before it:
//!
//! ```text
//! shares          shares of the limit of open descriptors
//! environment     environment variables of this program
//! kind            control, the switch, a driver: their messages
//! reply           replies with a socket
//! record          the record for the next supervisor, and its descriptors
//! rights          rights that are needed only once
//! usage           CPU time and memory of processes
//! lock            the lock of the runtime directory
//! signals         signals to the supervisor
//! paths           permitted paths of sockets
//! groups          control groups of drivers
//! notify          notification of the service manager
//! running         a child process, until it is reaped or given up
//! heartbeat       pings, and processes that do not reply
//! admin           the administration socket
//! binaries        the executable files of one installation
//! check           the check of the binaries of another version
//! child           a child process: its link and its restarts
//! events          events for control
//! sockets         listening sockets, and connections to front ends
//! connection_table  the file of the table of connections
//! saved_sessions  sessions for the next switch
//! drivers         interfaces, with a process for each
//! guests          vCPU states of guests
//! reload          the configuration file, applied again
//! renew           drivers, replaced one after the other
//! supervisor      the state: all of the above, and what processes request
//! hand_over       procedure over it: a new pair of control and switch
//! replace         procedure over it: another program in this process
//! upgrade         procedure over it: another version of all programs
//! start           the state at the start
//! serve           the loop
//! ```

mod admin;
mod binaries;
mod check;
mod child;
mod connection_table;
mod drivers;
mod environment;
mod events;
mod groups;
mod guests;
mod hand_over;
mod heartbeat;
mod kind;
mod lock;
mod notify;
mod paths;
mod record;
mod reload;
mod renew;
mod replace;
mod reply;
mod rights;
mod running;
mod saved_sessions;
mod serve;
mod shares;
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

use ipc::start::Start;
use process::self_check::{self, SelfCheck};

use start::StartError;
use supervisor::Supervisor;

/// Way of this program's start.
enum StartMode {
    /// Before an upgrade, to report its version; with a record of the running supervisor or not.
    SelfCheck { record: bool },
    /// By another supervisor in this process.
    Resumed,
    /// By `lasthop run`.
    New,
}

impl StartMode {
    fn by(arguments: &[String]) -> Self {
        let is = |at: usize, text| arguments.get(at).is_some_and(|argument| argument == text);
        if is(1, self_check::ARGUMENT) {
            let record = is(2, self_check::RECORD_ARGUMENT);
            return Self::SelfCheck { record };
        }
        match std::env::var_os(environment::RESUME) {
            Some(_) => Self::Resumed,
            None => Self::New,
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    match StartMode::by(&arguments) {
        StartMode::SelfCheck { record } => self_check(record),
        StartMode::Resumed => supervise(|| {
            let resumed = replace::resume();
            resumed.map_err(StartError::failed)
        }),
        StartMode::New => match start::record() {
            Ok(record) => supervise(|| start_new(record)),
            Err(error) => report(&error),
        },
    }
}

/// Prints the versions and formats of this build; with `record`, then checks that the record of a
/// running supervisor on standard input can be read.
fn self_check(record: bool) -> ExitCode {
    let checked = || {
        SelfCheck::own().print().map_err(StartError::failed)?;
        if record {
            let input = io::stdin().as_fd().try_clone_to_owned();
            let input = File::from(input.map_err(StartError::failed)?);
            replace::load(&input).map_err(StartError::failed)?;
        }
        Ok(())
    };
    match checked() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn start_new(record: Start) -> Result<Supervisor, StartError> {
    environment::check().map_err(StartError::invalid)?;
    let mut supervisor = start::start(record)?;
    supervisor.set_up_switch()?;
    supervisor.set_up(&supervisor.pair, false)?;
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
        sys::closer::start(process::log::closers::logger(), None)?;
        let mut supervisor = start()?;
        let done = serve::serve(&mut supervisor, &signals);
        serve::stop(&mut supervisor);
        Ok::<_, StartError>(done?)
    };
    match supervised() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}
