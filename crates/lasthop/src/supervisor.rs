//! The supervisor: what `lasthop run` becomes.

use std::path::PathBuf;
use std::process::ExitCode;

/// What `lasthop run` was told.
pub(crate) struct RunArgs {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// Where the sockets are.
    pub(crate) runtime_dir: PathBuf,
}

/// Placeholder until the supervisor is here: reads the configuration and ends.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    match control::config::load(&args.config, &args.runtime_dir) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lasthop: {error}");
            ExitCode::from(2)
        }
    }
}
