//! Sockets are permitted in the directories of the start and in those of `socket_dirs`.

use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use testkit::lasthop::{Place, Running, listens, port};
use testkit::wait::wait_until;

/// Returns a port with this socket.
fn at(name: &str, socket: &str, more: &str) -> String {
    port(name, more).replacen(&format!("{name}.sock"), socket, 1)
}

/// Returns a place with directories beside the runtime directory.
fn place() -> Place {
    let place = Place::new();
    for dir in ["vms", "start", "host"] {
        std::fs::create_dir(place.path(dir)).unwrap();
    }
    place
}

fn config(place: &Place, ports: &str) -> String {
    let vms = place.path("vms").display().to_string();
    let start = place.path("start/a.sock").display().to_string();
    let port = at("a", &start, "");
    format!("[switch]\nname = \"host1\"\nsocket_dirs = [\"{vms}\"]\n{port}{ports}")
}

fn path(place: &Place, name: &str) -> String {
    place.path(name).display().to_string()
}

/// Error for a path in another directory.
const BEYOND: &str = "further ones are for socket_dirs of [switch], and take a restart";

/// Checks that a command is refused, with exit status 2 and these words.
fn refused(lasthop: &Running, line: &str, words: &str) {
    let output = lasthop.cli(line);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}: {complaint}");
    assert!(complaint.contains(words), "{line}: {complaint}");
}

#[test]
fn other_directories_are_refused_at_run_time() {
    let place = place();
    let mut lasthop = place.start(&config(&place, ""));
    let add = |name: &str, path: &str| {
        format!(
            "port add {name} --kind vhost-user --socket {}",
            place.path(path).display()
        )
    };
    let again = |name: &str| {
        let change = config(&place, &at("z", &path(&place, name), ""));
        std::fs::write(place.path("lasthop.toml"), change).unwrap();
    };
    for (round, how) in ["", "control", "switch", "upgrade"].into_iter().enumerate() {
        match how {
            "" => {}
            "upgrade" => drop(lasthop.prints("upgrade")),
            process => drop(lasthop.kill_and_wait(process)),
        }
        wait_until("it answers", || lasthop.cli("status").status.success());
        for (n, dir) in ["run", "vms", "start"].into_iter().enumerate() {
            let file = format!("{dir}/{round}.sock");
            lasthop.prints(&add(&format!("p{n}-{round}"), &file));
            assert!(listens(&place.path(&file)), "{file}");
            lasthop.prints(&format!("port remove p{n}-{round}"));
        }
        refused(&lasthop, &add("b", "host/b.sock"), BEYOND);
        again("host/z.sock");
        refused(&lasthop, "reload", BEYOND);
        lasthop.signal(Signal::HUP);
        wait_until("the refusal is logged", || {
            let log = lasthop.log();
            log.matches("not reloaded, nothing was changed").count() == round + 1
        });
    }
    // Only the supervisor sees links.
    std::os::unix::fs::symlink(place.path("host"), place.path("vms/link")).unwrap();
    let linked = lasthop.cli(&add("b", "vms/link/b.sock"));
    assert!(!linked.status.success());
    assert!(!place.path("host/b.sock").exists());
    // More directories need a restart.
    let more = config(&place, "").replace("/vms\"]", "/vms\", \"/srv\"]");
    std::fs::write(place.path("lasthop.toml"), more).unwrap();
    refused(&lasthop, "reload", "switch.socket_dirs: ");
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
    again("host/z.sock");
    let mut lasthop = place.start(&config(&place, &at("z", &path(&place, "host/z.sock"), "")));
    assert!(listens(&place.path("host/z.sock")));
    lasthop.end(Signal::TERM);
}

#[test]
fn front_ends_that_listen_are_dialled_after_every_restart() {
    let place = place();
    let vm = path(&place, "vms/vm.sock");
    let listener = UnixListener::bind(&vm).unwrap();
    let mut lasthop = place.start(&config(&place, &at("vm", &vm, "role = \"client\"")));
    drop(listener.accept().unwrap());
    lasthop.kill_and_wait("switch");
    drop(listener.accept().unwrap());
    lasthop.kill_and_wait("control");
    drop(listener.accept().unwrap());
    lasthop.prints("upgrade");
    for _ in 0..3 {
        drop(listener.accept().unwrap());
    }
    // A port that is added and removed at run time.
    lasthop.prints("port remove vm");
    let late = path(&place, "vms/late.sock");
    let listener = UnixListener::bind(&late).unwrap();
    lasthop.prints(&format!(
        "port add late --kind vhost-user --role client --socket {late}"
    ));
    drop(listener.accept().unwrap());
    lasthop.end(Signal::TERM);
}

#[test]
fn own_names_are_refused_in_any_form() {
    let place = place();
    let own = path(&place, "run/supervisor.sock");
    std::os::unix::fs::symlink(place.path("run"), place.path("vms/link")).unwrap();
    let linked = path(&place, "vms/link/api.sock");
    for socket in [
        "supervisor.sock",
        "./api.sock",
        "lasthop.lock",
        &own,
        &linked,
        "../x.sock",
    ] {
        let text = config(&place, &at("b", socket, ""));
        let (status, complaint) = place.refuses(&text);
        assert_eq!(status, Some(2), "{complaint}");
        let file = path(&place, "lasthop.toml");
        let last = complaint.lines().last().unwrap();
        let start = format!("lasthop: {file}:12:10: port.socket: ");
        assert!(last.starts_with(&start), "{complaint}");
    }
    assert_eq!(place.left(), [""; 0]);
}
