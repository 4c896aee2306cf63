//! A small batch, done entirely or not at all, for who serves a queue pair in the place of its home.
//!
//! It is billed as every batch is; one that is not done costs nobody anything. What helpers have spent on a port stays out of its
//! account with the pair's home (`worker::fair`): that divides the home's time, which this saves.

use channel::records::Upcall;
use policy::Action;
use port::{BatchLimit, Port, PortId};
use wire::flow::FlowKey;

use super::{Switch, UpcallSink};
use crate::guest::GuestPort;

/// What a piece is: so little that it is done within microseconds. One frame is always taken, and the longest is copied
/// in about the time that small ones take.
const PIECE: BatchLimit = BatchLimit {
    frames: 8,
    bytes: 16 << 10,
};
/// Questions that are remembered, so that none is asked again and again.
const ASKED: usize = 32;
/// Time after which a question may be asked again, milliseconds.
const ASK_AGAIN_MS: u64 = 100;

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// No frame waits.
    Nothing,
    /// So many frames are done.
    Done(u64),
    /// There is no flow for a frame: all frames of the piece wait where they were, and nothing was counted.
    Unknown,
}

/// What control was asked lately by who keeps no frames.
#[derive(Debug, Default)]
pub(crate) struct Asked(Vec<(FlowKey, u64)>);

impl Asked {
    /// Whether this is to be asked now.
    fn is_due(&mut self, key: &FlowKey, now: u64) -> bool {
        self.0
            .retain(|(_, at)| now.saturating_sub(*at) < ASK_AGAIN_MS);
        let due = self.0.len() < ASKED && self.0.iter().all(|(asked, _)| asked != key);
        if due {
            self.0.push((*key, now));
        }
        due
    }
}

impl Switch<GuestPort> {
    /// As [`Switch::serve`], a piece, all of it or nothing. For a flow that is not known here control is asked, and the frames
    /// stay with their sender: who is home to the pair goes on with them, and knows the flow or keeps them in order.
    pub(crate) fn serve_piece(
        &mut self,
        (id, pair): (PortId, u16),
        now: u64,
        asked: &mut Asked,
        upcalls: &mut dyn UpcallSink,
    ) -> Piece {
        self.meter.begin();
        self.batch.set_limit(PIECE);
        self.batch.clear();
        let Some(slot) = self.fabric.slot(id) else {
            return Piece::Nothing;
        };
        slot.port.take(pair, &mut self.batch);
        if self.batch.is_untouched() {
            slot.port.put_back(pair);
            return Piece::Nothing;
        }
        self.line_up(id);
        if let Some(unknown) = self.find_all(0, now) {
            let index = self.trains[unknown].frames.start;
            let found: usize = self.runs.iter().map(|run| run.frames.len()).sum();
            self.figures.hits -= found as u64;
            self.ask_only(index, id, now, asked, upcalls);
            self.batch.clear();
            if let Some(slot) = self.fabric.slot(id) {
                slot.port.put_back(pair);
            }
            return Piece::Unknown;
        }
        // From here on it is done to the end.
        self.fabric.serving = pair;
        self.count_taken(id);
        self.lose_refused(id);
        let frames = self.batch.taken().packets;
        self.carry_out(id, pair);
        Piece::Done(frames)
    }

    /// Asks control about a frame that is not kept here.
    #[cold]
    fn ask_only(
        &mut self,
        index: usize,
        from: PortId,
        now: u64,
        asked: &mut Asked,
        upcalls: &mut dyn UpcallSink,
    ) {
        self.batch.deepen(index);
        let (headers, payload, _) = self.batch.split(index);
        let frame_len = headers.as_slice().len() as u32 + payload.len();
        let headers = headers.as_slice();
        let key = self.fabric.exact_key(from, headers, frame_len as usize, 0);
        if asked.is_due(&key, now) {
            self.figures.upcalls += 1;
            upcalls.send(&Upcall {
                id: self.parking.number(),
                key: *key.words(),
                frame_len,
                headers: headers.to_vec(),
            });
        }
    }

    /// Where the last frames went that were served, if to one port.
    pub(crate) fn last_receiver(&self) -> Option<PortId> {
        match self.runs.last()?.action {
            Action::Unicast { port, .. } => Some(port),
            Action::Flood { .. } | Action::Drop(_) => None,
        }
    }
}
