//! A memif client, written from the protocol (DPDK 22.11, `drivers/net/memif/memif.h`).
//!
//! ```text
//! region 0:  ring S2M 0 | S2M 1 ... | ring M2S 0 | M2S 1 ... | buffers, unless they have their own
//! region 1:                                                    buffers of rings in that order
//! ```

mod dialog;
mod ring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

pub use dialog::{Dialog, Said, code};
pub use ring::{COOKIE, Descriptor, NEXT, NO_INTERRUPT, Ring};

use ring::Memory;

/// The request of a client.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Version of the protocol.
    pub version: u16,
    /// Number of the interface.
    pub id: u32,
    /// Interface mode; 0 is Ethernet.
    pub mode: u8,
    /// The secret, at most 24 bytes.
    pub secret: Vec<u8>,
    /// Name of the program, at most 32 bytes.
    pub program: String,
    /// Rings of each direction.
    pub pairs: u16,
    /// Logarithm of the descriptors of each ring.
    pub log2_size: u8,
    /// Bytes of each buffer.
    pub buffer: u32,
    /// Buffers have a region of their own, as libmemif's and those of zero-copy clients.
    pub own_region: bool,
    /// Files cannot shrink, as libmemif's and DPDK's.
    pub sealed: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            version: 0x200,
            id: 0,
            mode: 0,
            secret: Vec::new(),
            program: "testkit".into(),
            pairs: 1,
            log2_size: 8,
            buffer: 2048,
            own_region: false,
            sealed: true,
        }
    }
}

impl Spec {
    fn size(&self) -> u32 {
        1 << self.log2_size
    }

    fn ring_bytes(&self) -> u32 {
        128 + 16 * self.size()
    }

    fn rings(&self) -> u32 {
        2 * u32::from(self.pairs)
    }

    /// Payload of the `INIT`.
    #[must_use]
    pub fn init(&self) -> Vec<u8> {
        let mut secret = self.secret.clone();
        secret.resize(24, 0);
        let mut program = self.program.clone().into_bytes();
        program.resize(32, 0);
        [
            &self.version.to_ne_bytes()[..],
            &self.id.to_ne_bytes(),
            &[self.mode],
            &secret,
            &program,
        ]
        .concat()
    }
}

/// Payload of an `ADD_REGION`.
#[must_use]
pub fn add_region(index: u16, size: u64) -> Vec<u8> {
    [&index.to_ne_bytes()[..], &size.to_ne_bytes()].concat()
}

/// The fields of an `ADD_RING`.
#[derive(Clone, Copy, Debug)]
pub struct AddRing {
    /// Bit 0: frames to the server.
    pub flags: u16,
    /// Index among the rings of this direction.
    pub index: u16,
    /// Region of the ring.
    pub region: u16,
    /// Offset in the region.
    pub offset: u32,
    /// Logarithm of the descriptors.
    pub log2_size: u8,
    /// Bytes of a private header.
    pub private_header: u16,
}

impl AddRing {
    /// The payload.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        [
            &self.flags.to_ne_bytes()[..],
            &self.index.to_ne_bytes(),
            &self.region.to_ne_bytes(),
            &self.offset.to_ne_bytes(),
            &[self.log2_size],
            &self.private_header.to_ne_bytes(),
        ]
        .concat()
    }
}

/// A name as a payload of `CONNECT`.
#[must_use]
pub fn name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(32, 0);
    bytes
}

/// A connected client.
#[derive(Debug)]
pub struct MemifClient {
    /// Its messages.
    pub dialog: Dialog,
    /// Rings to the server.
    pub to_server: Vec<Ring>,
    /// Rings from the server.
    pub from_server: Vec<Ring>,
    files: Vec<OwnedFd>,
}

impl MemifClient {
    /// Connects to a listening server, and waits until it has answered `CONNECT`.
    ///
    /// # Errors
    /// The reason of a `DISCONNECT`, or a message that does not belong there.
    pub fn connect(path: &Path, spec: &Spec, timeout: Duration) -> io::Result<Self> {
        Self::over(Dialog::connect(path, timeout)?, spec)
    }

    /// As [`MemifClient::connect`], over a connected socket.
    ///
    /// # Errors
    /// As [`MemifClient::connect`].
    pub fn over(dialog: Dialog, spec: &Spec) -> io::Result<Self> {
        let mut client = Self::prepare(dialog, spec)?;
        client.dialog.expect(code::HELLO)?;
        client.introduce(spec)?;
        client.finish()?;
        Ok(client)
    }

