//! Rates of ports between two samples of their counters.

use api::v1::{PortStats, Traffic};

/// Rates of one port per second.
#[derive(Clone, Debug)]
pub struct PortRates {
    /// Name of the port.
    pub name: String,
    /// State of the port, as lists of ports show it.
    pub state: &'static str,
    /// Frames and bits from the guest.
    pub from_guest: (f64, f64),
    /// Frames and bits to the guest.
    pub to_guest: (f64, f64),
    /// Lost frames; those for the absence of the guest are not counted.
    pub drops: f64,
    /// CPU time in percent of a core.
    pub cpu: f64,
}

impl PortRates {
    /// Returns the rates of a port from its counters before and after some seconds.
    pub fn between(was: &PortStats, is: &PortStats, seconds: f64) -> Self {
        Self {
            name: is.name.clone(),
            state: is.admin_state.shown(is.state),
            from_guest: traffic(was.from_guest, is.from_guest, seconds),
            to_guest: traffic(was.to_guest, is.to_guest, seconds),
            drops: growth(was.lost(), is.lost()) / seconds,
            cpu: growth(was.work.cpu_us, is.work.cpu_us) / 1e4 / seconds,
        }
    }
}

/// Returns the growth of a counter; 0 if it was restarted, as that of a port that was removed and
/// added again.
pub fn growth(was: u64, is: u64) -> f64 {
    is.saturating_sub(was) as f64
}

fn traffic(was: Traffic, is: Traffic, seconds: f64) -> (f64, f64) {
    let frames = growth(was.packets, is.packets) / seconds;
    (frames, growth(was.bytes, is.bytes) * 8.0 / seconds)
}
