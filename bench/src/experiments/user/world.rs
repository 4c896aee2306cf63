//! Network namespaces, the servers outside, and a peer between them and the client.
//!
//! ```text
//!   the client  <wire>  the peer, in host   host0  <veth pair>  far0   servers, in outside
//!               <TAP>, in guest
//! ```

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use testkit::lasthop::port;

use super::super::external::Namespace;
use super::guest::Guest;
use super::servers::Servers;
use super::wires::{AnyWire, Queues, Stream, Tap};
use crate::peers::lasthop::{Lasthop, port_shown, start_with};
use crate::plan::Plan;
use crate::process::{Process, installed, words};
use crate::{folders, procfs, stop};

/// Addresses that QEMU's user networking gives.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(super) const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Bytes of an IP packet: of Ethernet, and the most that the peers take.
pub(super) const MTU: u16 = 1500;
const LONG_MTU: u16 = 65_520;
pub(super) const START: Duration = Duration::from_secs(10);
/// The user `nobody`, who makes the namespaces of pasta.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// The programs that turn the frames of a guest into connections of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lasthop,
    Passt,
    Pasta,
    Slirp4netns,
    Libslirp,
}

impl Kind {
    /// Ours first.
    pub(super) const ALL: [Self; 5] = [
        Self::Lasthop,
        Self::Passt,
        Self::Pasta,
        Self::Slirp4netns,
        Self::Libslirp,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lasthop => "Lasthop",
            Self::Passt => "passt",
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns",
            Self::Libslirp => "libslirp",
        }
    }

    /// Whether it takes frames that are longer than 1514 bytes. QEMU's libslirp has no setting.
    pub(super) fn has_super_frames(self) -> bool {
        self != Self::Libslirp
    }

    /// The program that it needs, and the package with it.
    fn program(self) -> [&'static str; 2] {
        match self {
            Self::Lasthop => ["ip", "iproute2"],
            Self::Passt => ["passt", "passt"],
            Self::Pasta => ["pasta", "passt"],
            Self::Slirp4netns => ["slirp4netns", "slirp4netns"],
            Self::Libslirp => ["qemu-system-x86_64", "qemu-system-x86"],
        }
    }

    /// Why it cannot be measured here, if it cannot.
    pub(super) fn missing(self) -> Option<String> {
        let [program, package] = self.program();
        (!installed(program)).then(|| format!("there is no {program}: install {package}"))
    }
}

/// The processes of a peer.
enum Peer {
    Lasthop(Box<Lasthop>),
    Other(Process),
}

/// See the module. What is dropped first is first.
pub(super) struct World {
    peer: Peer,
    kind: Kind,
    super_frames: bool,
    pub(super) servers: Servers,
    guest: Option<Namespace>,
    host: Namespace,
    outside: Namespace,
    folder: TempDir,
}

impl World {
    /// Starts a peer, and the client at it.
    pub(super) fn start(plan: &Plan, kind: Kind, super_frames: bool) -> Result<(Self, Guest)> {
        let folder = folders::new("user")?;
        // Peers that give up their rights make their sockets in it.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777))?;
        let host = Namespace::new("host", folder.path())?;
        let outside = Namespace::new("outside", folder.path())?;
        let link = format!(
            "ip link add host0 type veth peer name far0 netns {}",
            outside.pid()
        );
        host.run(&link)?;
        host.address("host0", "10.1.0.1")?;
        outside.address("far0", "10.1.0.9")?;
        host.run("ip route add default via 10.1.0.9")?;
        let servers = Servers::start(&outside)?;
        let guest = match kind {
            Kind::Pasta => {
                let prefix = format!("{AS_NOBODY} unshare --user --map-root-user --net");
                Some(Namespace::by(&prefix, "guest", folder.path())?)
            }
            Kind::Slirp4netns => Some(Namespace::new("guest", folder.path())?),
            _ => None,
        };
        let peer = match kind {
            Kind::Lasthop => lasthop(plan, &host)?,
            _ => {
                let command = command(kind, super_frames, guest.as_ref());
                Peer::Other(start(kind, &host.command(&command), folder.path())?)
            }
        };
        let world = Self {
            peer,
            kind,
            super_frames,
            servers,
            guest,
            host,
            outside,
            folder,
        };
        let mtu = match kind {
            // Its super-frames are cut to packets of this length.
            Kind::Lasthop => MTU,
            _ => mtu(super_frames),
        };
        let guest = Guest::new(world.wire()?, mtu);
        Ok((world, guest))
    }

    fn socket(&self) -> PathBuf {
        match &self.peer {
            Peer::Lasthop(lasthop) => lasthop.socket_of("vm1"),
            Peer::Other(_) => self.folder.path().join(SOCKET),
        }
    }

