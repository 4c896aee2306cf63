//! The tables within the table of the switch, and that of the metrics.

use api::v1::{BatchingSpec, Enabled, MetricsSpec, Offload};
use toml::de::{DeTable, DeValue};

use super::{BATCHING_KEYS, Fault, Lines, METRICS_KEYS, OFFLOAD_KEYS, Table};
use crate::wanted::{Place, expect};

pub(super) fn batching(
    table: &DeTable<'_>,
    at: usize,
    lines: &mut Lines,
) -> Result<BatchingSpec, Fault> {
    let mut table = Table::open(table, at, Place::Batching, BATCHING_KEYS, lines)?;
    let default = BatchingSpec::default();
    Ok(BatchingSpec {
        enabled: table
            .flag("enabled", expect::SWITCH_ON)?
            .unwrap_or(default.enabled),
        period_us: table
            .number("period_us", expect::PERIOD)?
            .unwrap_or(default.period_us),
        threshold: table
            .number("threshold", expect::THRESHOLD)?
            .unwrap_or(default.threshold),
    })
}

pub(super) fn offload(table: &DeTable<'_>, at: usize, lines: &mut Lines) -> Result<Offload, Fault> {
    let mut table = Table::open(table, at, Place::Offload, OFFLOAD_KEYS, lines)?;
    let default = Offload::default();
    Ok(Offload {
        enabled: table.enabled()?,
        mark: table.number("mark", expect::MARK)?.unwrap_or(default.mark),
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

impl Table<'_, '_> {
    /// Whether helpers are wanted, or the word that leaves it to the switch.
    fn enabled(&mut self) -> Result<Enabled, Fault> {
        const KEY: &str = "enabled";
        let Some(value) = self.value(KEY) else {
            return Ok(Enabled::default());
        };
        match value.get_ref() {
            DeValue::Boolean(true) => Ok(Enabled::Yes),
            DeValue::Boolean(false) => Ok(Enabled::No),
            DeValue::String(text) if text == "auto" => Ok(Enabled::Auto),
            _ => Err(self.wrong(value, KEY, expect::ENABLED)),
        }
    }
}
