//! The arguments of `lasthop events`.

use api::v1::{EVENTS_KEPT, EventKind, EventsFilter};
use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};

use super::name;

#[derive(Debug, Args)]
pub(in crate::cli) struct Events {
    /// Only events that concern this port
    #[arg(long, value_name = "PORT", value_parser = name)]
    port: Option<String>,
    /// Only events of these kinds, with commas between them
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = PossibleValuesParser::new(EventKind::NAMES))]
    kind: Vec<String>,
    /// Begin with so many of the last events
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u16>::new().range(0..=EVENTS_KEPT.into()))]
    last: Option<u16>,
    /// End behind them
    #[arg(long, requires = "last")]
    no_follow: bool,
    /// Print the API's documents, one in each line
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

impl Events {
    /// Which are wanted.
    pub(in crate::cli) fn filter(&self) -> EventsFilter {
        EventsFilter {
            port: self.port.clone(),
            kind: (!self.kind.is_empty()).then(|| self.kind.join(",")),
            last: self.last,
            follow: self.no_follow.then_some(false),
        }
    }
}
