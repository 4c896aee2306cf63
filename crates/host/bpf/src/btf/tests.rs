use proptest::prelude::*;

use super::*;

/// Returns a file with these types, each as words, and names.
fn file(types: &[&[u32]], names: &[u8]) -> Vec<u8> {
    let types: Vec<u8> = types
        .iter()
        .flat_map(|words| words.iter().flat_map(|word| word.to_ne_bytes()))
        .collect();
    let magic = u32::from(MAGIC) | 1 << 16;
    let lengths = (types.len() as u32, names.len() as u32);
    let header = [magic, 24, 0, lengths.0, lengths.0, lengths.1];
    let mut all: Vec<u8> = header.iter().flat_map(|w| w.to_ne_bytes()).collect();
    all.extend(types);
    all.extend(names);
    all
}

const NAMES: &[u8] = b"\0task\0pid\0state\0btf_trace_x\0flag\0";
const TASK: u32 = 1;
const PID: u32 = 6;
const STATE: u32 = 10;
const TRACE: u32 = 16;
const FLAG: u32 = 28;

fn info(kind: u32, count: u32) -> u32 {
    kind << 24 | count
}

fn sample() -> Vec<u8> {
    file(
        &[
            // 1: int
            &[0, info(1, 0), 4, 32],
            // 2: a structure without a name that has `pid` behind four bytes
            &[0, info(4, 1), 8, PID, 1, 32],
            // 3: task, whose offsets have bit fields
            &[
                TASK,
                info(4, 3) | 1 << 31,
                64,
                FLAG,
                1,
                3 << 24 | 3,
                STATE,
                1,
                64,
                0,
                2,
                128,
            ],
            // 4: pointer to it, 5: a function of (void *, int, task *), 6: a pointer to that, 7:
            // the tracepoint
            &[0, info(2, 0), 3],
            &[0, info(13, 3), 0, 0, 4, 0, 1, 0, 4],
            &[0, info(2, 0), 5],
            &[TRACE, info(8, 0), 6],
        ],
        NAMES,
    )
}

#[test]
fn members_and_tracepoints_are_found() {
    let btf = Btf::parse(sample()).unwrap();
    assert_eq!(btf.member("task", "state").unwrap(), 8);
    assert_eq!(btf.member("task", "pid").unwrap(), 16 + 4);
    let kinds = vec![Kind::Other(1), Kind::Pointer];
    assert_eq!(btf.tracepoint("x").unwrap(), (7, kinds));
}

#[test]
fn what_is_not_there_is_said_to_be_missing() {
    let btf = Btf::parse(sample()).unwrap();
    for missing in [
        btf.member("task", "flag").unwrap_err(),
        btf.member("task", "other").unwrap_err(),
        btf.member("other", "pid").unwrap_err(),
        btf.tracepoint("y").unwrap_err(),
    ] {
        assert!(matches!(missing, BtfError::Missing(_)), "{missing}");
    }
}

#[test]
fn members_that_contain_themselves_come_to_an_end() {
    let own = file(&[&[TASK, info(4, 2), 8, 0, 1, 0, 0, 1, 0]], NAMES);
    let btf = Btf::parse(own).unwrap();
    assert!(btf.member("task", "pid").is_err());
}

#[test]
fn files_that_are_cut_off_or_something_else_are_refused() {
    let whole = sample();
    for length in 0..whole.len() {
        assert!(
            Btf::parse(whole[..length].to_vec()).is_err(),
            "{length} bytes"
        );
    }
    let unknown = file(&[&[0, info(31, 0), 0]], NAMES);
    assert!(Btf::parse(unknown).is_err());
}

proptest! {
    #[test]
    fn whatever_is_written_there_nothing_breaks(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(btf) = Btf::parse(bytes) {
            let _ = btf.member("task", "pid");
            let _ = btf.member("task", "state");
            let _ = btf.tracepoint("x");
        }
    }
}

#[test]
fn the_running_kernel_is_understood() {
    let btf = match Btf::of_kernel() {
        Err(BtfError::File(error)) => return eprintln!("not tested: {error}"),
        other => other.unwrap(),
    };
    let pid = btf.member("task_struct", "pid").unwrap();
    let tgid = btf.member("task_struct", "tgid").unwrap();
    assert_eq!(pid.abs_diff(tgid), 4, "the members are adjacent");
    let (id, arguments) = btf.tracepoint("sched_switch").unwrap();
    assert!(id > 0 && arguments.len() >= 3);
}
