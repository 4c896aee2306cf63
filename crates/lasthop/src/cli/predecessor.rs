//! Requests of a supervisor of the version before `lasthop-supervisor`, when this program was the
//! supervisor: an upgrade from there executes this program. It goes with format version 10 of
//! [`channel::formats::SUPERVISOR_VERSIONS`].

use std::ffi::OsString;

use client::Failure;
use process::self_check;

use super::siblings::{self, SUPERVISOR};

/// Environment variable by which a supervisor executes the next one.
const RESUME: &str = "LASTHOP_RESUME";

/// Becomes the supervisor if that is requested; then returns only after an error.
pub(super) fn become_supervisor() -> Option<Failure> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if std::env::var_os(RESUME).is_some() {
        return Some(siblings::execute(SUPERVISOR, |it| it.args(arguments)));
    }
    if arguments != ["self-check", self_check::RECORD_ARGUMENT] {
        return None;
    }
    let arguments = [self_check::ARGUMENT, self_check::RECORD_ARGUMENT];
    Some(siblings::execute(SUPERVISOR, |it| it.args(arguments)))
}
