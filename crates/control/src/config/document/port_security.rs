//! The table `[port.port_security]`.

use api::v1::{Allowed, AllowedWord, PortSecuritySpec, old_names};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Fault, Lines, Table};
use crate::desired::{Place, expect, quoted};

const KEYS: &[&str] = &["macs", "addresses", "dhcp_server", "router"];
const WORDS: [AllowedWord; 2] = [AllowedWord::Any, AllowedWord::Sticky];

/// Reads port security of the port with this index.
pub(super) fn read(
    table: &DeTable<'_>,
    at: usize,
    port: usize,
    lines: &mut Lines,
) -> Result<PortSecuritySpec, Fault> {
    let mut table = Table::open(table, at, Place::PortSecurity(port), KEYS, lines)?;
    Ok(PortSecuritySpec {
        macs: allowed(&mut table, "macs", expect::ALLOWED_MACS)?,
        addresses: allowed(&mut table, "addresses", expect::ALLOWED_ADDRESSES)?,
        dhcp_server: table.flag("dhcp_server", expect::SWITCH_ON)?,
        router: table.flag("router", expect::SWITCH_ON)?,
    })
}

/// Returns a word or a list, if the key exists.
fn allowed(
    table: &mut Table<'_, '_>,
    key: &'static str,
    expected: &str,
) -> Result<Option<Allowed>, Fault> {
    match table.value(key).map(Spanned::get_ref) {
        None => Ok(None),
        Some(DeValue::String(text)) => {
            let word = WORDS.into_iter().find(|word| word.as_str() == text);
            let wrong = || {
                let (expected, found) = match old_names::old_value(text) {
                    Some(row) => (String::new(), row.to_string()),
                    None => (expected.to_owned(), quoted(text)),
                };
                Fault {
                    offset: table.lines.find(table.place, key, None),
                    key: table.place.key(key),
                    expected,
                    found,
                }
            };
            word.map(Allowed::Word).map(Some).ok_or_else(wrong)
        }
        Some(_) => Ok(table.list(key, expected, expected)?.map(Allowed::List)),
    }
}
