use std::fs;
use std::path::Path;

use super::*;

/// The places of the table in the document.
const BEGIN: &str = "<!-- the table of options -->\n";
const END: &str = "<!-- the end of the table -->\n";

#[test]
fn the_document_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/user/sockets.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let current = format!("\n{}\n", table::document());
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, [before, BEGIN, &current, END, after].concat()).unwrap();
    } else {
        assert_eq!(table, current, "BLESS=1 writes the table anew");
    }
}

#[test]
fn each_option_is_there_once() {
    for (at, entry) in table::ENTRIES.iter().enumerate() {
        let found = table::find(entry.level, entry.number).unwrap();
        assert_eq!(found.name, entry.name, "entry {at}");
    }
}

#[test]
fn the_time_of_a_syn_is_that_of_its_repetitions() {
    assert_eq!(syn_time(1), Duration::from_secs(3));
    assert_eq!(syn_time(6), Duration::from_secs(127));
    assert_eq!(syn_time(8), Duration::from_secs(127 + 2 * 120));
}

#[test]
fn a_time_is_a_second_and_a_part_of_one() {
    let time = |seconds: i64, part: i64| {
        let value = [seconds.to_ne_bytes(), part.to_ne_bytes()].concat();
        micros(&value)
    };
    assert_eq!(time(2, 5), Ok(2_000_005));
    assert_eq!(time(0, 1_000_000), Err(Errno::DOM));
    assert_eq!(time(0, -1), Err(Errno::DOM));
    assert_eq!(time(-1, 0), Ok(1));
    assert_eq!(micros(&[0; 15]), Err(Errno::INVAL));
}
