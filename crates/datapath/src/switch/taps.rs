//! Captures and mirrors of the switch, and the frames that are emitted without a flow.

use std::sync::Arc;

use channel::capture::Way;
use port::{DropReason, Port, PortId};

use super::Switch;
use crate::mirror::Mirror;
use crate::pending_upcalls::PendingUpcall;
use crate::tap::{Tap, TapPayload, TappedFrame};

impl<P: Port> Switch<P> {
    /// Adds a tap.
    pub fn add_tap(&mut self, tap: Tap) {
        self.fabric.taps.get_or_insert_default().add(tap);
    }

    /// Removes the taps of the capture with this number.
    pub fn remove_tap(&mut self, id: u32) {
        self.remove_taps(|tap| tap.id == id);
    }

    /// Removes the taps of a port.
    pub(super) fn remove_taps_of(&mut self, port: PortId) {
        self.remove_taps(|tap| tap.port == port);
    }

    fn remove_taps(&mut self, leaves: impl Fn(&Tap) -> bool) {
        let Some(taps) = &mut self.fabric.taps else {
            return;
        };
        taps.remove(leaves);
        self.remove_idle_taps();
    }

    /// Replaces the mirrors.
    pub fn set_mirrors(&mut self, mirrors: Arc<[Mirror]>) {
        let taps = self.fabric.taps.get_or_insert_default();
        taps.set_mirrors(mirrors);
        self.remove_idle_taps();
    }

    /// Drops the tap state when it is empty, so that frames take the path without taps.
    fn remove_idle_taps(&mut self) {
        if self.fabric.taps.as_ref().is_some_and(|w| w.is_empty()) {
            self.fabric.taps = None;
        }
    }

    /// Emits a frame of the batch that is dropped.
    #[cold]
    pub(super) fn emit_drop(&mut self, index: usize, from: PortId, reason: DropReason) {
        if self.fabric.taps.is_none() {
            return;
        }
        let (headers, payload, offload) = self.batch.split(index);
        let shown = TappedFrame {
            headers: headers.as_slice(),
            rest: TapPayload::Leased(&payload),
            offload: *offload,
        };
        self.fabric.emit(from, Way::In, shown, Some(reason));
        // No queue lock may be held when the batch's receivers are announced, nor those of the
        // copies.
        self.fabric.flush();
    }

    /// Emits frames whose upcall timed out.
    pub(super) fn emit_undecided(&mut self, waiting: &PendingUpcall) {
        if self.fabric.taps.is_none() {
            return;
        }
        for frame in &waiting.frames {
            let shown = TappedFrame {
                headers: frame.headers.as_slice(),
                rest: TapPayload::Owned(&frame.payload),
                offload: frame.offload,
            };
            let reason = DropReason::UpcallTimeout;
            self.fabric
                .emit(waiting.port(), Way::In, shown, Some(reason));
        }
        // Flushes the copies that mirrors made of them.
        self.fabric.flush();
        self.fabric.charge_receivers(0);
    }
}
