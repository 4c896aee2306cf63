//! Traffic between guests, with the tools that people use: ping and iperf3.

use std::time::Duration;

use serde_json::Value;

use testkit::wait::wait_until;

use crate::agent::Job;
use crate::guest::Guest;
use crate::lasthop::Lasthop;

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
        let (sent, received) = (
            number_before(output, " packets transmitted"),
            number_before(output, " packets received"),
        );
        let (Some(sent), Some(received)) = (sent, received) else {
            panic!("no summary from ping: {output}")
        };
        Ping { sent, received }
    }

    /// Reads the output of a [`PingRun`]. Replies that came when `ping` had ended are received.
    fn parse_run(output: &str) -> Ping {
        let mut ping = Ping::parse(output);
        if let Some(late) = number_before(output, " replies came late") {
            // A doubled reply is none of the missing ones.
            let doubled = number_before(output, " duplicates").unwrap_or(0);
            ping.received = ping.sent.min(ping.received + late.saturating_sub(doubled));
        }
        ping
    }
}

/// Returns the number that stands in front of these words.
fn number_before(output: &str, words: &str) -> Option<u32> {
    let text = output.lines().find_map(|line| line.split_once(words))?.0;
    let mut numbers = text.rsplit([' ', ',']).filter(|word| !word.is_empty());
    numbers.next()?.parse().ok()
}