    /// Sends `CONNECT`, and uses the rings when it is answered.
    ///
    /// # Errors
    /// As [`MemifClient::connect`].
    pub fn finish(&mut self) -> io::Result<()> {
        self.dialog.send(code::CONNECT, &name("client0"), None)?;
        self.dialog.expect(code::CONNECTED)?;
        self.start();
        Ok(())
    }

    /// Creates memory and rings, and says nothing yet.
    ///
    /// # Errors
    /// A failed system call.
    pub fn prepare(dialog: Dialog, spec: &Spec) -> io::Result<Self> {
        let rings = spec.rings() * spec.ring_bytes();
        let buffers = spec.rings() * spec.size() * spec.buffer;
        let regions = if spec.own_region {
            vec![rings, buffers]
        } else {
            vec![rings + buffers]
        };
        let made = regions
            .iter()
            .map(|size| Memory::new(u64::from(*size), spec.sealed));
        let memory = made.collect::<io::Result<Vec<_>>>()?;
        let ring = |at: u32| {
            let (region, base) = if spec.own_region { (1, 0) } else { (0, rings) };
            let place = at * spec.ring_bytes();
            let first = base + at * spec.size() * spec.buffer;
            let ring = Ring::new(&memory, place, spec.log2_size)?;
            ring.init(region, first, spec.buffer);
            Ok(ring)
        };
        let mut all = (0..spec.rings())
            .map(ring)
            .collect::<io::Result<Vec<_>>>()?;
        let from_server = all.split_off(usize::from(spec.pairs));
        let files = memory
            .iter()
            .map(|memory| memory.file().try_clone_to_owned());
        Ok(Self {
            dialog,
            to_server: all,
            from_server,
            files: files.collect::<io::Result<_>>()?,
        })
    }

    /// Sends everything from `INIT` to the last ring; each is acknowledged.
    ///
    /// # Errors
    /// As [`MemifClient::connect`].
    pub fn introduce(&mut self, spec: &Spec) -> io::Result<()> {
        self.introduce_in_steps(spec, || ())
    }

    /// As [`MemifClient::introduce`]; `between` is called between the regions and the rings.
    ///
    /// # Errors
    /// As [`MemifClient::connect`].
    pub fn introduce_in_steps(&mut self, spec: &Spec, between: impl FnOnce()) -> io::Result<()> {
        self.ask(code::INIT, &spec.init(), None)?;
        for (index, file) in self.files.iter().enumerate() {
            let size = rustix::fs::fstat(file)?.st_size as u64;
            let payload = add_region(index as u16, size);
            self.dialog
                .send(code::ADD_REGION, &payload, Some(file.as_fd()))?;
            self.dialog.expect(code::ACK)?;
        }
        between();
        for (flags, rings) in [(1, &self.to_server), (0, &self.from_server)] {
            for (index, ring) in rings.iter().enumerate() {
                let add = AddRing {
                    flags,
                    index: index as u16,
                    region: 0,
                    offset: ring.offset(),
                    log2_size: spec.log2_size,
                    private_header: 0,
                };
                let event = Some(ring.event());
                self.dialog.send(code::ADD_RING, &add.payload(), event)?;
                self.dialog.expect(code::ACK)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, code: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.dialog.send(code, payload, fd)?;
        self.dialog.expect(code::ACK).map(|_| ())
    }

    /// Does the same as DPDK's client when `CONNECTED` has come: all indices become zero. Then the
    /// server gets all buffers.
    pub fn start(&mut self) {
        for ring in self.to_server.iter_mut().chain(&mut self.from_server) {
            ring.reset();
        }
        for ring in &mut self.from_server {
            ring.refill();
        }
    }

    /// The memory files of its regions.
    #[must_use]
    pub fn files(&self) -> &[OwnedFd] {
        &self.files
    }

    /// Sends a frame, in several buffers if it is long, and interrupts the server if it wants that.
    /// Returns whether there was room.
    ///
    /// # Errors
    /// A failed interrupt.
    pub fn send(&mut self, pair: usize, frame: &[u8]) -> io::Result<bool> {
        let ring = &mut self.to_server[pair];
        if !ring.put(frame) {
            return Ok(false);
        }
        ring.publish();
        ring.interrupt()?;
        Ok(true)
    }

    /// Takes a frame that the server has sent, and gives its buffers back.
    pub fn receive(&mut self, pair: usize) -> Option<Vec<u8>> {
        let frame = self.from_server[pair].take();
        self.from_server[pair].refill();
        frame
    }
}
