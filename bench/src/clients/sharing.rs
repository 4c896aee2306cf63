//! Lean clients, each with a pair of ports and a core, which may be the switch's own. They give way
//! when nothing arrives, as guests do that share their cores with the switch.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use load::lean::{Lean, LeanConfig, Until};

use super::Client;
use crate::peers::Peer;
use crate::stop;
use e2e::machine::pin;

/// Frames that a port sends before its client looks at the clock.
const BURST: u64 = 8192;
/// Most frames on their way in each direction: half a queue, so that none needs to be dropped.
const WINDOW: u64 = 512;

/// A client for each pair of ports; connected once they know the size of their frames.
pub(crate) struct Sharing {
    configs: Vec<LeanConfig>,
    cores: Vec<usize>,
    clients: Vec<Lean>,
}

impl Sharing {
    /// Returns the clients on these cores.
    pub(crate) fn on(peer: &Peer, cores: Vec<usize>) -> Self {
        let pairs = peer.sockets().chunks_exact(2);
        let one = |sockets: &[std::path::PathBuf]| LeanConfig {
            sockets: sockets.to_vec(),
            window: Some(WINDOW),
            ..LeanConfig::default()
        };
        let mut configs: Vec<LeanConfig> = pairs.map(one).collect();
        for (pair, config) in (0_u8..).zip(&mut configs) {
            config.macs = vec![[2, 0, 0, 0, pair, 1], [2, 0, 0, 0, pair, 2]];
        }
        Self {
            configs,
            cores,
            clients: Vec::new(),
        }
    }

    /// Frames that arrived in a second, all clients together.
    fn run(&mut self, time: Duration) -> Result<f64> {
        stop::check()?;
        std::thread::scope(|scope| {
            let clients = self.clients.iter_mut().zip(self.cores.iter().cycle());
            let threads: Vec<_> = clients
                .map(|(client, &core)| {
                    scope.spawn(move || {
                        pin(core)?;
                        rate(client, time)
                    })
                })
                .collect();
            let mut sum = 0.0;
            for thread in threads {
                sum += thread.join().ok().context("a thread panicked")??;
            }
            Ok(sum)
        })
    }
}

fn rate(client: &mut Lean, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let mut received = 0.0;
    while start.elapsed() < time {
        let report = client.run(Until::Sent(BURST))?;
        received += report.mpps() * report.elapsed.as_secs_f64();
    }
    Ok(received / start.elapsed().as_secs_f64())
}

impl Client for Sharing {
    fn name(&self) -> &'static str {
        "lean, several"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        // The ports must be free before they are connected again.
        self.clients.clear();
        for config in &mut self.configs {
            config.frame_len = u16::try_from(size)?;
            self.clients.push(Lean::connect(config.clone())?);
        }
        Ok(())
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        self.run(window)
    }
}
