//! The arguments of `lasthop libvirt-hook`.

use std::path::PathBuf;

use clap::Args;

/// The directory in which libvirt keeps a file about the state of each running domain.
const STATUS_DIR: &str = "/run/libvirt/qemu";

#[derive(Debug, Args)]
#[command(
    override_usage = "lasthop libvirt-hook -- <DOMAIN> <OPERATION> [ARGS]...
       lasthop libvirt-hook --running[=DIR]"
)]
pub(in crate::cli) struct LibvirtHook {
    /// Set the bandwidth of all running domains, as read from libvirt's directory of their states
    /// [default: /run/libvirt/qemu]
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = STATUS_DIR,
    )]
    pub(in crate::cli) running: Option<PathBuf>,
    /// Arguments of a hook of libvirt's QEMU driver: domain, operation, and others that are ignored
    #[arg(
        value_name = "DOMAIN OPERATION",
        required_unless_present = "running",
        conflicts_with = "running",
        last = true
    )]
    pub(in crate::cli) call: Vec<String>,
}

impl LibvirtHook {
    /// Returns the operation that libvirt has done.
    pub(in crate::cli) fn operation(&self) -> &str {
        self.call.get(1).map_or("", String::as_str)
    }
}
