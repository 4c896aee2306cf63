//! Network namespaces of a test's own. They have no name that others see, and end with the test.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SocketType};
use rustix::thread::LinkNameSpaceType;

use crate::process::Process;
use crate::wait::{LIMIT, wait_for, within};

/// A socket that gets copies of frames; see [`Netns::sniff`].
pub struct Sniffer(OwnedFd);

impl Sniffer {
    /// So many frames that `desired` accepts; fewer if they do not come within `limit`.
    pub fn frames(
        &self,
        count: usize,
        limit: Duration,
        desired: impl Fn(&[u8]) -> bool,
    ) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        let _ = within(limit, || {
            let mut frame = vec![0; 1 << 16];
            while let Ok((len, _)) = net::recv(&self.0, &mut frame[..], RecvFlags::DONTWAIT) {
                if desired(&frame[..len]) {
                    all.push(frame[..len].to_vec());
                }
            }
            (all.len() >= count).then_some(())
        });
        all
    }
}

/// An interface of a namespace. With its frames a test is the other end of its link.
pub struct Wire(OwnedFd);

impl Wire {
    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) {
        let sent = net::send(&self.0, frame, net::SendFlags::empty());
        assert_eq!(sent, Ok(frame.len()));
    }

    /// Takes a frame that has come.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 1 << 16];
        let (len, _) = net::recv(&self.0, &mut frame[..], RecvFlags::DONTWAIT).ok()?;
        frame.truncate(len);
        Some(frame)
    }

    /// Waits for the next frame.
    pub fn receive(&self) -> Vec<u8> {
        let mut frame = vec![0; 1 << 16];
        let (len, _) = net::recv(&self.0, &mut frame[..], RecvFlags::empty()).expect("a frame");
        frame.truncate(len);
        frame
    }
}

/// A network namespace.
pub struct Netns {
    process: Process,
}

impl Netns {
    /// Returns whether this machine lets us make namespaces and TAP devices. If not, says so: the
    /// test is to be skipped.
    pub fn allowed() -> bool {
        let tun = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun");
        let unshare = Command::new("unshare").args(["--net", "true"]).output();
        let why = match (tun, unshare) {
            (Err(error), _) => format!("/dev/net/tun: {error}"),
            (_, Err(error)) => format!("unshare: {error}"),
            (_, Ok(output)) if !output.status.success() => {
                String::from_utf8_lossy(&output.stderr).trim().to_owned()
            }
            _ => return true,
        };
        crate::skip::skipped(format!("no TAP devices or network namespaces here ({why})"));
        false
    }

    /// A new namespace; `folder` is for its log.
    pub fn new(name: &str, folder: &Path) -> Netns {
        let args = ["--net", "sleep", "infinity"].map(str::to_owned);
        let process = Process::start(name, "unshare", &args, &folder.join(name));
        let netns = Netns { process };
        let own = std::fs::read_link("/proc/self/ns/net").expect("there are namespaces");
        wait_for("a new network namespace", || {
            let other = std::fs::read_link(netns.path()).ok()?;
            (other != own).then_some(())
        });
        netns.ip("link set lo up");
        netns
    }

    /// The file that stands for it, as long as it lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.process.pid()).into()
    }

    /// Runs something in it. Sockets that it makes stay in it.
    pub fn run<R: Send>(&self, what: impl FnOnce() -> R + Send) -> R {
        let path = self.path();
        std::thread::scope(|scope| {
            let done = scope.spawn(move || {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let file = rustix::fs::open(&path, flags, Mode::empty()).expect("it lives");
                let kind = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(file.as_fd(), kind).expect("rights");
                what()
            });
            done.join().expect("no panic in the namespace")
        })
    }

    /// `ip` with these arguments, which must succeed.
    pub fn ip(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.run(|| Command::new("ip").args(&arguments).output());
        let output = output.expect("ip runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Another namespace's number, for `ip link set ... netns`.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// A listening TCP socket.
    pub fn listen(&self, address: &str) -> TcpListener {
        self.run(|| TcpListener::bind(address))
            .expect("the address is here")
    }

    /// A TCP connection from here.
    pub fn connect(&self, address: &str) -> TcpStream {
        let address = address.parse().expect("an address");
        let connected = self.run(|| TcpStream::connect_timeout(&address, LIMIT));
        connected.unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    /// Captures all frames of an interface here.
    pub fn sniff(&self) -> Sniffer {
        // `ETH_P_ALL` of `linux/if_ether.h`, as it is on the wire.
        let everything = u32::from(3u16.to_be()).try_into().ok();
        let everything = everything.map(Protocol::from_raw);
        let socket = self.run(|| net::socket(AddressFamily::PACKET, SocketType::RAW, everything));
        let socket = socket.expect("rights");
        // Room for what a test sends while it does something else.
        let room = net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20);
        room.expect("rights");
        Sniffer(socket)
    }

    /// The frames of an interface here.
    pub fn wire(&self, interface: &str) -> Wire {
        let protocol = libc::ETH_P_ALL as u16;
        let bound = self.run(|| {
            let all = u32::from(protocol.to_be()).try_into().ok();
            let all = all.map(Protocol::from_raw);
            let socket = net::socket(AddressFamily::PACKET, SocketType::RAW, all)?;
            let index = net::netdevice::name_to_index(&socket, interface)?;
            // SAFETY: zeros are valid for this structure of integers.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol.to_be();
            address.sll_ifindex = index as i32;
            let len = size_of_val(&address) as u32;
            let place = std::ptr::from_ref(&address).cast::<libc::sockaddr>();
            // SAFETY: `place` points to `len` bytes that live through the call.
            match unsafe { libc::bind(socket.as_raw_fd(), place, len) } {
                0 => Ok(socket),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
        let socket = bound.expect("rights, and an interface");
        // Room for what comes while a test does something else.
        let room = net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20);
        room.expect("rights");
        let limit = net::sockopt::Timeout::Recv;
        net::sockopt::set_socket_timeout(&socket, limit, Some(LIMIT)).expect("a limit");
        Wire(socket)
    }

    /// A UDP socket.
    pub fn udp(&self, address: &str) -> UdpSocket {
        self.run(|| UdpSocket::bind(address))
            .expect("the address is here")
    }
}
