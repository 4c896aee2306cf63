//! The desired state: one schema for the configuration file, requests and answers of the API, and
//! the command line.
//!
//! * [`load`] reads the configuration file, [`export`] writes one.
//! * [`desired`] checks and changes a desired state.
//! * [`json`] reads the documents of requests.
//!
//! The types of the schema are those of the API (`api::v1`). This crate reads files, and does no
//! other I/O.
#![forbid(unsafe_code)]

pub mod desired;
mod file;
pub mod json;

pub use file::{ConfigError, KeyPlaces, export, load, parse, text_of};
