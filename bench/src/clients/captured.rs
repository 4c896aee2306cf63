//! A client with a capture of its first port beside it, while it is measured and not before.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Captured, Client};
use crate::captures::{CaptureSpec, Captures, Outcome};
use crate::peers::{Kind, Peer};
use crate::procfs;

/// The name of Lasthop's forwarding threads.
const WORKER: &str = "worker";

/// See the module.
pub(crate) struct CapturedClient {
    inner: Box<dyn Client>,
    captures: Captures,
    spec: Option<CaptureSpec>,
    /// The switch, where its thread pauses while there is nothing to do.
    switch: Option<u32>,
    last: Option<Captured>,
}

impl CapturedClient {
    pub(crate) fn new(peer: &Peer, captures: Captures, inner: Box<dyn Client>) -> Self {
        let switch = (peer.kind() == Kind::Lasthop).then(|| peer.pids());
        Self {
            inner,
            captures,
            spec: None,
            switch: switch.and_then(|pids| pids.first().copied()),
            last: None,
        }
    }

    /// Sets the capture beside the next measurements, if any.
    pub(crate) fn set_capture(&mut self, spec: Option<CaptureSpec>) {
        self.spec = spec;
    }

    fn worker_seconds(&self) -> Option<f64> {
        self.switch.map(|pid| procfs::named_seconds(pid, WORKER))
    }
}

impl Client for CapturedClient {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        self.inner.set_size(size)
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.inner.warm_up(time)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        let capture = self
            .spec
            .map(|spec| self.captures.begin(spec))
            .transpose()?;
        let before = self.worker_seconds();
        let begin = Instant::now();
        let mpps = self.inner.mpps(window)?;
        let seconds = begin.elapsed().as_secs_f64();
        let worker = self.worker_seconds().zip(before);
        let outcome = match capture {
            Some(capture) => capture.end()?,
            None => Outcome::default(),
        };
        let arrived = mpps * 1e6 * window.as_secs_f64();
        self.last = Some(Captured {
            meant: outcome.meant.unwrap_or(arrived as u64),
            written: outcome.written,
            seconds,
            forwarding_ns: worker.map(|(after, before)| 1e9 * (after - before) / arrived.max(1.0)),
            writing_ns: (outcome.written > 0)
                .then(|| 1e9 * outcome.seconds / outcome.written as f64),
        });
        Ok(mpps)
    }

    fn idle(&self) -> Option<f64> {
        self.inner.idle()
    }

    fn captured(&self) -> Option<&Captured> {
        self.last.as_ref()
    }

    fn freeze(&self) -> Result<()> {
        self.inner.freeze()
    }

    fn thaw(&self) -> Result<()> {
        self.inner.thaw()
    }
}
