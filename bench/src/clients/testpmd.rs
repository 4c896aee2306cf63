//! DPDK's testpmd with two `net_virtio_user` ports, in ordinary pages, forwarding on the client's
//! core.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::{Client, replay};
use crate::folders;
use crate::peers::{PROGRAM_DPDK, Peer};
use crate::plan::{Layout, Plan, Traffic};
use crate::process::{self, Process, words};
use crate::stop;

/// How long testpmd may take for anything that it prints.
const ANSWER: Duration = Duration::from_secs(20);
const MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// Bytes of frames that are replayed.
const REPLAYED: u16 = 64;
/// Packet buffers beside those that hold a capture.
const BUFFERS: u32 = 16384;
/// Bursts of 32 frames that each port sends first. They bounce from then on; all of them together
/// fit any one queue of 1024, so that no switch has to drop one and all have the same number on
/// their way.
const BURSTS: u32 = 14;
/// Output of testpmd when it starts to forward, and with each port's statistics.
const STARTED: &str = "packet forwarding - ports=";
const RATE: &str = "Rx-pps:";

/// A running testpmd.
pub(crate) struct Testpmd {
    process: Process,
    traffic: Traffic,
    started: usize,
    _folder: TempDir,
}

impl Testpmd {
    /// Starts testpmd and waits until both ports are up.
    pub(crate) fn start(
        plan: &Plan,
        peer: &Peer,
        layout: Layout,
        traffic: Traffic,
    ) -> Result<Self> {
        let folder = folders::new("pmd")?;
        if let Traffic::Flows(flows) = traffic {
            let [first, second] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
            replay::write(&capture(folder.path(), 0), REPLAYED, flows, first, second)?;
            replay::write(&capture(folder.path(), 1), REPLAYED, flows, second, first)?;
        }
        let arguments = arguments(plan, peer, layout, traffic, folder.path());
        let log = folder.path().join("log");
        let mut process = process::start("testpmd", &[], &arguments, &log)?;
        process.wait_output("its ports come up", ANSWER, |output| {
            output.contains("Checking link statuses").then_some(())
        })?;
        if let Traffic::Flows(_) = traffic {
            // From each capture to its port; what arrives at the port goes to the capture, which
            // drops it.
            process.tell("set fwd io")?;
            process.tell("set portlist 2,0,3,1")?;
        } else {
            process.tell("set fwd mac")?;
        }
        Ok(Self {
            process,
            traffic,
            started: 0,
            _folder: folder,
        })
    }

    fn show(&mut self) -> Result<String> {
        let before = self.process.output().matches(RATE).count();
        self.process.tell("show port stats 0")?;
        self.process.tell("show port stats 1")?;
        let shown = self
            .process
            .wait_output("its statistics", ANSWER, |output| {
                // The line must be complete, so its neighbour counts: one for each port.
                (output.matches("Tx-bps:").count() >= before + 2).then(|| output.to_owned())
            });
        Ok(shown?)
    }
}

impl Client for Testpmd {
    fn name(&self) -> &'static str {
        "testpmd"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        if self.started > 0 {
            self.process.tell("stop")?;
        }
        if let Traffic::Flows(_) = self.traffic {
            ensure!(
                size == u32::from(REPLAYED),
                "the capture's frames have {REPLAYED} bytes"
            );
            self.process.tell("start")?;
        } else {
            self.process.tell(&format!("set txpkts {size}"))?;
            self.process.tell(&format!("start tx_first {BURSTS}"))?;
        }
        self.started += 1;
        let started = self.started;
        let forwards = self.process.wait_output("forwarding", ANSWER, |output| {
            (output.matches(STARTED).count() >= started).then_some(())
        });
        Ok(forwards?)
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        stop::sleep(time)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        self.show()?;
        stop::sleep(window)?;
        let output = self.show()?;
        let rate = last_rate(&output).context("testpmd's statistics are not what they were")?;
        Ok(rate / 1e6)
    }

    fn freeze(&self) -> Result<()> {
        process::freeze(&self.process);
        Ok(())
    }

    fn thaw(&self) -> Result<()> {
        process::thaw(&self.process);
        Ok(())
    }
}

/// Received frames in a second, of the last two blocks of statistics: those of both ports.
fn last_rate(output: &str) -> Option<f64> {
    let rates: Option<Vec<f64>> = output
        .rsplit(RATE)
        .take(2)
        .map(|rest| rest.split_whitespace().next()?.parse().ok())
        .collect();
    rates.map(|rates| rates.iter().sum())
}

/// Returns the path of the frames that a port sends.
fn capture(folder: &Path, port: usize) -> PathBuf {
    folder.join(format!("{port}.pcap"))
}

fn arguments(
    plan: &Plan,
    peer: &Peer,
    layout: Layout,
    traffic: Traffic,
    folder: &Path,
) -> Vec<String> {
    let [switch, client] = plan.cores;
    let flows = match traffic {
        Traffic::Flows(flows) => flows,
        _ => 0,
    };
    let buffers = BUFFERS + 2 * flows;
    // MiB: a buffer has 2.5 KiB, and some go round in queues.
    let memory = 704 + buffers / 256;
    let prefix = folder.file_name().unwrap_or_default().to_string_lossy();
    // Line-buffered, because its output is read from a file while it runs. The main core takes
    // commands only.
    let mut all = words(&format!(
        "stdbuf -oL {PROGRAM_DPDK} --no-pci --no-huge -m {memory} -l {switch},{client} \
         --main-lcore={switch} \
         --no-telemetry --file-prefix={prefix}"
    ));
    for (index, socket) in peer.sockets().iter().enumerate() {
        let (path, server) = (socket.display(), u8::from(peer.client_listens()));
        let packed = u8::from(layout == Layout::Packed);
        all.push(format!(
            "--vdev=net_virtio_user{index},mac={},path={path},server={server},packed_vq={packed},queues=1,\
             mrg_rxbuf=1,in_order=1,queue_size=1024",
            MACS[index]
        ));
    }
    if flows > 0 {
        all.extend([0, 1].map(|port| {
            let path = capture(folder, port);
            format!(
                "--vdev=net_pcap{port},rx_pcap={},infinite_rx=1",
                path.display()
            )
        }));
    }
    all.extend(words(&format!(
        "-- -i --nb-cores=1 --txd=1024 --rxd=1024 --total-num-mbufs={buffers} --eth-peer=0,{} \
         --eth-peer=1,{}",
        MACS[1], MACS[0]
    )));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rates_of_both_ports_are_added() {
        let block = |first, second| {
            format!(
                "  Throughput (since last show)\n  Rx-pps:  {first}  Rx-bps: 5\n  Tx-pps: 7 \
                 Tx-bps: 8\n\
                 Rx-pps: {second} Rx-bps: 5\n Tx-pps: 7 Tx-bps: 8\n"
            )
        };
        let output = block(1, 2) + &block(3_000_000, 4_000_000);
        assert_eq!(last_rate(&output), Some(7e6));
        assert_eq!(last_rate("nothing"), None);
    }
}
