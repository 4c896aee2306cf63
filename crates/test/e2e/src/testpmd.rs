//! DPDK's testpmd with two ports. `net_virtio_user` or `net_memif`: an independent virtio driver
//! and vhost-user front end, or memif client, that bounces frames between two of the switch's
//! ports. `net_vhost`: an independent back end for our own guests, instead of the switch.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use testkit::process::Process;
use testkit::wait::{LIMIT, wait_for};

/// The addresses of testpmd's two ports.
pub const MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// The most bytes of a frame in one of testpmd's buffers: longer ones are chains on the way out and
/// merged buffers on the way in.
const SEGMENT: u32 = 1800;

/// How testpmd's ports are attached.
#[derive(Debug, Clone)]
pub struct TestpmdSpec {
    /// The sockets of its two ports.
    pub sockets: [PathBuf; 2],
    /// The driver of its two ports.
    pub driver: Driver,
}

/// A driver of testpmd's.
#[derive(Debug, Clone)]
pub enum Driver {
    /// `net_virtio_user`.
    VirtioUser {
        /// Whether testpmd listens, for ports in the client role.
        listen: bool,
        /// Packed queues instead of split ones.
        packed: bool,
    },
    /// `net_memif` in the client role.
    Memif {
        /// Frames of the first port lie in the program's own memory. Not those of the second: the
        /// driver closes the file of that memory, which is the whole program's, when a port is
        /// connected. A port that dials later sends whatever has its number then.
        zero_copy: bool,
        /// The secret of both ports.
        secret: Option<String>,
    },
    /// `net_vhost`, which listens and offers an IOMMU.
    Vhost,
}

/// testpmd's counts at its two ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Frames sent by each port.
    pub sent: [u64; 2],
    /// Frames received by each port.
    pub received: [u64; 2],
}

/// A running testpmd.
pub struct Testpmd {
    process: Process,
    /// How often it was asked for its statistics.
    blocks: usize,
    _folder: TempDir,
}

/// Bounces frames for longer each time, until each port has sent more than a few: on a busy machine
/// that takes a while. `bounce` returns how many each has sent.
///
/// # Panics
/// If hardly anything moves.
pub fn bounce_enough(bounce: impl FnMut(Duration) -> [u64; 2]) {
    let times = [100, 600, 3000, 12_000, 48_000].map(Duration::from_millis);
    let mut sent = times.into_iter().map(bounce);
    let enough = sent.any(|sent| sent.iter().all(|sent| *sent > 1000));
    assert!(enough, "hardly anything moved");
}

impl Testpmd {
    /// Starts testpmd and waits until both ports are up. When it listens, the switch must be
    /// dialing.
    pub fn start(spec: &TestpmdSpec) -> Testpmd {
        let testpmd = Self::spawn(spec);
        assert!(
            !testpmd.process.output().contains("Failed to setup backend"),
            "testpmd has no ports"
        );
        testpmd
    }

    fn spawn(spec: &TestpmdSpec) -> Testpmd {
        testkit::turn::needs_turn("testpmd", true);
        let folder = tempfile::Builder::new()
            .prefix("lasthop-pmd-")
            .tempdir()
            .expect("a temporary folder");
        let mut args = vec!["-oL".to_owned(), "dpdk-testpmd".to_owned()];
        args.extend(arguments(spec, folder.path()));
        // Line-buffered, because its output goes to a file that is read while it runs.
        let mut process = Process::start("testpmd", "stdbuf", &args, &folder.path().join("log"));
        process.printed("the state of its links", LIMIT, |line| {
            line.contains("Checking link statuses")
        });
        let mut testpmd = Testpmd {
            process,
            blocks: 0,
            _folder: folder,
        };
        testpmd.tell("set fwd mac");
        testpmd
    }

    /// Sends `bursts` times 32 frames of `size` bytes from each port and lets them bounce for a
    /// time, each frame that arrives being sent back. Gives the counts of this run.
    pub fn bounce(&mut self, size: u32, bursts: u32, time: Duration) -> Counts {
        self.bounce_while(size, bursts, || std::thread::sleep(time))
    }

    /// As [`Testpmd::bounce`], for as long as `work` takes.
    pub fn bounce_while(&mut self, size: u32, bursts: u32, work: impl FnOnce()) -> Counts {
        self.tell("clear port stats all");
        self.tell(&format!("set txpkts {}", segments(size, SEGMENT)));
        self.tell(&format!("start tx_first {bursts}"));
        work();
        self.tell("stop");
        self.tell("show port stats all");
        self.blocks += 1;
        self.counts()
    }

    fn counts(&mut self) -> Counts {
        // The last line with numbers, once for each of the two ports.
        let lines = 2 * self.blocks;
        wait_for("testpmd prints its statistics", || {
            (self.process.output().matches("Tx-bps:").count() >= lines).then_some(())
        });
        let output = self.process.output();
        let last = |port: usize, key: &str| last_number(&output, port, key);
        Counts {
            sent: [last(0, "TX-packets:"), last(1, "TX-packets:")],
            received: [last(0, "RX-packets:"), last(1, "RX-packets:")],
        }
    }

    fn tell(&mut self, line: &str) {
        let told = self.process.tell(line);
        told.expect("testpmd takes commands");
    }

