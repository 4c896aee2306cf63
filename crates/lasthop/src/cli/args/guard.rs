//! What a port's guest may send, as options.

use api::v1::{Allowed, AllowedWord, GuardPatch, GuardSpec};
use clap::Args;
use clap::builder::BoolishValueParser;

/// The options of `port add` and `port set`.
#[derive(Debug, Default, Args)]
pub(super) struct Guard {
    /// Source MAC addresses of the guest: a list, "any", "learned-once", or "usual" for what is so without this
    #[arg(long, value_name = "MACS", value_parser = allowed)]
    macs: Option<Chosen>,
    /// IP addresses and networks of the guest: a list, "any", "learned-once", or "usual" for what is so without this
    #[arg(long, value_name = "ADDRESSES", value_parser = allowed)]
    addresses: Option<Chosen>,
    /// Whether the guest may serve DHCP
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new())]
    dhcp_server: Option<bool>,
    /// Whether the guest may be a router
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new())]
    router: Option<bool>,
}

/// A choice, or none.
#[derive(Clone, Debug)]
struct Chosen(Option<Allowed>);

fn allowed(text: &str) -> Result<Chosen, String> {
    let word = |word| Ok(Chosen(Some(Allowed::Word(word))));
    match text {
        "" => Err("expected at least one address".to_owned()),
        "usual" => Ok(Chosen(None)),
        "any" => word(AllowedWord::Any),
        "learned-once" => word(AllowedWord::LearnedOnce),
        list => {
            let all = list.split(',').map(str::to_owned);
            Ok(Chosen(Some(Allowed::List(all.collect()))))
        }
    }
}

impl Guard {
    /// Of a new port.
    pub(super) fn spec(&self) -> GuardSpec {
        GuardPatch::applied(self.patch().flatten().as_ref(), &GuardSpec::default())
    }

    /// What of it changes.
    pub(super) fn patch(&self) -> Option<Option<GuardPatch>> {
        let patch = GuardPatch {
            macs: self.macs.clone().map(|chosen| chosen.0),
            addresses: self.addresses.clone().map(|chosen| chosen.0),
            dhcp_server: self.dhcp_server.map(Some),
            router: self.router.map(Some),
        };
        (patch != GuardPatch::default()).then_some(Some(patch))
    }
}
