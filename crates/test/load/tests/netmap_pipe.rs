//! Programs of netmap's API, each a process with the library in front of it, over a pipe.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;

#[path = "../../../clients/netmap/tests/support/meeting.rs"]
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
        cargo.args(["--package", "lasthop-netmap-preload"]);
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
        self.start_with(("LASTHOP_NETMAP_POLL", mode), arguments)
    }

    /// Starts a program with this variable.
    fn start_with(&self, (variable, value): (&str, &str), arguments: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_slotgen"))
            .args(arguments.split(' '))
            .env("LD_PRELOAD", library())
            .env("LASTHOP_RUNTIME_DIR", self.folder.path())
            .env(variable, value)
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

/// Returns what a program said that has failed.
fn refused(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_wrong_variable_is_said_and_its_default_holds() {
    for (variable, value, said) in [
        ("LASTHOP_NETMAP_BUFFERS", "many", "expected 1024 to 1048576"),
        ("LASTHOP_NETMAP_BUFFERS", "1023", "expected 1024 to 1048576"),
        ("LASTHOP_NETMAP_BUFFERS", "", "expected 1024 to 1048576"),
        (
            "LASTHOP_NETMAP_POLL",
            "never",
            "expected adaptive, sleep or spin",
        ),
        ("LASTHOP_NETMAP_SOCKETS", "p", "\"p\": expected NAME=PATH"),
    ] {
        let rig = Rig::new();
        let program = rig.start_with((variable, value), "pong -i netmap:p}1 -T 0.01");
        let output = program.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(
            stderr.contains(variable) && stderr.contains(said),
            "{stderr}"
        );
        rig.server.join().unwrap();
    }
}

#[test]
fn too_few_buffers_name_the_number_that_has_enough() {
    let rig = Rig::new();
    let buffers = |count| ("LASTHOP_NETMAP_BUFFERS", count);
    let line = "pong -i netmap:p}1 -C 1024 -T 0.01";
    let said = refused(rig.start_with(buffers("1024"), line));
    let expected = "p}1: its rings need 2048 buffers, and 1022 of 1024 are free: \
                    LASTHOP_NETMAP_BUFFERS=2050 has enough";
    assert!(said.contains(expected), "{said}");
    let (at_most, enough) = ("2049", "2050");
    let rig = Rig::new();
    refused(rig.start_with(buffers(at_most), line));
    let rig = Rig::new();
    printed(rig.start_with(buffers(enough), line));
    rig.server.join().unwrap();
}

#[test]
fn refused_names_have_a_sentence() {
    let rig = Rig::new();
    for (name, said) in [
        ("p}70000", "the number of a pipe is 0 to 65535, or a word"),
        ("p}1-2", "no ring 2"),
        ("..", "it holds characters that no name has"),
        ("none-3", "there is no such port"),
        ("p}1@77", "the program has no memory with this number"),
    ] {
        let said_at_once = refused(rig.start(&format!("rx -i netmap:{name} -T 1")));
        assert!(said_at_once.contains(said), "{name}: {said_at_once}");
    }
}

/// The descriptor of a device is passed over a socket to a process with the library, as netmap's
/// `fd_server` does, and is no device there.
#[test]
fn a_descriptor_that_was_passed_is_refused_with_a_sentence() {
    let rig = Rig::new();
    let script = r#"
import array, fcntl, mmap, os, select, socket, sys
NIOCRXSYNC = 0x6995
ours, theirs = socket.socketpair()
fd = os.open("/dev/netmap", os.O_RDWR)
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], str(theirs.detach())])
socket.send_fds(ours, [b"x"], [fd])
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"#;
    let receiver = r#"
import errno, fcntl, mmap, os, socket, sys
_, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 1)
for use in (lambda: mmap.mmap(fds[0], 4096), lambda: fcntl.ioctl(fds[0], 0x6995)):
    try:
        use()
        sys.exit("it is usable")
    except OSError as error:
        print(errno.errorcode[error.errno])
"#;
    let script = script.replace(
        "theirs.detach()",
        "(os.set_inheritable(theirs.fileno(), True), theirs.fileno())[1]",
    );
    let output = Command::new("python3")
        .args(["-c", &script, receiver])
        .env("LD_PRELOAD", library())
        .env("LASTHOP_RUNTIME_DIR", rig.folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout, "ENODEV\nEINVAL\n", "{stderr}");
    let said = "netmap's descriptors cannot be passed to another process, or kept over execve";
    assert!(stderr.contains(said), "{stderr}");
}

/// `slotgen` takes its mode as `pkt-gen` does, too.
#[test]
fn slotgen_has_usage_and_takes_its_mode_in_any_place() {
    let slotgen = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slotgen"));
        command.args(words.split(' ').filter(|word| !word.is_empty()));
        command.output().unwrap()
    };
    for words in ["--help", "-h", "rx --help", "-i x -f rx -h"] {
        let output = slotgen(words);
        assert!(output.status.success(), "{words}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.starts_with("slotgen tx|rx|ping|pong|bridge|lb -i NAME"),
            "{text}"
        );
    }
    for (words, said) in [
        ("", "expected -i NAME"),
        ("rx", "expected -i NAME"),
        ("-i x", "expected a mode: tx, rx"),
        ("-i x -f up", "found \"up\""),
        ("down -i x", "found \"down\""),
        ("-i x rx -l", "-l needs a value"),
    ] {
        let output = slotgen(words);
        assert_eq!(output.status.code(), Some(2), "{words}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            text.contains(said) && text.contains("slotgen --help"),
            "{text}"
        );
    }
    let rig = Rig::new();
    let rx = rig.start("-i netmap:p}1 -f rx -n 100 -T 60 -q 20");
    let tx = rig.start("-n 100 -i netmap:p{1 tx");
    assert_eq!(number(&printed(tx), "frames"), 100);
    assert_eq!(number(&printed(rx), "frames"), 100);
    rig.server.join().unwrap();
}