    /// Starts to forward in this mode at the first port, which sends its frames back: `icmpecho`
    /// answers requests for any address.
    pub fn forward(&mut self, mode: &str) {
        self.tell("set portlist 0");
        self.tell(&format!("set fwd {mode}"));
        self.tell("start");
        let started = format!("{mode} packet forwarding packets/burst");
        wait_for("testpmd forwards", || {
            self.process.output().contains(&started).then_some(())
        });
    }

    /// Starts to forward between both ports, frames as they are.
    pub fn connect_ports(&mut self) {
        self.tell("set fwd io");
        self.tell("start");
        wait_for("testpmd forwards", || {
            let started = "io packet forwarding packets/burst";
            self.process.output().contains(started).then_some(())
        });
    }

    /// Stops forwarding.
    pub fn stop_forwarding(&mut self) {
        self.tell("stop");
    }

    /// Ends testpmd in order.
    pub fn quit(mut self) {
        self.tell("quit");
        assert!(
            self.process.end(LIMIT).is_some(),
            "testpmd ends when it is stopped"
        );
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// A number in the last statistics block of a port.
fn last_number(output: &str, port: usize, key: &str) -> u64 {
    let title = format!("NIC statistics for port {port}");
    let block = output.rsplit_once(&title).map(|(_, block)| block);
    let number = block.and_then(|block| {
        block
            .split_once(key)?
            .1
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    number.unwrap_or_else(|| panic!("no {key} of port {port} from testpmd"))
}

/// Returns the parameter for frames of `size` bytes: the sizes of its buffers, with commas.
fn segments(size: u32, most: u32) -> String {
    let count = size.div_ceil(most);
    let mut sizes = vec![most.to_string(); usize::try_from(count - 1).expect("few segments")];
    sizes.push((size - (count - 1) * most).to_string());
    sizes.join(",")
}

fn arguments(spec: &TestpmdSpec, folder: &Path) -> Vec<String> {
    let prefix = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut args: Vec<String> =
        "--no-pci --no-huge -m 512 -l 0,1 --main-lcore=0 --no-telemetry --file-prefix"
            .split(' ')
            .map(str::to_owned)
            .collect();
    args.push(prefix.into_owned());
    for (index, socket) in spec.sockets.iter().enumerate() {
        args.push(spec.driver.vdev(index, &socket.display().to_string()));
    }
    args.extend(spec.driver.options().split_whitespace().map(str::to_owned));
    args.push(format!("--mbuf-size={}", SEGMENT + 384));
    args.push(format!("--eth-peer=0,{}", MACS[1]));
    args.push(format!("--eth-peer=1,{}", MACS[0]));
    args
}

impl Driver {
    /// Returns the argument for one port.
    fn vdev(&self, index: usize, path: &str) -> String {
        let mac = MACS[index];
        match self {
            Driver::VirtioUser { listen, packed } => {
                let (server, packed) = (u8::from(*listen), u8::from(*packed));
                format!(
                    "--vdev=net_virtio_user{index},mac={mac},path={path},server={server},\
                     packed_vq={packed},queues=1,mrg_rxbuf=1,in_order=1,queue_size=1024"
                )
            }
            Driver::Memif { zero_copy, secret } => {
                let is_zero_copy = *zero_copy && index == 0;
                let zero_copy = if is_zero_copy { "yes" } else { "no" };
                let secret = secret.iter().map(|secret| format!(",secret={secret}"));
                format!(
                    "--vdev=net_memif{index},role=client,id=0,socket={path},socket-abstract=no,\
                     mac={mac},rsize=10,bsize=2048,zero-copy={zero_copy}{}",
                    secret.collect::<String>()
                )
            }
            Driver::Vhost => {
                format!("--vdev=net_vhost{index},iface={path},queues=1,iommu-support=1")
            }
        }
    }

    /// Returns the other arguments: first those of DPDK, then those of testpmd.
    fn options(&self) -> &'static str {
        match self {
            // A buffer starts with 128 bytes of headroom; multi-segment sending is offload 0x8000.
            // Enough buffers for every slot of both rings of both ports to hold a frame of six.
            Driver::VirtioUser { .. } => {
                "-- -i --nb-cores=1 --txd=1024 --rxd=1024 --total-num-mbufs=24576 \
                 --max-pkt-len=9018 --enable-scatter --tx-offloads=0x8000"
            }
            Driver::Memif { .. } => {
                "--single-file-segments -- -i --nb-cores=1 --txd=1024 --rxd=1024 \
                 --total-num-mbufs=24576 --tx-offloads=0x8000"
            }
            Driver::Vhost => "-- -i --nb-cores=1 --total-num-mbufs=24576 --tx-offloads=0x8000",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_longer_than_a_buffer_are_chains() {
        assert_eq!(segments(64, 1800), "64");
        assert_eq!(segments(1800, 1800), "1800");
        assert_eq!(segments(9000, 1800), "1800,1800,1800,1800,1800");
        assert_eq!(segments(1900, 1800), "1800,100");
    }

    #[test]
    fn the_last_block_counts() {
        let output = "## NIC statistics for port 0 ##\n RX-packets: 1  TX-packets: 2\n\
                      ## NIC statistics for port 1 ##\n RX-packets: 3  TX-packets: 4\n\
                      ## NIC statistics for port 0 ##\n RX-packets: 5  TX-packets: 6\n";
        assert_eq!(last_number(output, 0, "RX-packets:"), 5);
        assert_eq!(last_number(output, 1, "TX-packets:"), 4);
    }
}
