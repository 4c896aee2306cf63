//! Chunks: small batches for helpers, executed entirely or not at all.
//!
//! A chunk is charged as every batch; one that is not executed is charged to no port. Cycles of
//! helpers stay out of the port's account with the home worker (`worker::fair`), which divides only
//! the home worker's time.

use channel::records::Upcall;
use policy::Action;
use port::{BatchLimit, Port, PortId};
use wire::flow::FlowKey;

use super::{Switch, UpcallSink};
use crate::guest::GuestPort;

/// Maximum size of a chunk, so that it takes microseconds. One frame is always taken, and the
/// longest is copied in about the time of eight small ones.
const CHUNK: BatchLimit = BatchLimit {
    frames: 8,
    bytes: 16 << 10,
};
/// Upcalls that are remembered, so that none is repeated too soon.
const RECENT_UPCALLS: usize = 32;
/// Interval after which an upcall may be repeated, milliseconds.
const RETRY_INTERVAL_MS: u64 = 100;

/// Outcome of [`Switch::serve_chunk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chunk {
    /// No frame waits.
    Empty,
    /// So many frames were forwarded.
    Done(u64),
    /// A frame has no flow: all frames of the chunk stay in the queue, and nothing was counted.
    Unknown,
}

/// Upcalls that a helper, which keeps no frames, has sent recently.
#[derive(Debug, Default)]
pub(crate) struct RecentUpcalls(Vec<(FlowKey, u64)>);

impl RecentUpcalls {
    /// Returns whether the upcall of this key is due, and notes it.
    fn is_due(&mut self, key: &FlowKey, now: u64) -> bool {
        self.0
            .retain(|(_, at)| now.saturating_sub(*at) < RETRY_INTERVAL_MS);
        let due = self.0.len() < RECENT_UPCALLS && self.0.iter().all(|(sent, _)| sent != key);
        if due {
            self.0.push((*key, now));
        }
        due
    }
}

impl Switch<GuestPort> {
    /// Serves a chunk like [`Switch::serve`], entirely or not at all. For an unknown flow it sends
    /// an upcall and leaves the frames in the queue: the home worker continues with them, and finds
    /// the flow or keeps the frames in order.
    pub(crate) fn serve_chunk(
        &mut self,
        (id, pair): (PortId, u16),
        now: u64,
        recent: &mut RecentUpcalls,
        upcalls: &mut dyn UpcallSink,
    ) -> Chunk {
        self.meter.begin();
        self.batch.set_limit(CHUNK);
        self.batch.clear();
        let Some(slot) = self.fabric.slot(id) else {
            return Chunk::Empty;
        };
        slot.port.take(pair, &mut self.batch);
        if self.batch.is_untouched() {
            slot.port.untake_leased(pair);
            return Chunk::Empty;
        }
        self.build_flow_batches(id);
        if let Some(unknown) = self.find_all(0, now) {
            let index = self.flow_batches[unknown].frames.start;
            let found: usize = self.action_batches.iter().map(|run| run.frames.len()).sum();
            self.figures.hits -= found as u64;
            self.send_upcall_only(index, id, now, recent, upcalls);
            self.batch.clear();
            if let Some(slot) = self.fabric.slot(id) {
                slot.port.untake_leased(pair);
            }
            return Chunk::Unknown;
        }
        // From here on the chunk is executed entirely.
        self.fabric.serving = pair;
        self.count_taken(id);
        self.drop_malformed(id);
        let frames = self.batch.taken().packets;
        self.execute_batch(id, pair);
        Chunk::Done(frames)
    }

    /// Sends the upcall of a frame that is not kept here.
    #[cold]
    fn send_upcall_only(
        &mut self,
        index: usize,
        from: PortId,
        now: u64,
        recent: &mut RecentUpcalls,
        upcalls: &mut dyn UpcallSink,
    ) {
        self.batch.deepen(index);
        let (headers, payload, _) = self.batch.split(index);
        let frame_len = headers.as_slice().len() as u32 + payload.len();
        let headers = headers.as_slice();
        let key = self.fabric.exact_key(from, headers, frame_len as usize, 0);
        if recent.is_due(&key, now) {
            self.figures.upcalls += 1;
            upcalls.send(&Upcall {
                id: self.pending.number(),
                key: *key.words(),
                frame_len,
                headers: headers.to_vec(),
            });
        }
    }

    /// Returns the receiver of the last frames that were served, if it is one port.
    pub(crate) fn last_receiver(&self) -> Option<PortId> {
        match self.action_batches.last()?.action {
            Action::Unicast { port, .. } => Some(port),
            Action::Flood { .. } | Action::Drop(_) => None,
        }
    }
}
