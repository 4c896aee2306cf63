//! The package and its unit under a systemd that has booted, in a container whose file systems are
//! overlays of this host's: installation, reload, drop-in, upgrade and deaths, while two network
//! stacks exchange datagrams through Lasthop.

mod machine;
mod package;

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use machine::Machine;
use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;
use testkit::wait::{wait_for, wait_until};

const DROP_IN: &str = "/usr/share/lasthop/network-namespaces.conf";
/// Two ports of the host, the second one in another namespace and with a process of its own.
const CONFIG: &str = "\
    [[port]]\nname = \"near\"\nkind = \"tap\"\naddress = \"10.1.0.1/24\"\n\
    [[port]]\nname = \"far\"\nkind = \"tap\"\naddress = \"10.1.0.2/24\"\nnetns = \"far\"\n\
    driver_process = true\n";

/// Makes a socket in the network namespace of a file.
fn socket(namespace: PathBuf, address: &'static str) -> UdpSocket {
    let made = std::thread::spawn(move || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(&namespace, flags, Mode::empty()).expect("a namespace");
        let kind = Some(LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(file.as_fd(), kind).expect("rights");
        UdpSocket::bind(address).expect("a free port")
    });
    let socket = made.join().expect("a socket");
    let often = Some(Duration::from_millis(50));
    socket.set_read_timeout(often).expect("a time-out");
    socket
}

