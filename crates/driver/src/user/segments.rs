//! Segments of guests on their way to sockets: those of one connection that come together leave by
//! one call, and get one acknowledgement. Their bytes stay in the buffers of the switch until then.

use usernet::{FlowId, Nanos, SocketEvent};

use super::gateway::Gateway;
use super::memory::Bytes;

/// Bytes of a connection that wait, in their order.
#[derive(Debug)]
struct Run {
    flow: FlowId,
    pieces: Vec<Bytes>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The connection whose bytes came first is the first.
    waiting: Vec<Run>,
    /// Empty lists, to be used again.
    spare: Vec<Vec<Bytes>>,
}

impl Segments {
    fn put(&mut self, flow: FlowId, bytes: Bytes) {
        // The frame before is likely to be of the same connection.
        let run = self.waiting.iter_mut().rfind(|run| run.flow == flow);
        if let Some(run) = run {
            return run.pieces.push(bytes);
        }
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.push(bytes);
        self.waiting.push(Run { flow, pieces });
    }

    fn take(&mut self, flow: FlowId) -> Option<Run> {
        let at = self.waiting.iter().position(|run| run.flow == flow)?;
        Some(self.waiting.remove(at))
    }

    fn recycle(&mut self, mut run: Run) {
        run.pieces.clear();
        self.spare.push(run.pieces);
    }
}

impl Gateway {
    /// Has bytes of the frame at hand leave with those that follow for the same connection.
    pub(super) fn send(&mut self, flow: FlowId, bytes: Bytes) {
        self.segments.put(flow, bytes);
        self.sends.hold();
    }

    /// Sends the segments that wait.
    pub(super) fn flush_segments(&mut self, now: Nanos) {
        for run in std::mem::take(&mut self.segments.waiting) {
            if let Some(event) = self.send_run(&run) {
                let mut actions = Vec::new();
                self.report(run.flow, event, now, &mut actions);
                self.perform(actions, None, now);
            }
            self.segments.recycle(run);
        }
    }

    /// Sends the segments of a connection that is about to be closed.
    pub(super) fn send_last(&mut self, flow: FlowId) {
        if let Some(run) = self.segments.take(flow) {
            // There is no connection that a result could be reported of.
            let _ = self.send_run(&run);
            self.segments.recycle(run);
        }
    }

    fn send_run(&mut self, run: &Run) -> Option<SocketEvent> {
        let socket = self.sockets.get(run.flow)?;
        self.counters.frames.sent.calls += 1;
        let bytes: usize = run.pieces.iter().map(|piece| piece.len()).sum();
        let event = match socket.send(&run.pieces) {
            Ok(taken) if taken as usize == bytes => {
                let (room, needs_more) = socket.room_and_need();
                match needs_more && self.sockets.await_room(run.flow).is_err() {
                    true => SocketEvent::Reset,
                    false => SocketEvent::Sent { taken, room },
                }
            }
            // The system takes no more: an estimate of the room would be wrong.
            Ok(taken) => SocketEvent::Sent { taken, room: 0 },
            Err(_) => SocketEvent::Reset,
        };
        if let SocketEvent::Sent { taken, .. } = event {
            self.counters.totals.from_guests += u64::from(taken);
        }
        Some(event)
    }
}
