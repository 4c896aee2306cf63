//! The kernel's tracker: a network namespace forwards packets between two pairs of interfaces, and
//! its rules write the state that each packet has into its DSCP.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conntrack::Tuple;
use conntrack::tuple::Query;
use testkit::netns::{Netns, Wire};

use crate::answer::Entry;
use crate::ours::{ESTABLISHED, From};

const VERDICTS: [&str; 8] = [
    "lost",
    "invalid",
    "new",
    "original",
    "reply",
    "related-original",
    "related-reply",
    "untracked",
];
/// How long a packet may be on its way.
const LIMIT: Duration = Duration::from_millis(50);

/// A kernel that is asked.
pub(crate) struct Kernel {
    router: Netns,
    _hosts: Netns,
    wires: [Wire; 2],
}

/// The rules: a mark for each state, and the mark in the DSCP.
fn rules() -> String {
    let states = [
        "ct state invalid",
        "ct state new",
        "ct state established ct direction original",
        "ct state established ct direction reply",
        "ct state related ct direction original",
        "ct state related ct direction reply",
        "ct state untracked",
    ];
    let mut rules = "table inet oracle { chain forward {\n".to_owned();
    rules += "type filter hook forward priority 0;\n";
    for (n, state) in states.iter().enumerate() {
        rules += &format!("{state} meta mark set {}\n", n + 1);
    }
    for n in 1..=states.len() {
        rules += &format!("meta nfproto ipv4 meta mark {n} ip dscp set {n}\n");
        rules += &format!("meta nfproto ipv6 meta mark {n} ip6 dscp set {n}\n");
    }
    rules + "}\n}\n"
}

/// The kernel's release.
pub(crate) fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.unwrap_or_default().trim().to_owned()
}

impl Kernel {
    /// Sets the namespaces up; `folder` is for their logs.
    ///
    /// # Errors
    /// The reason why the kernel cannot be asked here.
    pub(crate) fn new(folder: &Path) -> Result<Self, String> {
        let nft = Command::new("nft").arg("--version").output();
        if !nft.is_ok_and(|output| output.status.success()) {
            return Err("no nft here (Debian's package nftables)".to_owned());
        }
        let router = Netns::new("router", folder);
        let hosts = Netns::new("hosts", folder);
        let hosts_pid = hosts.pid();
        // One call for all: each is followed by a wait of the kernel's.
        let ip = |netns: &Netns, name: &str, lines: &[String]| {
            let file = folder.join(name);
            std::fs::write(&file, lines.join("\n")).map_err(|error| error.to_string())?;
            netns.ip(&format!("-batch {}", file.display()));
            Ok::<_, String>(())
        };
        let sides = [(1, "a"), (2, "b")];
        let links = sides.map(|(_, side)| {
            format!("link add name {side} mtu 9000 type veth peer name {side} netns {hosts_pid}")
        });
        ip(&router, "links", &links)?;
        for (_, side) in sides {
            hosts.run(|| set(&format!("ipv6/conf/{side}/disable_ipv6"), "1"))?;
        }
        let up = sides.map(|(_, side)| format!("link set dev {side} mtu 9000 up"));
        ip(&hosts, "up", &up)?;
        let addresses: Vec<String> = sides.iter().flat_map(|side| addresses(*side)).collect();
        ip(&router, "addresses", &addresses)?;
        router.run(settings)?;
        router.run(|| load(&rules()))?;
        router.run(tracker_settings)?;
        let wires = ["a", "b"].map(|side| hosts.wire(side));
        let kernel = Self {
            router,
            _hosts: hosts,
            wires,
        };
        kernel.entries().map(|_| kernel)
    }

