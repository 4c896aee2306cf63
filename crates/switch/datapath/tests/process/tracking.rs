//! The table of connections, as the process gets it.

use std::os::fd::{AsFd, OwnedFd};

use conntrack::Table;
use conntrack::table::{Layout, Reader};
use ipc::connections::ConnectionSettings;
use ipc::switching::SwitchCommand;

use crate::host::Host;

const MAX: u32 = 1024;

fn layout() -> Layout {
    Layout::new(MAX)
}

fn file() -> OwnedFd {
    sys::file::fixed("table", layout().bytes()).expect("a file")
}

fn track(max: u32) -> SwitchCommand {
    SwitchCommand::Track(ConnectionSettings {
        max,
        pick_up: true,
        strict: true,
        ..ConnectionSettings::default()
    })
}

/// Returns the number of connections that a reader finds.
fn connections(file: &OwnedFd) -> usize {
    let reader = Reader::map(file, layout()).expect("a table");
    let (settings, mut found) = (conntrack::Settings::default(), 0);
    let now = sys::time::monotonic().as_millis() as u32;
    let all = MAX as usize * 2;
    reader.read(&mut Default::default(), all, (&settings, now), |_, _| {
        found += 1
    });
    found
}

#[test]
fn the_table_begins_when_file_and_settings_have_come() {
    let (mut host, file) = (Host::new(), file());
    assert!(Reader::map(&file, layout()).is_err());
    host.send_table(&file);
    assert!(
        Reader::map(&file, layout()).is_err(),
        "its size is not known"
    );
    host.order(track(MAX), &[]).expect("a table");
    assert_eq!(connections(&file), 0);
    // Other settings take effect; another size does not, and another file is not taken.
    host.order(track(MAX), &[]).expect("the same");
    let refused = host.order(track(2 * MAX), &[]).unwrap_err();
    assert_eq!(refused, "the table is one of 1024 connections");
    let other = self::file();
    host.send_table(&other);
    host.order(track(MAX), &[]).expect("the same");
    assert!(Reader::map(&other, layout()).is_err());
}

#[test]
fn a_command_waits_for_the_file_and_another_length_is_refused() {
    let (mut host, file) = (Host::new(), file());
    let ended = host.order_and(track(2 * MAX), |host| host.send_table(&file));
    assert_eq!(
        ended.unwrap_err(),
        "the file of the table has another length"
    );
    host.order(track(MAX), &[]).expect("a table");
    assert_eq!(connections(&file), 0);
}

#[test]
fn a_filter_is_made_anew_when_the_table_begins() {
    use offload::connections::{GENERATION_AT, MAGIC, SIZE};

    let new_filter = || sys::file::fixed("filter", SIZE as u64).expect("a file");
    let generation = |filter: &OwnedFd| {
        let mut word = [0; 8];
        rustix::io::pread(filter, &mut word, GENERATION_AT as u64).expect("a word");
        u64::from_ne_bytes(word)
    };
    let (filter, table) = (new_filter(), file());
    rustix::io::pwrite(&filter, &MAGIC.to_ne_bytes(), 0).expect("room");
    for life in 1..3 {
        let mut host = Host::new();
        host.send_table_with(&[&table, &filter]);
        assert_eq!(generation(&filter), life - 1, "the settings are missing");
        host.order(track(MAX), &[]).expect("a table");
        assert_eq!(generation(&filter), life);
    }
    // What is no filter is refused.
    let mut host = Host::new();
    host.send_table_with(&[&table, &new_filter()]);
    assert!(host.order(track(MAX), &[]).is_err());
}

#[test]
fn garbage_in_the_file_is_no_connection() {
    for header in [false, true] {
        let (mut host, file) = (Host::new(), file());
        if header {
            drop(Table::map(&file, layout(), 7, 0).expect("a table"));
        }
        let from = if header { 4096 } else { 0 };
        let garbage: Vec<u8> = (from..layout().bytes() as u32)
            .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8)
            .collect();
        rustix::io::pwrite(file.as_fd(), &garbage, from.into()).expect("room");
        host.send_table(&file);
        host.order(track(MAX), &[]).expect("a table");
        assert_eq!(connections(&file), 0, "with the header: {header}");
    }
}
