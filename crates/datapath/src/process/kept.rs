//! Taking over from a switch that died, or that rests.
//!
//! ```text
//!              after a death                                planned (see `hand_over`)
//! supervisor   what was kept: descriptors and records
//! control      adopts, adds the wanted ports:               likewise; none has a connection yet
//!              each claims its connection
//!              publishes the program: all connections       likewise
//!              go on, those of unwanted ports end
//! supervisor                                                what was kept, and that they may go on
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use channel::keeping::{ConnectionRecord, SOCKET};
use channel::switching::PortConfig;
use port::PortId;
use virtio::vhost_user::hang_up;

use super::Process;
use crate::attach::KeptConnection;
use crate::culprit;

/// How long a port whose frames fill all room for those that wait for control may keep the rest in its queue.
const PATIENCE_MS: u64 = 500;
/// For so long connections are brought back in a row.
const AT_ONCE: Duration = Duration::from_millis(50);

/// What the supervisor has given and no port has claimed yet.
#[derive(Debug)]
pub(super) struct KeptConnections {
    taking_over: bool,
    /// Until the supervisor says that they may go on.
    waits: bool,
    files: BTreeMap<PortId, BTreeMap<u64, OwnedFd>>,
    whole: BTreeMap<PortId, KeptConnection>,
    /// Ports whose record makes no sense.
    refused: Vec<PortId>,
    /// Ports whose connections are to go on now.
    waiting: VecDeque<PortId>,
}

impl KeptConnections {
    pub(super) fn new(taking_over: bool, waits: bool) -> Self {
        Self {
            taking_over,
            waits,
            files: BTreeMap::new(),
            whole: BTreeMap::new(),
            refused: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Whether control has not said yet what is wanted of what there was before.
    pub(super) fn is_taking_over(&self) -> bool {
        self.taking_over
    }

    /// Whether the switch before this one runs still.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// It does not any more.
    pub(super) fn wait_no_more(&mut self) {
        self.waits = false;
    }

    pub(super) fn add_files(&mut self, port: PortId, numbers: Vec<u64>, fds: Vec<OwnedFd>) {
        let files = self.files.entry(port).or_default();
        files.extend(numbers.into_iter().zip(fds));
    }

    pub(super) fn add_record(&mut self, port: PortId, record: &[u8], condemned: bool) {
        let files = self.files.remove(&port).unwrap_or_default();
        match ConnectionRecord::from_bytes(record) {
            Ok(record) => {
                let kept = KeptConnection {
                    record,
                    files,
                    condemned,
                };
                self.whole.insert(port, kept);
            }
            Err(reason) => {
                tracing::error!(port = port.0, "its connection ends: {reason}");
                files.get(&SOCKET).into_iter().for_each(hang_up);
                self.refused.push(port);
            }
        }
    }

    /// The connection that is this port's.
    pub(super) fn claim(&mut self, port: &PortConfig) -> Option<KeptConnection> {
        let kept = self.whole.remove(&port.id)?;
        if kept.belongs_to(port) {
            return Some(kept);
        }
        tracing::info!(
            port = port.name,
            "its connection ends: it is another port now"
        );
        kept.end();
        self.refused.push(port.id);
        None
    }

    /// The taking over is done: ports whose connections nobody wants.
    fn finish(&mut self) -> Vec<PortId> {
        self.taking_over = false;
        self.files.clear();
        let mut over = std::mem::take(&mut self.refused);
        for (port, kept) in std::mem::take(&mut self.whole) {
            kept.end();
            over.push(port);
        }
        over
    }
}

impl Process {
    /// Everything is in place: the connections of before go on.
    pub(super) fn go_on(&mut self) {
        if !self.kept.is_taking_over() || self.kept.waits() {
            return;
        }
        // A guest whose frames were taken before its peer is back would lose them.
        self.workers.rest();
        self.workers
            .each(|w| w.switch.be_patient(w.now(), PATIENCE_MS));
        for id in self.kept.finish() {
            if self
                .ports
                .get(&id)
                .is_none_or(|port| port.socket().is_none())
            {
                self.deposits.forget(id);
            }
        }
        self.kept.waiting = self.ports.keys().copied().collect();
        self.go_on_due();
    }

    /// Goes on with connections, as many as there is time for: others have their turn then.
    pub(super) fn go_on_due(&mut self) {
        let began = Instant::now();
        while began.elapsed() < AT_ONCE
            && let Some(id) = self.kept.waiting.pop_front()
        {
            self.go_on_with(id);
        }
        if self.kept.waiting.is_empty() {
            self.workers.unrest();
        }
    }

    /// Goes on with all of them, however long that takes: nobody else serves them.
    pub(super) fn go_on_with_all(&mut self) {
        self.go_on();
        while self.next_to_go_on().is_some() {
            self.go_on_due();
        }
    }

    fn go_on_with(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id).filter(|p| p.is_to_revive()) else {
            return;
        };
        let served = culprit::serve(Some(id));
        port.revive(&self.workers);
        drop(served);
        self.part_with_stranger(id);
        if let Some(port) = self.ports.get(&id)
            && let Err(error) = self.watch_listener(id, port)
        {
            tracing::error!("connections of a port cannot be waited for: {error}");
        }
        self.watch(id);
        // Level-triggered: what waits in the socket is heard. An answer that waits in the pipe is not.
        self.pump(id);
    }

    /// When to go on with more: at once, if there are any.
    pub(super) fn next_to_go_on(&self) -> Option<Instant> {
        (!self.kept.waiting.is_empty()).then(Instant::now)
    }
}
