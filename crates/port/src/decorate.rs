//! Ports around ports: [`Capture`] writes all frames to a pcapng stream, [`Faulty`] loses frames on
//! purpose.

use std::io::{self, Write};

use crate::{Accepts, Batch, DropReason, Outgoing, Port};

/// Writes every frame that the inner port was given, and every frame taken from it, as pcapng
/// (draft-ietf-opsawg-pcapng: section header, one Ethernet interface, enhanced packet blocks).
#[derive(Debug)]
pub struct Capture<P, W> {
    inner: P,
    out: W,
    /// Nanoseconds for the next packet; the owner advances it.
    pub now: u64,
    /// The first write error ends the capture, never the traffic.
    pub failed: Option<io::ErrorKind>,
}

const BLOCK_SECTION: u32 = 0x0a0d_0d0a;
const BLOCK_INTERFACE: u32 = 1;
const BLOCK_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u32 = 1;
/// `if_tsresol`: timestamps count 10^-9 s.
const OPTION_TSRESOL_NANO: [u8; 8] = [9, 0, 1, 0, 9, 0, 0, 0];

impl<P: Port, W: Write> Capture<P, W> {
    /// Wraps `inner` and starts the capture file.
    ///
    /// # Errors
    /// The header cannot be written.
    pub fn new(inner: P, mut out: W) -> io::Result<Self> {
        let mut section = Vec::new();
        for word in [0x1a2b_3c4d, 1, u32::MAX, u32::MAX] {
            section.extend_from_slice(&u32::to_le_bytes(word));
        }
        write_block(&mut out, BLOCK_SECTION, &section)?;
        let mut interface = Vec::new();
        interface.extend_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        interface.extend_from_slice(&0u32.to_le_bytes());
        interface.extend_from_slice(&OPTION_TSRESOL_NANO);
        interface.extend_from_slice(&[0; 4]);
        write_block(&mut out, BLOCK_INTERFACE, &interface)?;
        Ok(Self {
            inner,
            out,
            now: 0,
            failed: None,
        })
    }

    /// Returns the port and the stream.
    pub fn into_parts(self) -> (P, W) {
        (self.inner, self.out)
    }

    fn record(&mut self, frame: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let len = frame.len() as u32;
        let mut body = Vec::with_capacity(frame.len() + 24);
        for word in [0, (self.now >> 32) as u32, self.now as u32, len, len] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        body.extend_from_slice(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        if let Err(error) = write_block(&mut self.out, BLOCK_PACKET, &body) {
            self.failed = Some(error.kind());
        }
    }
}

fn write_block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let len = (body.len() as u32 + 12).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&len)?;
    out.write_all(body)?;
    out.write_all(&len)
}

impl<P: Port, W: Write> Port for Capture<P, W> {
    fn pairs(&self) -> u16 {
        self.inner.pairs()
    }

    fn accepts(&self) -> Accepts {
        self.inner.accepts()
    }

    fn mtu(&self) -> u32 {
        self.inner.mtu()
    }

    fn take(&mut self, pair: u16, batch: &mut Batch) {
        self.inner.take(pair, batch);
        for index in 0..batch.frames().len() {
            let (headers, payload, offload) = batch.split(index);
            let frame = Outgoing {
                headers: headers.as_slice(),
                payload: &payload,
                offload: *offload,
            }
            .to_vec();
            self.record(&frame);
        }
    }

    fn release(&mut self, pair: u16) {
        self.inner.release(pair);
    }

    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        self.inner.hold(pair, wait)
    }

    fn expect(&mut self, pair: u16, frames: usize) {
        self.inner.expect(pair, frames);
    }

    fn is_masked(&mut self, pair: u16) -> bool {
        self.inner.is_masked(pair)
    }

    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        self.inner.deliver(pair, frame)?;
        self.record(&frame.to_vec());
        Ok(())
    }

    fn flush(&mut self, pair: u16, now: u64) -> Option<u64> {
        self.inner.flush(pair, now)
    }

    fn notify(&mut self, pair: u16, now: u64) -> Option<u64> {
        self.inner.notify(pair, now)
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        self.inner.arm(pair, on)
    }
}

/// Drops every `nth` frame that the inner port should get.
#[derive(Debug)]
pub struct Faulty<P> {
    inner: P,
    nth: u64,
    seen: u64,
}

impl<P: Port> Faulty<P> {
    /// Wraps `inner`; an `nth` of 0 drops nothing, 1 everything.
    pub fn new(inner: P, nth: u64) -> Self {
        Self {
            inner,
            nth,
            seen: 0,
        }
    }

    /// Returns the inner port.
    pub fn into_inner(self) -> P {
        self.inner
    }
}

impl<P: Port> Port for Faulty<P> {
    fn pairs(&self) -> u16 {
        self.inner.pairs()
    }

    fn accepts(&self) -> Accepts {
        self.inner.accepts()
    }

    fn mtu(&self) -> u32 {
        self.inner.mtu()
    }

    fn take(&mut self, pair: u16, batch: &mut Batch) {
        self.inner.take(pair, batch);
    }

    fn release(&mut self, pair: u16) {
        self.inner.release(pair);
    }

    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        self.inner.hold(pair, wait)
    }

    fn expect(&mut self, pair: u16, frames: usize) {
        self.inner.expect(pair, frames);
    }

    fn is_masked(&mut self, pair: u16) -> bool {
        self.inner.is_masked(pair)
    }

    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        self.seen += 1;
        if self.nth != 0 && self.seen.is_multiple_of(self.nth) {
            return Err(DropReason::FaultInjected);
        }
        self.inner.deliver(pair, frame)
    }

    fn flush(&mut self, pair: u16, now: u64) -> Option<u64> {
        self.inner.flush(pair, now)
    }

    fn notify(&mut self, pair: u16, now: u64) -> Option<u64> {
        self.inner.notify(pair, now)
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        self.inner.arm(pair, on)
    }
}
