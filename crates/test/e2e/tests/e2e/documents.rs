//! Command lines and configurations of `docs/user` as they stand there, at a running Lasthop with
//! the ports that the documents name.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use e2e::documents::{blocks, documents};
use testkit::packets::arp_request;
use testkit::skip::skipped;
use testkit::stop::Stop;
use testkit::{FakeGuest, GuestConfig, procfs};

/// Documents that are run at the same time.
const AT_ONCE: usize = 3;

/// Scenario of one document (`documents/scenario.sh`), which ends with this.
struct Scenario(Child);

impl Drop for Scenario {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the scenario with these parts.
fn scenario(parts: &Path) -> Scenario {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/e2e/documents/scenario.sh"
    );
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        // Where tests run in the background, the signal of Ctrl-C may be ignored.
        .args(["env", "--default-signal=INT", "bash", script])
        .arg(testkit::programs::program(""))
        .arg(parts)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Scenario(command.spawn().expect("setpriv and unshare of util-linux"))
}

/// Connects guests to vm1 and vm2.
fn guests(scenario: &Scenario) -> [FakeGuest; 2] {
    let [shell] = procfs::children(scenario.0.id())[..] else {
        panic!("unshare has one child");
    };
    [1, 2].map(|number| {
        let socket = format!("/proc/{shell}/root/run/lasthop/vm{number}.sock");
        let config = GuestConfig::default().guest(number);
        let mut guest = FakeGuest::connect(Path::new(&socket), config).expect("a connection");
        guest.wait_link().expect("a link");
        guest
    })
}

/// Has guests send often, so that their addresses are known, until `ends` is set. A guest whose
/// port is removed sends no more.
fn send(guests: [FakeGuest; 2], ends: &Stop) {
    let mut guests = guests.map(Some);
    while !ends.is_set() {
        for (guest, (own, other)) in guests.iter_mut().zip([(1, 2), (2, 1)]) {
            let [sender, target] = [own, other].map(|number| Ipv4Addr::new(10, 0, 0, number));
            let request = arp_request([0x52, 0x54, 0, 0, 0, own], sender, target);
            let sent = guest.as_mut().map(|guest| guest.send(&request));
            let received = guest.as_mut().map(FakeGuest::recv_all);
            if !matches!((sent, received), (Some(Ok(_)), Some(Ok(_)))) {
                *guest = None;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a document; returns what failed.
fn run(document: &Path) -> String {
    let text = fs::read_to_string(document).expect("a document");
    let mut lines = Vec::new();
    for block in blocks(&text).iter().filter(|block| block.not_run.is_none()) {
        for (how, part) in block.parts().into_iter().flatten() {
            lines.push(how);
            lines.extend(part.bytes());
            lines.push(0);
        }
        if block.language == "json" {
            let all = serde_json::Deserializer::from_str(&block.text);
            for document in all.into_iter::<serde_json::Value>() {
                document.unwrap_or_else(|error| panic!("line {}: {error}", block.line));
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&file, &lines).expect("a file");
    let mut scenario = scenario(file.path());
    let mut input = scenario.0.stdin.take().expect("a pipe");
    let output = BufReader::new(scenario.0.stdout.take().expect("a pipe"));
    let mut output = output.lines().map(|line| line.expect("text"));
    let (mut failed, mut ran) = (String::new(), 0);
    match output.next() {
        Some(line) if line == "ready" => {}
        other => {
            let rest: Vec<_> = other.into_iter().chain(output).collect();
            return format!("{}: {}\n", document.display(), rest.join("\n"));
        }
    }
    let (guests, ends) = (guests(&scenario), Stop::new());
    std::thread::scope(|scope| {
        scope.spawn(|| send(guests, &ends));
        let _ends = ends.at_end();
        input.write_all(b"go\n").expect("a pipe");
        for line in output {
            match line.starts_with("0 ") {
                true => ran += 1,
                false => writeln!(failed, "{}: {line}", document.display()).expect("a string"),
            }
        }
    });
    let parts = lines.split(|byte| *byte == 0);
    let expected = parts
        .filter(|part| !part.is_empty() && part[0] != b'e')
        .count();
    if failed.is_empty() && ran != expected {
        failed = format!("{}: {ran} of {expected} were run\n", document.display());
    }
    failed
}

#[test]
fn documented_lines_work_as_they_stand() {
    if !testkit::netns::Netns::allowed() {
        return skipped("network namespaces need root");
    }
    let _turn = e2e::beside();
    let all = Mutex::new(documents().into_iter());
    let failed = Mutex::new(String::new());
    let next = || all.lock().expect("no panic").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(document) = next() {
                    failed.lock().expect("no panic").push_str(&run(&document));
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(
        failed.is_empty(),
        "status, line, and what it printed:\n{failed}"
    );
}
