//! Guests that are connected and idle, beside those with traffic.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use e2e::lasthop::{Lasthop, port_table};
use testkit::crowd::Crowd;

/// Their segment.
const SEGMENT: &str = "idle";

fn name(number: u16) -> String {
    format!("i{number}")
}

/// Returns the tables of so many ports, and of their segment.
pub(crate) fn tables(guests: u16) -> String {
    if guests == 0 {
        return String::new();
    }
    let ports = (0..guests).map(|number| port_table(&name(number), SEGMENT));
    format!(
        "\n[[segment]]\nname = \"{SEGMENT}\"\n{}",
        ports.collect::<String>()
    )
}

/// Connects so many guests.
///
/// # Errors
/// A session fails.
pub(crate) fn connect(lasthop: &Lasthop, guests: u16) -> Result<Crowd> {
    let sockets: Vec<PathBuf> = (0..guests)
        .map(|number| lasthop.socket_of(&name(number)))
        .collect();
    Crowd::connect(&sockets).context("idle guests")
}
