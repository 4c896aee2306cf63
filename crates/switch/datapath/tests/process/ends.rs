//! The end of a connection, while the supervisor still has its socket open.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;

use ipc::switching::PortPhase;

use crate::host::{Host, LIMIT, wait_for};

/// A port that no other test uses, because the test checks descriptors of the whole process.
const PORT: u32 = 777;

/// Whether an epoll set of this process waits for the connection of [`PORT`].
fn is_waited_for() -> bool {
    let connection = format!("data: {:16x}", u64::from(PORT) << 8 | 4);
    let all = std::fs::read_dir("/proc/self/fdinfo").expect("/proc");
    let infos = all.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
    infos
        .flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>())
        .any(|line| line.starts_with("tfd:") && line.contains(&connection))
}

#[test]
fn a_connection_ends_for_its_front_end_and_is_waited_for_no_more() {
    let mut host = Host::with_ports([PORT]);
    host.slow.store(true, SeqCst);
    let mut front = UnixStream::connect(host.socket(PORT)).expect("a listening switch");
    front.set_read_timeout(Some(LIMIT)).expect("a socket");
    wait_for("it is connected", is_waited_for);
    // A message of another version breaks the framing.
    front.write_all(&[0xff; 12]).expect("sent");
    assert_eq!(front.read(&mut [0; 16]).expect("an end, no reset"), 0);
    assert_eq!(host.state(PORT).phase, PortPhase::Waiting);
    assert!(!is_waited_for());
    // The next connection is served.
    let mut front = UnixStream::connect(host.socket(PORT)).expect("a listening switch");
    front.set_read_timeout(Some(LIMIT)).expect("a socket");
    wait_for("it is connected", is_waited_for);
    front
        .write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        .expect("sent");
    let mut features = [0; 20];
    front.read_exact(&mut features).expect("an answer");
    host.remove_port(PORT);
    assert_eq!(front.read(&mut features).expect("an end, no reset"), 0);
    assert!(!is_waited_for());
}
