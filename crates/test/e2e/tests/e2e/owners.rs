//! Ports have owners: no VMM takes the port of another user's, after whatever restarts and changes.

use std::fs::{Permissions, set_permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use e2e::beside;
use e2e::lasthop::Lasthop;
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};
use testkit::wait::{LIMIT, wait_for, wait_until};

/// The two users.
const ONE: u32 = 60_001;
const TWO: u32 = 60_002;

/// Ports of each, and one whose mode lets everybody by.
fn config() -> String {
    let port = |name: &str, more: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n{more}\n"
        )
    };
    let own = |user: u32| format!("user = \"{user}\"\nmode = \"0600\"\npeer_user = \"{user}\"");
    let open = format!("mode = \"0666\"\npeer_user = \"{ONE}\"");
    let ports = [
        port("one", &own(ONE)),
        port("two", &own(TWO)),
        port("open", &open),
    ];
    format!("[switch]\nname = \"host1\"\n{}", ports.concat())
}

/// A connection that a process of this user makes.
fn dial(user: u32, socket: PathBuf) -> io::Result<UnixStream> {
    let become_it = move || -> io::Result<UnixStream> {
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(user))?;
        set_thread_uid(Uid::from_raw(user))?;
        UnixStream::connect(socket)
    };
    std::thread::spawn(become_it).join().expect("a thread")
}

/// It is closed before anything was said.
fn is_rejected(mut stream: UnixStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    matches!(stream.read(&mut [0]), Ok(0))
}

fn rejected_connections(lasthop: &Lasthop, port: &str) -> (u64, Option<u64>) {
    let front_ends = lasthop.port(port)["front_ends"].clone();
    let times = front_ends["rejected_connections"]
        .as_u64()
        .expect("a count");
    (times, front_ends["last_rejected_uid"].as_u64())
}

/// Checks that the port's socket belongs to this user only.
fn is_of(lasthop: &Lasthop, port: &str, user: u32, other: u32) {
    let socket = || lasthop.socket(&format!("{port}.sock"));
    let error = dial(other, socket()).expect_err("the socket is another's");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{port}");
    other_users_are_rejected(lasthop, port, 0);
    let vmm = dial(user, socket()).expect("its own user's");
    lasthop.wait_port(port, "connected");
    drop(vmm);
    lasthop.wait_port(port, "waiting");
}

/// Checks that permission to open the socket does not suffice for a connection.
fn other_users_are_rejected(lasthop: &Lasthop, port: &str, other: u32) {
    let (before, _) = rejected_connections(lasthop, port);
    let socket = lasthop.socket(&format!("{port}.sock"));
    let stream = dial(other, socket).expect("the mode lets it by");
    assert!(is_rejected(stream), "{port}");
    wait_until("it is counted", || {
        rejected_connections(lasthop, port).0 > before
    });
    assert_eq!(
        rejected_connections(lasthop, port),
        (before + 1, Some(other.into()))
    );
    lasthop.wait_reason(port, &format!("rejected a connection of user {other}"));
    let shown = lasthop.ok(&["port", "show", port]);
    assert!(
        shown.contains(&format!("last rejected uid {other}")),
        "{shown}"
    );
}

#[test]
fn no_vmm_takes_the_port_of_another_users() {
    let turn = beside();
    if !rustix::process::geteuid().is_root() {
        return turn.step("left out: only root has two users");
    }
    let lasthop = Lasthop::start(&config());
    let run = lasthop.folder();
    for dir in [run.parent().expect("a folder"), &run] {
        set_permissions(dir, Permissions::from_mode(0o755)).expect("others get there");
    }
    let all = |one, two| {
        is_of(&lasthop, "one", one, two);
        is_of(&lasthop, "two", two, one);
        other_users_are_rejected(&lasthop, "open", TWO);
    };
    turn.step("as it was started");
    all(ONE, TWO);
    turn.step("after a restart of control");
    lasthop.replace_control();
    all(ONE, TWO);
    turn.step("a change while one is connected");
    let vmm = dial(ONE, lasthop.socket("one.sock")).expect("its own user's");
    let connected = lasthop.wait_port("one", "connected")["front_ends"]["connections"].clone();
    lasthop.ok(&["port", "set", "one", "--mode", "0600"]);
    let port = lasthop.wait_port("one", "connected");
    assert_eq!(port["front_ends"]["connections"], connected, "it stays");
    for (port, user) in [("one", "60002"), ("two", "60001")] {
        lasthop.ok(&["port", "set", port, "--user", user, "--peer-user", user]);
    }
    // Its user may not be there any more.
    lasthop.wait_port("one", "waiting");
    drop(vmm);
    all(TWO, ONE);
    turn.step("after a restart of the switch");
    lasthop.replace_switch();
    wait_for("ports", || {
        (lasthop.port("one")["state"] == "waiting").then_some(())
    });
    all(TWO, ONE);
    turn.step("after an upgrade");
    lasthop.ok(&["upgrade"]);
    all(TWO, ONE);
    turn.step("a change that cannot be");
    let no = lasthop.cli(&[
        "port",
        "set",
        "one",
        "--user",
        "no-such-user",
        "--mode",
        "0666",
    ]);
    assert_eq!(no.status.code(), Some(2), "{no:?}");
    assert!(
        String::from_utf8_lossy(&no.stderr).contains("user"),
        "{no:?}"
    );
    all(TWO, ONE);
    lasthop.stop();
}

#[test]
fn an_unknown_user_is_refused_with_the_place() {
    let _turn = beside();
    let (status, said) = Lasthop::refused(&config().replace("\"60002\"", "\"no-such-user\""));
    assert_eq!(status, 2, "{said}");
    assert!(
        said.contains("lasthop.toml:14:8: port.user: expected a user of /etc/passwd"),
        "{said}"
    );
}
