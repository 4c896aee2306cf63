//! The nested tables of `[switch]`, and the table `[metrics]`.

use api::v1::{CoalescingSpec, Enabled, HelpersSpec, MetricsSpec};
use toml::de::{DeTable, DeValue};

use super::{Fault, Lines, Table};
use crate::desired::{Place, expect};

const COALESCING_KEYS: &[&str] = &["enabled", "period_us", "frames"];
const HELPERS_KEYS: &[&str] = &["enabled", "backlog", "hysteresis_us", "cores"];
const METRICS_KEYS: &[&str] = &["listen"];

pub(super) fn coalescing(
    table: &DeTable<'_>,
    at: usize,
    lines: &mut Lines,
) -> Result<CoalescingSpec, Fault> {
    let mut table = Table::open(table, at, Place::Coalescing, COALESCING_KEYS, lines)?;
    let default = CoalescingSpec::default();
    Ok(CoalescingSpec {
        enabled: table
            .flag("enabled", expect::SWITCH_ON)?
            .unwrap_or(default.enabled),
        period_us: table
            .number("period_us", expect::PERIOD)?
            .unwrap_or(default.period_us),
        frames: table
            .number("frames", expect::COALESCED_FRAMES)?
            .unwrap_or(default.frames),
    })
}

pub(super) fn helpers(
    table: &DeTable<'_>,
    at: usize,
    lines: &mut Lines,
) -> Result<HelpersSpec, Fault> {
    let mut table = Table::open(table, at, Place::Helpers, HELPERS_KEYS, lines)?;
    let default = HelpersSpec::default();
    Ok(HelpersSpec {
        enabled: enabled(&mut table)?,
        backlog: table
            .number("backlog", expect::BACKLOG)?
            .unwrap_or(default.backlog),
        hysteresis_us: table
            .number("hysteresis_us", expect::HYSTERESIS)?
            .unwrap_or(default.hysteresis_us),
        cores: table.numbers("cores", expect::CORES)?,
    })
}

pub(super) fn metrics(
    table: &DeTable<'_>,
    at: usize,
    lines: &mut Lines,
) -> Result<MetricsSpec, Fault> {
    let mut table = Table::open(table, at, Place::Metrics, METRICS_KEYS, lines)?;
    Ok(MetricsSpec {
        listen: table.text("listen", expect::LISTEN)?,
    })
}

/// Returns whether helpers run, or `auto`.
fn enabled(table: &mut Table<'_, '_>) -> Result<Enabled, Fault> {
    const KEY: &str = "enabled";
    let Some(value) = table.value(KEY) else {
        return Ok(Enabled::default());
    };
    match value.get_ref() {
        DeValue::Boolean(true) => Ok(Enabled::Yes),
        DeValue::Boolean(false) => Ok(Enabled::No),
        DeValue::String(text) if text == "auto" => Ok(Enabled::Auto),
        _ => Err(table.wrong(value, KEY, expect::ENABLED)),
    }
}
