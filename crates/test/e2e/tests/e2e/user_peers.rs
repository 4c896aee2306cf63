//! The usual script of guests at user networks: at a port of Lasthop without any right, and at the
//! networks of QEMU and passt, which docs/user/user-network.md compares with it.

use std::path::Path;
use std::process::Command;

use e2e::guest::{Guest, GuestSpec};
use e2e::lasthop::Lasthop;
use e2e::outside::{
    HOST, NAMED, OUTSIDE, answer_of, check_file, is_denied, lease, namespaces, reaches, resolve,
    sends_file, serve_file, usual_script,
};
use e2e::{is_long, machine, nobody, paths};
use testkit::lasthop::port;
use testkit::netns::Netns;
use testkit::process::Process;
use testkit::skip::skipped;
use testkit::wait::wait_until;

const MAC: &str = "52:54:00:00:00:01";
const FORWARD: &str = "127.0.0.1:2222";

/// The namespaces, with what the script asks for, and a server at the host's own address.
fn world(folder: &Path) -> (Netns, Netns) {
    let (host, outside) = namespaces(folder);
    serve_file(outside.listen(&format!("{OUTSIDE}:8000")));
    check_file(outside.listen(&format!("{OUTSIDE}:9000")));
    resolve(outside.udp(&format!("{OUTSIDE}:53")), NAMED);
    serve_file(host.listen(&format!("{HOST}:7003")));
    (host, outside)
}

fn forwarded(guest: &mut Guest, host: &Netns) {
    assert_eq!(answer_of(guest, 8080, host, FORWARD), "it is me\n");
}

#[test]
fn a_user_port_needs_no_right() {
    if !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (host, _outside) = world(folder.path());
    if !nobody::may_run(&paths::binary("lasthop"), &host.path()) {
        return;
    }
    let user = format!(
        "[[port]]\nname = \"out\"\nkind = \"user\"\ndns = \"{OUTSIDE}\"\n\
         [[port.forward]]\nlisten = \"tcp {FORWARD}\"\nto = \"vm1:8080\"\n"
    );
    let vm1 = port("vm1", &format!("mac = \"{MAC}\""));
    let config = format!("[switch]\nname = \"host1\"\n{vm1}{user}");
    let lasthop = Lasthop::start_as_nobody(&config, &host);
    let spec = GuestSpec::dialing("vm1", lasthop.socket_of("vm1")).mac(MAC);
    let mut guest = spec.as_nobody(&host).start().ready();
    turn.step("the script");
    usual_script(&mut guest, "10.0.2.3");
    assert!(sends_file(&mut guest), "every byte is right");
    forwarded(&mut guest, &host);
    guest.run(&format!("ping -c 1 -W 20 {OUTSIDE}"));
    assert!(is_denied(&mut guest, HOST, 7003));
}

#[test]
fn qemu_and_passt_run_the_same_script() {
    if !is_long() || !Netns::allowed() {
        return;
    }
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (host, _outside) = world(folder.path());
    turn.step("QEMU's -netdev user");
    let options = format!("user,hostfwd=tcp:{FORWARD}-:8080");
    let spec = GuestSpec::netdev("slirp", &options).mac(MAC);
    let mut guest = spec.as_nobody(&host).start().ready();
    // Its resolver would be the machine's own, which the test leaves alone.
    let got = lease(&mut guest);
    assert!(got.contains("ip=10.0.2.15\n"), "{got}");
    guest.run(&format!("wget -q -O /tmp/file http://{OUTSIDE}:8000/"));
    assert!(sends_file(&mut guest), "every byte is right");
    forwarded(&mut guest, &host);
    assert!(reaches(&mut guest, HOST, 7003), "the host is within reach");
    drop(guest);
    if !Path::new("/usr/bin/passt").exists() {
        skipped("passt is not there");
        return;
    }
    turn.step("passt");
    // It takes address and router of the host.
    host.ip(&format!("route add default via {OUTSIDE}"));
    let socket = folder.path().join("passt.sock");
    nobody::give(&[folder.path()]);
    let mut passt = Command::new("passt");
    passt.args(["--foreground", "--interface", "out0", "--dns", OUTSIDE]);
    // The gateway, which is the outside here, would be the loopback of the host.
    passt.arg("--no-map-gw");
    passt.arg("--socket").arg(&socket);
    let passt = nobody::command(&passt, &host.path());
    let log = folder.path().join("passt.log");
    let _passt = Process::spawn("passt", passt, &log).expect("passt starts");
    wait_until("passt listens", || socket.exists());
    let spec = GuestSpec::back_to_back("passt", socket, false).mac(MAC);
    let mut guest = spec.as_nobody(&host).start().ready();
    usual_script(&mut guest, OUTSIDE);
    // Debian 12's passt does not pass the end of a connection on whose guest has closed its half.
    let passes = sends_file(&mut guest);
    turn.step(&format!(
        "    a half-closed connection is answered: {passes}"
    ));
}
