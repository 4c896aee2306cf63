//! A process dies of one of its threads, and what it leaves says whom that thread served.
//!
//! It is this very test in a process of its own; how it is to die is in its environment.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use datapath::ports::crash_record;
use datapath::worker::workers::Workers;
use ipc::keeping::{CRASH_RECORD_LEN, ThreadSlots, suspects};
use ipc::supervision::Poll;
use port::PortId;
use port::counters::Counters;

const HOW: &str = "LASTHOP_TEST_HOW";
const FILE: &str = "LASTHOP_TEST_MARKS";
const DIES: PortId = PortId(3);
const LIVES: PortId = PortId(700);

fn marks_file() -> OwnedFd {
    let file = rustix::fs::memfd_create("marks", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, CRASH_RECORD_LEN).unwrap();
    file
}

/// In the process that dies: two threads serve, and one does what `how` says.
fn die(how: &str) {
    let number = std::env::var(FILE).unwrap().parse().unwrap();
    // SAFETY: the test has left this descriptor to this process, and nobody else here takes it.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let marks = ThreadSlots::map(&file).unwrap();
    crash_record::install_handlers().unwrap();
    let other = marks.of(1);
    let busy = std::thread::spawn(move || {
        crash_record::set_thread_slot(other);
        let _served = crash_record::serve(Some(LIVES));
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    });
    while marks.of(1).served().is_none() {
        std::thread::yield_now();
    }
    crash_record::set_thread_slot(marks.of(0));
    let served = crash_record::serve(Some(DIES));
    match how {
        "abort" => std::process::abort(),
        "panic" => panic!("as it is wanted"),
        // SAFETY: it is not: nothing is mapped there, and that ends the process.
        "fault" => unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) },
        "rested" => {
            drop(served);
            std::process::abort();
        }
        _ => drop(busy.join()),
    }
}

/// How the process ended, and who is to blame.
fn ports_after(how: &str, kill: Option<i32>) -> (ExitStatus, Vec<PortId>) {
    let file = marks_file();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_thread_that_dies_names_whom_it_served"])
        .env(HOW, how)
        .env(FILE, file.as_raw_fd().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    if let Some(signal) = kill {
        let marks = ThreadSlots::map(&file).unwrap();
        while marks.of(0).served().is_none() {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: a bare system call, on a child that was not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    }
    let status = child.wait().unwrap();
    (status, suspects(&file).unwrap())
}

#[test]
fn a_job_serves_whom_its_caller_serves() {
    let file = marks_file();
    rustix::fs::ftruncate(&file, port::counters::SIZE).unwrap();
    let counters = Counters::map(&file).unwrap();
    let (workers, _notices) = Workers::start(2, Poll::Adaptive, &counters, 1).unwrap();
    let marks = ThreadSlots::map(&marks_file()).unwrap();
    workers.set_thread_slots(&marks);
    crash_record::set_thread_slot(marks.of(0));
    let served = crash_record::serve(Some(DIES));
    assert_eq!(workers.each(|_| crash_record::served()), [Some(DIES); 2]);
    drop(served);
    assert_eq!(workers.each(|_| crash_record::served()), [None; 2]);
}

#[test]
fn the_thread_that_dies_names_whom_it_served() {
    if let Ok(how) = std::env::var(HOW) {
        return die(&how);
    }
    for (how, signal) in [("abort", libc::SIGABRT), ("fault", libc::SIGSEGV)] {
        let (status, ports) = ports_after(how, None);
        assert_eq!(
            (status.signal(), ports),
            (Some(signal), vec![DIES]),
            "{how}"
        );
    }
    let (status, ports) = ports_after("panic", None);
    assert!(!status.success() && ports == [DIES], "{ports:?}");
    let (_, ports) = ports_after("rested", None);
    assert_eq!(ports, [], "it died of its own");
    // From outside: any thread gets the signal, and none of them says that it was the one.
    for signal in [libc::SIGILL, libc::SIGKILL] {
        let (status, ports) = ports_after("wait", Some(signal));
        assert_eq!(status.signal(), Some(signal));
        assert_eq!(ports, [DIES, LIVES]);
    }
}
