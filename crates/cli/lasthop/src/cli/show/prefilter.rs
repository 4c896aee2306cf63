//! Entries of prefilters.

use api::v1::PrefilterDocument;

use super::super::tables::Table;
use client::units::{count, duration};

/// `lasthop prefilter list`.
pub(in crate::cli) fn prefilters(all: &[PrefilterDocument]) -> String {
    let entries: Vec<_> = all
        .iter()
        .flat_map(|of| of.entries.iter().map(|entry| (&of.port, entry)))
        .collect();
    Table::of(&entries)
        .text("PORT", |(port, _)| (*port).clone())
        .number("FRAMES", |(_, entry)| count(entry.frames))
        .number("AGE", |(_, entry)| duration(entry.age_ms / 1000))
        .number("IDLE", |(_, entry)| duration(entry.idle_ms / 1000))
        .text("RULES", |(_, entry)| match &entry.rules[..] {
            [] => "-".to_owned(),
            rules => rules.join(" "),
        })
        .text("MATCH", |(_, entry)| entry.matches.clone())
        .format_or("no frames end at the wire")
}
