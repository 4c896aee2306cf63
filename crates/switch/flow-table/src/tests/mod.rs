//! Tests of the whole table.

mod table;
mod top_flows;
mod upkeep;
