//! The socket: whole messages, answers in their order, and the end with its reason.

use testkit::memif::{Dialog, Said};
use testkit::wait::LIMIT;
use virtio::vhost_user::AnswerPipe;

use super::*;
use crate::message::connected;
use crate::{Connection, reject};

fn pair() -> (Dialog, Connection) {
    let (client, server) = Dialog::pair(LIMIT).expect("a socket pair");
    let pipe = AnswerPipe::new().expect("a pipe");
    (client, Connection::new(server, pipe).expect("a connection"))
}

fn codes(client: &Dialog, count: usize) -> Vec<u32> {
    let said = (0..count).map(|_| client.receive().expect("a message").expect("no end"));
    said.map(|Said { code, .. }| code).collect()
}

#[test]
fn a_message_stays_until_it_is_consumed() {
    let (client, mut server) = pair();
    assert!(server.peek().expect("no fault").is_none());
    let event = event();
    client
        .send(code::ADD_RING, &[7; 4], Some(event.as_fd()))
        .expect("sent");
    client.send(code::CONNECT, &[], None).expect("sent");
    for _ in 0..3 {
        let (message, fds) = server.peek().expect("no fault").expect("a message");
        assert_eq!(message, super::message(code::ADD_RING, [7; 4]));
        assert_eq!(fds.len(), 1);
    }
    server.consume().expect("taken");
    let (message, fds) = server.peek().expect("no fault").expect("a message");
    assert_eq!((message.code, fds.len()), (code::CONNECT, 0));
    server.consume().expect("taken");
    drop(client);
    assert!(matches!(server.peek(), Err(Fault::Closed)));
}

#[test]
fn each_staged_answer_is_a_message_of_its_own() {
    let (client, mut server) = pair();
    server
        .stage(&Session::new(offer()).hello())
        .expect("room in the pipe");
    server.stage(&connected("cnf1")).expect("room in the pipe");
    assert!(server.wants_write());
    assert!(server.flush().expect("a client"));
    assert!(!server.wants_write());
    assert_eq!(codes(&client, 2), [code::HELLO, code::CONNECTED]);
}

#[test]
fn nothing_is_read_while_the_client_does_not_read() {
    let (client, mut server) = pair();
    client.send(code::INIT, &[], None).expect("sent");
    let mut staged = 0;
    while server.flush().expect("a client") {
        server.stage(&connected("x")).expect("room in the pipe");
        staged += 1;
    }
    assert!(server.peek().expect("no fault").is_none());
    let sent = staged - 1;
    assert_eq!(codes(&client, sent), vec![code::CONNECTED; sent]);
    assert!(server.peek().expect("no fault").is_some() && !server.wants_write());
    assert_eq!(codes(&client, 1), [code::CONNECTED]);
}

#[test]
fn other_sizes_end_the_connection() {
    for size in [1, 127, 129, 4096] {
        let (client, mut server) = pair();
        client.send_bytes(&vec![1; size], &[]).expect("sent");
        let fault = server.peek().expect_err("a fault").to_string();
        let got = size.min(129);
        assert_eq!(
            fault,
            format!("message with a payload of {got} bytes, expected 128")
        );
    }
}

#[test]
fn the_end_has_its_reason() {
    let (client, server) = pair();
    client.send(code::INIT, &[], None).expect("sent");
    server.end(Some("wrong secret"));
    let said = client.receive().expect("a message").expect("no end");
    assert_eq!(
        (said.code, &*said.reason()),
        (code::DISCONNECT, "wrong secret")
    );
    assert_eq!(client.receive().expect("the end"), None);

    let (client, server) = pair();
    server.end(None);
    assert_eq!(client.receive().expect("the end"), None);

    let (client, socket) = Dialog::pair(LIMIT).expect("a socket pair");
    reject(socket.into(), "another client is connected");
    let said = client.receive().expect("a message").expect("no end");
    assert_eq!(said.reason(), "another client is connected");
    assert_eq!(client.receive().expect("the end"), None);
}
