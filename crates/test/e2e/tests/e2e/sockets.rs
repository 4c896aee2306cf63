//! Sockets over a port: programs of the system with `liblasthop_net.so`, at both ends and with a
//! Linux guest at the other.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::guest::{Guest, GuestSpec};
use e2e::lasthop::Lasthop;
use e2e::sockets::{PYTHON, lasthop, run, script, start, succeeds, words};
use e2e::traffic::{ping, serve_iperf};
use e2e::{beside, machine, paths};
use testkit::process::Process;
use testkit::skip::skipped;
use testkit::wait::wait_until;

/// Time for a program to end.
const PROGRAM: Duration = Duration::from_secs(60);
/// The server under another name, by which it only checks files: the package with its own name
/// would start it as a service.
const REDIS: &str = "/usr/bin/redis-check-rdb";

/// Pseudo-random bytes in a file.
fn file(folder: &Path, name: &str, len: usize) -> PathBuf {
    let mut state = 1_u32;
    let bytes = (0..len).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let path = folder.join(name);
    fs::write(&path, bytes.collect::<Vec<u8>>()).expect("a file");
    path
}

fn wait_ready(process: &Process, word: &str) {
    wait_until(word, || process.output().contains(word));
}

#[test]
fn programs_find_what_they_expect_of_sockets() {
    let turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let echo = start(
        &lasthop,
        "b",
        2,
        &[PYTHON, &script("echo.py"), "10.0.0.2", "7"],
    );
    wait_ready(&echo, "ready");
    turn.step("a program's checks");
    let printed = succeeds(
        &lasthop,
        "a",
        1,
        &[PYTHON, &script("checks.py"), "10.0.0.2", "7"],
    );
    assert!(printed.contains("ok: stays there"), "{printed}");
}

#[test]
fn sockets_that_share_a_port_share_what_comes() {
    let turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let words =
        |role| [PYTHON, &script("shares.py"), role, "10.0.0.2", "80", "40"].map(str::to_owned);
    let words = [words("server"), words("client")];
    let [server, client] = words
        .each_ref()
        .map(|words| words.each_ref().map(String::as_str));
    let mut server = start(&lasthop, "b", 2, &server);
    wait_ready(&server, "ready");
    turn.step("40 connections and 40 datagrams");
    succeeds(&lasthop, "a", 1, &client);
    assert!(server.end(PROGRAM).expect("it ends").success());
    let printed = server.output();
    assert!(printed.contains("ready\neach 40\neach 40\n"), "{printed}");
}

#[test]
fn bytes_move_between_a_pipe_and_a_socket() {
    let _turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let echo = [PYTHON, &script("echo.py"), "10.0.0.2", "7"];
    let echo = start(&lasthop, "b", 2, &echo);
    wait_ready(&echo, "ready");
    let splices = [PYTHON, &script("splices.py"), "10.0.0.2", "7"];
    let printed = succeeds(&lasthop, "a", 1, &splices);
    assert!(printed.contains("ok: the end"), "{printed}");
}

/// Differences between the lines of Linux and of the library.
fn differences(linux: &str, library: &str) -> String {
    let mut text = String::new();
    for (own, other) in linux.lines().zip(library.lines()) {
        let (what, answers) = own.split_once(": ").expect("a line");
        let (same, found) = other.split_once(": ").expect("a line");
        assert_eq!(what, same);
        let is_unknown = |answers: &str| {
            let first = answers.split(' ').next();
            matches!(first, Some("ENOPROTOOPT" | "ENOTSUP"))
        };
        if answers == found || is_unknown(answers) && is_unknown(found) {
            continue;
        }
        // The answers of Linux to what is refused here change with its version.
        text += &match is_unknown(found) {
            true => format!("{what}: refused\n"),
            false => format!("{what}\n  Linux   {answers}\n  library {found}\n"),
        };
    }
    assert_eq!(linux.lines().count(), library.lines().count());
    text
}

#[test]
fn options_are_those_of_linux_but_for_a_list() {
    let _turn = beside();
    let lasthop = lasthop(&["a"]);
    let program = [PYTHON, &script("options.py")];
    // In a network of its own no port is taken.
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net"]);
    let linux = command.args(program).output().expect("it ends");
    if !linux.status.success() {
        skipped(format!("no namespace for Linux's answers: {linux:?}"));
        return;
    }
    let linux = String::from_utf8_lossy(&linux.stdout).into_owned();
    let found = differences(&linux, &succeeds(&lasthop, "a", 1, &program));
    let list = script("options.txt");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&list, &found).expect("a file");
    }
    let expected = fs::read_to_string(&list).expect("a file");
    assert_eq!(found, expected, "BLESS=1 writes the list anew");
}

