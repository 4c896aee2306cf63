//! `lasthop libvirt-hook` with XML that libvirt 9.0 has given to a hook.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use crate::support::{Fake, lasthop};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::wait::wait_for;

/// The XML of `started`, `reconnect` and `release`.
const DOMAIN: &str = include_str!("../libvirt/started.xml");
/// The status file of the same domain.
const STATUS: &str = include_str!("../libvirt/status.xml");
/// The directory of sockets in both.
const RECORDED_DIR: &str = "/run/lasthop";
/// The hook's warning that its time is over.
const NOT_DONE: &str = "not done within";
const ADD: &str = "port add vm3 --kind vhost-user --socket vm3.sock";

/// A Lasthop with the port `vm3` that no VMM is connected to.
fn fake() -> Fake {
    let fake = Fake::start();
    fake.prints(ADD);
    fake
}

/// A recorded document, with the socket of a port in `dir`.
fn of(recorded: &str, dir: &Path, port: &str) -> String {
    let socket = format!("{}/{port}.sock", dir.display());
    recorded.replace(&format!("{RECORDED_DIR}/vm1.sock"), &socket)
}

/// Runs the hook, which must succeed and print nothing; returns its warnings.
fn run_once(dir: &Path, arguments: &[&str], input: &str) -> String {
    let mut command = lasthop();
    command.arg("--runtime-dir").arg(dir).arg("libvirt-hook");
    let done = command.args(arguments).write_stdin(input).assert();
    let done = done.success().stdout("");
    String::from_utf8(done.get_output().stderr.clone()).unwrap()
}

/// As [`run_once`]. On a busy machine the hook's own time limit may be over too early: then it is
/// run again.
fn warnings(dir: &Path, arguments: &[&str], input: &str) -> String {
    wait_for("a hook that is done in time", || {
        let said = run_once(dir, arguments, input);
        (!said.contains(NOT_DONE)).then_some(said)
    })
}

/// The arguments of the hook for an operation of the domain.
fn operation(name: &str) -> [&str; 5] {
    ["--", "vm1", name, "begin", "-"]
}

/// Runs the hook for an operation of the domain.
fn call(dir: &Path, name: &str, input: &str) -> String {
    warnings(dir, &operation(name), input)
}

fn limits(fake: &Fake, port: &str) -> Value {
    fake.json(&format!("port show {port}"))["limits"].clone()
}

/// The most bits a second that `vm3` may send to a scheduled port.
fn max(fake: &Fake) -> Value {
    fake.json("port show vm3")["qos"]["max"].clone()
}

/// The limits of the recorded domain.
fn recorded() -> Value {
    json!({
        "from_guest": {"bits_per_second": 200_000_000, "bits_burst": 8_388_608},
        "to_guest": {"bits_per_second": 100_000_000, "bits_burst": 20_480_000},
    })
}

/// Answers requests of `lasthop reload` as the supervisor does. Returns their number so far.
fn supervisor(dir: &Path, configuration: &str) -> Arc<AtomicUsize> {
    let file = dir.join("lasthop.toml");
    fs::write(&file, configuration).unwrap();
    let listener = UnixListener::bind(dir.join("supervisor.sock")).unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            assert_eq!(request, "\"configuration\"\n");
            count.fetch_add(1, SeqCst);
            // A hook that is out of time does not read it.
            let _ = writeln!(stream, "{}", json!({"configuration": file}));
        }
    });
    answered
}

#[test]
fn a_domain_brings_its_bandwidth_and_takes_it_away() {
    let fake = fake();
    fake.prints("port set vm3 --limit to-guest:bits=5M --qos max=7M");
    let domain = of(DOMAIN, fake.dir(), "vm3");
    for operation in ["started", "reconnect"] {
        assert_eq!(call(fake.dir(), operation, &domain), "");
        assert_eq!(limits(&fake, "vm3"), recorded());
        assert_eq!(max(&fake), 400_000_000);
    }
    assert_eq!(call(fake.dir(), "release", &domain), "");
    assert_eq!(
        limits(&fake, "vm3"),
        json!({"to_guest": {"bits_per_second": 5_000_000}})
    );
    assert_eq!(max(&fake), 7_000_000);
}

