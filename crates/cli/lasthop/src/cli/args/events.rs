//! The arguments of `lasthop events`.

use api::v1::{EVENTS_KEPT, EventKind, EventsFilter};
use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};

use super::name;

#[derive(Debug, Args)]
pub(in crate::cli) struct Events {
    /// Only events of this port
    #[arg(long, value_name = "PORT", value_parser = name)]
    port: Option<String>,
    /// Only events of these kinds, separated by commas
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(EventKind::NAMES)
    )]
    kind: Vec<String>,
    /// Start with the last N events
    #[arg(
        long,
        value_name = "N",
        value_parser = RangedU64ValueParser::<u16>::new().range(0..=EVENTS_KEPT.into())
    )]
    last: Option<u16>,
    /// Exit after the last event
    #[arg(long, requires = "last")]
    no_follow: bool,
    /// Print the API's JSON documents, one per line
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

impl Events {
    /// Returns the API's query.
    pub(in crate::cli) fn filter(&self) -> EventsFilter {
        EventsFilter {
            port: self.port.clone(),
            kind: (!self.kind.is_empty()).then(|| self.kind.join(",")),
            last: self.last,
            follow: self.no_follow.then_some(false),
        }
    }
}
