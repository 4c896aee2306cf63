//! `lasthop status` warns about sockets that programs of more than one user can connect to.

use rustix::process::Signal;
use testkit::lasthop::{Place, port};

#[test]
fn a_socket_of_several_users_is_in_the_status_until_one_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    // The folder of the test is its owner's alone otherwise.
    let all = std::fs::Permissions::from_mode(0o755);
    let folder = place.path("");
    std::fs::set_permissions(&folder, all).unwrap();
    let ports = [("open", "mode = \"0666\""), ("own", "mode = \"0600\"")];
    let ports: String = ports.iter().map(|(name, more)| port(name, more)).collect();
    let mut lasthop = place.start(&format!("[switch]\nname = \"host1\"\n{ports}"));
    let warnings = || lasthop.json("status")["warnings"].clone();
    let text = "port open: all users of this host can connect to its socket; \
                name the one of its program: peer_user = \"USER\"";
    assert_eq!(warnings()[0]["text"], text);
    assert_eq!(warnings().as_array().map(Vec::len), Some(1));
    assert!(
        lasthop
            .prints("status")
            .ends_with(&format!("\nwarning: {text}\n"))
    );
    // A directory that others may not search.
    let run = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(place.run_dir(), run).unwrap();
    assert!(warnings().is_null());
    let run = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.run_dir(), run).unwrap();
    assert!(!warnings().is_null());
    let own = rustix::process::geteuid().as_raw();
    lasthop.prints(&format!("port set open --peer-user {own}"));
    assert!(warnings().is_null(), "{}", warnings());
    lasthop.end(Signal::TERM);
}
