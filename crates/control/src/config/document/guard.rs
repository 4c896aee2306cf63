//! The table `[port.guard]`.

use api::v1::{Allowed, AllowedWord, GuardSpec};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Fault, Lines, Table};
use crate::wanted::{Place, expect, quoted};

const KEYS: &[&str] = &["macs", "addresses", "dhcp_server", "router"];
const WORDS: [AllowedWord; 2] = [AllowedWord::Any, AllowedWord::LearnedOnce];

/// Reads the guard of the port with this index.
pub(super) fn read(
    table: &DeTable<'_>,
    at: usize,
    port: usize,
    lines: &mut Lines,
) -> Result<GuardSpec, Fault> {
    let mut table = Table::open(table, at, Place::Guard(port), KEYS, lines)?;
    Ok(GuardSpec {
        macs: allowed(&mut table, "macs", expect::GUARD_MACS)?,
        addresses: allowed(&mut table, "addresses", expect::GUARD_ADDRESSES)?,
        dhcp_server: table.flag("dhcp_server", expect::SWITCH_ON)?,
        router: table.flag("router", expect::SWITCH_ON)?,
    })
}

/// A word or a list, if the key is there.
fn allowed(
    table: &mut Table<'_, '_>,
    key: &'static str,
    expected: &str,
) -> Result<Option<Allowed>, Fault> {
    match table.value(key).map(Spanned::get_ref) {
        None => Ok(None),
        Some(DeValue::String(text)) => {
            let word = WORDS.into_iter().find(|word| word.as_str() == text);
            let wrong = || Fault {
                offset: table.lines.find(table.place, key, None),
                key: table.place.key(key),
                expected: expected.to_owned(),
                found: quoted(text),
            };
            word.map(Allowed::Word).map(Some).ok_or_else(wrong)
        }
        Some(_) => Ok(table.list(key, expected, expected)?.map(Allowed::List)),
    }
}
