//! Commands whose reader is gone: all that only print something end at once, without any traffic,
//! and those that change something finish.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::ptr;

use rustix::fs::{Mode, OFlags};
use testkit::lasthop::{Place, Running, port};
use testkit::wait::{wait_for, wait_until};

/// The reference of all commands, which a test keeps complete.
const REFERENCE: &str = include_str!("../../../../../docs/user/reference/cli.md");

/// Commands that only print something, with arguments with which they succeed.
const READING: [&str; 32] = [
    "status",
    "port list",
    "port show vm1",
    "port forward list out",
    "segment list",
    "qos-class list",
    "qos-group list",
    "egress show vm1",
    "mirror list",
    "pipe list",
    "user flows out",
    "user leases out",
    "prefilter list",
    "acl list",
    "acl show web",
    "export",
    "stats",
    "stats --watch",
    "stats vm1 --watch --json",
    "trace --port vm1 ether 52:54:00:00:00:01 > 52:54:00:00:00:02 type 0x88b5",
    "trace --port vm1 --next 1",
    "trace --port vm1 --pcap -",
    "flows",
    "connections list",
    "connections count",
    "capture vm1 -w -",
    "capture vm1 -w FIFO",
    "fdb list",
    "events",
    "events --json --last 4096",
    "completions bash",
    "man",
];

/// Those of them that do not end by themselves while their reader is there.
const STREAMS: [&str; 8] = [
    "stats --watch",
    "stats vm1 --watch --json",
    "trace --port vm1 --next 1",
    "trace --port vm1 --pcap -",
    "capture vm1 -w -",
    "capture vm1 -w FIFO",
    "events",
    "events --json --last 4096",
];

/// Commands that change something, or become or start another program.
const OTHERS: [&str; 28] = [
    "run",
    "port add",
    "port set",
    "port forward add",
    "port forward remove",
    "port remove",
    "segment add",
    "segment set",
    "segment remove",
    "qos-class add",
    "qos-class set",
    "qos-class remove",
    "qos-group add",
    "qos-group set",
    "qos-group remove",
    "mirror add",
    "mirror remove",
    "netmap",
    "net run",
    "apply",
    "reload",
    "flows purge",
    "connections flush",
    "fdb add",
    "fdb remove",
    "fdb flush",
    "upgrade",
    "libvirt-hook",
];

fn config() -> String {
    let scheduled = "[port.egress]\nrate = 1000000000\n";
    let out = "[[port]]\nname = \"out\"\nkind = \"user\"\n";
    let list = "[[acl]]\nname = \"web\"\ndirection = \"to-guest\"\nports = [\"vm1\"]\n";
    format!(
        "[switch]\nname = \"host1\"\n{}{out}{list}",
        port("vm1", scheduled)
    )
}

/// An output, and its reader.
struct Pair {
    output: OwnedFd,
    reader: OwnedFd,
}

fn pipe() -> Pair {
    let (reader, output) = io::pipe().unwrap();
    Pair {
        output: output.into(),
        reader: reader.into(),
    }
}

fn socket() -> Pair {
    let (reader, output) = UnixStream::pair().unwrap();
    Pair {
        output: output.into(),
        reader: reader.into(),
    }
}

fn tcp() -> Pair {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let reader = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    Pair {
        output: listener.accept().unwrap().0.into(),
        reader: reader.into(),
    }
}

fn terminal() -> Pair {
    let (mut master, mut output) = (-1, -1);
    let (name, settings, size) = (ptr::null_mut(), ptr::null(), ptr::null());
    // SAFETY: both numbers are ours to write, and all else is optional.
    let done = unsafe { libc::openpty(&mut master, &mut output, name, settings, size) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    // SAFETY: both are open, and ours alone.
    let both = unsafe { [master, output].map(|fd| OwnedFd::from_raw_fd(fd)) };
    // Commands must not inherit the master.
    let [reader, output] = both;
    rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC).unwrap();
    Pair { output, reader }
}

/// Starts a command with an output. Its standard input has no end, and no bytes.
fn start(lasthop: &Running, line: &str, output: OwnedFd) -> (Child, io::PipeWriter) {
    let words: Vec<_> = line.split(' ').collect();
    let (input, keep) = io::pipe().unwrap();
    let mut command = lasthop.command(&words);
    command.stdin(input).stdout(output).stderr(Stdio::piped());
    (command.spawn().unwrap(), keep)
}

/// Waits until a command watches the reader of its output.
fn wait_watched(child: &Child) {
    let threads = format!("/proc/{}/task", child.id());
    wait_until("the reader is watched", || {
        let threads = fs::read_dir(&threads).unwrap().flatten();
        let mut names = threads.map(|thread| fs::read_to_string(thread.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == "reader\n"))
    });
}

/// Waits for the end of a command; returns its exit status and its standard error.
fn ended(line: &str, child: &mut Child) -> (Option<i32>, String) {
    let status = wait_for(line, || child.try_wait().unwrap());
    let mut said = String::new();
    let err = child.stderr.as_mut().unwrap();
    err.read_to_string(&mut said).unwrap();
    (status.code(), said)
}

/// Returns a line with a named pipe instead of `FIFO`, whose reader is that of the output.
fn with_fifo(place: &Place, line: &str, pair: Pair) -> (String, Pair) {
    if !line.contains("FIFO") {
        return (line.to_owned(), pair);
    }
    let path = place.path("fifo");
    let _ = fs::remove_file(&path);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    let mut options = File::options();
    let reader = options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32);
    let reader = reader.open(&path).unwrap().into();
    let line = line.replace("FIFO", path.to_str().unwrap());
    let output = File::create("/dev/null").unwrap().into();
    (line, Pair { output, reader })
}

