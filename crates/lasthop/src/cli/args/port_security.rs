//! Options for port security.

use api::v1::{Allowed, AllowedWord, PortSecurityPatch, PortSecuritySpec};
use clap::Args;
use clap::builder::BoolishValueParser;

/// The options of `port add` and `port set`.
#[derive(Debug, Default, Args)]
pub(super) struct PortSecurity {
    /// Allowed source MAC addresses: a list, "any", "sticky", or "usual" for the default
    #[arg(long, value_name = "MACS", value_parser = allowed)]
    macs: Option<Setting>,
    /// Allowed source IP addresses and networks: a list, "any", "sticky", or "usual" for the
    /// default
    #[arg(long, value_name = "ADDRESSES", value_parser = allowed)]
    addresses: Option<Setting>,
    /// Allow the guest to be a DHCP server
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new())]
    dhcp_server: Option<bool>,
    /// Allow the guest to be a router (router advertisements, redirects)
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new())]
    router: Option<bool>,
}

/// A value, or the default.
#[derive(Clone, Debug)]
struct Setting(Option<Allowed>);

fn allowed(text: &str) -> Result<Setting, String> {
    let word = |word| Ok(Setting(Some(Allowed::Word(word))));
    match text {
        "" => Err("expected at least one address".to_owned()),
        "usual" => Ok(Setting(None)),
        "any" => word(AllowedWord::Any),
        "sticky" => word(AllowedWord::Sticky),
        list => {
            let all = list.split(',').map(str::to_owned);
            Ok(Setting(Some(Allowed::List(all.collect()))))
        }
    }
}

impl PortSecurity {
    /// Returns the API's object for a new port.
    pub(super) fn spec(&self) -> PortSecuritySpec {
        PortSecuritySpec {
            macs: self.macs.clone().and_then(|setting| setting.0),
            addresses: self.addresses.clone().and_then(|setting| setting.0),
            dhcp_server: self.dhcp_server,
            router: self.router,
        }
    }

    /// Returns the merge patch, or `None` without changes.
    pub(super) fn patch(&self) -> Option<Option<PortSecurityPatch>> {
        let patch = PortSecurityPatch {
            macs: self.macs.clone().map(|setting| setting.0),
            addresses: self.addresses.clone().map(|setting| setting.0),
            dhcp_server: self.dhcp_server.map(Some),
            router: self.router.map(Some),
        };
        (patch != PortSecurityPatch::default()).then_some(Some(patch))
    }
}