/// libvirt runs no hook when an interface is unplugged.
#[test]
fn an_interface_that_was_unplugged_leaves_nothing_behind() {
    let fake = fake();
    let domain = of(DOMAIN, fake.dir(), "vm3");
    let unplugged = domain.replace("'vhostuser'", "'ethernet'");
    let other = of(DOMAIN, fake.dir(), "vm3").replace("-6a1b5f0c0001", "-6a1b5f0c0002");
    let start = other.find("<bandwidth>").unwrap();
    let end = other.find("</bandwidth>").unwrap() + "</bandwidth>".len();
    let other = other.replace(&other[start..end], "");
    for (operation, xml) in [
        ("release", &unplugged),
        ("reconnect", &unplugged),
        ("started", &other),
    ] {
        assert_eq!(call(fake.dir(), "started", &domain), "");
        assert_eq!(limits(&fake, "vm3"), recorded());
        assert_eq!(call(fake.dir(), operation, xml), "");
        assert_eq!(limits(&fake, "vm3"), Value::Null, "{operation}");
        assert_eq!(max(&fake), Value::Null, "{operation}");
    }
    // The end of a domain is of no concern to the port of another.
    assert_eq!(call(fake.dir(), "started", &domain), "");
    assert_eq!(call(fake.dir(), "release", &other), "");
    assert_eq!(limits(&fake, "vm3"), recorded());
    // All running domains: this one is not among them.
    let states = tempfile::tempdir().unwrap();
    let running = format!("--running={}", states.path().display());
    fs::write(states.path().join("broken.xml"), "<").unwrap();
    warnings(fake.dir(), &[&running], "");
    assert_eq!(limits(&fake, "vm3"), recorded(), "not all were read");
    fs::remove_file(states.path().join("broken.xml")).unwrap();
    assert_eq!(warnings(fake.dir(), &["--running=/nowhere"], ""), "");
    assert_eq!(limits(&fake, "vm3"), recorded());
    assert_eq!(warnings(fake.dir(), &[&running], ""), "");
    assert_eq!(limits(&fake, "vm3"), Value::Null);
}

#[test]
fn what_the_operator_changed_meanwhile_stays() {
    let fake = fake();
    let domain = of(DOMAIN, fake.dir(), "vm3");
    let port = "[[port]]\nname = \"vm3\"\nkind = \"vhost-user\"\nsocket = \"vm3.sock\"\n";
    let supervisor = supervisor(fake.dir(), port);
    assert_eq!(call(fake.dir(), "started", &domain), "");
    fake.prints("port set vm3 --limit to-guest:bits=9M");
    let mut mine = recorded();
    mine["to_guest"] = json!({"bits_per_second": 9_000_000});
    assert_eq!(call(fake.dir(), "reconnect", &domain), "");
    assert_ne!(supervisor.load(SeqCst), 0, "it is not as configured");
    assert_eq!(limits(&fake, "vm3"), mine);
    assert_eq!(call(fake.dir(), "release", &domain), "");
    assert_eq!(limits(&fake, "vm3"), json!({"to_guest": mine["to_guest"]}));
}

#[test]
fn a_guarantee_that_is_refused_leaves_the_ceilings_in_force() {
    let fake = fake();
    let domain = of(DOMAIN, fake.dir(), "vm3");
    let domain = domain.replace("<inbound ", "<inbound floor='60000' ");
    let warning = call(fake.dir(), "started", &domain);
    assert!(warning.contains("/vm3.sock: qos.min: "), "{warning}");
    assert_eq!(limits(&fake, "vm3"), recorded());
    assert_eq!(max(&fake), Value::Null);
    assert_eq!(call(fake.dir(), "release", &domain), "");
    assert_eq!(limits(&fake, "vm3"), Value::Null);
}

#[test]
fn other_operations_and_other_interfaces_need_no_lasthop() {
    let nothing = tempfile::tempdir().unwrap();
    for operation in ["prepare", "start", "stopped", "migrate", "restore"] {
        assert_eq!(call(nothing.path(), operation, "<broken"), "");
    }
    let bridge = DOMAIN.replace("'vhostuser'", "'ethernet'");
    assert_eq!(call(nothing.path(), "started", &bridge), "");
    assert_eq!(
        warnings(nothing.path(), &["--", "vm1"], ""),
        "",
        "no operation"
    );
}

#[test]
fn a_call_without_a_domain_is_wrong_usage() {
    let (status, error) = fake().fails("libvirt-hook");
    assert_eq!(status, 2);
    assert!(error.contains("--running"), "{error}");
}

#[test]
fn whatever_is_wrong_is_a_warning() {
    let fake = fake();
    let warned = |dir: &Path, domain: &str, expected: &str| {
        let warning = call(dir, "started", domain);
        assert!(warning.starts_with("lasthop: warning: "), "{warning}");
        assert!(warning.contains(expected), "{warning}");
        assert_eq!(warning.lines().count(), 1, "{warning}");
    };
    let domain = of(DOMAIN, fake.dir(), "vm3");
    warned(fake.dir(), "", "domain vm1: no XML: ");
    warned(
        fake.dir(),
        &domain[..domain.len() / 2],
        "domain vm1: no XML: ",
    );
    let stranger = of(DOMAIN, fake.dir(), "stranger");
    warned(
        fake.dir(),
        &stranger,
        "/stranger.sock: no port has this socket",
    );
    let negative = domain.replace("'12500'", "'-1'");
    warned(
        fake.dir(),
        &negative,
        "inbound: average: expected an integer from 0",
    );
    let refused = domain.replace("'12500'", "'1000000000'");
    warned(fake.dir(), &refused, "to_guest.bits_per_second: ");
    assert_eq!(limits(&fake, "vm3"), Value::Null, "all or nothing");
    let nothing = tempfile::tempdir().unwrap();
    warned(nothing.path(), &domain, "api.sock");
}

