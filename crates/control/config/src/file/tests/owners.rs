//! Tests of owners and permissions of ports' sockets.

use super::*;

#[test]
fn owners_and_modes_are_read() {
    let text =
        format!("{PORT}user = \"vm1\"\ngroup = \"kvm\"\nmode = \"0660\"\npeer_user = \"64055\"\n");
    let port = PortSpec {
        user: Some("vm1".to_owned()),
        group: Some("kvm".to_owned()),
        mode: Some("0660".to_owned()),
        peer_user: Some("64055".to_owned()),
        segment: Some("default".to_owned()),
        ..PortSpec::vhost_user("vm1", "vm1.sock")
    };
    assert_eq!(read(&text).unwrap().ports, [port]);
}

#[test]
fn invalid_owners_and_modes_are_refused() {
    let mode = "5: port.mode: expected an octal number up to 0777, as a text like \"0660\", found";
    let user = "expected the name or the number of a user, as a text, found";
    for (line, found) in [
        ("mode = \"1777\"", "\"1777\""),
        ("mode = \"0680\"", "\"0680\""),
        ("mode = \"\"", "\"\""),
        ("mode = 0o660", "660"),
    ] {
        assert!(
            wrong(&format!("{PORT}{line}\n")).starts_with(mode),
            "{line}: {found}"
        );
    }
    let group = "expected the name or the number of a group, as a text, found";
    check_port_lines(&format!(
        "user = \"\"    | 5: port.user: {user} \"\"
         user = \"a:b\" | 5: port.user: {user} \"a:b\"
         peer_user = 7   | 5: port.peer_user: {user} 7
         group = \"a b\" | 5: port.group: {group} \"a b\""
    ));
}

#[test]
fn ports_without_a_listening_socket_have_no_owner() {
    for key in ["user", "group", "mode", "peer_user"] {
        let line = format!("{key} = \"0600\"");
        let client = format!("{PORT}role = \"client\"\n{line}\n");
        let expected = format!(
            "6: port.{key}: expected no {key} where Lasthop does not listen, found \"0600\""
        );
        assert_eq!(wrong(&client), expected);
        let tap = format!("[[port]]\nname = \"t\"\nkind = \"tap\"\n{line}\n");
        let kinds = "which ports of kind \"vhost-user\", \"netmap\" or \"memif\" have";
        assert!(wrong(&tap).ends_with(kinds), "{key}");
    }
}
