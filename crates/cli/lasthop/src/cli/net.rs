//! `lasthop net`: becomes a program whose sockets are those of a port.

use std::ffi::OsString;
use std::path::Path;

use client::Failure;
use sockets::Config;
use sockets::config::{SOCKET, variable};

use super::args::NetRun;
use super::preload;

/// The library, beside this program.
const LIBRARY: &str = "liblasthop_net.so";

/// Becomes the program; returns only after an error.
pub(super) fn start(runtime_dir: &Path, arguments: &NetRun) -> Failure {
    let settings = settings(runtime_dir, arguments);
    let pairs = settings
        .iter()
        .map(|(key, value)| (*key, value.as_os_str()));
    if let Err(error) = Config::from_pairs(pairs) {
        return Failure::Invalid(error);
    }
    preload::start(LIBRARY, &arguments.command, |command| {
        for (key, value) in &settings {
            command.env(variable(key), value);
        }
        match arguments.host_network {
            true => Ok(()),
            false => leave_host_network(),
        }
    })
}

/// Leaves the host's network: what does not come to the library reaches nothing then.
fn leave_host_network() -> Result<(), Failure> {
    sys::network::leave_hosts().map_err(|error| {
        Failure::Invalid(format!(
            "no network namespace can be made here ({error}), and without one what the library \
             does not take would have the host's network; --host-network allows that"
        ))
    })
}

/// The keys of the library with their values; an empty value is the default.
fn settings(runtime_dir: &Path, arguments: &NetRun) -> Vec<(&'static str, OsString)> {
    let dir = std::path::absolute(runtime_dir).unwrap_or_else(|_| runtime_dir.to_owned());
    let all = |values: &[String]| OsString::from(values.join(","));
    vec![
        (SOCKET, dir.join(&arguments.socket).into()),
        ("ADDRESS", all(&arguments.address)),
        ("ROUTE", all(&arguments.route)),
        ("DNS", all(&arguments.dns)),
        ("MAC", one(arguments.mac.as_ref())),
        ("MTU", one(arguments.mtu.as_ref())),
        ("BUFFER", one(arguments.buffer.as_ref())),
        ("SPIN_US", one(arguments.spin_us.as_ref())),
    ]
}

fn one(value: Option<&String>) -> OsString {
    value.map(OsString::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_library() {
        let arguments = NetRun {
            socket: "app1.sock".into(),
            address: vec!["10.0.0.5/24".to_owned(), "fd00::5/64".to_owned()],
            route: Vec::new(),
            dns: vec!["10.0.0.3".to_owned()],
            mac: None,
            mtu: Some("1400".to_owned()),
            buffer: None,
            spin_us: None,
            host_network: false,
            command: vec!["true".into()],
        };
        let settings = settings(Path::new("/run/lasthop"), &arguments);
        let pairs = settings
            .iter()
            .map(|(key, value)| (*key, value.as_os_str()));
        let config = Config::from_pairs(pairs).unwrap();
        assert_eq!(config.socket, Path::new("/run/lasthop/app1.sock"));
        assert_eq!((config.addresses.len(), config.mtu), (2, 1400));
        let keys: Vec<_> = settings.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, sockets::config::KEYS);
    }
}
