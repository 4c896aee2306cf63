//! Tests of ports for processes, and of pipes.

use api::v1::{PipeSpec, PortKind, Secret};
use ipc::sockets::SocketType;
use ipc::switching::Clients;

use super::*;

fn netmap(lines: &str) -> String {
    format!("[[port]]\nname = \"ids\"\nkind = \"netmap\"\n{lines}\n")
}

fn memif(lines: &str) -> String {
    format!("[[port]]\nname = \"cnf1\"\nkind = \"memif\"\n{lines}\n")
}

fn pipe(lines: &str) -> String {
    format!("[[pipe]]\nname = \"p0\"\n{lines}\n")
}

#[test]
fn keys_are_read_into_the_desired_state() {
    let text = [
        netmap("queues = 2\nslots = 512\npipes = true\nmode = \"0660\""),
        netmap("").replace("ids", "lb"),
        memif("id = 7\nsecret = \"s3cret\"\nsocket = \"m.sock\""),
        pipe("slots = 256\ngroup = \"7\""),
        pipe("").replace("p0", "p1"),
    ];
    let state = read(&text.concat()).unwrap();
    let segment = Some("default".to_owned());
    let ids = PortSpec {
        socket: "ids.netmap".to_owned(),
        mode: Some("0660".to_owned()),
        queues: 2,
        slots: Some(512),
        pipes: true,
        segment: segment.clone(),
        ..PortSpec::new("ids", PortKind::Netmap)
    };
    let lb = PortSpec {
        socket: "lb.netmap".to_owned(),
        slots: Some(1024),
        segment: segment.clone(),
        ..PortSpec::new("lb", PortKind::Netmap)
    };
    let secret = Some(Secret::from("s3cret".to_owned()));
    let cnf1 = PortSpec {
        socket: "m.sock".to_owned(),
        id: Some(7),
        secret: secret.clone(),
        segment,
        ..PortSpec::new("cnf1", PortKind::Memif)
    };
    assert_eq!(state.ports, [ids, lb, cnf1]);
    let p0 = PipeSpec {
        slots: 256,
        socket: "p0.pipes".to_owned(),
        group: Some("7".to_owned()),
        ..PipeSpec::new("p0")
    };
    let p1 = PipeSpec {
        socket: "p1.pipes".to_owned(),
        ..PipeSpec::new("p1")
    };
    assert_eq!((p1.slots, &state.pipes), (2048, &vec![p0, p1]));

    let clients: Vec<Clients> = state.ports.iter().map(desired::clients_of).collect();
    let of_memif = Clients::Memif { id: 7, secret };
    let slots = |slots| Clients::Netmap { slots };
    assert_eq!(clients, [slots(512), slots(1024), of_memif]);
    let types: Vec<SocketType> = state.ports.iter().map(desired::socket_type_of).collect();
    let stream = SocketType::Stream;
    assert_eq!(types, [stream, stream, SocketType::SeqPacket]);
    assert!(state.ports.iter().all(desired::listens));
    let sockets = desired::pipe_sockets(&state);
    let sockets: Vec<_> = sockets.map(|s| (s.name, s.path, s.slots)).collect();
    let of = |name: &str, slots| (name.to_owned(), format!("{name}.pipes"), slots);
    let (p0, p1) = (of("p0", Some(256)), of("p1", Some(2048)));
    assert_eq!(sockets, [of("ids", None), p0, p1]);
}

#[test]
fn what_is_wrong_has_its_place() {
    let slots = "expected a power of two from 64 to 4096";
    for (text, message) in [
        (
            netmap("slots = 1000"),
            format!("4: port.slots: {slots}, found 1000"),
        ),
        (
            netmap("slots = 32"),
            format!("4: port.slots: {slots}, found 32"),
        ),
        (
            netmap("slots = \"many\""),
            format!("4: port.slots: {slots}, found \"many\""),
        ),
        (
            pipe("slots = 8192"),
            format!("3: pipe.slots: {slots}, found 8192"),
        ),
        (
            netmap("queues = 17"),
            "4: port.queues: expected an integer from 1 to 16, found 17".to_owned(),
        ),
        (
            netmap("pipes = 1"),
            "4: port.pipes: expected true or false, found 1".to_owned(),
        ),
        (
            memif("id = -1"),
            "4: port.id: expected an integer from 0 to 4294967295, found -1".to_owned(),
        ),
        (
            memif("secret = \"\""),
            "4: port.secret: expected a text of 1 to 24 bytes, found 0 bytes".to_owned(),
        ),
        (
            memif("secret = \"0123456789012345678901234\""),
            "4: port.secret: expected a text of 1 to 24 bytes, found 25 bytes".to_owned(),
        ),
        (
            memif("secret = 1234"),
            "4: port.secret: expected a text of 1 to 24 bytes, found (hidden)".to_owned(),
        ),
        (
            netmap("") + &pipe("").replace("p0", "ids"),
            "6: pipe.name: expected a name that no port has, found \"ids\", the name of a port"
                .to_owned(),
        ),
        (
            pipe("") + &pipe(""),
            "5: pipe.name: expected a name that no other pipe has, found \"p0\" a second time"
                .to_owned(),
        ),
        (
            netmap("pipes = true") + &pipe("socket = \"ids.pipes\""),
            "7: pipe.socket: expected a socket that no other port has, found \"ids.pipes\", \
             the socket of the pipes of port \"ids\""
                .to_owned(),
        ),
        (
            netmap("") + &memif("socket = \"ids.netmap\""),
            "8: port.socket: expected a socket that no other port has, found \"ids.netmap\", \
             the socket of port \"ids\""
                .to_owned(),
        ),
        (
            pipe("mode = \"rw\""),
            "3: pipe.mode: expected an octal number up to 0777, as a text like \"0660\", found \
             \"rw\""
                .to_owned(),
        ),
    ] {
        assert_eq!(wrong(&text), message, "{text}");
    }
}

#[test]
fn keys_of_another_kind_are_named_as_such() {
    for (text, found) in [
        (
            memif("slots = 512"),
            "found \"slots\", which ports of kind \"netmap\" have",
        ),
        (
            netmap("secret = \"x\""),
            "found \"secret\", which ports of kind \"memif\" have",
        ),
        (
            netmap("role = \"server\""),
            "found \"role\", which ports of kind \"vhost-user\" have",
        ),
        (netmap("slot = 512"), "found the unknown key \"slot\""),
        (pipe("queues = 2"), "found the unknown key \"queues\""),
    ] {
        let wrong = wrong(&text);
        assert!(wrong.ends_with(found), "{wrong}");
    }
}

#[test]
fn a_request_hides_a_secret_of_the_wrong_kind_of_port() {
    let port = PortSpec {
        secret: Some(Secret::from("s3cret".to_owned())),
        ..PortSpec::vhost_user("a", "a.sock")
    };
    let (state, dir) = (DesiredState::default(), Path::new("/run/lasthop"));
    let problem = desired::add_port(&state, port, dir).unwrap_err();
    let detail = "expected no secret with kind \"vhost-user\", found \"(hidden)\"";
    assert_eq!(problem.detail, detail);
}

#[test]
fn the_sockets_of_pipes_are_bounded() {
    let pipes: String = (0..257)
        .map(|n| pipe("").replace("p0", &format!("p{n}")))
        .collect();
    let expected = "770: pipe.name: expected at most 256 pipes and ports with pipes, found 257";
    assert_eq!(wrong(&pipes), expected);
}