/// Numbered datagrams from near to far and back, one each five milliseconds.
struct Pings {
    sent: Arc<AtomicU64>,
    answered: Arc<Mutex<BTreeSet<u64>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pings {
    fn start(machine: &Machine) -> Self {
        let far = socket(machine.path("run/netns/far"), "0.0.0.0:7");
        let near = Arc::new(socket(machine.namespace(), "0.0.0.0:0"));
        let (sent, ends) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let answered = Arc::new(Mutex::new(BTreeSet::new()));
        // Frames that cannot be sent are lost, as an interface may be gone.
        let echo = {
            let ends = Arc::clone(&ends);
            move || {
                let mut buffer = [0; 8];
                while !ends.load(Relaxed) {
                    if let Ok((len, from)) = far.recv_from(&mut buffer) {
                        let _ = far.send_to(&buffer[..len], from);
                    }
                }
            }
        };
        let ask = {
            let (near, ends, sent) = (Arc::clone(&near), Arc::clone(&ends), Arc::clone(&sent));
            move || {
                while !ends.load(Relaxed) {
                    let number = sent.fetch_add(1, Relaxed);
                    let _ = near.send_to(&number.to_be_bytes(), "10.1.0.2:7");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        };
        let receive = {
            let (ends, answered) = (Arc::clone(&ends), Arc::clone(&answered));
            move || {
                let mut buffer = [0; 8];
                while !ends.load(Relaxed) {
                    if let Ok((8, _)) = near.recv_from(&mut buffer) {
                        let mut answered = answered.lock().expect("no panic");
                        answered.insert(u64::from_be_bytes(buffer));
                    }
                }
            }
        };
        let threads = vec![
            std::thread::spawn(echo),
            std::thread::spawn(ask),
            std::thread::spawn(receive),
        ];
        Self {
            sent,
            answered,
            ends,
            threads,
        }
    }

    /// Waits until a datagram that is sent after this call is answered; returns its number.
    fn wait_answer(&self) -> u64 {
        let from = self.sent.load(Relaxed);
        wait_for("an answer", || {
            let answered = self.answered.lock().expect("no panic");
            answered.range(from..).next().copied()
        })
    }

    /// Returns how many datagrams are lost while something is done, and some more are sent.
    fn lost_during(&self, what: impl FnOnce()) -> usize {
        let first = self.wait_answer();
        what();
        let last = self.wait_answer() + 100;
        wait_until("more are sent", || self.sent.load(Relaxed) > last);
        let last = self.wait_answer();
        let answered = self.answered.lock().expect("no panic");
        (first..last)
            .filter(|number| !answered.contains(number))
            .count()
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the process id of one of Lasthop's processes, by its name in `lasthop status`.
fn pid(machine: &Machine, name: &str) -> Option<u64> {
    let status = machine.ask("lasthop status --json").ok()?;
    let status: serde_json::Value = serde_json::from_str(&status).ok()?;
    let mut all = status["processes"].as_array()?.iter();
    all.find(|process| process["name"] == name)?["pid"].as_u64()
}

/// Returns the number of frames that were dropped at all ports.
fn drops(machine: &Machine) -> u64 {
    let stats = machine.ask("lasthop stats --json").expect("statistics");
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("a document");
    let by_reason = stats["drops"].as_object().expect("drops");
    by_reason
        .values()
        .filter_map(serde_json::Value::as_u64)
        .sum()
}

/// Kills one of Lasthop's processes, and waits for another.
fn kill(machine: &Machine, name: &str) {
    let before = wait_for("the process", || pid(machine, name));
    machine.run(&format!("kill -9 {before}"));
    wait_until("another process", || {
        pid(machine, name).is_some_and(|pid| pid != before)
    });
}

/// An uplink that may send nothing; its wire leads to the other namespace.
const UPLINK: &str = "\
    [[port]]\nname = \"up\"\nkind = \"uplink\"\ninterface = \"up0\"\ndriver = \"packet\"\n\
    [[acl]]\nname = \"wire\"\ndirection = \"from-guest\"\nports = [\"up\"]\n\
    [[acl.rule]]\nname = \"all\"\naction = \"drop\"\n";

/// Makes the wire of the uplink, with a neighbour that is not there.
fn make_wire(machine: &Machine) {
    for command in [
        "ip link add up0 type veth peer name wire0 netns far",
        "ip link set up0 up",
        "ip -n far link set wire0 up",
        "ip -n far address add 10.9.0.1/24 dev wire0",
        "ip -n far neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev wire0",
    ] {
        machine.run(command);
    }
}

/// Sends denied datagrams to the uplink until they end at the wire.
fn flood(machine: &Machine) {
    let far = socket(machine.path("run/netns/far"), "10.9.0.1:9");
    let ended = || {
        let shown = machine.ask("lasthop port show up --json");
        let port: serde_json::Value = serde_json::from_str(&shown.expect("a port")).expect("JSON");
        port["prefilter"]["frames"].as_u64().unwrap_or_default()
    };
    let before = ended();
    wait_until("frames end at the wire", || {
        for _ in 0..20_000 {
            let _ = far.send_to(b"none", "10.9.0.2:9");
        }
        ended() > before
    });
}

#[test]
fn the_package_lives_under_systemd() {
    if !e2e::is_long() {
        return;
    }
    let _turn = e2e::machine();
    let Some(machine) = Machine::boot() else {
        return;
    };
    let is_active = || machine.ask("systemctl is-active lasthop").is_ok();
    package::build("1.0", &machine.path("root/first.deb"));
    package::build("1.1", &machine.path("root/second.deb"));
    machine.run("dpkg --install /root/first.deb");
    assert!(is_active(), "installed and started: {}", machine.log());

    machine.write("etc/lasthop/lasthop.toml", CONFIG);
    machine.run("ip netns add far");
    assert!(machine.ask("systemctl reload lasthop").is_err());
    assert!(machine.log().contains(DROP_IN), "{}", machine.log());
    assert!(is_active(), "a refused reload changes nothing");
    let to = "/etc/systemd/system/lasthop.service.d/30-network-namespaces.conf";
    machine.run(&format!("install -D -m 644 {DROP_IN} {to}"));
    machine.run("systemctl daemon-reload");
    make_wire(&machine);
    let config = format!("{CONFIG}{UPLINK}");
    machine.write("etc/lasthop/lasthop.toml", &config);
    machine.run("systemctl restart lasthop");
    // The unit gives the rights for it, until Lasthop has started.
    flood(&machine);

    let pings = Pings::start(&machine);
    let lost = |name: &str, what: &dyn Fn()| {
        let lost = pings.lost_during(what);
        println!("{name}: {lost} datagrams lost");
        lost
    };
    let more = "[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\nsocket = \"vm1.sock\"\n";
    machine.write("etc/lasthop/lasthop.toml", &format!("{config}{more}"));
    let reload = || machine.run("systemctl reload lasthop");
    assert_eq!(lost("reload", &reload), 0);
    machine.run("lasthop port show vm1");
    let before = pid(&machine, "switch");
    // Frames to an interface are dropped while its driver is replaced, and counted.
    let (upgrade, dropped) = (
        || machine.run("dpkg --install /root/second.deb"),
        drops(&machine),
    );
    let lost_by_upgrade = lost("upgrade", &upgrade) as u64;
    assert!(
        lost_by_upgrade <= drops(&machine) - dropped,
        "{}",
        machine.log()
    );
    assert_ne!(pid(&machine, "switch"), before, "{}", machine.log());
    flood(&machine);
    for name in ["control", "switch"] {
        assert_eq!(lost(name, &|| kill(&machine, name)), 0, "{name}");
    }
    let dropped = drops(&machine);
    let lost_by_driver = lost("driver", &|| kill(&machine, "driver far")) as u64;
    assert!(
        lost_by_driver <= drops(&machine) - dropped,
        "{}",
        machine.log()
    );

    // More often than systemd's own limit of five starts in ten seconds.
    for _ in 0..7 {
        lost("supervisor", &|| kill(&machine, "supervisor"));
    }
    let restarts = machine.ask("systemctl show lasthop --property NRestarts --value");
    assert_eq!(restarts.expect("a number").trim(), "7");

    // A Lasthop that fails at once is left to the operator.
    let program = "/usr/lib/lasthop/lasthop-supervisor";
    machine.run(&format!("mv {program} /root/ && cp /bin/false {program}"));
    let supervisor = pid(&machine, "supervisor").expect("it runs");
    machine.run(&format!("kill -9 {supervisor}"));
    wait_until("systemd gives up", || {
        machine.ask("systemctl is-failed lasthop").is_ok()
    });
    machine.run(&format!("mv /root/lasthop-supervisor {program}"));
    machine.run("systemctl reset-failed lasthop");
    machine.run("systemctl start lasthop");
    pings.wait_answer();
    drop(pings);
    machine.run("dpkg --purge lasthop");
    assert!(!is_active());
}