#[test]
fn a_lasthop_that_does_not_answer_keeps_no_domain_waiting() {
    let silent = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(silent.path().join("api.sock")).unwrap();
    let domain = of(DOMAIN, silent.path(), "vm3");
    let warning = run_once(silent.path(), &operation("started"), &domain);
    let expected = format!("lasthop: warning: {NOT_DONE} 0.9 s");
    assert!(warning.starts_with(&expected), "{warning}");
}

#[test]
fn an_open_standard_input_keeps_no_domain_waiting() {
    let program = testkit::programs::program("lasthop");
    let mut hook = Command::new(program);
    hook.args(["libvirt-hook", "--", "vm1", "started", "begin", "-"]);
    hook.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut hook = hook.spawn().unwrap();
    let input = hook.stdin.take();
    let done = hook.wait_with_output().unwrap();
    drop(input);
    assert!(done.status.success());
    let warning = String::from_utf8(done.stderr).unwrap();
    let expected = format!("lasthop: warning: {NOT_DONE}");
    assert!(warning.starts_with(&expected), "{warning}");
}

#[test]
fn running_domains_are_read_from_their_status_files() {
    let fake = fake();
    let states = tempfile::tempdir().unwrap();
    let running = format!("--running={}", states.path().display());
    let write = |name: &str, text: &str| fs::write(states.path().join(name), text).unwrap();
    assert_eq!(warnings(fake.dir(), &[&running], ""), "", "no domain");
    write("vm1.xml", &of(STATUS, fake.dir(), "vm3"));
    write("vm1.pid", "87");
    write("broken.xml", "<domstatus>");
    let warning = warnings(fake.dir(), &[&running], "");
    assert!(warning.contains("/broken.xml: no XML: "), "{warning}");
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert_eq!(limits(&fake, "vm3"), recorded());
    assert_eq!(
        warnings(fake.dir(), &["--running=/nowhere"], ""),
        "",
        "no libvirt"
    );
    let wrong = warnings(fake.dir(), &["--running=/dev/null"], "");
    assert!(wrong.contains("/dev/null: "), "{wrong}");
}

/// A directory with programs that the package's hook finds on its path; `logger` copies its input
/// to the file `log`.
fn path_with_logger() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let logger = dir.path().join("logger");
    let log = dir.path().join("log");
    fs::write(
        &logger,
        format!("#!/bin/sh\n/bin/cat >'{}'\n", log.display()),
    )
    .unwrap();
    fs::set_permissions(&logger, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Runs the hook of the package with this path, again if its time was over; returns what it logged.
fn packaged(path: &Path, runtime_dir: &Path, domain: &str) -> String {
    wait_for("a hook that is done in time", || {
        let logged = packaged_once(path, runtime_dir, domain);
        (!logged.contains(NOT_DONE)).then_some(logged)
    })
}

fn packaged_once(path: &Path, runtime_dir: &Path, domain: &str) -> String {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../packaging/libvirt-hook"
    );
    let mut command = assert_cmd::Command::new(script);
    command.args(["vm1", "started", "begin", "-"]);
    command
        .env("PATH", path)
        .env("LASTHOP_RUNTIME_DIR", runtime_dir);
    command
        .write_stdin(domain)
        .assert()
        .success()
        .stdout("")
        .stderr("");
    fs::read_to_string(path.join("log")).unwrap()
}

#[test]
fn the_hook_of_the_package_logs_warnings_and_always_succeeds() {
    let fake = fake();
    let path = path_with_logger();
    let domain = of(DOMAIN, fake.dir(), "vm3");
    let removed = packaged(path.path(), fake.dir(), &domain);
    assert!(
        removed.contains("lasthop"),
        "the package is removed: {removed}"
    );
    assert_eq!(limits(&fake, "vm3"), Value::Null);
    let program = testkit::programs::program("lasthop");
    std::os::unix::fs::symlink(program, path.path().join("lasthop")).unwrap();
    assert_eq!(packaged(path.path(), fake.dir(), &domain), "");
    assert_eq!(limits(&fake, "vm3"), recorded());
    let broken = packaged(path.path(), fake.dir(), "<");
    assert!(
        broken.starts_with("lasthop: warning: domain vm1: no XML: "),
        "{broken}"
    );
}

#[test]
fn the_package_has_the_hook_and_the_unit_asks_for_running_domains() {
    let read = |path: &str| {
        let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(path).unwrap()
    };
    let asset = r#"["../../../packaging/libvirt-hook", "usr/share/lasthop/libvirt-hook", "755"]"#;
    assert!(read("Cargo.toml").contains(asset));
    let unit = read("../../../packaging/lasthop.service");
    for key in ["ExecStartPost", "ExecReload"] {
        let line = format!("\n{key}=-/usr/bin/lasthop libvirt-hook --running\n");
        assert!(unit.contains(&line), "{line}");
    }
}
