//! Options of netmap and memif ports.

use std::path::Path;

use api::v1::{PortPatch, PortSpec, Secret};
use clap::Args;
use clap::builder::{RangedU64ValueParser, TypedValueParser};

/// The options of `port add`.
#[derive(Debug, Default, Args)]
pub(super) struct Rings {
    /// Slots of each ring of a netmap port: a power of two from 64 to 4096 [default: 1024]
    #[arg(long, value_name = "N", value_parser = slots())]
    slots: Option<u16>,
    /// Pipes of a netmap port: clients that open NAME{ID and NAME}ID share memory
    #[arg(long)]
    pipes: bool,
    /// Interface id of a memif port [default: 0]
    #[arg(long, value_name = "ID")]
    id: Option<u32>,
    /// File with the secret of a memif port: 1 to 24 bytes, and perhaps the end of a line
    #[arg(long, value_name = "FILE", value_parser = secret)]
    secret_file: Option<Secret>,
}

/// The options of `port set`.
#[derive(Debug, Default, Args)]
pub(super) struct RingChanges {
    /// Slots of each ring of a netmap port; its client loses the connection
    #[arg(long, value_name = "N", value_parser = slots())]
    slots: Option<u16>,
    /// Pipes of a netmap port: whether clients that open NAME{ID and NAME}ID share memory
    #[arg(long, value_name = "BOOL")]
    pipes: Option<bool>,
    /// Interface id of a memif port; its client loses the connection
    #[arg(long, value_name = "ID")]
    id: Option<u32>,
    /// File with the secret of a memif port; its client loses the connection
    #[arg(long, value_name = "FILE", value_parser = secret)]
    secret_file: Option<Secret>,
    /// Remove the secret of a memif port; its client loses the connection
    #[arg(long, conflicts_with = "secret_file")]
    no_secret: bool,
}

/// Returns the parser of a number of slots; the server checks that it is a power of two.
fn slots() -> impl TypedValueParser<Value = u16> {
    RangedU64ValueParser::<u16>::new().range(64..=4096)
}

/// Reads a secret from a file: other users see the arguments of a process.
fn secret(file: &str) -> Result<Secret, String> {
    let text = std::fs::read_to_string(Path::new(file)).map_err(|error| error.to_string())?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.to_owned().into())
}

impl Rings {
    /// Adds the options to a new port.
    pub(super) fn spec(&self, port: PortSpec) -> PortSpec {
        PortSpec {
            slots: self.slots,
            pipes: self.pipes,
            id: self.id,
            secret: self.secret_file.clone(),
            ..port
        }
    }
}

impl RingChanges {
    /// Adds the options to a merge patch.
    pub(super) fn patch(&self, port: PortPatch) -> PortPatch {
        PortPatch {
            slots: self.slots,
            pipes: self.pipes,
            id: self.id,
            secret: super::change(self.secret_file.clone(), self.no_secret),
            ..port
        }
    }
}
