//! Versioned request and response types of the HTTP API.
//!
//! The same documents are what `lasthop … --json` prints, so they are stable: within a version, fields
//! are added and never removed, renamed or given another meaning. Requests refuse fields they do not
//! know, because a misspelt field that is silently ignored is a change that silently did not happen.
//! Answers may carry fields that an older client does not know.
//!
//! This crate knows nothing of the rest of Lasthop: it is what a client in any language sees.
#![forbid(unsafe_code)]

pub mod v1;
