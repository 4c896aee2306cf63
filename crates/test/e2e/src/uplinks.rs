//! Ports with an interface of the host behind them, and loads that cross them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use testkit::wait::{LIMIT, wait_for};

use crate::lasthop::Lasthop;
use testkit::netns::Netns;

/// How long anything may take.
pub const TIMEOUT: Duration = LIMIT;
/// Bytes of a checked TCP transfer in each direction.
pub const LOAD: usize = 32 << 20;

/// The line of a port with a driver process, where the switch could do without.
pub const OWN_PROCESS: &str = "driver_process = true\n";

/// A `[[port]]` of kind `tap` in a namespace.
pub fn tap(name: &str, netns: &Path, address: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"tap\"\nnetns = \"{}\"\naddress = \"{address}\"\n\
         {more}\n",
        netns.display()
    )
}

/// A `[[port]]` of kind `uplink` in a namespace, over `up0`.
pub fn uplink(netns: &Path, more: &str) -> String {
    format!(
        "[[port]]\nname = \"uplink\"\nkind = \"uplink\"\ninterface = \"up0\"\nnetns = \"{}\"\n\
         {more}\n",
        netns.display()
    )
}

/// A veth pair between two namespaces: `up0` with a Lasthop uplink, `wire0` at the other end.
pub fn wire(near: &Netns, far: &Netns) {
    near.ip(&format!(
        "link add up0 type veth peer name wire0 netns {}",
        far.pid()
    ));
    near.ip("link set up0 up");
    far.ip("link set wire0 up");
    receive_on_one_core(near, "up0");
    receive_on_one_core(far, "wire0");
}

/// Has the kernel receive frames of an interface on one core, where it can. Otherwise those that
/// two cores send through a veth pair overtake each other in the queues of these cores.
fn receive_on_one_core(netns: &Netns, interface: &str) {
    let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
    // `/sys` has the interfaces of the namespace in which it was mounted.
    let script = format!("mount -t sysfs sysfs /sys && echo 1 >{file}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let _ = netns.run(move || command.output());
}

/// Byte number `at` of a load: a pattern that shows what is missing, doubled or out of place.
pub fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(7) ^ (at >> 16).wrapping_mul(31)) as u8
}

fn send_load(mut stream: TcpStream, size: usize) {
    let load: Vec<u8> = (0..size).map(pattern).collect();
    stream.write_all(&load).expect("the other end reads");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("an open connection");
    // Until the other end has checked it all.
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut verdict = [0];
    stream
        .read_exact(&mut verdict)
        .expect("the other end is content");
}

fn check_load(listener: &TcpListener, size: usize) {
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut got = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let len = stream.read(&mut got).expect("no pause");
        if len == 0 {
            break;
        }
        for byte in &got[..len] {
            assert_eq!(*byte, pattern(at), "byte {at}");
            at += 1;
        }
    }
    assert_eq!(at, size);
    stream.write_all(&[1]).expect("the other end listens");
}

/// A TCP transfer from one namespace to an address of another, every byte checked.
pub fn transfer(from: &Netns, to: &Netns, address: &str, size: usize) {
    let listener = to.listen(address);
    std::thread::scope(|scope| {
        scope.spawn(|| check_load(&listener, size));
        send_load(from.connect(address), size);
    });
}

/// TCP transfers from one namespace to the other and back, by their addresses.
pub fn both_ways(near: (&Netns, &str), far: (&Netns, &str), size: usize) {
    // Each transfer has a port of its own: the one before may have left connections behind.
    static PORT: AtomicU16 = AtomicU16::new(5001);
    for (from, (to, address)) in [(near.0, far), (far.0, near)] {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        transfer(from, to, &format!("{address}:{port}"), size);
    }
}

/// Asks over UDP until an answer comes; how often it asked.
pub fn ask(from: &UdpSocket, to: &UdpSocket) -> u32 {
    for socket in [from, to] {
        socket
            .set_read_timeout(Some(Duration::from_millis(5)))
            .expect("a time-out");
    }
    let peer = to.local_addr().expect("bound");
    let start = Instant::now();
    for count in 1u32.. {
        // There may be no way at all for a moment.
        let _ = from.send_to(&count.to_ne_bytes(), peer);
        let mut got = [0; 4];
        while let Ok((4, back)) = to.recv_from(&mut got) {
            let _ = to.send_to(&got, back);
            // A late reply must not be taken for the next one.
            let mut answer = [0; 4];
            loop {
                match from.recv_from(&mut answer) {
                    Ok(_) if u32::from_ne_bytes(answer) == count => return count,
                    Ok(_) => {}
                    Err(error) => {
                        let late =
                            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                        assert!(late, "{error}");
                        break;
                    }
                }
            }
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "no answer after {count} questions"
        );
    }
    unreachable!("the loop has no end")
}

/// Has the kernel cut what a socket sends at once into datagrams of so many bytes, as late as it
/// can (`UDP_SEGMENT`, udp(7)).
pub fn send_in_parts(socket: &UdpSocket, size: u16) {
    let value = libc::c_int::from(size);
    // SAFETY: the option reads one int, whose length is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Switches features of an interface off.
pub fn ethtool_off(netns: &Netns, interface: &str, features: &str) {
    ethtool(netns, interface, features, "off");
}

/// Switches features of an interface `on` or `off`.
pub fn ethtool(netns: &Netns, interface: &str, features: &str, state: &str) {
    netns.run(|| {
        let all = features.split(' ').flat_map(|feature| [feature, state]);
        let mut ethtool = Command::new("ethtool");
        let output = ethtool.args(["-K", interface]).args(all).output();
        assert!(output.expect("ethtool runs").status.success());
    });
}

/// The driver process of a port.
pub fn driver_pid(lasthop: &Lasthop, port: &str) -> Option<u32> {
    let pid = lasthop.port(port)["driver_status"]["pid"].as_u64()?;
    u32::try_from(pid).ok()
}

impl Lasthop {
    /// Waits until a port has a driver process other than `old`, and returns it.
    #[track_caller]
    pub fn other_driver(&self, port: &str, old: u32) -> u32 {
        wait_for("another driver", || {
            driver_pid(self, port).filter(|new| *new != old)
        })
    }
}
