//! Programs of netmap's API, each a process with the library in front of it, over a pipe.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;

#[path = "../../netmap/tests/support/meeting.rs"]
mod meeting;

/// The library: the one in `LASTHOP_BIN`, or a fresh one. Cargo does not build it for tests, which
/// do not link it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        const NAME: &str = "liblasthop_netmap.so";
        if let Some(folder) = std::env::var_os("LASTHOP_BIN") {
            return Path::new(&folder).join(NAME);
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--offline", "--quiet", "--lib"]);
        cargo.args(["--package", env!("CARGO_PKG_NAME")]);
        assert!(
            cargo.status().unwrap().success(),
            "the library was not built"
        );
        let program = Path::new(env!("CARGO_BIN_EXE_slotgen"));
        program.with_file_name(NAME)
    })
}

struct Rig {
    folder: tempfile::TempDir,
    server: JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = meeting::serve(&folder.path().join("p.pipes"));
        Self { folder, server }
    }

    fn start(&self, arguments: &str) -> Child {
        self.start_waiting("adaptive", arguments)
    }

    /// Starts a program that waits in this way.
    fn start_waiting(&self, mode: &str, arguments: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_slotgen"))
            .args(arguments.split(' '))
            .env("LD_PRELOAD", library())
            .env("LASTHOP_RUNTIME_DIR", self.folder.path())
            .env("LASTHOP_NETMAP_POLL", mode)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

/// Returns the output of a program, which must have ended well.
fn printed(child: Child) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{status}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

/// One of the numbers that a program printed.
fn number(printed: &str, name: &str) -> u64 {
    let words = printed.split_whitespace();
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {printed}"))
}

#[test]
fn all_frames_arrive_once_and_whole() {
    for mode in ["adaptive", "sleep", "spin"] {
        let rig = Rig::new();
        let rx = rig.start_waiting(mode, "rx -i netmap:p}1 -V -n 100000 -T 60 -q 20");
        let tx = rig.start_waiting(mode, "tx -i netmap:p{1 -V -n 100000 -b 100 -l 100");
        let (sent, received) = (printed(tx), printed(rx));
        assert_eq!(
            (number(&sent, "frames"), number(&sent, "lost")),
            (100_000, 0)
        );
        let counts = ["frames", "lost", "twice", "bad"].map(|name| number(&received, name));
        assert_eq!(counts, [100_000, 0, 0, 0], "{mode}: {received}");
        rig.server.join().unwrap();
    }
}

#[test]
fn frames_of_several_slots_arrive_whole() {
    let rig = Rig::new();
    let rx = rig.start("rx -i netmap:p}2 -V -n 20000 -T 60 -q 20");
    let tx = rig.start("tx -i netmap:p{2 -V -n 20000 -l 9000");
    let (_, received) = (printed(tx), printed(rx));
    let counts = ["frames", "lost", "twice", "bad"].map(|name| number(&received, name));
    assert_eq!(counts, [20_000, 0, 0, 0], "{received}");
    rig.server.join().unwrap();
}

#[test]
fn pings_come_back() {
    let rig = Rig::new();
    let pong = rig.start("pong -i netmap:p}3 -n 500 -T 60 -q 20");
    let ping = rig.start("ping -i netmap:p{3 -n 500");
    let (pinged, _) = (printed(ping), printed(pong));
    assert_eq!(
        (number(&pinged, "frames"), number(&pinged, "lost")),
        (500, 0)
    );
    rig.server.join().unwrap();
}

/// Each pipe has memory of its own, so there is nothing to swap.
#[test]
fn a_bridge_between_pipes_of_one_process_copies() {
    let rig = Rig::new();
    let mut bridge = rig.start("bridge -i netmap:p{4 -i netmap:p{5 -n 50000 -T 60 -q 20");
    // The bridge makes both pipes, and then says of which kind they are.
    let mut said = String::new();
    let mut errors = BufReader::new(bridge.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("zerocopy"), "{said}");
    let rx = rig.start("rx -i netmap:p}5 -V -n 50000 -T 60 -q 20");
    let tx = rig.start("tx -i netmap:p}4 -V -n 50000");
    let (_, received) = (printed(tx), printed(rx));
    let bridged = printed(bridge);
    assert!(bridged.contains("zerocopy not supported"), "{bridged}");
    let counts = ["frames", "lost", "twice", "bad"].map(|name| number(&received, name));
    assert_eq!(counts, [50_000, 0, 0, 0], "{received}");
    rig.server.join().unwrap();
}

#[test]
fn a_name_that_is_no_pipe_fails_with_a_line() {
    let rig = Rig::new();
    let output = rig.start("rx -i netmap:none}1").wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("there is no such port"), "{stderr}");
    assert!(stderr.contains("No such device or address"), "{stderr}");
}