#[test]
fn every_command_is_known_here() {
    let headings = REFERENCE.lines();
    let commands = headings.filter_map(|line| line.strip_prefix("## lasthop "));
    let all: BTreeSet<&str> = commands.collect();
    // Only a terminal is an output of it.
    let known: Vec<&str> = OTHERS
        .iter()
        .chain(&READING)
        .copied()
        .chain(["top"])
        .collect();
    let is_of = |line: &str, command: &str| {
        let rest = line.strip_prefix(command);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    for command in &all {
        let found = known.iter().any(|line| is_of(line, command));
        assert!(found, "does {command} end without its reader?");
    }
    for line in known {
        assert!(all.iter().any(|command| is_of(line, command)), "{line}");
    }
}

#[test]
fn what_only_prints_ends_with_its_reader() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    lasthop.wait_cli("user leases out");
    for line in READING {
        let outputs = [pipe(), socket(), tcp(), terminal()];
        // A capture is no text for a terminal.
        let fitting = outputs.len() - usize::from(line.starts_with("capture"));
        for pair in outputs.into_iter().take(fitting) {
            let (line, pair) = with_fifo(&place, line, pair);
            let (mut child, _input) = start(&lasthop, &line, pair.output);
            if line.contains("fifo") {
                // It is only opened while there is a reader.
                wait_watched(&child);
            }
            drop(pair.reader);
            let (status, said) = ended(&line, &mut child);
            assert_eq!((status, &*said), (Some(0), ""), "{line}");
        }
    }
    // A screen needs a terminal for its input as well.
    let pair = terminal();
    let mut top = lasthop.command(&["top"]);
    top.stdin(pair.output.try_clone().unwrap());
    let mut top = top
        .stdout(pair.output)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = File::from(pair.reader);
    screen.read_exact(&mut [0; 16]).unwrap();
    drop(screen);
    let (status, said) = ended("top", &mut top);
    assert_eq!((status, &*said), (Some(0), ""));
    lasthop.terminate();
}

/// A reader that was killed closes nothing by itself.
#[test]
fn a_stream_ends_when_its_reader_is_killed_and_not_before() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    for line in STREAMS {
        let (line, pair) = with_fifo(&place, line, pipe());
        // The other end is closed here with the command.
        let mut reader = Command::new("sleep")
            .arg("600")
            .stdin(pair.reader)
            .spawn()
            .unwrap();
        let (mut child, _input) = start(&lasthop, &line, pair.output);
        wait_watched(&child);
        assert!(child.try_wait().unwrap().is_none(), "{line}");
        reader.kill().unwrap();
        reader.wait().unwrap();
        assert_eq!(ended(&line, &mut child).0, Some(0), "{line}");
    }
    // Their captures are over, too: eight more are accepted.
    let more: Vec<_> = (0..8).map(|_| pipe()).collect();
    for pair in more {
        let (mut child, _input) = start(&lasthop, "capture vm1 -w -", pair.output);
        let mut begin = [0; 4];
        File::from(pair.reader).read_exact(&mut begin).unwrap();
        assert_eq!(ended("capture", &mut child).0, Some(0));
    }
    lasthop.terminate();
}

#[test]
fn a_full_disk_is_a_failure() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let lines = [
        "status",
        "stats --watch",
        "events --last 4096",
        "capture vm1 -w -",
    ];
    for line in lines {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (mut child, _input) = start(&lasthop, line, full.into());
        let (status, said) = ended(line, &mut child);
        assert_eq!(status, Some(1), "{line}: {said}");
        assert!(said.contains("cannot write"), "{line}: {said}");
    }
    lasthop.terminate();
}

#[test]
fn a_change_is_made_without_a_reader() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let file = place.path("more.toml");
    fs::write(&file, config() + &port("vm2", "")).unwrap();
    let apply = format!("apply {}", file.display());
    let dry_run = format!("{apply} --dry-run");
    let lines = [
        (&*dry_run, 3),
        (&*apply, 0),
        ("reload --dry-run", 3),
        ("port add vm3 --kind vhost-user --socket vm3.sock", 0),
        ("port set vm3 --down --dry-run", 3),
        ("port set vm3 --mtu 9000", 0),
        // Its exit status is a result, too.
        (
            "trace --port vm1 --expect drop ether 52:54:00:00:00:01 > 52:54:00:00:00:02 type 0x88b5",
            4,
        ),
        ("trace --port vm1 --expect drop --next 1", 1),
    ];
    for (line, expected) in lines {
        let pair = pipe();
        drop(pair.reader);
        let (mut child, _input) = start(&lasthop, line, pair.output);
        let (status, said) = ended(line, &mut child);
        assert_eq!(status, Some(expected), "{line}: {said}");
    }
    assert_eq!(lasthop.json("port show vm2")["name"], "vm2");
    assert_eq!(lasthop.json("port show vm3")["mtu"], 9000);
    lasthop.terminate();
}

/// A client may have sent the beginning of another request, which the server has not read.
#[test]
fn captures_whose_clients_are_gone_leave_room() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let mut all = 0;
    for behind in ["", "G", "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let mut client = UnixStream::connect(lasthop.socket("api.sock")).unwrap();
                let head = "GET /v1/ports/vm1/capture HTTP/1.1\r\nhost: x\r\n\r\n";
                client
                    .write_all((head.to_owned() + behind).as_bytes())
                    .unwrap();
                let mut begin = [0; 12];
                client.read_exact(&mut begin).unwrap();
                assert_eq!(&begin, b"HTTP/1.1 200");
                client
            })
            .collect();
        drop(clients);
        all += 8;
        wait_until("the end of all captures", || {
            lasthop.log().matches(" has ended").count() == all
        });
    }
    lasthop.terminate();
}