    /// Connects the client.
    pub(super) fn wire(&self) -> Result<AnyWire> {
        let refused = |error: &std::io::Error| {
            use std::io::ErrorKind::{ConnectionRefused, NotFound};
            matches!(error.kind(), ConnectionRefused | NotFound)
        };
        match (&self.peer, &self.guest) {
            (Peer::Lasthop(_), _) => Ok(AnyWire::Queues(Box::new(Queues::open(
                self.socket(),
                self.super_frames,
            )?))),
            (Peer::Other(_), Some(guest)) => {
                stop::try_wait("a TAP interface", START, || {
                    Ok(guest.run("ip link show tap0").ok().map(drop))
                })?;
                guest.run(&format!(
                    "ip link set tap0 mtu {} up",
                    mtu(self.super_frames)
                ))?;
                Ok(AnyWire::Tap(guest.inside(|| Tap::open("tap0"))?))
            }
            (Peer::Other(_), None) => {
                let stream =
                    stop::try_wait("the peer listens", START, || {
                        match UnixStream::connect(self.socket()) {
                            Err(error) if refused(&error) => Ok(None),
                            connected => Ok(Some(connected?)),
                        }
                    })?;
                Ok(AnyWire::Stream(Stream::new(stream)?))
            }
        }
    }

    fn pid(&self) -> u32 {
        match &self.peer {
            Peer::Lasthop(lasthop) => lasthop.supervisor(),
            Peer::Other(process) => process.pid(),
        }
    }

    /// CPU time of the peer's processes, in seconds.
    pub(super) fn cpu_seconds(&self) -> f64 {
        procfs::family_seconds(self.pid())
    }

    /// Memory of the peer's processes, in KiB.
    pub(super) fn memory_kib(&self) -> u64 {
        procfs::family_kib(self.pid())
    }

    pub(super) fn outside(&self) -> &Namespace {
        &self.outside
    }

    pub(super) fn lasthop(&self) -> Result<&Lasthop> {
        match &self.peer {
            Peer::Lasthop(lasthop) => Ok(lasthop),
            Peer::Other(_) => bail!("a peer that is not Lasthop"),
        }
    }

    /// Kills a peer that is not Lasthop, and starts another one in its place.
    pub(super) fn replace(&mut self) -> Result<()> {
        let command = command(self.kind, self.super_frames, self.guest.as_ref());
        if let Peer::Other(process) = &self.peer {
            process.signal_group(rustix::process::Signal::KILL);
        }
        let _ = std::fs::remove_file(self.socket());
        let next = start(self.kind, &self.host.command(&command), self.folder.path())?;
        self.peer = Peer::Other(next);
        Ok(())
    }
}

/// The socket of a peer that listens, in the folder in which it runs.
const SOCKET: &str = "peer.sock";

fn mtu(super_frames: bool) -> u16 {
    if super_frames { LONG_MTU } else { MTU }
}

fn lasthop(plan: &Plan, host: &Namespace) -> Result<Peer> {
    let vm1 = port("vm1", "port_security = { macs = \"any\" }");
    let text = format!(
        "[switch]\nname = \"bench\"\n{vm1}\n[[port]]\nname = \"out\"\nkind = \"user\"\n\
         netns = \"{}\"\ndns = \"off\"\n",
        host.path()
    );
    let lasthop = start_with(plan, plan.shared_cores(), &text)?;
    stop::try_wait("the user port is up", START, || {
        Ok((port_shown(&lasthop, "out")?["state"] == "up").then_some(()))
    })?;
    Ok(Peer::Lasthop(Box::new(lasthop)))
}

/// The command line of a peer that is not Lasthop.
fn command(kind: Kind, super_frames: bool, guest: Option<&Namespace>) -> String {
    let mtu = mtu(super_frames);
    let addresses = format!("-f -4 -a {GUEST} -n 24 -g {GATEWAY} -m {mtu} -t none -u none");
    let pid = guest.map_or(0, Namespace::pid);
    match kind {
        Kind::Lasthop => String::new(),
        Kind::Passt => format!("passt {addresses} -s {SOCKET}"),
        Kind::Pasta => {
            format!("{AS_NOBODY} pasta {addresses} -T none -U none -I tap0 {pid}")
        }
        Kind::Slirp4netns => {
            format!(
                "slirp4netns --disable-dns --mtu={mtu} --netns-type=path /proc/{pid}/ns/net tap0"
            )
        }
        Kind::Libslirp => format!(
            "qemu-system-x86_64 -M none -nodefaults -display none -netdev user,id=u \
             -netdev stream,id=s,server=on,addr.type=unix,addr.path={SOCKET} \
             -netdev hubport,id=a,hubid=0,netdev=u -netdev hubport,id=b,hubid=0,netdev=s"
        ),
    }
}

/// Starts it in a folder.
fn start(kind: Kind, command: &str, folder: &Path) -> Result<Process> {
    let words = words(command);
    let [program, arguments @ ..] = &words[..] else {
        bail!("no program")
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments).current_dir(folder);
    Process::spawn(kind.name(), command, &folder.join("log")).context("a peer")
}
