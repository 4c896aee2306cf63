//! Whose a port's socket is and who may connect, as options.

use api::v1::{PortPatch, PortSpec};
use clap::Args;

/// The options of `port add` and `port set`.
#[derive(Debug, Default, Args)]
pub(super) struct Owner {
    /// The user whose the socket is, where Lasthop listens, by name or number; "usual" for the one that Lasthop runs as
    #[arg(long, value_name = "USER", value_parser = chosen)]
    user: Option<Chosen>,
    /// The group whose the socket is, by name or number; "usual" for that of Lasthop
    #[arg(long, value_name = "GROUP", value_parser = chosen)]
    group: Option<Chosen>,
    /// The socket's mode, like 0660: who may write may connect; "usual" for what the umask leaves
    #[arg(long, value_name = "MODE", value_parser = chosen)]
    mode: Option<Chosen>,
    /// The only user whose processes may connect, by name or number; "any" for all that the mode lets by
    #[arg(long, value_name = "USER", value_parser = peer)]
    peer_user: Option<Chosen>,
}

/// A choice, or none.
#[derive(Clone, Debug)]
struct Chosen(Option<String>);

#[expect(clippy::unnecessary_wraps, reason = "the type of a parser")]
fn chosen(text: &str) -> Result<Chosen, String> {
    Ok(Chosen((text != "usual").then(|| text.to_owned())))
}

#[expect(clippy::unnecessary_wraps, reason = "the type of a parser")]
fn peer(text: &str) -> Result<Chosen, String> {
    Ok(Chosen((text != "any").then(|| text.to_owned())))
}

fn changed(option: Option<&Chosen>) -> Option<Option<String>> {
    option.map(|chosen| chosen.0.clone())
}

impl Owner {
    /// Of a new port.
    pub(super) fn tell(&self, port: PortSpec) -> PortSpec {
        PortSpec {
            user: changed(self.user.as_ref()).flatten(),
            group: changed(self.group.as_ref()).flatten(),
            mode: changed(self.mode.as_ref()).flatten(),
            peer_user: changed(self.peer_user.as_ref()).flatten(),
            ..port
        }
    }

    /// What of it changes.
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
