//! Traffic between the client and the servers outside, and what of it arrives.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use load::lean::Histogram;
use sockets::{Errno, Id, Kind};

use super::super::busy::RequestSample;
use super::guest::{Guest, now};
use super::servers::{self, DATAGRAM, MESSAGE, Servers, at};
use crate::plan::Plan;
use crate::process::wake_ups;

/// Bytes of a call that sends or receives.
const CHUNK: usize = 64 << 10;
/// Datagrams of one turn.
const BATCH: usize = 32;
/// How often a client without an answer asks its server for datagrams.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Kind and direction of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    TcpOut,
    TcpIn,
    UdpOut,
    UdpIn,
    /// Messages of 64 bytes and their answers, one at a time on each connection.
    Requests,
    /// The same with a connection for each.
    Connects,
}

/// Counts of a time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Bytes, datagrams, or answers.
    pub(super) count: u64,
    /// Nanoseconds of requests.
    pub(super) latency: Histogram,
}

/// One connection with its request.
struct Asking {
    id: Id,
    /// When the request began, once it did.
    began: Option<Duration>,
    /// Bytes of the answer so far.
    got: usize,
    is_sent: bool,
}

/// Traffic that has begun.
pub(super) struct Traffic {
    load: Load,
    flows: Vec<Asking>,
    chunk: Vec<u8>,
    asked: Duration,
}

impl Load {
    fn server(self) -> SocketAddr {
        at(match self {
            Self::TcpOut | Self::UdpOut => servers::SINK,
            Self::TcpIn | Self::UdpIn => servers::SOURCE,
            Self::Requests => servers::ECHO,
            Self::Connects => servers::ONCE,
        })
    }

    fn is_udp(self) -> bool {
        matches!(self, Self::UdpOut | Self::UdpIn)
    }

    /// The number of a tally as the tables have it: Gbit/s, thousands of datagrams or answers a
    /// second.
    pub(super) fn per_second(self, count: u64, seconds: f64) -> f64 {
        let count = count as f64 / seconds;
        match self {
            Self::TcpOut | Self::TcpIn => count * 8.0 / 1e9,
            Self::UdpOut | Self::UdpIn => count / 1e3,
            Self::Requests | Self::Connects => count / 1e3,
        }
    }
}

impl Asking {
    fn new(id: Id) -> Self {
        Self {
            id,
            began: None,
            got: 0,
            is_sent: false,
        }
    }
}

impl Traffic {
    /// Opens so many flows.
    pub(super) fn open(guest: &mut Guest, load: Load, flows: usize) -> Result<Self> {
        let server = load.server();
        let ids = if load.is_udp() {
            let one = |_| {
                let id = guest.stack.open(Kind::Datagram)?;
                guest.stack.connect(id, server)?;
                Ok(id)
            };
            (0..flows).map(one).collect::<Result<Vec<Id>>>()?
        } else if load == Load::Connects {
            let one = |_| guest.connect(server);
            (0..flows).map(one).collect::<Result<Vec<Id>>>()?
        } else {
            guest.open(server, flows)?
        };
        Ok(Self {
            load,
            flows: ids.into_iter().map(Asking::new).collect(),
            chunk: vec![0; CHUNK],
            asked: Duration::ZERO,
        })
    }

    /// Lets the traffic flow for a time.
    pub(super) fn run(
        &mut self,
        guest: &mut Guest,
        servers: &Servers,
        time: Duration,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        let before = servers.counted();
        guest.run(now() + time, |guest| match self.load {
            Load::TcpOut | Load::UdpOut => self.send(guest),
            Load::TcpIn | Load::UdpIn => self.receive(guest, &mut tally),
            Load::Requests | Load::Connects => self.ask(guest, &mut tally),
        })?;
        if matches!(self.load, Load::TcpOut | Load::UdpOut) {
            tally.count = servers.counted() - before;
        }
        Ok(tally)
    }

    /// Requests of the time of a sample.
    pub(super) fn asked(
        &mut self,
        guest: &mut Guest,
        servers: &Servers,
        plan: &Plan,
    ) -> Result<RequestSample> {
        self.run(guest, servers, plan.settle)?;
        let slept = wake_ups();
        let Tally { count, latency } = self.run(guest, servers, plan.window)?;
        ensure!(count > 0, "no answer arrived");
        Ok(RequestSample {
            a_second: count as f64 / plan.window.as_secs_f64(),
            p50_us: latency.quantile(0.5) as f64 / 1e3,
            p99_us: latency.quantile(0.99) as f64 / 1e3,
            wake_ups: wake_ups().saturating_sub(slept) as f64 / count as f64,
        })
    }

    /// Ends all flows.
    pub(super) fn end(self, guest: &mut Guest) -> Result<()> {
        let ids: Vec<Id> = self.flows.iter().map(|flow| flow.id).collect();
        guest.abort(&ids)
    }

    fn send(&mut self, guest: &mut Guest) -> Result<bool> {
        let (times, len) = match self.load.is_udp() {
            true => (BATCH, DATAGRAM),
            false => (1, CHUNK),
        };
        let mut has_worked = false;
        for flow in &self.flows {
            for _ in 0..times {
                match guest.stack.send(flow.id, &self.chunk[..len], None) {
                    Ok(_) => has_worked = true,
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(has_worked)
    }

    fn receive(&mut self, guest: &mut Guest, tally: &mut Tally) -> Result<bool> {
        let is_udp = self.load.is_udp();
        if is_udp && now().saturating_sub(self.asked) >= ASK_AGAIN {
            self.asked = now();
            for flow in &self.flows {
                guest.stack.send(flow.id, &self.chunk[..1], None)?;
            }
        }
        let mut has_worked = false;
        for flow in &self.flows {
            for _ in 0..BATCH {
                match guest.stack.receive(flow.id, &mut self.chunk, false) {
                    Ok(received) => {
                        ensure!(received.len > 0, "a server has ended a connection");
                        tally.count += if is_udp { 1 } else { received.len as u64 };
                        has_worked = true;
                    }
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(has_worked)
    }

    fn ask(&mut self, guest: &mut Guest, tally: &mut Tally) -> Result<bool> {
        let connects = self.load == Load::Connects;
        let server = self.load.server();
        let mut has_worked = false;
        for flow in &mut self.flows {
            let began = *flow.began.get_or_insert_with(now);
            if !flow.is_sent {
                if connects && !guest.is_open(flow.id)? {
                    continue;
                }
                guest.stack.send(flow.id, &[1; MESSAGE], None)?;
                flow.is_sent = true;
                has_worked = true;
            }
            let room = &mut self.chunk[..MESSAGE - flow.got];
            match guest.stack.receive(flow.id, room, false) {
                Ok(received) => {
                    ensure!(received.len > 0, "a server has ended a connection");
                    flow.got += received.len;
                }
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            }
            if flow.got < MESSAGE {
                continue;
            }
            has_worked = true;
            tally.count += 1;
            tally.latency.record((now() - began).as_nanos() as u64);
            if connects {
                guest.stack.close(flow.id);
                *flow = Asking::new(guest.connect(server)?);
                flow.began = Some(now());
            } else {
                *flow = Asking::new(flow.id);
            }
        }
        Ok(has_worked)
    }
}