    /// The verdict about a packet. One that the kernel holds back is not waited for.
    pub(crate) fn ask(&self, from: From, packet: &[u8], held: bool) -> String {
        let (side, far) = match from {
            From::A => (0, 1),
            From::B => (1, 0),
        };
        let v6 = packet[0] >> 4 == 6;
        let source = |packet: &[u8]| {
            let at = if v6 { 8..24 } else { 12..16 };
            packet.get(at).map(<[u8]>::to_vec)
        };
        for wire in &self.wires {
            while wire.take().is_some() {}
        }
        let n = side as u8 + 1;
        let mut frame = vec![2, 0, 0, 0, 0, n, 2, 0, 0, 0, 0, 0x10 + n];
        frame.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(packet);
        self.wires[side].send(&frame);
        let end = Instant::now() + LIMIT;
        loop {
            while let Some(frame) = self.wires[far].take() {
                let came = &frame[14..];
                if frame[12..14] == [if v6 { 0x86 } else { 8 }, if v6 { 0xdd } else { 0 }]
                    && source(came) == source(packet)
                {
                    let class = if v6 {
                        came[0] << 4 | came[1] >> 4
                    } else {
                        came[1]
                    };
                    let verdict = VERDICTS.get(usize::from(class >> 2));
                    return verdict.copied().unwrap_or("an unknown mark").to_owned();
                }
            }
            if held || Instant::now() > end {
                return "lost".to_owned();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// All connections, by the tuple of their original direction.
    pub(crate) fn entries(&self) -> Result<HashMap<Tuple, Entry>, String> {
        let text = self
            .router
            .run(|| std::fs::read_to_string("/proc/thread-self/net/nf_conntrack"));
        let text = text.map_err(|error| format!("/proc/net/nf_conntrack: {error}"))?;
        Ok(text.lines().filter_map(entry).collect())
    }
}

/// The addresses of a side of the router. All hosts of a side have one neighbour, so that no
/// packet waits for an answer to ARP.
fn addresses((n, side): (u8, &str)) -> [String; 7] {
    let net = n * 64;
    let (own, next) = (net + 1, net + 2);
    let far = format!("lladdr 02:00:00:00:00:1{n} dev {side}");
    [
        format!("link set dev {side} address 02:00:00:00:00:0{n} up"),
        format!("addr add 192.0.2.{own}/30 dev {side}"),
        format!("addr add fe80::{n}:1/64 dev {side} nodad"),
        format!("neigh add 192.0.2.{next} {far}"),
        format!("neigh add fe80::{n}:2 {far}"),
        format!("route add 10.{n}.0.0/16 via 192.0.2.{next} dev {side}"),
        format!("route add fd0{n}::/64 via fe80::{n}:2 dev {side}"),
    ]
}

/// Loads rules of nft.
fn load(rules: &str) -> Result<(), String> {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let output = nft.spawn().and_then(|mut nft| {
        let mut input = nft.stdin.take().expect("it is piped");
        input.write_all(rules.as_bytes())?;
        drop(input);
        nft.wait_with_output()
    });
    let output = output.map_err(|error| format!("nft: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let rules_known = output.status.success();
    rules_known.then_some(()).ok_or(format!("nft: {error}"))
}

/// Writes a setting below `/proc/sys/net` of the thread's namespace.
fn set(name: &str, value: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/{name}");
    std::fs::write(&path, value).map_err(|error| format!("{path}: {error}"))
}

fn settings() -> Result<(), String> {
    set("ipv4/ip_forward", "1")?;
    set("ipv6/conf/all/forwarding", "1")?;
    for name in ["all", "a", "b"] {
        set(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
    }
    Ok(())
}

/// Settings that make the kernel's tracker ours: no shorter timeout after retransmissions.
fn tracker_settings() -> Result<(), String> {
    set("netfilter/nf_conntrack_tcp_max_retrans", "255")?;
    let established = ESTABLISHED.to_string();
    set(
        "netfilter/nf_conntrack_tcp_timeout_established",
        &established,
    )
}

/// A line of the kernel's list.
fn entry(line: &str) -> Option<(Tuple, Entry)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |name: &str| {
        let mut found = words.iter().filter_map(|word| word.strip_prefix(name));
        found.next()?.strip_prefix('=')
    };
    let number = |name: &str| -> Option<u16> { value(name)?.parse().ok() };
    let (protocol, seconds) = (words[3].parse().ok()?, words[4].parse().ok()?);
    let src: IpAddr = value("src")?.parse().ok()?;
    let dst: IpAddr = value("dst")?.parse().ok()?;
    let tuple = match number("type") {
        Some(kind) => {
            let kinds = [8, 13, 15, 17, 128, 139];
            let at = kinds.iter().position(|known| *known == kind)?;
            let query = Query {
                asks: true,
                kind: if at < 4 { at } else { at - 4 } as u8,
                code: number("code")? as u8,
                identifier: number("id")?,
            };
            Tuple::of_query(0, protocol, src, dst, query)
        }
        None => {
            let port = |name| number(name).unwrap_or_default();
            Tuple::new(0, protocol, (src, port("sport")), (dst, port("dport")))
        }
    };
    let state = words[5];
    let entry = Entry {
        seconds,
        state: match state.contains(['=', '[']) {
            true => "-".to_owned(),
            false => state.to_owned(),
        },
        replied: !words.contains(&"[UNREPLIED]"),
        assured: words.contains(&"[ASSURED]"),
    };
    Some((tuple, entry))
}
