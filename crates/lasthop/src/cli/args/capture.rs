//! The arguments of `lasthop capture`.

use api::v1::{CAPTURE_BUFFER, CAPTURE_SNAPLEN, CaptureDirection, CaptureQuery, MirrorDirection};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use super::name;

#[derive(Debug, Args)]
pub(in crate::cli) struct Capture {
    /// The port
    #[arg(value_parser = name)]
    pub(in crate::cli) port: String,
    /// Where the frames go, as a pcapng file: a file that does not exist yet, or - for standard output
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub(in crate::cli) write: String,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub(in crate::cli) force: bool,
    /// Only frames that this means, in tcpdump's words, like 'tcp port 80 and host 10.0.0.1'
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// Bytes of each frame at most
    #[arg(long, value_name = "BYTES", default_value_t = CAPTURE_SNAPLEN, value_parser = at_least_one())]
    snaplen: u32,
    /// Frames after which it ends
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    /// Only what the port sends (in), or what is for it (out)
    #[arg(long, value_enum, default_value = "both")]
    direction: Direction,
    /// Only frames that were dropped; why is in their comments
    #[arg(long)]
    drops: bool,
    /// Bytes that may wait for this command in each forwarding thread: a power of two
    #[arg(long, value_name = "BYTES", default_value_t = CAPTURE_BUFFER)]
    buffer: u32,
}

impl Capture {
    /// What to ask the API for.
    pub(in crate::cli) fn query(&self) -> CaptureQuery {
        CaptureQuery {
            filter: self.filter.clone(),
            snaplen: self.snaplen,
            count: self.count,
            direction: self.direction.into(),
            drops: self.drops,
            buffer: self.buffer,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Direction {
    /// From the port into the switch
    In,
    /// From the switch to the port
    Out,
    /// Both
    Both,
}

impl From<Direction> for CaptureDirection {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::In => Self::In,
            Direction::Out => Self::Out,
            Direction::Both => Self::Both,
        }
    }
}

impl From<Direction> for MirrorDirection {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::In => Self::In,
            Direction::Out => Self::Out,
            Direction::Both => Self::Both,
        }
    }
}

fn at_least_one() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}
