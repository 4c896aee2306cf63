//! The arguments of `lasthop capture`.

use api::v1::{CAPTURE_BUFFER, CAPTURE_SNAPLEN, CaptureDirection, CaptureQuery};
use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::{DIRECTIONS, name, one_of};

#[derive(Debug, Args)]
pub(in crate::cli) struct Capture {
    /// Port
    #[arg(value_parser = name)]
    pub(in crate::cli) port: String,
    /// New pcapng file; - writes to standard output
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub(in crate::cli) write: String,
    /// Overwrite an existing file
    #[arg(long)]
    pub(in crate::cli) force: bool,
    /// Filter expression as of tcpdump, like 'tcp port 80 and host 10.0.0.1'
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// Maximum bytes of each frame
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = CAPTURE_SNAPLEN,
        value_parser = at_least_one()
    )]
    snaplen: u32,
    /// Stop after this many frames
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    /// Direction of the frames
    #[arg(
        long,
        value_parser = one_of::<CaptureDirection>(DIRECTIONS),
        default_value = "both"
    )]
    direction: CaptureDirection,
    /// Only dropped frames; their comments have the drop reason
    #[arg(long)]
    drops: bool,
    /// Buffer size of each worker in bytes, a power of two
    #[arg(long, value_name = "BYTES", default_value_t = CAPTURE_BUFFER)]
    buffer: u32,
    /// Let denied frames end at the wire meanwhile (docs/user/prefilter.md); they are not captured
    #[arg(long)]
    keep_prefilter: bool,
}

impl Capture {
    /// Returns the API's query.
    pub(in crate::cli) fn query(&self) -> CaptureQuery {
        CaptureQuery {
            filter: self.filter.clone(),
            snaplen: self.snaplen,
            count: self.count,
            direction: self.direction,
            drops: self.drops,
            buffer: self.buffer,
            keep_prefilter: self.keep_prefilter,
        }
    }
}

fn at_least_one() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}
