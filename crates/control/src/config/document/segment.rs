//! The tables of segments.

use api::v1::SegmentSpec;
use toml::de::DeTable;

use super::{Fault, Lines, Table};
use crate::desired::{Place, expect};

const KEYS: &[&str] = &["name", "vlan", "neighbour_suppression"];

/// Reads the table of the segment with this index.
pub(super) fn read(
    table: &DeTable<'_>,
    at: usize,
    index: usize,
    lines: &mut Lines,
) -> Result<SegmentSpec, Fault> {
    let mut table = Table::open(table, at, Place::Segment(index), KEYS, lines)?;
    let suppression = table.flag("neighbour_suppression", expect::SWITCH_ON)?;
    Ok(SegmentSpec {
        name: table.required("name", expect::NAME)?,
        vlan: table.number("vlan", expect::VLAN)?,
        neighbour_suppression: suppression.unwrap_or_default(),
    })
}
