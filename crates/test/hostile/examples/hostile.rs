//! Runs every known trick of a hostile VMM against a Lasthop of its own, beside honest VMMs.
//!
//! ```text
//! cargo run --release -p lasthop-hostile --example hostile -- --bin target/release --minutes 10
//! cargo run --release -p lasthop-hostile --example hostile -- --bin target/release \
//!     --trick hugetlb --seconds 10
//! ```
//! Each trick is run by a process of this very program, with internal arguments that begin with
//! `--attack`. Honest guests are threads of the first process, which starts the others and ends
//! them.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostile::{Attackers, HEAD, Options, TRICKS, attack, run};

const HELP: &str = "\
hostile --bin DIR [options]
  --bin DIR      folder of Lasthop's binaries
  --minutes N    time for all tricks; half of it for a program that only burns as much CPU time (10)
  --seconds N    the same in seconds
  --short        no such program, and no time is judged
  --trick NAME   only tricks whose name contains NAME
  --seed N       where random choices start (1)
  --list         the tricks";

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// SIGINT and SIGTERM end the run in order.
fn on_signals() {
    let handler: extern "C" fn(libc::c_int) = note;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: a handler may do only what is async-signal-safe; `note` stores to an atomic and
        // nothing else.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

fn value<T: FromStr>(name: &str, args: &mut impl Iterator<Item = String>) -> Result<T, String> {
    let text = args.next().ok_or(format!("{name}: a value is missing"))?;
    text.parse()
        .map_err(|_| format!("{name}: {text} is no such value"))
}

/// Parses the options; `None` when only the list was requested.
fn options(
    program: &Path,
    mut args: impl Iterator<Item = String>,
) -> Result<Option<Options>, String> {
    let mut all = Options {
        bin: "".into(),
        total: Duration::from_secs(600),
        attackers: Attackers::Processes(program.to_owned()),
        trick: None,
        seed: 1,
        times: true,
    };
    while let Some(arg) = args.next() {
        let (name, args) = (arg.as_str(), &mut args);
        match name {
            "--bin" => all.bin = value(name, args)?,
            "--minutes" => all.total = Duration::from_secs(60) * value::<u32>(name, args)?,
            "--seconds" => all.total = Duration::from_secs(1) * value::<u32>(name, args)?,
            "--short" => all.times = false,
            "--trick" => all.trick = Some(value(name, args)?),
            "--seed" => all.seed = value(name, args)?,
            "--list" => return Ok(None),
            other => return Err(format!("{other}: no such option\n{HELP}")),
        }
    }
    if !all.bin.join("lasthop").exists() {
        let bin = all.bin.display();
        return Err(format!("--bin: there is no lasthop in {bin:?}\n{HELP}"));
    }
    Ok(Some(all))
}

fn done(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn main() -> ExitCode {
    on_signals();
    let mut args = std::env::args().skip(1).peekable();
    if args.peek().is_some_and(|arg| arg == "--attack") {
        return done(attack(args, &STOP));
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return done(Err(error)),
    };
    let options = match options(&program, args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            TRICKS
                .iter()
                .for_each(|trick| println!("{:24} {}", trick.name, trick.source));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    println!("{HEAD}");
    match run(&options, &STOP, &mut |line| println!("{line}")) {
        Ok(report) => {
            print!("{}", report.summary());
            if report.interrupted {
                println!("interrupted; everything that was started has been taken down");
                return ExitCode::from(130);
            }
            println!(
                "{}",
                if report.missed.is_empty() {
                    "all goals were met"
                } else {
                    "goals were missed"
                }
            );
            ExitCode::from(u8::from(!report.missed.is_empty()))
        }
        Err(error) => done(Err(error)),
    }
}
