//! Versioned request and response types of the HTTP API.
//!
//! `lasthop … --json` prints the same documents, so they are stable: within a version, fields are
//! added and never removed, renamed or given another meaning. Requests with unknown fields are
//! refused: a misspelt field must not be ignored silently. Answers may have fields that an older
//! client does not know.
//!
//! This crate knows nothing of the rest of Lasthop. It has what a client in any language sees.
#![forbid(unsafe_code)]

pub mod v1;