#[test]
fn a_file_crosses_between_two_programs_whole() {
    let turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let folder = tempfile::tempdir().expect("a folder");
    let sent = file(folder.path(), "sent", 20 << 20);
    let directory = folder.path().to_str().expect("text");
    let server = [
        PYTHON,
        "-u",
        "-m",
        "http.server",
        "8000",
        "--bind",
        "10.0.0.2",
    ];
    let server = [&server[..], &["--directory", directory]].concat();
    let server = start(&lasthop, "b", 2, &server);
    wait_ready(&server, "Serving");
    turn.step("curl");
    let got = folder.path().join("got");
    let to = got.to_str().expect("text");
    let curl = ["curl", "-sS", "-o", to, "http://10.0.0.2:8000/sent"];
    succeeds(&lasthop, "a", 1, &curl);
    assert!(fs::read(&sent).expect("a file") == fs::read(&got).expect("a file"));
    turn.step("a page that is not there");
    let curl = ["curl", "-sS", "-f", "http://10.0.0.2:8000/nothing"];
    assert_eq!(run(&lasthop, "a", 1, &curl).status.code(), Some(22));
}

#[test]
fn a_server_by_epoll_that_forks_serves_50_clients() {
    let turn = beside();
    if !Path::new(REDIS).exists() {
        skipped("redis-tools is not there");
        return;
    }
    let lasthop = lasthop(&["a", "b"]);
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().to_str().expect("text");
    let redis = folder.path().join("redis-server");
    symlink(REDIS, &redis).expect("a link");
    let server = [
        redis.to_str().expect("text"),
        "--bind",
        "10.0.0.2",
        "--protected-mode",
        "no",
    ];
    let server = [&server[..], &["--dir", directory]].concat();
    let mut server = start(&lasthop, "b", 2, &server);
    wait_ready(&server, "Ready to accept connections");
    turn.step("redis-benchmark");
    let clients = "-h 10.0.0.2 -n 5000 -c 50 -q -t set,get,lrange_100";
    let benchmark: Vec<_> = ["redis-benchmark"]
        .into_iter()
        .chain(clients.split(' '))
        .collect();
    let printed = succeeds(&lasthop, "a", 1, &benchmark);
    assert!(printed.contains("LRANGE_100"), "{printed}");
    turn.step("a child saves what there is");
    let client = ["redis-cli", "-h", "10.0.0.2"];
    let ask = |word| succeeds(&lasthop, "a", 1, &[&client[..], &[word]].concat());
    ask("bgsave");
    wait_ready(&server, "Background saving terminated with success");
    run(&lasthop, "a", 1, &[&client[..], &["shutdown"]].concat());
    assert!(server.end(PROGRAM).expect("it ends").success());
}

#[test]
fn streams_go_on_while_processes_of_lasthop_die() {
    let turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let server = start(
        &lasthop,
        "b",
        2,
        &["iperf3", "-s", "-B", "10.0.0.2", "--forceflush"],
    );
    wait_ready(&server, "Server listening");
    let client = ["iperf3", "-c", "10.0.0.2", "-t", "4", "-P", "4", "--json"];
    let mut client = start(&lasthop, "a", 1, &client);
    lasthop.wait_sent("a", 1000);
    turn.step("control is killed");
    lasthop.replace_control();
    turn.step("the switch is killed");
    lasthop.kill_switch();
    let ended = client.end(PROGRAM).expect("it ends");
    let output = client.output();
    assert!(ended.success(), "{output}");
    assert!(!output.contains("\"error\""), "{output}");
}

#[test]
fn a_linux_guest_is_at_the_other_end() {
    let turn = machine();
    let lasthop = lasthop(&["a", "dns", "vm"]);
    let mut guest = GuestSpec::at(&lasthop, "vm", 2).start().ready();
    serve_iperf(&mut guest);
    turn.step("to the guest and back");
    for direction in ["-c", "-Rc"] {
        let iperf = ["iperf3", direction, "10.0.0.2", "-t", "1", "--json"];
        let printed = succeeds(&lasthop, "a", 1, &iperf);
        assert!(!printed.contains("\"error\""), "{printed}");
    }
    turn.step("the guest fetches a file");
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), "sent", 3 << 20);
    let directory = folder.path().to_str().expect("text");
    let server = [
        PYTHON,
        "-u",
        "-m",
        "http.server",
        "8000",
        "--directory",
        directory,
    ];
    let server = start(&lasthop, "a", 1, &server);
    wait_ready(&server, "Serving");
    let sum = guest.run("wget -q -O - http://10.0.0.1:8000/sent | md5sum");
    let own = Command::new("md5sum")
        .arg(folder.path().join("sent"))
        .output();
    let own = String::from_utf8_lossy(&own.expect("a sum").stdout).into_owned();
    assert_eq!(sum.split(' ').next(), own.split(' ').next());
    turn.step("the guest pings the program");
    assert_eq!(ping(&mut guest, "10.0.0.1", 3).lost(), 0);
    drop(server);
    turn.step("a shell in the guest");
    has_shell(&lasthop, &mut guest, folder.path());
    turn.step("address and resolver come from the guest, and a name from the resolver");
    let resolver = [PYTHON, &script("resolver.py"), "10.0.0.3", "10.0.0.2"];
    let resolver = start(&lasthop, "dns", 3, &resolver);
    wait_ready(&resolver, "ready");
    guest.run(DHCP);
    guest.run("mkdir -p /www && echo a page >/www/page && httpd -p 80 -h /www");
    let curl = ["curl", "-sS", "http://files.internal/page"];
    assert_eq!(succeeds(&lasthop, "a", 0, &curl), "a page\n");
}

