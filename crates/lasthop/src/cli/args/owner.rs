//! Options for the owner and mode of a port's socket, and for its peer.

use api::v1::{PortPatch, PortSpec};
use clap::Args;
use clap::builder::{StringValueParser, TypedValueParser};

/// The options of `port add` and `port set`.
#[derive(Debug, Default, Args)]
pub(super) struct Owner {
    /// Owner of the socket, name or number; "usual": the user of Lasthop
    #[arg(long, value_name = "USER", value_parser = setting_or("usual"))]
    user: Option<Setting>,
    /// Group of the socket, name or number; "usual": the group of Lasthop
    #[arg(long, value_name = "GROUP", value_parser = setting_or("usual"))]
    group: Option<Setting>,
    /// Mode of the socket, like 0660; connecting needs write access; "usual": set by the umask
    #[arg(long, value_name = "MODE", value_parser = setting_or("usual"))]
    mode: Option<Setting>,
    /// User whose processes may connect, name or number; "any": no restriction beyond the mode
    #[arg(long, value_name = "USER", value_parser = setting_or("any"))]
    peer_user: Option<Setting>,
}

/// A value, or the default.
#[derive(Clone, Debug)]
struct Setting(Option<String>);

/// Returns a parser of settings with this word for the default.
fn setting_or(default: &'static str) -> impl TypedValueParser<Value = Setting> {
    StringValueParser::new().map(move |text| Setting((text != default).then_some(text)))
}

fn changed(option: Option<&Setting>) -> Option<Option<String>> {
    option.map(|setting| setting.0.clone())
}

impl Owner {
    /// Adds the options to a new port.
    pub(super) fn spec(&self, port: PortSpec) -> PortSpec {
        PortSpec {
            user: changed(self.user.as_ref()).flatten(),
            group: changed(self.group.as_ref()).flatten(),
            mode: changed(self.mode.as_ref()).flatten(),
            peer_user: changed(self.peer_user.as_ref()).flatten(),
            ..port
        }
    }

    /// Adds the options to a merge patch.
    pub(super) fn patch(&self, port: PortPatch) -> PortPatch {
        PortPatch {
            user: changed(self.user.as_ref()),
            group: changed(self.group.as_ref()),
            mode: changed(self.mode.as_ref()),
            peer_user: changed(self.peer_user.as_ref()),
            ..port
        }
    }
}
