//! Limits of the system in words: of open descriptors (`RLIMIT_NOFILE`, getrlimit(2)), and of
//! processes and threads (fork(2)).

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The settings that raise the limit.
pub const SETTINGS: &str = "LimitNOFILE= of the unit, or ulimit -Hn";

/// Returns the most descriptors that this process may have.
#[must_use]
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns an error in words: one of the limit says which it is, and how it is raised.
#[must_use]
pub fn in_words(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            let limit = descriptors();
            format!("all {limit} descriptors of the limit are open ({SETTINGS})")
        }
        Some(Errno::NFILE) => "the host has too many open files (fs.file-max)".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns the error of a process or thread that could not be started in words.
#[must_use]
pub fn of_start(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => "the limit of processes and threads is reached (TasksMax= of the \
                               unit, pids.max, or kernel.threads-max)"
            .to_owned(),
        _ => in_words(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_limit_says_which_it_is() {
        let text = in_words(&Errno::MFILE.into());
        let expected = format!("all {} descriptors of the limit are open (", descriptors());
        assert!(text.starts_with(&expected) && text.contains("LimitNOFILE="));
        assert!(in_words(&Errno::NFILE.into()).contains("fs.file-max"));
        assert_eq!(in_words(&io::Error::other("no")), "no");
        assert!(of_start(&Errno::AGAIN.into()).contains("TasksMax="));
        assert!(of_start(&Errno::NFILE.into()).contains("fs.file-max"));
    }
}