/// A program runs a command in the guest over SSH.
fn has_shell(lasthop: &Lasthop, guest: &mut Guest, folder: &Path) {
    let key = folder.join("key");
    let key = key.to_str().expect("text");
    let made = Command::new("dropbearkey")
        .args(["-t", "ed25519", "-f", key])
        .output();
    let made = String::from_utf8_lossy(&made.expect("dropbearkey runs").stdout).into_owned();
    let public = made.lines().find(|line| line.starts_with("ssh-ed25519"));
    let public = public.expect("a public key");
    guest.run(&format!(
        "mkdir -p /etc/dropbear /root/.ssh && chmod 700 /root /root/.ssh && \
         echo root:x:0:0::/root:/bin/sh >/etc/passwd && \
         echo '{public}' >/root/.ssh/authorized_keys && chmod 600 /root/.ssh/* && dropbear -R"
    ));
    let client = ["dbclient", "-y", "-y", "-i", key, "root@10.0.0.2"];
    let command = ["echo from the guest; head -c 1000000 /dev/zero | tr '\\0' x"];
    let printed = succeeds(lasthop, "a", 1, &[&client[..], &command].concat());
    let (line, rest) = printed.split_once('\n').expect("two lines");
    assert_eq!((line, rest.len()), ("from the guest", 1_000_000));
}

/// A server of the guest, for addresses.
const DHCP: &str = "printf '%s\\n' 'start 10.0.0.50' 'end 10.0.0.60' 'interface eth0' \
    'option subnet 255.255.255.0' 'option router 10.0.0.2' 'option dns 10.0.0.3' \
    'lease_file /leases' 'pidfile /udhcpd.pid' >/udhcpd.conf && touch /leases && \
    udhcpd /udhcpd.conf";

#[test]
fn a_program_that_is_linked_with_the_library_plugs_in_itself() {
    let _turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let echo = [PYTHON, &script("echo.py"), "10.0.0.2", "7"];
    let echo = start(&lasthop, "b", 2, &echo);
    wait_ready(&echo, "ready");
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("linked");
    let library = paths::binary("liblasthop_net.so");
    let include = paths::root().join("crates/clients/sockets-preload/include");
    let mut gcc = Command::new("gcc");
    gcc.arg("-Wall").arg("-Werror").arg("-o").arg(&program);
    gcc.arg("-I")
        .arg(include)
        .arg(script("linked.c"))
        .arg(&library);
    assert!(gcc.status().expect("gcc runs").success());
    let socket = lasthop.socket_of("a");
    let settings = format!("SOCKET={}\nADDRESS=10.0.0.1/24\n", socket.display());
    let mut command = Command::new(&program);
    command.args([&settings, "10.0.0.2", "7"]);
    let output = command.output().expect("it ends");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "done\n",
        "{output:?}"
    );
}

#[test]
fn the_library_of_netmap_can_be_loaded_too() {
    let _turn = beside();
    let lasthop = lasthop(&["a", "b"]);
    let echo = [PYTHON, &script("echo.py"), "10.0.0.2", "7"];
    let echo = start(&lasthop, "b", 2, &echo);
    wait_ready(&echo, "ready");
    let checks = [PYTHON, &script("checks.py"), "10.0.0.2", "7"];
    let own = paths::binary("lasthop");
    let mut command = Command::new(&own);
    command.args(["netmap", "--"]).arg(&own);
    command.args(words(&lasthop, "a", 1, &checks));
    let output = command.output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("ok: stays there"), "{output:?}");
}

#[test]
fn what_cannot_be_reached_is_refused_in_words() {
    let _turn = beside();
    let lasthop = lasthop(&["a"]);
    let refused = |program: &[&str], word: &str| {
        let output = run(&lasthop, "a", 1, program);
        assert_eq!(output.status.code(), Some(2), "{program:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains(word), "{errors}");
    };
    refused(&["no-such-program"], "no such program");
    if let Ok(busybox) = fs::canonicalize("/bin/busybox") {
        refused(&[busybox.to_str().expect("text")], "a static program");
    }
    let held = start(&lasthop, "a", 1, &[PYTHON, "-c", HOLD]);
    wait_ready(&held, "held");
    let output = run(&lasthop, "a", 1, &[PYTHON, "-c", HOLD]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("another process has the port"), "{errors}");
    assert!(errors.contains("Network is down"), "{errors}");
}

const HOLD: &str =
    "import socket, time; s = socket.socket(); print('held', flush=True); time.sleep(60)";
