//! The desired state: one schema for the configuration file, requests and answers of the API, and
//! the command line.
//!
//! * [`load`] reads the configuration file, [`export`] writes one.
//! * [`desired`] checks and changes a desired state.
//! * [`json`] reads the documents of requests.
//! * [`words`] has the texts of errors, and the meaning of other libraries' texts.
//!
//! Its modules, the lowest first; a module uses only those before it:
//!
//! ```text
//! expect   the expected value of each key
//! words    texts of errors, and the meaning of other libraries' texts
//! similar  the key or word that was probably meant
//! json     documents of requests
//! desired  the desired state: its checks and changes
//! file     the configuration file
//! ```
//!
//! The types of the schema are those of the API (`api::v1`). This crate reads files, and does no
//! other I/O.
#![forbid(unsafe_code)]

pub mod desired;
mod expect;
mod file;
pub mod json;
mod similar;
pub mod words;

pub use file::{ConfigError, KeyPlaces, export, load, parse, text_of};
