//! Traffic between guests, with the tools that people use: ping and iperf3.

use std::time::Duration;

use serde_json::Value;

use crate::agent::Job;
use crate::guest::Guest;

/// Counts of a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Requests sent.
    pub sent: u32,
    /// Replies received.
    pub received: u32,
}

impl Ping {
    /// Requests without a reply.
    pub fn lost(&self) -> u32 {
        self.sent.saturating_sub(self.received)
    }

    /// Reads the summary that busybox's ping prints.
    fn parse(output: &str) -> Ping {
        let number = |before: &str| {
            let text = output.lines().find_map(|line| line.split_once(before))?.0;
            text.rsplit([' ', ','])
                .find(|word| !word.is_empty())?
                .parse()
                .ok()
        };
        let (sent, received) = (number(" packets transmitted"), number(" packets received"));
        let (Some(sent), Some(received)) = (sent, received) else {
            panic!("no summary from ping: {output}")
        };
        Ping { sent, received }
    }
}

/// Returns whether one host answers another: a few tries, because the first may be spent on
/// learning.
pub fn reachable(guest: &mut Guest, address: &str) -> bool {
    guest.status(&format!(
        "ping -c 1 -W 2 {address} || ping -c 1 -W 2 {address}"
    )) == 0
}

/// Two requests in the background that may remain unanswered, half a second apart, each with a
/// second for its reply.
pub struct Silence {
    job: Job,
}

impl Silence {
    /// Starts both.
    pub fn start(guest: &mut Guest, address: &str) -> Silence {
        Silence {
            job: guest.start(&format!("! ping -q -c 2 -i 0.5 -W 1 {address}")),
        }
    }

    /// Waits for the end; returns whether there was no reply. Panics when the guest goes away, or
    /// cannot ping.
    pub fn wait(self) -> bool {
        let answer = self.job.outcome(Duration::from_secs(90));
        let answer = answer.expect("the guest stays");
        let sent = Ping::parse(&answer.output).sent;
        assert_eq!(sent, 2, "{}", answer.output);
        answer.status == 0
    }
}

/// Returns whether one host gets no answer from another.
pub fn unreachable(guest: &mut Guest, address: &str) -> bool {
    Silence::start(guest, address).wait()
}

/// A ping that runs in the background, a hundred requests a second.
pub struct PingRun {
    job: Job,
}

impl PingRun {
    /// Starts `count` requests to `address`.
    pub fn start(guest: &mut Guest, address: &str, count: u32) -> PingRun {
        PingRun {
            job: guest.start(&format!("ping -q -i 0.01 -c {count} {address}; true")),
        }
    }

    /// Waits for the end.
    pub fn wait(self) -> Ping {
        Ping::parse(&self.job.wait(Duration::from_secs(90)))
    }
}

/// `count` requests, a hundred a second, to their end.
pub fn ping(guest: &mut Guest, address: &str, count: u32) -> Ping {
    PingRun::start(guest, address, count).wait()
}

/// Starts iperf3's server in a guest; it serves one client after the other until the guest ends.
pub fn serve_iperf(guest: &mut Guest) {
    guest.run("iperf3 -s -D");
    guest.run(&until("netstat -ltn | grep -q :5201"));
}

/// Report of an iperf3 client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Iperf {
    /// Received bits per second.
    pub bits_per_second: f64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// TCP segments that were sent again.
    pub retransmits: u64,
}

impl Iperf {
    fn of(report: &Value) -> Self {
        let end = &report["end"];
        let received = &end["sum_received"];
        Self {
            bits_per_second: received["bits_per_second"].as_f64().unwrap_or_default(),
            bytes: received["bytes"].as_u64().unwrap_or_default(),
            retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or_default(),
        }
    }
}

/// An iperf3 client that runs in the background.
pub struct IperfRun {
    job: Job,
    seconds: u32,
}

impl IperfRun {
    /// Starts a TCP client towards `address`, with more of iperf3's options in `options`.
    pub fn start(guest: &mut Guest, address: &str, seconds: u32, options: &str) -> IperfRun {
        let command =
            format!("iperf3 -c {address} -t {seconds} -i 0 -J --connect-timeout 3000 {options}");
        IperfRun {
            job: guest.start(&command),
            seconds,
        }
    }

    /// Waits for the client's report. Panics when there is none.
    pub fn wait(self) -> Iperf {
        Iperf::of(&self.report())
    }

    fn report(self) -> Value {
        let limit = Duration::from_secs(u64::from(self.seconds) + 45);
        let output = self.job.wait(limit);
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Ends the run without its report.
    pub fn abandon(self) {}
}

/// A TCP run to its end. The server may need a moment after the client before.
pub fn iperf(guest: &mut Guest, address: &str, seconds: u32, options: &str) -> Iperf {
    for _ in 0..10 {
        let report = IperfRun::start(guest, address, seconds, options).report();
        let error = report["error"].as_str().unwrap_or_default();
        if !error.contains("busy") {
            return Iperf::of(&report);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("iperf3's server at {address} stays busy");
}

/// The sum of a guest's counters of wrong checksums.
pub fn checksum_errors(guest: &mut Guest) -> u64 {
    snmp(guest, &["InCsumErrors", "InHdrErrors"])
}

/// Replies to echo requests that a guest has received since it was booted, also those that came
/// when `ping` had ended.
pub fn echo_replies(guest: &mut Guest) -> u64 {
    snmp(guest, &["InEchoReps"])
}

/// The sum of these counters of the guest's kernel, over all protocols.
fn snmp(guest: &mut Guest, counters: &[&str]) -> u64 {
    let snmp = guest.run("cat /proc/net/snmp");
    let lines: Vec<Vec<&str>> = snmp
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let tables = lines
        .chunks_exact(2)
        .flat_map(|pair| pair[0].iter().zip(&pair[1]));
    tables
        .filter(|(name, _)| counters.contains(name))
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

/// Sends `mib` MiB of random bytes by TCP from one guest, whose address this is, to the other. The
/// sums of what was sent and of what arrived must be the same.
pub fn send_checked(from: &mut Guest, address: &str, to: &mut Guest, mib: u32) {
    from.run("mkdir -p /tmp/www; pidof httpd >/dev/null || httpd -p 7000 -h /tmp/www");
    let bytes = format!("dd if=/dev/urandom of=/tmp/www/bytes bs=1M count={mib} 2>/dev/null");
    let sent = from.run(&format!("{bytes} && md5sum </tmp/www/bytes"));
    let arrived = to.run(&format!(
        "wget -q -O - http://{address}:7000/bytes | md5sum"
    ));
    assert_eq!(arrived, sent);
}

/// A command that waits up to two seconds for the success of another.
fn until(condition: &str) -> String {
    format!("for i in 1 2 3 4 5 6 7 8 9 10; do {condition} && exit; sleep 0.2; done; exit 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_summary_is_read() {
        let output = "PING 10.0.0.2 (10.0.0.2): 56 data bytes\n\n--- 10.0.0.2 ping statistics ---\n\
                      300 packets transmitted, 299 packets received, 0% packet loss\n";
        let ping = Ping::parse(output);
        assert_eq!(
            ping,
            Ping {
                sent: 300,
                received: 299
            }
        );
        assert_eq!(ping.lost(), 1);
    }
}