/// Returns whether one host answers another: some tries, because the first may be spent on
/// learning.
pub fn reachable(guest: &mut Guest, address: &str) -> bool {
    guest.status(&until(20, &format!("ping -c 1 -W 2 {address}"))) == 0
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
///
/// `ping` waits for the last reply no longer than a second, and a busy machine may need more. So
/// where replies are missing in the end, one more request follows. Replies come in the order of
/// their requests: what has not come before that reply is lost.
pub struct PingRun {
    job: Job,
}

/// Requests that a ping sends until it is stopped: more than any test waits for.
const ENDLESS: u32 = 100_000;

impl PingRun {
    /// Starts `count` requests to `address`, behind which options of `ping` may stand. No other
    /// ping may run in this guest that is answered.
    pub fn start(guest: &mut Guest, address: &str, count: u32) -> PingRun {
        let replies = r#"replies() { awk '/^Icmp: [0-9]/ {print $11}' /proc/net/snmp; }"#;
        let to = address.split(' ').next().unwrap_or_default();
        let number = |before: &str, behind: &str| {
            format!(r#"$(echo "$said" | sed -n 's/{before}\([0-9][0-9]*\) {behind}.*/\1/p')"#)
        };
        let (sent, got) = (
            number("^", "packets transmitted"),
            number(".*, ", "packets received"),
        );
        let late = format!(
            "came=$(($(replies) - before - got)); \
             ping -q -c 1 -W 20 {to} >/dev/null && came=$(($(replies) - before - got - 1)); \
             echo \"$came replies came late\""
        );
        let command = format!(
            "{replies}; before=$(replies); \
             said=$(ping -q -i 0.01 -c {count} {address}); echo \"$said\"; \
             sent={sent}; got={got}; [ \"$sent\" = \"$got\" ] || {{ {late}; }}"
        );
        PingRun {
            job: guest.start(&command),
        }
    }

    /// Starts requests that do not end before [`PingRun::stop`].
    pub fn endless(guest: &mut Guest, address: &str) -> PingRun {
        Self::start(guest, address, ENDLESS)
    }

    /// Waits for the end.
    pub fn wait(self) -> Ping {
        Ping::parse_run(&self.job.wait(Duration::from_secs(180)))
    }

    /// Ends it.
    pub fn stop(self, guest: &mut Guest) -> Ping {
        guest.run("killall -INT ping");
        self.wait()
    }
}

/// `count` requests, a hundred a second, to their end.
pub fn ping(guest: &mut Guest, address: &str, count: u32) -> Ping {
    PingRun::start(guest, address, count).wait()
}

/// Starts iperf3's server in a guest; it serves one client after the other until the guest ends.
pub fn serve_iperf(guest: &mut Guest) {
    serve_iperf_at(guest, 5201);
}

/// As [`serve_iperf`], at another port.
pub fn serve_iperf_at(guest: &mut Guest, port: u16) {
    guest.run(&format!("iperf3 -s -D -p {port}"));
    guest.run(&until(100, &format!("netstat -ltn | grep -q :{port}")));
}

/// Ends iperf3 in a guest, whatever it does, and waits until it is gone.
pub fn end_iperf(guest: &mut Guest) {
    guest.run(&until(100, "! killall iperf3 2>/dev/null"));
}

/// Bytes of a TCP segment with the usual MTU and time stamps.
const SEGMENT: u64 = 1448;
/// MiB of a run that is not over before they are sent: far more than sockets keep.
const ENOUGH_MIB: u32 = 16;
/// How long such a run may take, beside the time that any run may need.
const PATIENCE: u32 = 120;

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

    /// Returns whether TCP has moved some megabytes and does not live on retransmissions.
    pub fn is_sound(&self) -> bool {
        self.bytes > 2_000_000 && self.retransmits * SEGMENT < self.bytes / 10
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
        Self::start_until(guest, address, (&format!("-t {seconds}"), seconds), options)
    }

    /// Starts a client that ends as the first option says, after so many seconds at most.
    fn start_until(
        guest: &mut Guest,
        address: &str,
        (end, seconds): (&str, u32),
        options: &str,
    ) -> IperfRun {
        let command =
            format!("iperf3 -c {address} {end} -i 0 -J --connect-timeout 30000 {options}");
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

/// Bytes that show that a transfer continues: hundreds of segments.
const PROGRESS: u64 = 300_000;
/// Seconds of a [`Transfer`] at most: more than any test takes.
const UNTIL_ENDED: u32 = 3600;

/// A TCP transfer that continues until it is ended. How fast it is depends on the machine: progress
/// is waited for.
pub struct Transfer<'a> {
    lasthop: &'a Lasthop,
    port: &'static str,
    job: IperfRun,
}

impl<'a> Transfer<'a> {
    /// Starts it towards `address`, which is at this port, and waits until it goes.
    pub fn start(
        guest: &mut Guest,
        address: &str,
        lasthop: &'a Lasthop,
        port: &'static str,
    ) -> Self {
        let job = IperfRun::start(guest, address, UNTIL_ENDED, "");
        let transfer = Self { lasthop, port, job };
        transfer.goes_on();
        transfer
    }

    /// Waits until more bytes have come through.
    ///
    /// # Panics
    /// When they do not within [`testkit::wait::LIMIT`].
    pub fn goes_on(&self) {
        let key = format!("{}.to_guest.bytes", self.port);
        let bytes = || self.lasthop.stats().get(&key);
        let before = bytes();
        wait_until("a transfer continues", || bytes() >= before + PROGRESS);
    }

    /// Ends it. `guest` is the one that sends.
    pub fn end(self, guest: &mut Guest) {
        end_iperf(guest);
        self.job.abandon();
    }
}

/// A TCP run of so many seconds to its end.
pub fn iperf(guest: &mut Guest, address: &str, seconds: u32, options: &str) -> Iperf {
    iperf_until(guest, address, (&format!("-t {seconds}"), seconds), options)
}

/// A TCP run of some megabytes, however long they take.
pub fn iperf_bytes(guest: &mut Guest, address: &str, options: &str) -> Iperf {
    let end = format!("-n {ENOUGH_MIB}M");
    iperf_until(guest, address, (&end, PATIENCE), options)
}

/// A TCP run to its end. The server may need a moment after the client before.
fn iperf_until(guest: &mut Guest, address: &str, end: (&str, u32), options: &str) -> Iperf {
    for _ in 0..100 {
        let report = IperfRun::start_until(guest, address, end, options).report();
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

/// ICMP messages, replies among them, that a guest's kernel has not sent because its socket had no
/// room, since it was booted.
pub fn unsent_replies(guest: &mut Guest) -> u64 {
    snmp(guest, &["OutErrors"])
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

/// A command that tries another so often, with pauses, until that succeeds.
fn until(tries: u32, condition: &str) -> String {
    format!(
        "n=0; while [ $n -lt {tries} ]; do {condition} && exit; n=$((n + 1)); sleep 0.2; done; \
         exit 1"
    )
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

    #[test]
    fn late_replies_are_none_that_are_lost() {
        let run = |received: u32, more: &str, late: u32| {
            let summary = format!("20 packets transmitted, {received} packets received, {more}");
            let ping = Ping::parse_run(&format!(
                "{summary}5% packet loss\n{late} replies came late\n"
            ));
            (ping.lost(), ping.received)
        };
        assert_eq!(run(19, "", 1), (0, 20));
        assert_eq!(run(17, "", 1), (2, 18));
        assert_eq!(run(19, "2 duplicates, ", 2), (1, 19));
        assert_eq!(run(19, "", 3), (0, 20), "of another ping");
    }
}
